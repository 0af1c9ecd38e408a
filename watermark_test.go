package workspace

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const arenaHalf = 4 << 10 // size of each half here

// acquireSmall returns a workspace with small halves and every operation
// audited. It is released at the end of the test.
func acquireSmall(t testing.TB, cfg Config) *Workspace {
	t.Helper()
	cfg.ClientSize, cfg.BackendSize = arenaHalf, arenaHalf
	ws := newTestPool(t, cfg).Acquire()
	t.Cleanup(func() {
		if !ws.ended.Load() {
			ws.Release()
		}
	})
	return ws
}

// placeOf is where b begins in the half of a, or -1 when it is elsewhere.
func placeOf(a *Arena, b []byte) int {
	o := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem())))
	if o >= uintptr(len(a.mem())) {
		return -1
	}
	return int(o)
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// An allocator is one way to get n bytes from an arena.
type allocator struct {
	name  string
	alloc func(a *Arena, n int) []byte
}

var allocators = []allocator{
	{"Alloc", func(a *Arena, n int) []byte { return a.Alloc(n) }},
	{"AllocAligned", func(a *Arena, n int) []byte { return a.AllocAligned(n, 8) }},
	{"TryAlloc", func(a *Arena, n int) []byte {
		b, err := a.TryAlloc(n)
		if err != nil {
			panic(err)
		}
		return b
	}},
	{"Copy", func(a *Arena, n int) []byte { return a.Copy(make([]byte, n)) }},
	{"CopyString", func(a *Arena, n int) []byte { return a.CopyString(string(make([]byte, n))) }},
	{"Reserve and Commit", func(a *Arena, n int) []byte {
		clear(a.Reserve(n))
		return a.Commit(n)
	}},
	{"Reserve more and Commit", func(a *Arena, n int) []byte {
		stain(a.Reserve(min(n+9, max(n, a.Room()))), 9)
		b := a.Commit(n)
		clear(b)
		return b
	}},
	{"Buffer", func(a *Arena, n int) []byte {
		b := a.Buffer()
		if _, err := b.Write(make([]byte, n)); err != nil {
			panic(err)
		}
		return b.Bytes()
	}},
	{"MakeSlice", func(a *Arena, n int) []byte { return MakeSlice[byte](a, n) }},
	{"CopyOf", func(a *Arena, n int) []byte { return CopyOf(a, make([]byte, n)) }},
}

// Whatever hands out memory hands out n bytes of it, owned by the caller alone,
// zero where zero is promised, and moves P by as much.
func TestAllocators(t *testing.T) {
	for _, al := range allocators {
		t.Run(al.name, func(t *testing.T) {
			ws := acquireSmall(t, Config{})
			a := ws.Client()
			for _, n := range weirdSizes(arenaHalf) {
				if n == 0 || n > a.Size() {
					continue
				}
				ws.Reset()
				b := al.alloc(a, n)
				require.Equal(t, []int{n, n}, []int{len(b), cap(b)}, "len and cap")
				require.Equal(t, -1, firstNonZero(b))
				require.Zero(t, placeOf(a, b))
				require.Equal(t, n, a.Position())
				require.GreaterOrEqual(t, a.Mark(), n)
				require.False(t, a.Overflowed())
				stain(b, 1)
				requireTail(t, a)
			}
		})
	}
}

// Zero bytes are no reason to panic, move anything or hand out an address of
// somebody else's. See fmstephe/memorymanager#18 and ncw/directio#3.
func TestZeroSizes(t *testing.T) {
	for _, al := range allocators {
		if al.name == "Reserve more and Commit" {
			continue // not a reservation of zero bytes
		}
		t.Run(al.name, func(t *testing.T) {
			ws := acquireSmall(t, Config{MaxSpill: -1})
			a := ws.Client()
			for _, p := range []int{0, 16, 19, arenaHalf - 1, arenaHalf} {
				ws.Reset()
				a.AllocAligned(p, 1)
				b := al.alloc(a, 0)
				require.Zero(t, len(b)+cap(b))
				require.Equal(t, al.name == "Buffer", b == nil, "nil or not: the same everywhere")
				require.Equal(t, []int{p, p}, []int{a.Position(), a.Mark()}, "nothing has moved")
				require.False(t, a.Overflowed())

				// The result is as good as any other empty slice.
				clear(b)
				require.Equal(t, -1, firstNonZero(b))
				require.Equal(t, []byte{1}, append(b, 1))
				require.Empty(t, string(b))
				requireTail(t, a)
			}
		})
	}
}

// samber/lo#438, golang/go#28860: a slice with the capacity of all that follows.
func TestNeighboursAreOutOfReach(t *testing.T) {
	for _, al := range allocators {
		t.Run(al.name, func(t *testing.T) {
			a := acquireSmall(t, Config{}).Client()
			first := al.alloc(a, 5)
			second := al.alloc(a, 5)
			stain(second, 2)
			want := bytes.Clone(second)
			p, w := a.Position(), a.Mark()

			grown := append(first, 0xee)
			require.Equal(t, want, second)
			require.Equal(t, -1, placeOf(a, grown), "growth moves elsewhere")
			require.Equal(t, 5, len(first[:cap(first)]))
			require.Panics(t, func() { _ = first[:6] })
			_ = append(first[:0], bytes.Repeat([]byte{0xee}, 100)...)
			require.Equal(t, want, second)
			require.Equal(t, []int{p, w}, []int{a.Position(), a.Mark()}, "the arena does not see it")
			requireTail(t, a)
		})
	}
}

