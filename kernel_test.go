package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
)

// An implementation is one way to zero a range and to search it.
type implementation struct {
	name         string
	zero         func([]byte)
	firstNonZero func([]byte) int
	minRead      int // the shortest range that firstNonZero takes
}

// implementations are all that this machine can run: what the package uses, the
// plain Go code, and the assembly by itself, which gets each length here.
func implementations() []implementation {
	all := []implementation{
		{"in use: " + kernelName, zero, firstNonZero, 0},
		{"in use, cold: " + kernelName, zeroCold, firstNonZero, 0},
		{"portable", zeroGeneric, firstNonZeroGeneric, 0},
	}
	if asmName() == "" {
		return all
	}
	all = append(all, implementation{"assembly", zeroAsmSlice, firstNonZeroAsmSlice, asmMinRead})
	return append(all, moreImplementations()...)
}

// eachImplementation runs f for all of them.
func eachImplementation(t *testing.T, f func(t *testing.T, k implementation)) {
	for _, k := range implementations() {
		t.Run(k.name, func(t *testing.T) { f(t, k) })
	}
}

// requireFirst calls require only on a difference, as it runs millions of times.
func (k implementation) requireFirst(t *testing.T, want int, b []byte, context string) {
	t.Helper()
	if len(b) < k.minRead {
		return
	}
	if got := k.firstNonZero(b); got != want {
		require.Equal(t, want, got, "first non-zero byte of %d, %s", len(b), context)
	}
}

// usePortable switches to the plain Go code until the test is over.
func usePortable(t testing.TB) {
	asm, name := useAsm, kernelName
	useAsm, kernelName = false, portable
	t.Cleanup(func() { useAsm, kernelName = asm, name })
}

// Which implementation runs where. WORKSPACE_KERNEL pins it, for runs on an
// emulated processor whose abilities are known.
func TestKernelInUse(t *testing.T) {
	want := "portable"
	switch {
	case puregoBuild:
	case runtime.GOARCH == "amd64" && cpu.X86.HasAVX2:
		want = "avx2"
	case runtime.GOARCH == "arm64":
		want = "neon"
	}
	if strings.Contains(os.Getenv("GODEBUG"), "cpu.avx2=off") && runtime.GOARCH == "amd64" {
		want = "portable"
	}
	if pinned := os.Getenv("WORKSPACE_KERNEL"); pinned != "" {
		want = pinned
	}
	if want == "neon" {
		require.Regexp(t, `^neon(\+zva[0-9]+)?$`, kernelName)
	} else {
		require.Equal(t, want, kernelName)
	}
	require.Equal(t, kernelName != portable, useAsm)
	p := newTestPool(t, Config{})
	require.Equal(t, kernelName, p.Stats().Kernel)

	ws := p.Acquire()
	half := ws.blk.half(Client)
	half[len(half)-1] = 1
	require.Error(t, ws.Audit())
	ws.Release()
	require.Equal(t, kernelName, p.violations(1)[0].Kernel)
}

