package workspace

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

type plainStruct struct {
	A byte
	B uint64
	C [3]struct{ X, Y float32 }
	D complex128
	E bool
}

type namedWord uintptr

// A pointer in memory that the collector does not look into keeps nothing
// alive (ortuman/nuke#14, golang/go#51317). So types that hold one are refused.
func TestPointersAreRefused(t *testing.T) {
	refused[*int](t)
	refused[unsafe.Pointer](t)
	refused[string](t)
	refused[[]byte](t)
	refused[[]int](t)
	refused[map[int]int](t)
	refused[chan int](t)
	refused[func()](t)
	refused[any](t)
	refused[error](t)
	refused[fmt.Stringer](t)
	refused[[1]*int](t)
	refused[[2][3][4]string](t)
	refused[[0]*int](t) // holds none, and is refused to be on the safe side
	refused[struct{ s string }](t)
	refused[struct {
		plainStruct
		last *byte
	}](t)
	refused[struct {
		_ [0]byte
		_ *int
	}](t)
	refused[struct {
		a [2]struct{ b struct{ c []uint8 } }
	}](t)
	refused[[3]struct {
		n int
		f func()
	}](t)
	refused[time.Time](t) // has a *time.Location
	refused[reflect.Value](t)
	refused[atomic.Pointer[int]](t)
	refused[atomic.Value](t)
	refused[strings.Builder](t)
	refused[Snapshot](t)
}

// refused checks that no helper takes T.
func refused[T any](t *testing.T) {
	t.Helper()
	name := reflect.TypeFor[T]().String()
	t.Run(name, func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		for range 2 { // the second time from memory
			for fn, f := range map[string]func(){
				"MakeSlice": func() { MakeSlice[T](a, 1) },
				"Alloc":     func() { Alloc[T](a) },
				"CopyOf":    func() { CopyOf(a, make([]T, 1)) },
				"no values": func() { MakeSlice[T](a, 0) },
				"CopyOf ()": func() { CopyOf[T](a, nil) },
			} {
				err := panicOf(f)
				require.ErrorIs(t, err, ErrMisuse, fn)
				require.Contains(t, err.Error(), name, "the message names the type")
			}
		}
		require.Zero(t, a.Mark(), "nothing has moved")
		require.False(t, a.Overflowed())
	})
}

func TestPointerFreeTypes(t *testing.T) {
	accepted[bool](t)
	accepted[int8](t)
	accepted[uint8](t)
	accepted[int16](t)
	accepted[uint32](t)
	accepted[int64](t)
	accepted[uint64](t)
	accepted[int](t)
	accepted[uintptr](t)
	accepted[namedWord](t)
	accepted[float32](t)
	accepted[float64](t)
	accepted[complex64](t)
	accepted[complex128](t)
	accepted[[5]byte](t)
	accepted[[3][7]uint16](t)
	accepted[plainStruct](t)
	accepted[struct{ a [2]plainStruct }](t)
	accepted[struct {
		_ byte
		_ [0]uint64
		n int32
	}](t)
	accepted[atomic.Int64](t)
	accepted[atomic.Uint32](t)
	accepted[time.Duration](t)
	accepted[[4096]byte](t)
}

// accepted checks zeroing, place, alignment and cap of values of type T.
func accepted[T any](t *testing.T) {
	t.Helper()
	t.Run(reflect.TypeFor[T]().String(), func(t *testing.T) {
		var zero T
		size, align := int(unsafe.Sizeof(zero)), max(8, unsafe.Alignof(zero))
		pool := newTestPool(t, Config{ClientSize: 64 << 10, AuditEvery: -1})
		ws := pool.Acquire()
		defer ws.Release()
		a := ws.Client()
		start := a.Snapshot()
		stain(a.Alloc(a.Room()), 1)
		for _, n := range []int{1, 2, 3, 10} {
			for _, before := range []int{0, 1, 7, 13} {
				a.Rewind(start)
				a.AllocAligned(before, 1) // odd-sized neighbours, as in ortuman/nuke#16
				s := MakeSlice[T](a, n)
				require.Equal(t, []int{n, n}, []int{len(s), cap(s)})
				require.Zero(t, uintptr(unsafe.Pointer(&s[0]))%align)
				require.Equal(t, alignUp(before, 8)+n*size, a.Position())
				require.Equal(t, alignUp(before, 8), placeOf(a, bytesOf(&s[0], n)))
				require.Equal(t, -1, firstNonZero(bytesOf(&s[0], n)), "zero, also over old bytes")

				p := Alloc[T](a)
				require.Zero(t, uintptr(unsafe.Pointer(p))%align)
				require.Equal(t, -1, firstNonZero(bytesOf(p, 1)))

				stain(bytesOf(&s[0], n), 2)
				c := CopyOf(a, s)
				require.Equal(t, []int{n, n}, []int{len(c), cap(c)})
				require.Equal(t, bytesOf(&s[0], n), bytesOf(&c[0], n))
				require.Equal(t, -1, firstNonZero(bytesOf(p, 1)), "the neighbour is untouched")
			}
		}
	})
}