// fitzgen/bumpalo#69, RUSTSEC-2020-0006: growth copied the new size rather than
// the old one, and so whatever lay behind. A Buffer is what grows here.
func TestGrowthCopiesWhatWasWritten(t *testing.T) {
	for name, between := range map[string]func(a *Arena){
		"last allocation":     func(*Arena) {},
		"not the last":        func(a *Arena) { stain(a.Alloc(50), 2) },
		"no room in the half": func(a *Arena) { stain(a.Alloc(a.Room()), 2) },
	} {
		t.Run(name, func(t *testing.T) {
			ws := acquireSmall(t, Config{})
			a := ws.Client()
			s := a.Snapshot()
			stain(a.Alloc(arenaHalf), 1) // so that what lies behind is not zero
			a.Rewind(s)
			b := a.Buffer()
			b.Write(bytes.Repeat([]byte{7}, 100))
			between(a)
			b.Grow(900)
			require.Equal(t, bytes.Repeat([]byte{7}, 100), b.Bytes())
			require.Equal(t, 100, b.Len())
			b.Write(make([]byte, 900))
			require.Equal(t, append(bytes.Repeat([]byte{7}, 100), make([]byte, 900)...), b.Bytes())
			require.Equal(t, arenaHalf, a.Mark())
			requireNoTag(t, b.Bytes(), 0)
		})
		// On a fresh half nobody has written to the rest of the larger piece.
		t.Run(name+", fresh half", func(t *testing.T) {
			a := acquireSmall(t, Config{}).Client()
			b := a.Buffer()
			b.Grow(100)
			b.Write(bytes.Repeat([]byte{7}, 90))
			between(a)
			b.Grow(900)
			free := b.AvailableBuffer()
			require.Equal(t, -1, firstNonZero(free[:cap(free)]), "more was copied than was written")
		})
	}
}

// grpc/grpc-go#7702: what is wiped and counted must not depend on what the
// caller's slices look like in the end.
func TestCallersSlicesDecideNothing(t *testing.T) {
	for _, mode := range allModes {
		pool := newTestPool(t, Config{Mode: mode, ClientSize: arenaHalf, BackendSize: arenaHalf})
		ws := pool.Acquire()
		blk := ws.blk
		bs := [][]byte{ws.Client().Alloc(500), ws.Client().Alloc(600), ws.Client().Alloc(700)}
		for _, b := range bs {
			stain(b, 1)
		}
		bs[0], bs[1], bs[2] = bs[0][:0], bs[1][:1:1], make([]byte, 10)
		require.Equal(t, 504+600+700, ws.Client().Mark())
		ws.Release()
		requireWiped(t, blk)
		m := pool.Stats().Modes[mode].Client
		require.EqualValues(t, arenaHalf-1804, m.SavedBytes)
	}
}

// RUSTSEC-2026-0007, CVE-2026-25541: offset plus size wrapped, so a size that
// was far too large passed.
func TestSizesNearTheLimit(t *testing.T) {
	sizes := []int{math.MaxInt}
	for d := 1; d <= 64; d++ {
		sizes = append(sizes, math.MaxInt-d)
	}
	for d := -64; d <= 64; d++ {
		sizes = append(sizes, arenaHalf+d)
	}
	for _, p := range []int{0, 1, 8, arenaHalf - 1, arenaHalf} {
		for align := 1; align <= maxAlign; align *= 2 {
			a := acquireSmall(t, Config{MaxSpill: -1, AuditEvery: -1}).Client()
			start := a.Snapshot()
			for _, n := range sizes {
				a.Rewind(start)
				a.AllocAligned(p, 1)
				w := a.Mark()
				off := alignUp(p, align)
				if n <= arenaHalf-off {
					require.Len(t, a.AllocAligned(n, align), n)
					continue
				}
				requirePanicIs(t, ErrFull, func() { a.AllocAligned(n, align) })
				require.Equal(t, p, a.Position(), "AllocAligned(%d, %d) at %d", n, align, p)
				require.Equal(t, w, a.Mark())
				require.True(t, a.Overflowed())
				if p <= arenaHalf-8 {
					require.Len(t, a.Alloc(1), 1, "small ones still work")
				}
			}
		}
	}
}