// The flag that turns AVX2 off for a process turns it off here.
func TestKernelWithoutAVX2(t *testing.T) {
	if runtime.GOARCH != "amd64" || runtime.GOOS == "js" {
		t.Skip("amd64 only")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^(TestKernelInUse|TestKernelZeroAtThresholds|TestKernelFindsEachBit)$", "-test.short")
	cmd.Env = append(os.Environ(), "GODEBUG=cpu.avx2=off", "WORKSPACE_KERNEL=portable")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// lengths are those of a test that wants all up to most, a few in a short run.
func lengths(most, step int) (all []int) {
	for n := 0; n <= most; n += step {
		all = append(all, n)
	}
	return all
}

const (
	startOffsets = 65
	margin       = 128 // checked on both sides of a range
)

// Each length up to more than a page, at each start offset up to a line: exactly
// the range becomes zero.
func TestKernelZeroAtEachLengthAndOffset(t *testing.T) {
	const most = 4160
	full, zeros := bytes.Repeat([]byte{0xa5}, margin+startOffsets+most+margin), make([]byte, most)
	eachImplementation(t, func(t *testing.T, k implementation) {
		buf := bytes.Clone(full)
		for off := margin; off < margin+startOffsets; off += scaled(1, 13) {
			for _, n := range lengths(most, scaled(1, 3)) {
				k.zero(buf[off : off+n])
				// Only the range and what is near it is looked at each time, the rest at the end.
				from, to := off-margin, off+n+margin
				if !bytes.Equal(buf[off:off+n], zeros[:n]) || !bytes.Equal(buf[from:off], full[from:off]) || !bytes.Equal(buf[off+n:to], full[off+n:to]) {
					requireZeroed(t, buf, full, zeros, off, n)
				}
				copy(buf[off:off+n], full)
			}
		}
		require.True(t, bytes.Equal(full, buf), "something far from the range was changed")
	})
}

// aroundThresholds are the lengths at which the kernels change their way, and the
// sizes of pieces, pages and halves, each with its neighbours.
func aroundThresholds() (all []int) {
	for _, n := range []int{128, 192, 256, 320, 384, 448, 512, 1 << 10, 2 << 10, 16 << 10, 20 << 10, 32 << 10, 40 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10} {
		for _, d := range []int{-257, -256, -129, -128, -65, -64, -63, -33, -32, -31, -17, -16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 511, 512, 513} {
			if n+d >= 0 {
				all = append(all, n+d)
			}
		}
	}
	return all
}

func TestKernelZeroAtThresholds(t *testing.T) {
	const most = 513<<10 + startOffsets
	full, zeros := bytes.Repeat([]byte{0xa5}, margin+most+margin), make([]byte, most)
	eachImplementation(t, func(t *testing.T, k implementation) {
		buf := bytes.Clone(full)
		for i, n := range aroundThresholds() {
			for j, off := range []int{0, 1, 7, 8, 31, 32, 33, 63, 64} {
				if n > 4160 && (i+j)%scaled(1, 5) != 0 {
					continue
				}
				off += margin
				k.zero(buf[off : off+n])
				requireZeroed(t, buf[:off+n+margin], full[:off+n+margin], zeros, off, n)
				copy(buf[off:off+n], full)
			}
		}
		require.True(t, bytes.Equal(full, buf), "something far from the range was changed")
	})
}

// Each length at each offset again: bytes that are not zero lie on both sides and
// must not be found; the first and the last byte and one between must be.
func TestKernelSearchAtEachLengthAndOffset(t *testing.T) {
	const most = 4160
	eachImplementation(t, func(t *testing.T, k implementation) {
		buf := make([]byte, margin+startOffsets+most+margin)
		r := rand.New(rand.NewPCG(1, 2))
		for off := margin; off < margin+startOffsets; off += scaled(1, 13) {
			for _, n := range lengths(most, scaled(1, 3)) {
				b := buf[off : off+n]
				buf[off-1], buf[off+n] = 0xff, 0xff
				k.requireFirst(t, -1, b, "all zero")
				if n > 0 {
					b[n-1] = 1
					k.requireFirst(t, n-1, b, "the last one")
					i := r.IntN(n)
					b[i] = 0x80
					k.requireFirst(t, i, b, "one inside and the last one")
					b[0] = 0x10
					k.requireFirst(t, 0, b, "the first one, one inside and the last one")
					b[0], b[i], b[n-1] = 0, 0, 0
				}
				buf[off-1], buf[off+n] = 0, 0
			}
		}
	})
}

func TestKernelSearchAtThresholds(t *testing.T) {
	const most = 513<<10 + startOffsets
	eachImplementation(t, func(t *testing.T, k implementation) {
		buf := make([]byte, margin+most+margin)
		r := rand.New(rand.NewPCG(1, 2))
		for i, n := range aroundThresholds() {
			for j, off := range []int{0, 1, 7, 8, 31, 32, 33, 63, 64} {
				if n > 4160 && (i+j)%scaled(1, 5) != 0 {
					continue
				}
				off += margin
				b := buf[off : off+n]
				buf[off-1], buf[off+n] = 0xff, 0xff
				k.requireFirst(t, -1, b, "all zero")
				if n > 0 {
					b[n-1] = 1
					k.requireFirst(t, n-1, b, "the last one")
					at := r.IntN(n)
					b[at] = 1
					k.requireFirst(t, at, b, "one inside and the last one")
					b[at], b[n-1] = 0, 0
				}
				buf[off-1], buf[off+n] = 0, 0
			}
		}
	})
}

// A bit at each place of a page, alone and with a second one somewhere behind it.
func TestKernelFindsEachBit(t *testing.T) {
	eachImplementation(t, func(t *testing.T, k implementation) {
		buf := make([]byte, 4<<10)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range buf {
			for bit := range 8 {
				buf[i] = 1 << bit
				k.requireFirst(t, i, buf, "alone")
				if j := i + 1 + r.IntN(len(buf)); j < len(buf) {
					buf[j] = 1
					k.requireFirst(t, i, buf, "with one behind it")
					buf[j] = 0
				}
			}
			buf[i] = 0
		}
	})
}

// In a large range several streams are read at a time, and the one that hits
// first need not hold the first byte. So the second byte often lies where another
// stream comes to early.
func TestKernelFindsTheFirstOfTwoInALargeRange(t *testing.T) {
	const most = 256 << 10
	eachImplementation(t, func(t *testing.T, k implementation) {
		mem := make([]byte, most+startOffsets)
		r := rand.New(rand.NewPCG(1, 2))
		for round := range scaled(4000, 400) {
			n := most
			if round%2 == 1 {
				n = 16<<10 + r.IntN(most-16<<10) // above the threshold for streams
			}
			off := r.IntN(startOffsets)
			b := mem[off : off+n]
			i := r.IntN(n)
			switch round % 5 {
			case 0:
				i = n - 1 - r.IntN(600) // in what is left behind the streams
			case 1:
				i = r.IntN(600)
			}
			j := i + r.IntN(n-i)
			if quarter := (j/(n/4) + 1) * (n / 4); round%3 == 0 && quarter < n {
				j = quarter // the start of a later stream
			}
			bit := byte(1) << r.IntN(8)
			b[j] = 1
			b[i] = bit
			k.requireFirst(t, i, b, fmt.Sprintf("offset %d, second one at %d", off, j))
			b[i] = 0
			if j > i {
				k.requireFirst(t, j, b, "the second one alone")
			}
			b[j] = 0
		}
		k.requireFirst(t, -1, mem[:most], "all zero at the end")
	})
}

// Halves of more than wipeStep bytes go by pieces; none may be left out, and the
// offset counts from the start of all of them.
func TestKernelSearchAcrossPieces(t *testing.T) {
	buf := make([]byte, 4*wipeStep+100)
	for _, i := range []int{0, 1, wipeStep - 1, wipeStep, wipeStep + 1, 2*wipeStep - 1, 2 * wipeStep, 4*wipeStep - 1, 4 * wipeStep, 4*wipeStep + 1, len(buf) - 1} {
		buf[i] = 1
		require.Equal(t, i, firstNonZero(buf))
		buf[len(buf)-1] = 1
		require.Equal(t, i, firstNonZero(buf))
		buf[i], buf[len(buf)-1] = 0, 0
		for _, n := range []int{wipeStep, 2 * wipeStep, 4 * wipeStep, len(buf)} {
			require.Equal(t, -1, firstNonZero(buf[:n]))
		}
	}
}

func TestKernelsAllocateNothing(t *testing.T) {
	buf := make([]byte, 3*wipeStep)
	require.Zero(t, testing.AllocsPerRun(10, func() { zero(buf); zero(buf[:10]); firstNonZero(buf) }))
}

// A collection that starts while the kernels run back to back must not wait for
// them: a loop around assembly would never let it begin (golang/go#69327). The loops
// stand here as a user would write them, since a call of a closure would be a point
// to stop at. This asks that a collection is possible, not how long it takes on
// average; where the machine is busy, 20 ms are stretched by what a collection takes beside a
// plain loop.
func TestKernelsLetTheCollectorRun(t *testing.T) {
	const limit, tries = 20 * time.Millisecond, 10
	buf := make([]byte, 512<<10)
	var stop atomic.Bool
	plain := func() {
		for !stop.Load() {
		}
	}
	for _, c := range []struct {
		name string
		loop func()
	}{
		{"zero of 512 KB", func() {
			for !stop.Load() {
				zero(buf)
			}
		}},
		{"zero of 64 bytes", func() {
			for !stop.Load() {
				zero(buf[:64])
			}
		}},
		{"zero of 3000 bytes", func() {
			for !stop.Load() {
				zero(buf[:3000])
			}
		}},
		{"search of 512 KB", func() {
			for !stop.Load() {
				firstNonZero(buf)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			collect := func(loop func()) time.Duration {
				stop.Store(false)
				var quit sync.WaitGroup
				quit.Go(loop)
				time.Sleep(100 * time.Microsecond) // it is under way
				start := time.Now()
				runtime.GC()
				took := time.Since(start)
				stop.Store(true)
				quit.Wait()
				return took
			}
			best, allowed := time.Hour, limit
			for range tries {
				if best = min(best, collect(c.loop)); best <= allowed {
					return
				}
				allowed = max(allowed, 3*collect(plain))
			}
			require.LessOrEqual(t, best, allowed, "the shortest of %d collections", tries)
		})
	}
}

// Long ranges are cut into pieces, so the goroutine can be stopped inside of one
// call. A dump of all stacks stops the world; sooner or later it must show the
// goroutine at the entry of the function that does one piece, called by the one
// that does the cutting. The last piece is shorter, so it is not that one.
func TestKernelsStopBetweenPieces(t *testing.T) {
	buf := make([]byte, MaxHalfSize+200)
	for name, c := range map[string]struct {
		run  func()
		seen string
	}{
		"zero":   {func() { zero(buf) }, `zeroPiece\(\{0x[0-9a-f]+\??, 0x40000[^)]*\)\n.*\n.*zeroPieces\(`},
		"search": {func() { firstNonZero(buf) }, `firstNonZero\(\{0x[0-9a-f]+\??, 0x40000[^)]*\)\n.*\n.*firstInPieces\(`},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "search" && !useAsm {
				t.Skip("the plain code of it can be stopped anywhere")
			}
			var wg sync.WaitGroup
			stop := make(chan struct{})
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						c.run()
					}
				}
			})
			seen, dump := regexp.MustCompile(c.seen), make([]byte, 1<<20)
			require.Eventually(t, func() bool { return seen.Match(dump[:runtime.Stack(dump, true)]) }, waitLimit, pollEvery)
			close(stop)
			wg.Wait()
		})
	}
}