// 64-bit atomics in the arena work on 32-bit machines, too: golang/go#13868.
func TestAtomicsInTheArena(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	for range 5 {
		a.AllocAligned(1, 1)
		n := Alloc[uint64](a)
		require.EqualValues(t, 3, atomic.AddUint64(n, 3))
		m := &MakeSlice[struct {
			small uint32
			big   atomic.Int64
		}](a, 3)[1]
		require.EqualValues(t, 4, m.big.Add(4))
		require.Zero(t, m.small)
	}
}

// Plain 64-bit words that are used atomically crash on 32-bit machines when they
// are not aligned, as in a struct behind a smaller field (golang/go#13868,
// minio/minio#12559). The types of package atomic see to it themselves, so the
// library uses no others.
func TestAtomicsAreAlignedAnywhere(t *testing.T) {
	var mine struct {
		small  uint32
		pool   Pool
		small2 uint32
		ws     Workspace
	}
	for name, n := range map[string]*atomic.Int64{"rests": &mine.pool.rests, "abandoned": &mine.pool.abandoned} {
		require.Zero(t, uintptr(unsafe.Pointer(n))%8, name)
		require.EqualValues(t, 1, n.Add(1))
	}
	mine.ws.doubt(doubtPanic)
	require.NotZero(t, mine.ws.doubts.Load())

	function := regexp.MustCompile(`\batomic\.(Add|And|CompareAndSwap|Load|Or|Store|Swap)(Int|Uint)`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotRegexp(t, function, string(text), name)
		}
	}
}

// The last value of a half ends where the half ends. The race build also checks
// that no conversion of a pointer reaches beyond its object (etcd-io/bbolt#201,
// golang/go#78413).
func TestTypedAtTheVeryEnd(t *testing.T) {
	ws := acquireSmall(t, Config{})
	for _, h := range bothHalves {
		a := arenaOf(ws, h)
		start := a.Snapshot()
		for n := 1; n <= 5; n++ {
			a.Rewind(start)
			a.Alloc(arenaHalf - n*int(unsafe.Sizeof(plainStruct{})))
			s := MakeSlice[plainStruct](a, n)
			s[n-1] = plainStruct{A: 1, D: 1i, E: true}
			require.Equal(t, s, CopyOf(a, s), "on the heap, as nothing is left")
			require.Equal(t, arenaHalf, a.Position())
			require.Equal(t, arenaHalf, placeOf(a, bytesOf(&s[0], n))+len(bytesOf(&s[0], n)))
			require.NoError(t, ws.Audit())
		}
	}
}

// golang/go#55870: count times size wrapped, and a slice claimed more than it had.
func TestTypedSizesThatWrap(t *testing.T) {
	type big [1 << 20]byte
	a := acquireSmall(t, Config{}).Client()
	a.Alloc(5)
	for name, c := range map[string]struct {
		want error
		f    func()
	}{
		"wraps to zero":         {ErrMisuse, func() { MakeSlice[uint64](a, math.MaxInt/4+1) }},
		"wraps to a small one":  {ErrMisuse, func() { MakeSlice[uint64](a, math.MaxInt/4+2) }},
		"wraps to negative":     {ErrMisuse, func() { MakeSlice[uint16](a, math.MaxInt/2+1) }},
		"one element too many":  {ErrMisuse, func() { MakeSlice[uint64](a, math.MaxInt/8+1) }},
		"large elements":        {ErrMisuse, func() { MakeSlice[big](a, math.MaxInt>>20+1) }},
		"odd size":              {ErrMisuse, func() { MakeSlice[[3]byte](a, math.MaxInt/3+1) }},
		"most":                  {ErrMisuse, func() { MakeSlice[uint32](a, math.MaxInt) }},
		"negative":              {ErrMisuse, func() { MakeSlice[uint64](a, -1) }},
		"very negative":         {ErrMisuse, func() { MakeSlice[uint64](a, math.MinInt) }},
		"negative count of {}":  {ErrMisuse, func() { MakeSlice[struct{}](a, -1) }},
		"fits an int, not more": {ErrFull, func() { MakeSlice[uint64](a, math.MaxInt/8) }},
		"bytes":                 {ErrFull, func() { MakeSlice[byte](a, math.MaxInt) }},
	} {
		requirePanicIs(t, c.want, c.f)
		require.Equal(t, []int{5, 5}, []int{a.Position(), a.Mark()}, name)
	}
	require.Len(t, MakeSlice[uint64](a, 3), 3)
}