func TestNegativeSizes(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	a.Alloc(3)
	for _, n := range []int{-1, -7, -8, -9, -64, -arenaHalf, math.MinInt, math.MinInt + 1, math.MinInt + 63} {
		for name, f := range map[string]func(){
			"Alloc":        func() { a.Alloc(n) },
			"AllocAligned": func() { a.AllocAligned(n, 64) },
			"Reserve":      func() { a.Reserve(n) },
			"Grow":         func() { a.Buffer().Grow(n) },
			"MakeSlice":    func() { MakeSlice[uint16](a, n) },
			"Commit":       func() { a.Commit(n) },
		} {
			requirePanicIs(t, ErrMisuse, f)
			require.Equal(t, []int{3, 3}, []int{a.Position(), a.Mark()}, name)
		}
		_, err := a.TryAlloc(n)
		require.ErrorIs(t, err, ErrMisuse)
		require.False(t, a.Overflowed(), "a wrong size is no overflow")
	}
}

func TestAlignment(t *testing.T) {
	t.Run("in the half", func(t *testing.T) {
		for align := 1; align <= 64; align *= 2 {
			a := acquireSmall(t, Config{}).Backend()
			for _, n := range []int{1, 3, 8, 13, 64, 65, 100} {
				p := a.Position()
				b := a.AllocAligned(n, align)
				require.Zero(t, addr(b)%uintptr(align), "align %d", align)
				require.Less(t, a.Position()-p-n, align, "no more padding than needed")
				require.Equal(t, n, cap(b))
				require.Zero(t, addr(a.Alloc(1))%8)
			}
		}
	})
	t.Run("on the heap", func(t *testing.T) {
		for align := 1; align <= 64; align *= 2 {
			a := acquireSmall(t, Config{}).Client()
			a.Alloc(arenaHalf)
			for _, n := range []int{1, 3, 8, 13, 64, 65, 100, arenaHalf} {
				b := a.AllocAligned(n, align)
				require.Equal(t, -1, placeOf(a, b))
				require.Zero(t, addr(b)%uintptr(align), "align %d", align)
				requireZeros(t, b, n)
			}
		}
	})
	t.Run("of the halves", func(t *testing.T) {
		for client := MinHalfSize; client <= 40<<10; client += HalfSizeStep {
			pool := newTestPool(t, Config{ClientSize: client, BackendSize: MinHalfSize})
			ws := pool.Acquire()
			require.Zero(t, addr(ws.Client().AllocAligned(1, 64))%64, "client half of %d bytes", client)
			require.Zero(t, addr(ws.Backend().AllocAligned(1, 64))%64, "backend half after %d bytes", client)
			ws.Release()
		}
	})
	t.Run("refused", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		for _, align := range []int{0, -1, -8, 3, 6, 24, 63, 65, 128, 4096, math.MaxInt, math.MinInt} {
			requirePanicIs(t, ErrMisuse, func() { a.AllocAligned(8, align) })
			requirePanicIs(t, ErrMisuse, func() { a.AllocAligned(0, align) })
		}
		require.Zero(t, a.Position())
	})
}

func TestRoom(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	for p := range arenaHalf + 1 {
		ws.Reset()
		a.AllocAligned(p, 1)
		room := a.Room()
		require.Equal(t, arenaHalf-alignUp(p, 8), room)
		_, err := a.TryAlloc(room + 1)
		require.ErrorIs(t, err, ErrFull)
		b, err := a.TryAlloc(room)
		require.NoError(t, err)
		require.Len(t, b, room)
		if p%97 > 0 && p < arenaHalf-70 {
			continue // the rest is slow, and these are the interesting ones
		}
		a.Reserve(0)
		require.Zero(t, a.Room(), "none while a reservation is open")
		a.Abort()
	}
}

// Every byte that Alloc hands out is zero, however much of it was written before.
func TestZeroAfterRewind(t *testing.T) {
	zeroing := []allocator{
		allocators[0], allocators[1], allocators[2],
		{"AllocAligned(1)", func(a *Arena, n int) []byte { return a.AllocAligned(n, 1) }},
		{"AllocAligned(64)", func(a *Arena, n int) []byte { return a.AllocAligned(n, 64) }},
		{"MakeSlice", func(a *Arena, n int) []byte { return MakeSlice[byte](a, n) }},
		{"Alloc[T]", func(a *Arena, n int) []byte { return Alloc[[100]byte](a)[:] }},
	}
	for _, al := range zeroing {
		t.Run(al.name, func(t *testing.T) {
			for _, dirty := range []int{1, 7, 8, 9, 99, 100, 101, 108, 164, 165, 3000, arenaHalf} {
				a := acquireSmall(t, Config{AuditEvery: -1}).Client()
				a.Alloc(24)
				s := a.Snapshot()
				stain(a.Alloc(min(dirty, a.Room())), 1)
				w := a.Mark()
				a.Rewind(s)
				requireZeros(t, al.alloc(a, 100), 100)
				require.Equal(t, max(w, a.Position()), a.Mark())
				requireZeros(t, al.alloc(a, 100), 100)
			}
		})
	}
	t.Run("not more than handed out", func(t *testing.T) {
		for _, al := range zeroing {
			a := acquireSmall(t, Config{}).Client()
			s := a.Snapshot()
			stain(a.Alloc(1000), 1)
			a.Rewind(s)
			al.alloc(a, 100)
			require.NotZero(t, a.mem()[100], "%s: a rewind costs what is allocated after it", al.name)
		}
	})
}