// The kernels take ranges that end where their object on the heap ends. Under the
// race detector conversions of pointers are checked as well, and one wider than
// what is left would be an error (etcd-io/bbolt#201, golang/go#78413).
func TestKernelsAtTheEndOfAnObject(t *testing.T) {
	eachImplementation(t, func(t *testing.T, k implementation) {
		for _, size := range []int{8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 4096} {
			object := make([]byte, size) // of a size class: nothing is left behind it
			for n := 0; n <= size; n += scaled(1, 7) {
				b := object[size-n:]
				k.requireFirst(t, -1, b, fmt.Sprintf("object of %d bytes", size))
				if n == 0 {
					continue
				}
				for _, i := range []int{n - 1, 0} {
					b[i] = 1
					k.requireFirst(t, i, b, fmt.Sprintf("object of %d bytes", size))
				}
				k.zero(b)
				k.requireFirst(t, -1, b, "zeroed")
			}
		}
	})
}

// The tracer and the profiler walk the stack by frame pointers, at any moment. A
// kernel that overwrote its caller's would crash only then (apache/arrow-go#150).
func TestKernelsUnderTracerAndProfiler(t *testing.T) {
	if err := trace.Start(io.Discard); err != nil {
		t.Skip("a trace is being taken already: ", err)
	}
	defer trace.Stop()
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		t.Skip("a profile is being taken already: ", err)
	}
	defer pprof.StopCPUProfile()
	runtime.SetBlockProfileRate(1)
	defer runtime.SetBlockProfileRate(0)

	duration := time.Duration(scaled(300, 60)) * time.Millisecond
	eachImplementation(t, func(t *testing.T, k implementation) {
		var wg sync.WaitGroup
		events := make(chan int) // blocking is what the tracer takes stacks for
		for range 2 {
			wg.Go(func() {
				buf := make([]byte, 40_000)
				for range events {
					for _, n := range []int{32, 300, 3000, len(buf)} {
						k.zero(buf[:n])
						if i := k.firstNonZero(buf[:n]); i != -1 {
							t.Errorf("byte %d of %d", i, n)
						}
					}
				}
			})
		}
		for start, i := time.Now(), 0; time.Since(start) < duration; i++ {
			events <- i
			if i%1000 == 0 {
				runtime.GC()
			}
		}
		close(events)
		wg.Wait()
	})
}