func TestZeroSizeTypes(t *testing.T) {
	ws := acquireSmall(t, Config{MaxSpill: -1})
	a := ws.Client()
	for _, p := range []int{0, 3, arenaHalf} {
		ws.Reset()
		a.AllocAligned(p, 1)
		require.NotNil(t, Alloc[struct{}](a))
		require.NotNil(t, Alloc[[0]uint64](a))
		require.Len(t, MakeSlice[struct{}](a, 1000), 1000)
		require.Len(t, MakeSlice[struct{}](a, math.MaxInt), math.MaxInt)
		require.Len(t, MakeSlice[[0]uint64](a, 7), 7)
		require.NotNil(t, MakeSlice[uint64](a, 0))
		require.Zero(t, cap(MakeSlice[uint64](a, 0)))
		require.Empty(t, CopyOf[uint64](a, nil))
		require.Len(t, CopyOf(a, make([]struct{}, 3)), 3)
		require.Equal(t, p, a.Position())
		require.Equal(t, p, a.Mark())
		require.False(t, a.Overflowed())
	}
}

func TestTypedOnTheHeap(t *testing.T) {
	ws := acquireSmall(t, Config{MaxSpill: 10000})
	a := ws.Client()
	a.Alloc(arenaHalf - 8)
	s := MakeSlice[plainStruct](a, 20)
	require.Equal(t, -1, placeOf(a, bytesOf(&s[0], 20)))
	require.Zero(t, uintptr(unsafe.Pointer(&s[0]))%8)
	require.Equal(t, make([]plainStruct, 20), s)
	require.True(t, a.Overflowed())
	require.Equal(t, arenaHalf-8, a.Position())
	*Alloc[[100]uint64](a) = [100]uint64{99: 1}
	require.Equal(t, []uint64{1, 2}, CopyOf(a, []uint64{1, 2}))
	requirePanicIs(t, ErrFull, func() { MakeSlice[[1000]byte](a, 10) })
	for n := 9; n < 40; n++ { // with 8 bytes left
		require.Zero(t, uintptr(unsafe.Pointer(&MakeSlice[byte](a, n)[0]))%8, "%d bytes", n)
	}
	require.EqualValues(t, 1, *func() *int64 { p := Alloc[int64](a); *p = 1; return p }())
	require.Equal(t, arenaHalf, a.Position(), "the last one fits")
}

// Values in the arena survive collections and stack growth, and the collector
// finds nothing to complain of.
func TestTypedUnderCollections(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: 64 << 10, AuditEvery: -1})
	for round := range fewer(16) {
		ws := pool.Acquire()
		a := ws.Client()
		rng := rand.New(rand.NewPCG(uint64(round), 1))
		var slices [][]plainStruct
		var sums []uint64
		for a.Room() > 2000 {
			a.AllocAligned(rng.IntN(9), 1)
			s := MakeSlice[plainStruct](a, 1+rng.IntN(10))
			sum := uint64(0)
			for i := range s {
				s[i].B = rng.Uint64()
				s[i].D = complex(float64(i), 1)
				s[i].A, s[i].E = byte(i), true
				sum += s[i].B
			}
			slices, sums = append(slices, s), append(sums, sum)
		}
		garbage := make([][]byte, 0, 200)
		for range 200 {
			garbage = append(garbage, make([]byte, 1+rng.IntN(8<<10)))
		}
		runtime.GC()
		deep(50)
		require.Len(t, garbage, 200)
		for i, s := range slices {
			sum := uint64(0)
			for j := range s {
				require.Equal(t, byte(j), s[j].A)
				sum += s[j].B
			}
			require.Equal(t, sums[i], sum)
		}
		ws.Release()
	}
}

// deep makes the stack grow, so that it moves.
func deep(n int) int {
	var b [1 << 10]byte
	if n == 0 {
		return int(b[0])
	}
	b[n%len(b)] = 1
	return deep(n-1) + int(b[n%len(b)])
}

// The block itself must not be scanned: words in it that look like pointers keep
// nothing alive.
func TestArenaKeepsNothingAlive(t *testing.T) {
	ws := acquireSmall(t, Config{})
	word := Alloc[uintptr](ws.Client())
	collected := make(chan bool)
	func() {
		p := new([1 << 16]byte)
		runtime.AddCleanup(p, func(int) { close(collected) }, 0)
		*word = uintptr(unsafe.Pointer(p))
	}()
	for range 10 {
		runtime.GC()
		select {
		case <-collected:
			return
		case <-time.After(waitLimit / 10):
		}
	}
	require.Fail(t, "a number in the arena kept an object alive")
}

func TestTypedMemoryIsPlainBytes(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	s := MakeSlice[uint32](a, 4)
	s[1] = 0x01020304
	require.Equal(t, uint32(0x01020304), binary.NativeEndian.Uint32(a.mem()[4:]))
}