// Copies are not zeroed first, so they must cover every byte they hand out.
func TestCopy(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	s := a.Snapshot()
	stain(a.Alloc(3000), 1)
	a.Rewind(s)
	src := []byte("a request's own copy")
	for _, got := range [][]byte{a.Copy(src), a.CopyString(string(src))} {
		require.Equal(t, src, got)
		require.Equal(t, len(src), cap(got))
		require.NotEqual(t, -1, placeOf(a, got))
		got[0] = 'A'
		require.EqualValues(t, 'a', src[0])
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), arenaHalf/16+1)
	require.Equal(t, big, a.Copy(big), "on the heap")
	require.Equal(t, big, a.CopyString(string(big)))
	require.True(t, a.Overflowed())
	require.NotNil(t, a.Copy(nil))
}

// varnishcache/varnish-cache#3194, #3202: a rewind also took the overflow mark
// back, and an answer that was built in part went out.
func TestOverflowIsSticky(t *testing.T) {
	for name, full := range map[string]func(a *Arena){
		"Alloc":    func(a *Arena) { a.Alloc(arenaHalf) },
		"TryAlloc": func(a *Arena) { _, _ = a.TryAlloc(arenaHalf) },
		"Copy":     func(a *Arena) { a.Copy(make([]byte, arenaHalf)) },
		"Reserve":  func(a *Arena) { a.Reserve(arenaHalf); a.Abort() },
		"Buffer":   func(a *Arena) { a.Buffer().Write(make([]byte, arenaHalf)) },
		"MakeSlice": func(a *Arena) {
			MakeSlice[uint32](a, arenaHalf/4)
		},
		"Alloc[T]": func(a *Arena) { Alloc[[arenaHalf]byte](a) },
	} {
		t.Run(name, func(t *testing.T) {
			ws := acquireSmall(t, Config{})
			pool, a := ws.pool, ws.Client()
			s := a.Snapshot()
			a.Alloc(16)
			require.False(t, a.Overflowed())
			full(a)
			require.True(t, a.Overflowed())
			require.Equal(t, 16, a.Position(), "nothing has moved")
			require.Equal(t, 16, a.Mark())
			a.Rewind(s)
			require.True(t, a.Overflowed())
			require.Len(t, a.Alloc(16), 16)
			full(a)
			require.True(t, a.Overflowed())
			require.False(t, ws.Backend().Overflowed())
			ws.Reset() // a new message
			require.False(t, a.Overflowed())
			ws.Release()
			require.EqualValues(t, 1, pool.Stats().Totals().Overflows, "once, not once a call")
		})
	}
}

func TestMaxSpill(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		a := acquireSmall(t, Config{MaxSpill: -1}).Client()
		a.Alloc(arenaHalf - 10)
		requirePanicIs(t, ErrFull, func() { a.Alloc(11) })
		requirePanicIs(t, ErrFull, func() { a.Reserve(11) })
		requirePanicIs(t, ErrFull, func() { a.Copy(make([]byte, 11)) })
		requirePanicIs(t, ErrFull, func() { a.CopyString("0123456789a") })
		require.Nil(t, a.res, "a reservation that failed is not open")
		require.Len(t, a.Alloc(0), 0)
		require.Equal(t, arenaHalf-10, a.Position())
	})
	t.Run("to the last byte, each half its own", func(t *testing.T) {
		ws := acquireSmall(t, Config{MaxSpill: 10000})
		pool := ws.pool
		for _, a := range []*Arena{ws.Client(), ws.Backend()} {
			a.Alloc(arenaHalf)
			requireZeros(t, a.Alloc(6000), 6000)
			requirePanicIs(t, ErrFull, func() { a.Alloc(4001) })
			requireZeros(t, a.AllocAligned(3999, 64), 3999)
			a.Reserve(1)
			require.Len(t, a.Commit(1), 1)
			requirePanicIs(t, ErrFull, func() { a.Alloc(1) })
			require.Equal(t, arenaHalf, a.Position())
		}
		ws.Reset()
		ws.Client().Alloc(arenaHalf)
		require.Len(t, ws.Client().Alloc(10000), 10000, "each message has the whole budget")
		ws.Release()
		require.EqualValues(t, 30000, pool.Stats().SpilledBytes)
	})
	t.Run("by what is left, not by a sum", func(t *testing.T) {
		a := acquireSmall(t, Config{MaxSpill: math.MaxInt - maxAlign}).Client()
		a.Alloc(arenaHalf)
		a.Alloc(100)
		requirePanicIs(t, ErrFull, func() { a.Alloc(math.MaxInt) })
		requirePanicIs(t, ErrFull, func() { a.Alloc(math.MaxInt - maxAlign - 99) })
		require.Equal(t, 100, a.spilled)
	})
	t.Run("heap memory is zero and never in the block", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		a.Alloc(arenaHalf)
		for range 50 {
			b := a.Alloc(1000)
			requireZeros(t, b, 1000)
			require.Equal(t, -1, placeOf(a, b))
			stain(b, 1)
		}
		require.Zero(t, ws.Backend().Mark())
	})
}