// faultyKernels each have one fault of a kind that a wrong processor, emulator or
// build could have.
func faultyKernels() []implementation {
	faultyZero := func(name string, f func(b []byte)) implementation {
		return implementation{name, f, firstNonZeroGeneric, 0}
	}
	faultyFirst := func(name string, f func(b []byte) int) implementation {
		return implementation{name, zeroGeneric, f, 0}
	}
	return []implementation{
		faultyZero("nothing is zeroed", func([]byte) {}),
		faultyZero("the last byte is left", func(b []byte) { clear(b[:max(0, len(b)-1)]) }),
		faultyZero("the first byte is left", func(b []byte) { clear(b[min(1, len(b)):]) }),
		faultyZero("a byte too many", func(b []byte) { clear(b[:min(cap(b), len(b)+1)]) }),
		faultyZero("a stream is left out", func(b []byte) {
			if n := len(b) / 4; n > 5<<10 {
				clear(b[:n])
				b = b[2*n:]
			}
			clear(b)
		}),
		faultyZero("blocks of half the size", func(b []byte) {
			for len(b) >= 512 {
				clear(b[:256])
				b = b[512:]
			}
			clear(b)
		}),
		faultyFirst("nothing is found", func([]byte) int { return -1 }),
		faultyFirst("the last byte is not looked at", func(b []byte) int { return firstNonZeroGeneric(b[:max(0, len(b)-1)]) }),
		faultyFirst("a neighbour is found", func(b []byte) int { return firstNonZeroGeneric(b[:min(cap(b), len(b)+1)]) }),
		faultyFirst("rounded to a word", func(b []byte) int {
			i := firstNonZeroGeneric(b)
			if i > 0 {
				i &^= 7
			}
			return i
		}),
		faultyFirst("the last one is found", lastNonZero),
	}
}