func TestReservations(t *testing.T) {
	t.Run("nothing else while one is open", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		s := a.Snapshot()
		b := a.Buffer()
		b.WriteString("0123456789")
		res := a.Reserve(100)
		stain(res, 1)
		p, w := a.Position(), a.Mark()
		for name, f := range map[string]func(){
			"Alloc":        func() { a.Alloc(1) },
			"Alloc(0)":     func() { a.Alloc(0) },
			"AllocAligned": func() { a.AllocAligned(1, 1) },
			"Copy":         func() { a.Copy([]byte("x")) },
			"CopyString":   func() { a.CopyString("x") },
			"Reserve":      func() { a.Reserve(1) },
			"Reserve(0)":   func() { a.Reserve(0) },
			"Snapshot":     func() { a.Snapshot() },
			"Rewind":       func() { a.Rewind(s) },
			"MakeSlice":    func() { MakeSlice[int32](a, 1) },
			"Alloc[T]":     func() { Alloc[int32](a) },
			"MakeSlice(0)": func() { MakeSlice[int32](a, 0) },
			"Alloc[empty]": func() { Alloc[struct{}](a) },
			"Grow":         func() { b.Grow(1) },
			"Reset":        ws.Reset,
		} {
			requirePanicIs(t, ErrReserved, f)
			require.Equal(t, []int{p, w}, []int{a.Position(), a.Mark()}, name)
		}
		_, err := a.TryAlloc(1)
		require.ErrorIs(t, err, ErrReserved)
		_, err = b.WriteString("more than it has")
		require.ErrorIs(t, err, ErrReserved)
		require.Equal(t, "0123456789", b.String())
		require.False(t, a.Overflowed(), "all that is no overflow")
		require.Len(t, ws.Backend().Alloc(10), 10, "the other half is free")
		require.Equal(t, 100, len(a.Commit(100)))
		require.Equal(t, tag(1), res[:16])
	})
	t.Run("kept bytes stay where they are", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		res := a.Reserve(100)
		stain(res, 1)
		kept := a.Commit(50)
		require.Equal(t, addr(res), addr(kept))
		require.Equal(t, res[:50], kept)
		require.Equal(t, 50, cap(kept))
	})
	t.Run("on the heap", func(t *testing.T) {
		a := acquireSmall(t, Config{MaxSpill: 5000}).Client()
		a.Alloc(arenaHalf - 8)
		res := a.Reserve(4000)
		require.Equal(t, -1, placeOf(a, res))
		requireZeros(t, res, 4000)
		require.True(t, a.Overflowed())
		require.Equal(t, arenaHalf-8, a.Mark())
		kept := a.Commit(100)
		require.Equal(t, []int{100, 100}, []int{len(kept), cap(kept)})
		require.Equal(t, arenaHalf-8, a.Position(), "P is about the half")
		require.Len(t, a.Alloc(8), 8, "what was left still is")
		a.Reserve(1000)
		a.Abort()
		requirePanicIs(t, ErrFull, func() { a.Reserve(1) })
		a.Abort()
		require.Equal(t, arenaHalf, a.Position())
	})
	t.Run("abort may be deferred", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		kept := func() []byte {
			defer a.Abort()
			copy(a.Reserve(10), "0123456789")
			return a.Commit(5)
		}()
		require.Equal(t, "01234", string(kept))
		require.Equal(t, 5, a.Position())
	})
	t.Run("shows earlier bytes of this request only", func(t *testing.T) {
		ws := acquireSmall(t, Config{Mode: Watermark})
		pool := ws.pool
		stain(ws.Client().Alloc(arenaHalf), 1)
		ws.Release()
		next := pool.Acquire()
		defer next.Release()
		a := next.Client()
		require.Equal(t, -1, firstNonZero(a.Reserve(a.Room())))
		a.Abort()
	})
}

func TestSnapshots(t *testing.T) {
	t.Run("foreign and none", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		pool := ws.pool
		other := pool.Acquire()
		foreign := other.Client().Snapshot()
		earlier := other
		other.Release()
		a := ws.Client()
		a.Alloc(100)
		for name, s := range map[string]Snapshot{
			"the other half":        ws.Backend().Snapshot(),
			"another request":       foreign,
			"the zero value":        {},
			"only a position":       {pos: 5},
			"only a number as well": {pos: 5, seq: 1},
		} {
			requirePanicIs(t, ErrMisuse, func() { a.Rewind(s) })
			require.Equal(t, 100, a.Position(), name)
		}
		requirePanicIs(t, ErrReleased, func() { earlier.client.Rewind(foreign) })
	})
	t.Run("of an earlier request on the same block", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		pool, blk := ws.pool, ws.blk
		s := ws.Client().Snapshot()
		ws.Release()
		next := pool.Acquire()
		defer next.Release()
		require.True(t, next.blk == blk)
		next.Client().Alloc(10)
		requirePanicIs(t, ErrMisuse, func() { next.Client().Rewind(s) })
	})
	t.Run("from before a boundary", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		first := a.Snapshot()
		a.Alloc(64)
		second := a.Snapshot()
		ws.Reset()
		for range 2 {
			requirePanicIs(t, ErrStale, func() { a.Rewind(first) })
			requirePanicIs(t, ErrStale, func() { a.Rewind(second) })
			a.Alloc(64) // P is as it was then
		}
		s := a.Snapshot()
		a.Alloc(64)
		a.Rewind(s)
		require.Equal(t, 128, a.Position())
	})
	t.Run("at one place", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		a.Alloc(8)
		same := []Snapshot{a.Snapshot(), a.Snapshot(), a.Snapshot()}
		for _, i := range []int{2, 0, 1, 2, 2, 0} {
			a.Alloc(100)
			a.Rewind(same[i])
			require.Equal(t, 8, a.Position(), "a rewind to the same place makes nothing stale")
		}
	})
	t.Run("nothing has moved after a refusal", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		low := a.Snapshot()
		a.Alloc(100)
		high := a.Snapshot()
		a.Rewind(low)
		kept := a.Alloc(50)
		stain(kept, 1)
		p, w := a.Position(), a.Mark()
		requirePanicIs(t, ErrStale, func() { a.Rewind(high) })
		require.Equal(t, []int{p, w}, []int{a.Position(), a.Mark()})
		require.Len(t, a.Alloc(10), 10)
		requireNoTag(t, kept, 1)
	})
	t.Run("nested in a loop", func(t *testing.T) {
		// Each round rewinds to its own snapshot inside an outer one: what is
		// kept for telling stale ones must not grow without end.
		a := acquireSmall(t, Config{AuditEvery: -1}).Client()
		outer := a.Snapshot()
		for range 10000 {
			a.Alloc(8)
			inner := a.Snapshot()
			a.Alloc(32)
			last := a.Snapshot()
			a.Rewind(inner)
			requireStale(t, a, last)
			a.Rewind(outer)
			requireStale(t, a, inner)
		}
		require.LessOrEqual(t, len(a.cuts), 2)
	})
	t.Run("all the way up and down", func(t *testing.T) {
		a := acquireSmall(t, Config{AuditEvery: -1}).Client()
		var all []Snapshot
		for range 200 {
			all = append(all, a.Snapshot())
			a.Alloc(16)
		}
		for i := len(all) - 1; i >= 0; i-- {
			a.Rewind(all[i])
			require.Equal(t, 16*i, a.Position())
			for _, s := range all[i+1:] {
				requireStale(t, a, s)
			}
		}
		require.Equal(t, 3200, a.Mark())
	})
}

// requireStale is requirePanicIs(t, ErrStale, …) for tight loops.
func requireStale(t testing.TB, a *Arena, s Snapshot) {
	t.Helper()
	if a.current(s.seq, s.pos) {
		t.Fatalf("the snapshot at %d counts as current; the position is %d", s.pos, a.Position())
	}
}

// Snapshots are judged by what happened to their position since, kept here in
// the simplest way.
func TestSnapshotsAtRandom(t *testing.T) {
	type kept struct {
		s     Snapshot
		stale bool
	}
	for seed := range fewer(300) {
		ws := acquireSmall(t, Config{AuditEvery: -1})
		a, src := ws.Client(), source{randomSequence(uint64(seed), 800)}
		var all []kept
		for len(src.rest) > 0 {
			switch src.below(4) {
			case 0:
				_, _ = a.TryAlloc(src.below(60))
			case 1, 2:
				all = append(all, kept{s: a.Snapshot()})
			case 3:
				if len(all) == 0 {
					continue
				}
				k := all[src.below(len(all))]
				if k.stale {
					requirePanicIs(t, ErrStale, func() { a.Rewind(k.s) })
					continue
				}
				a.Rewind(k.s)
				for i := range all {
					all[i].stale = all[i].stale || all[i].s.pos > a.Position()
				}
			}
			for i, k := range all {
				if a.current(k.s.seq, k.s.pos) == k.stale {
					t.Fatalf("seed %d: snapshot %d at %d, position %d: stale must be %v", seed, i, k.s.pos, a.Position(), k.stale)
				}
			}
			require.True(t, slices.IsSortedFunc(a.cuts, func(x, y cut) int { return x.pos - y.pos }))
		}
		ws.Release()
	}
}