// compareKernels is what the self-test does with a pair of kernels.
func compareKernels(zero func([]byte), firstNonZero func([]byte) int) error {
	return errors.Join(compareZero(zero), compareSearch(firstNonZero))
}

func TestCompareKernelsFindsFaults(t *testing.T) {
	require.NoError(t, compareKernels(zeroGeneric, firstNonZeroGeneric))
	for _, k := range implementations() {
		if k.minRead == 0 {
			require.NoError(t, compareKernels(k.zero, k.firstNonZero), k.name)
		}
	}
	for _, k := range faultyKernels() {
		require.Error(t, compareKernels(k.zero, k.firstNonZero), k.name)
	}
}

// plantFault makes the next pool run the self-test again, on k.
func plantFault(t *testing.T, k implementation) {
	asm, name, tested := useAsm, kernelName, underTest
	underTest.zero, underTest.firstNonZero = k.zero, k.firstNonZero
	selfTested = sync.Once{}
	t.Cleanup(func() {
		useAsm, kernelName, underTest = asm, name, tested
		selfTested = sync.Once{}
	})
}

// A kernel that fails is not used; the first pool says so, once, and everything
// works.
func TestSelfTestFallsBack(t *testing.T) {
	if !useAsm {
		t.Skip("nothing to fall back from")
	}
	for _, k := range faultyKernels() {
		t.Run(k.name, func(t *testing.T) {
			was := kernelName
			plantFault(t, k)
			var log bytes.Buffer
			cfg := Config{Name: "edge", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))}
			p := newTestPool(t, cfg)
			failed := fmt.Sprintf("portable (%s failed its self-test)", was)
			require.False(t, useAsm)
			require.Equal(t, failed, p.Stats().Kernel)
			require.Contains(t, log.String(), "level=ERROR")
			require.Contains(t, log.String(), "pool=edge")
			require.Contains(t, log.String(), failed)
			require.Equal(t, 1, strings.Count(log.String(), "self-test;"), "%s", log.String())

			log.Reset()
			require.Equal(t, failed, newTestPool(t, cfg).Stats().Kernel)
			require.Empty(t, log.String(), "only the first pool says so")

			ws := p.Acquire()
			stain(ws.Client().Alloc(1000), 1)
			ws.Release()
			ws = p.Acquire()
			requireClean(t, ws)
			half := ws.blk.half(Backend)
			half[100] = 1
			require.Error(t, ws.Audit())
			ws.Release()
			require.Equal(t, failed, p.violations(1)[0].Kernel)
		})
	}
}

func TestSelfTestRunsOnceAndPasses(t *testing.T) {
	runs := 0
	plantFault(t, implementation{zero: func(b []byte) { runs++; zero(b) }, firstNonZero: firstNonZero})
	was := kernelName
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := selfTest(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	once := runs
	if !useAsm {
		require.Zero(t, runs, "the plain code is not compared with itself")
	} else {
		require.Positive(t, runs)
	}
	require.NoError(t, selfTest())
	require.Equal(t, once, runs)
	require.Equal(t, was, kernelName)
}

// The fallback keeps the promise too, by itself.
func TestPoolOnPortableKernels(t *testing.T) {
	usePortable(t)
	for _, m := range allModes {
		p := newTestPool(t, Config{Mode: m})
		require.Equal(t, portable, p.Stats().Kernel)
		for n := range 3 {
			ws := p.Acquire()
			requireClean(t, ws)
			stain(ws.Client().Alloc(70_000), n)
			stain(ws.Backend().Alloc(200), n)
			ws.Release()
		}
	}
}