// The mark never goes down while the request lives, and covers P and R.
func TestMarkNeverGoesDown(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	high := 0
	step := func(what string, want int) {
		t.Helper()
		require.GreaterOrEqual(t, a.Mark(), high, what)
		require.Equal(t, want, a.Mark(), what)
		requireTail(t, a)
		high = a.Mark()
	}
	step("nothing yet", 0)
	s := a.Snapshot()
	stain(a.Alloc(100), 1)
	step("alloc", 100)
	a.Rewind(s)
	step("rewind", 100)
	stain(a.Alloc(40), 1)
	step("alloc below it", 100)
	stain(a.Reserve(200), 1)
	step("reserve", 240)
	a.Abort()
	step("abort", 240)
	stain(a.Reserve(300), 1)
	step("reserve again", 340)
	a.Commit(1)
	step("short commit", 340)
	a.Alloc(10)
	step("alloc below it again", 340)
	_, _ = a.TryAlloc(arenaHalf)
	step("alloc that failed", 340)
	a.Alloc(arenaHalf)
	step("alloc on the heap", 340)
	a.Reserve(arenaHalf)
	step("reserve on the heap", 340)
	a.Commit(arenaHalf)
	step("commit on the heap", 340)
	a.Rewind(s)
	step("rewind to the start", 340)
	a.Alloc(a.Room())
	step("all", arenaHalf)
	a.Rewind(s)
	step("rewind from the very end", arenaHalf)
}

// P, W and R may be changed in these functions and nowhere else, and only lower,
// closeReservation and the wipe at the end may take them down. A new place needs
// a look at the invariants first.
func TestWhoMovesTheMarks(t *testing.T) {
	want := map[string][]string{
		"pos":    {"Alloc", "Commit", "Reserve", "allocDirty", "bump", "distrust", "finish", "lower"},
		"mark":   {"closeReservation", "distrust", "finish", "lower"},
		"resEnd": {"closeReservation", "distrust", "open"},
		"limit":  {"begin", "closeReservation", "distrust", "open"},
	}
	got := map[string][]string{}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		require.NoError(t, err)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			change := func(e ast.Expr) {
				if sel, ok := e.(*ast.SelectorExpr); ok && want[sel.Sel.Name] != nil && !slices.Contains(got[sel.Sel.Name], fn.Name.Name) {
					got[sel.Sel.Name] = append(got[sel.Sel.Name], fn.Name.Name)
				}
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, e := range n.Lhs {
						change(e)
					}
				case *ast.IncDecStmt:
					change(n.X)
				case *ast.UnaryExpr:
					if n.Op == token.AND {
						change(n.X) // an address is a change waiting to happen
					}
				}
				return true
			})
		}
	}
	for field, names := range got {
		slices.Sort(names)
		require.Subset(t, want[field], names, "functions that change %s", field)
	}
	require.Len(t, got, len(want), "the fields have other names now")
}

// Accounting that contradicts itself is a violation like any other: the half
// counts as written, and full, from then on.
func TestDistrust(t *testing.T) {
	for name, damage := range map[string]func(a *Arena){
		"position past the end":      func(a *Arena) { a.pos = arenaHalf + 1 },
		"position below zero":        func(a *Arena) { a.pos = -1 },
		"mark past the end":          func(a *Arena) { a.mark = arenaHalf + 8 },
		"mark below zero":            func(a *Arena) { a.mark = math.MinInt },
		"reservation past the end":   func(a *Arena) { a.resEnd = math.MaxInt },
		"reservation far below zero": func(a *Arena) { a.resEnd = -arenaHalf },
	} {
		t.Run(name, func(t *testing.T) {
			inAllModes(t, Config{ClientSize: arenaHalf, BackendSize: arenaHalf}, func(t *testing.T, pool *testPool) {
				ws := pool.Acquire()
				blk, a := ws.blk, ws.Client()
				stain(a.Alloc(arenaHalf), 1)
				damage(a)
				a.Snapshot() // the check is not sampled
				v := pool.violations(1)[0]
				require.Equal(t, BadAccounting, v.Kind)
				require.Equal(t, []any{-1, -1, 0, true}, []any{v.First, v.Last, v.Count, v.Guard}, "nothing was read")
				require.Equal(t, arenaHalf, a.Mark())
				require.Zero(t, a.Room())
				_, err := a.TryAlloc(1)
				require.ErrorIs(t, err, ErrFull)
				ws.Release()
				requireWiped(t, blk)
				require.EqualValues(t, 1, pool.Stats().Doubts.Violation)
			})
		})
	}
}

// A message after the one that was distrusted has its own accounts.
func TestDistrustEndsWithReset(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: arenaHalf, BackendSize: arenaHalf})
	ws := pool.Acquire()
	defer ws.Release()
	a := ws.Client()
	a.Reserve(100)
	a.resEnd = -1
	a.after(OpSnapshot)
	pool.violations(1)
	require.Equal(t, arenaHalf, a.Mark())
	ws.Reset()
	require.Equal(t, []int{0, 0}, []int{a.Mark(), a.Position()})
}

// An audit that is asked for says so, too.
func TestAuditOfBadAccounting(t *testing.T) {
	pool := newTestPool(t, Config{AuditEvery: -1})
	ws := pool.Acquire()
	defer ws.Release()
	ws.Client().pos = -1
	var v *Violation
	require.ErrorAs(t, ws.Audit(), &v)
	require.Equal(t, BadAccounting, v.Kind)
	pool.violations(1)
}

// The integrity check comes with each operation. It is no audit and leaves the
// sampler's gap as it is.
func TestDistrustIsNoAudit(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: arenaHalf, BackendSize: arenaHalf})
	ws := pool.Acquire()
	a := ws.Client()
	before := pool.Stats().Totals().Audits
	a.pos, a.skip, a.lead = -1, 2, 0
	a.after(OpSnapshot)
	pool.violations(1)
	require.Equal(t, before, pool.Stats().Totals().Audits)
	require.Equal(t, 1, a.skip)
	ws.Release()
}

// Where int has 32 bits the largest gap can come to its end. Whoever has nothing
// to audit then just gets the next one.
func TestGapThatEndsWithNothingToAudit(t *testing.T) {
	for name, cfg := range map[string]Config{
		"sampler off": {AuditEvery: -1},
		"no block":    {MaxLive: 1},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newTestPool(t, cfg)
			first := pool.Acquire()
			defer first.Release()
			ws := pool.Acquire()
			defer ws.Release()
			audits := pool.Stats().Totals().Audits
			for _, a := range []*Arena{ws.Client(), ws.Backend()} {
				a.skip = 1
				require.Len(t, a.Alloc(10), 10)
				require.Positive(t, a.skip)
			}
			require.Equal(t, audits, pool.Stats().Totals().Audits)
		})
	}
}

// What is wiped past the mark counts as cold when more than coldAfter bytes were
// wiped so since this half was.
func TestRestIsCold(t *testing.T) {
	ws := newTestPool(t, Config{}).Acquire()
	defer ws.Release()
	for i, step := range []struct {
		half  Half
		bytes int
		cold  bool
	}{
		{Client, coldAfter, false},
		{Backend, 1, true},
		{Client, coldAfter - 1, false},
		{Client, coldAfter, false},
		{Client, coldAfter + 1, true},
		{Backend, 1, true},
		{Backend, 1, false},
		{Client, coldAfter - 3, false},
		{Client, 1, false},
	} {
		a := []*Arena{ws.Client(), ws.Backend()}[step.half]
		require.Equal(t, step.cold, a.restIsCold(step.bytes), "step %d", i)
	}
}

// A Rewind that no Snapshot preceded since costs nothing to remember.
func TestRewindAloneKeepsNoCuts(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	s := a.Snapshot()
	for range 10 {
		a.Alloc(100)
		a.Rewind(s)
	}
	require.Empty(t, a.cuts)
}

// Copies and zero values have no memory of their own; they must not touch that
// of the arena they were made from.
func TestArenaCopiesAreRefused(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	stain(a.Alloc(100), 1)
	s := a.Snapshot()
	copied := reflect.New(reflect.TypeFor[Arena]()) // vet would object to a plain copy
	copied.Elem().Set(reflect.ValueOf(a).Elem())
	for name, bad := range map[string]*Arena{"copy": copied.Interface().(*Arena), "zero value": {}} {
		for method, f := range map[string]func(){
			"Alloc":        func() { bad.Alloc(1) },
			"AllocAligned": func() { bad.AllocAligned(1, 1) },
			"Copy":         func() { bad.Copy(nil) },
			"CopyString":   func() { bad.CopyString("x") },
			"Reserve":      func() { bad.Reserve(1) },
			"Commit":       func() { bad.Commit(0) },
			"Abort":        func() { bad.Abort() },
			"Snapshot":     func() { bad.Snapshot() },
			"Rewind":       func() { bad.Rewind(s) },
			"Buffer":       func() { bad.Buffer() },
			"Position":     func() { bad.Position() },
			"Mark":         func() { bad.Mark() },
			"Room":         func() { bad.Room() },
			"Size":         func() { bad.Size() },
			"Overflowed":   func() { bad.Overflowed() },
			"MakeSlice":    func() { MakeSlice[int](bad, 1) },
			"MakeSlice(0)": func() { MakeSlice[int](bad, 0) },
			"Alloc[T]":     func() { Alloc[int](bad) },
			"Alloc[empty]": func() { Alloc[struct{}](bad) },
			"CopyOf":       func() { CopyOf(bad, []int{1}) },
		} {
			t.Run(name+"/"+method, func(t *testing.T) { requirePanicIs(t, ErrMisuse, f) })
		}
		_, err := bad.TryAlloc(1)
		require.ErrorIs(t, err, ErrMisuse, name)
	}
	require.Equal(t, []int{100, 100}, []int{a.Position(), a.Mark()})
	a.Rewind(s)
}

// Messages say what was asked for and where, never what is in the memory.
func TestErrorsNameTheNumbers(t *testing.T) {
	a := acquireSmall(t, Config{MaxSpill: 100}).Backend()
	a.Alloc(4000)
	_, err := a.TryAlloc(5000)
	require.EqualError(t, err, fmt.Sprintf("workspace: full: Arena.TryAlloc(5000): %d of %d bytes left in the backend half, and 100 of MaxSpill", arenaHalf-4000, arenaHalf))
	_, err = a.TryAlloc(-3)
	require.EqualError(t, err, "workspace: misuse: Arena.TryAlloc: negative size -3")
	a.Reserve(10)
	_, err = a.TryAlloc(7)
	require.EqualError(t, err, "workspace: a reservation is open: Arena.TryAlloc(7) on the backend half")
	a.Abort()
}
