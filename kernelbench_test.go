//go:build linux && amd64 && !purego

package workspace

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-workspace/workspace/internal/kernelbench"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var kernelTable = flag.Bool("kernelbench", false, "measure the kernels and print the table of BENCHMARKS.md")

// TestKernelTable measures what the kernels are worth and prints it beside the
// bars that they were built to. It asserts nothing: time is no property of the
// code alone. See package kernelbench for how it is measured.
func TestKernelTable(t *testing.T) {
	if !*kernelTable {
		t.Skip("only with -kernelbench")
	}
	model, vendor, family := kernelbench.CPU()
	if vendor != "AuthenticAMD" || family != "25" {
		t.Skipf("the bars are for AMD family 19h (25), this is %s family %s model %s", vendor, family, model)
	}
	if kernelName != "avx2" || raceEnabled {
		t.Skipf("the kernel in use is %q, -race %v: nothing to measure", kernelName, raceEnabled)
	}
	fmt.Printf("AMD family 19h model %s, %s, GOMAXPROCS %d\n\n", model, runtime.Version(), runtime.GOMAXPROCS(0))
	b := newKernelBench(t)
	fmt.Println("| what | bar | measured | |\n|---|---|---|---|")
	b.clearRows()
	b.verifyRows()
	b.cold()
	b.neighbour()
}

// A kernelBench holds 256 MB, written once so that every page is there.
type kernelBench struct {
	t   *testing.T
	mem []byte
}

const (
	benchMemory = 256 << 20
	l3Rotation  = 8 << 20
)

func newKernelBench(t *testing.T) *kernelBench {
	mem, err := unix.Mmap(-1, 0, benchMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return &kernelBench{t, mem}
}

// row measures one line of the table. A bar of 0 means that there is none.
func (b *kernelBench) row(what string, bar float64, code, base kernelbench.Code) {
	b.print(what, bar, kernelbench.Speed(code, base, bar))
}

func (b *kernelBench) print(what string, bar, measured float64) {
	limit, verdict := "", ""
	if bar > 0 {
		limit, verdict = fmt.Sprintf("%.2f", bar), "met"
		if measured < bar {
			verdict = "not met"
		}
	}
	fmt.Printf("| %s | %s | %.2f | %s |\n", what, limit, measured, verdict)
}

func size(n int) string {
	if n < 1024 || n%1024 != 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%d K", n/1024)
}

// timed calls f often enough for the clock not to matter.
func timed(calls int, f func(calls int)) kernelbench.Code {
	return func() (time.Duration, int) {
		start := time.Now()
		f(calls)
		return time.Since(start), calls
	}
}

// What is compared, each as a loop of its own so that nothing stands between
// the loop and the call.
type loop func(bufs [][]byte)

func clearLoop(bufs [][]byte) {
	for _, b := range bufs {
		clear(b)
	}
}

func zeroLoop(bufs [][]byte) {
	for _, b := range bufs {
		zero(b)
	}
}

func loopOver(f func([]byte)) loop {
	return func(bufs [][]byte) {
		for _, b := range bufs {
			f(b)
		}
	}
}

var verifyResult int

func verifyLoop(f func([]byte) int) loop {
	return func(bufs [][]byte) {
		for _, b := range bufs {
			verifyResult += f(b)
		}
	}
}

// hot runs l on one buffer again and again.
func (b *kernelBench) hot(n int, l loop) kernelbench.Code {
	bufs := make([][]byte, max(1, 100_000/n))
	for i := range bufs {
		bufs[i] = b.mem[:n:n]
	}
	return timed(len(bufs), func(int) { l(bufs) })
}

// written fills buffers that are 128 KB together, then runs l on them: what a
// request finds when it ends. Only l is timed.
func (b *kernelBench) written(n int, l loop) kernelbench.Code {
	bufs := make([][]byte, max(1, 128<<10/n))
	for i := range bufs {
		bufs[i] = b.mem[i*n : (i+1)*n : (i+1)*n]
	}
	return func() (time.Duration, int) {
		for _, buf := range bufs {
			fill(buf)
		}
		start := time.Now()
		l(bufs)
		return time.Since(start), len(bufs)
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

// rotating runs l on buffers all over span bytes, each in its turn. They follow
// each other in an order that was shuffled once, as the blocks of a pool do: in
// order of address the prefetcher would run from one buffer into the next, and
// it would be one stream without end. inOrder asks for that.
func (b *kernelBench) rotating(n, span int, inOrder bool, l loop) kernelbench.Code {
	bufs := make([][]byte, span/n)
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(bufs))
	for i := range bufs {
		if inOrder {
			order[i] = i
		}
		at := order[i] * n
		bufs[i] = b.mem[at : at+n : at+n]
	}
	next, step := 0, max(1, 200_000/n)
	return func() (time.Duration, int) {
		if next+step > len(bufs) {
			next = 0
		}
		turn := bufs[next : next+step]
		next += step
		start := time.Now()
		l(turn)
		return time.Since(start), step
	}
}

func (b *kernelBench) clearRows() {
	for i := range b.mem {
		b.mem[i] = 0xa5
	}
	for _, c := range []struct {
		n   int
		bar float64
	}{{256, 1.05}, {2 * kb, 1.5}, {4 * kb, 1.25}, {8 * kb, 1.10}, {16 * kb, 1.03}, {20 * kb, 1.03}, {64 * kb, 1}, {256 * kb, 1}} {
		b.row("zero / `clear`, just written, "+size(c.n), c.bar, b.written(c.n, zeroLoop), b.written(c.n, clearLoop))
	}
	for _, c := range []struct {
		name string
		at   func(int, loop) kernelbench.Code
	}{{"hot", b.hot}, {"just written", b.written}} {
		worst, worstAt, all := 1e9, 0, []string{}
		for _, n := range []int{64, 96, 128, 192, 256, 320, 384, 512, 768, 1 * kb, 1536, 1792, 2 * kb, 3 * kb, 4 * kb, 6 * kb, 8 * kb, 12 * kb, 16 * kb, 20 * kb, 32 * kb, 64 * kb, 128 * kb, 256 * kb, 512 * kb} {
			got := kernelbench.Speed(c.at(n, zeroLoop), c.at(n, clearLoop), 0.92)
			all = append(all, fmt.Sprintf("%s %.2f", size(n), got))
			if got < worst {
				worst, worstAt = got, n
			}
		}
		b.print(fmt.Sprintf("zero / `clear`, %s, worst of 25 sizes 64 B to 512 K: at %s", c.name, size(worstAt)), 0.92, worst)
		b.t.Logf("zero / clear, %s: %s", c.name, strings.Join(all, ", "))
	}
	at := func(code kernelbench.Code, n int) kernelbench.Code {
		return func() (time.Duration, int) { d, u := code(); return d, u * n } // a unit is a byte
	}
	for _, n := range []int{64 * kb, 256 * kb} {
		b.row("zero / `clear`, rotating through 256 MB, "+size(n), 1.12, b.rotating(n, benchMemory, false, zeroLoop), b.rotating(n, benchMemory, false, clearLoop))
	}
	for _, n := range []int{64 * kb, 256 * kb} {
		b.row("the same in order of address, "+size(n), 0, b.rotating(n, benchMemory, true, zeroLoop), b.rotating(n, benchMemory, true, clearLoop))
	}
	just := b.written(20*kb, zeroLoop)
	b.row("zero of 20 K just written / loop of aligned 32-byte stores on 16 K, bytes a second", 0.80, at(just, 20*kb), at(b.hot(16*kb, loopOver(kernelbench.StoreOne)), 16*kb))
	b.row("time of `clear` of 512 K, hot / zero of 20 K just written", 22, just, b.hot(512*kb, clearLoop))
	b.row("time of `clear` of 512 K, rotating / zero of 20 K just written", 80, just, b.rotating(512*kb, benchMemory, false, clearLoop))
}

func (b *kernelBench) verifyRows() {
	clear(b.mem)
	const n = 200 * kb
	states := []struct {
		name            string
		at              func(loop) kernelbench.Code
		one, four, word float64
	}{
		{"hot", func(l loop) kernelbench.Code { return b.hot(n, l) }, 0.95, 0.85, 1.9},
		{"L3", func(l loop) kernelbench.Code { return b.rotating(n, l3Rotation, false, l) }, 1.03, 0.85, 1.2},
		{"DRAM", func(l loop) kernelbench.Code { return b.rotating(n, benchMemory, false, l) }, 1.08, 0.85, 1.4},
		{"DRAM in order of address", func(l loop) kernelbench.Code { return b.rotating(n, benchMemory, true, l) }, 0, 0, 0},
	}
	ours := verifyLoop(firstNonZero)
	for _, s := range states {
		b.row("verify 200 K / sequential load loop, "+s.name, s.one, s.at(ours), s.at(loopOver(kernelbench.LoadOne)))
	}
	for _, s := range states {
		b.row("verify 200 K / four-stream load loop, "+s.name, s.four, s.at(ours), s.at(loopOver(kernelbench.LoadFour)))
	}
	for _, s := range states {
		b.row("verify 200 K / Go loop over uint64, "+s.name, s.word, s.at(ours), s.at(verifyLoop(firstNonZeroGeneric)))
	}
}

const (
	benchBlock = 512 * kb // both halves
	benchUsed  = 20 * kb  // what a request writes
)

// wiping writes the start of one of so many blocks, then runs wipe on the whole
// block. Only that is timed.
func (b *kernelBench) wiping(blocks int, wipe func(blk []byte)) kernelbench.Code {
	order := rand.New(rand.NewPCG(1, 2)).Perm(blocks)
	next := 0
	return func() (time.Duration, int) {
		at := order[next] * benchBlock
		next = (next + 1) % blocks
		blk := b.mem[at : at+benchBlock : at+benchBlock]
		fill(blk[:benchUsed])
		start := time.Now()
		wipe(blk)
		return time.Since(start), 1
	}
}

func goClear(blk []byte) { clear(blk) }

func wipeCold(blk []byte) {
	zero(blk[:benchUsed])
	zeroCold(blk[benchUsed:])
}

// A ring is a pool of which so many workspaces are in use, as in a server whose
// requests wait for something. They end in the order in which they began.
type ring struct {
	pool *Pool
	live []*Workspace
	next int
}

func (b *kernelBench) ring(blocks int, m Mode) *ring {
	p, err := NewPool(Config{Mode: m})
	require.NoError(b.t, err)
	r := &ring{pool: p, live: make([]*Workspace, blocks)}
	for i := range r.live {
		r.live[i] = p.Acquire()
	}
	for range r.live {
		r.request() // so that all memory was touched
	}
	return r
}

// request is one request: it writes, and its workspace is released. It returns how
// long the release took. The block is the next one's at once.
func (r *ring) request() time.Duration {
	ws := r.live[r.next]
	fill(ws.Client().Alloc(benchUsed))
	start := time.Now()
	ws.Release()
	spent := time.Since(start)
	r.live[r.next] = r.pool.Acquire()
	r.next = (r.next + 1) % len(r.live)
	return spent
}

func (r *ring) releasing() kernelbench.Code {
	return func() (time.Duration, int) { return r.request(), 1 }
}

// cold compares ways to wipe a block of which most was not touched, and what
// Shadow makes of it, for so many blocks that take turns.
func (b *kernelBench) cold() {
	for _, c := range []struct {
		blocks int
		bar    float64
	}{{512, 1.3}, {128, 0}, {32, 0}, {8, 0}, {1, 0}} {
		r := b.ring(c.blocks, Shadow)
		b.row(fmt.Sprintf("release of 512 K in Shadow after 20 K were written / `clear` of 512 K, %d blocks in turn", c.blocks), c.bar, r.releasing(), b.wiping(c.blocks, goClear))
		b.row("the same, bare kernels, ordinary stores", 0, b.wiping(c.blocks, zero), b.wiping(c.blocks, goClear))
		b.row("the same, bare kernels, non-temporal stores past the mark", 0, b.wiping(c.blocks, wipeCold), b.wiping(c.blocks, goClear))
	}
}

// neighbour measures how fast another goroutine, on the other core, streams
// memory while requests come at a fixed rate, relative to when none come.
func (b *kernelBench) neighbour() {
	if runtime.GOMAXPROCS(0) < 2 {
		fmt.Println("\nOne core: no neighbour to measure.")
		return
	}
	const perSecond = 15_000
	stream, err := unix.Mmap(-1, 0, benchMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(b.t, err)
	defer unix.Munmap(stream)
	fill(stream)

	var streamed, spent atomic.Int64 // bytes, and nanoseconds of its own CPU time
	quit, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread()
		for {
			select {
			case <-quit:
				return
			default:
			}
			at := rand.IntN(len(stream)/(1<<20)) << 20
			start := threadTime()
			kernelbench.LoadOne(stream[at : at+1<<20])
			spent.Add(threadTime() - start)
			streamed.Add(1 << 20)
		}
	}()

	blocks := benchMemory / benchBlock
	ordinary := b.wiping(blocks, zero)
	watermark, fullClear := b.ring(blocks, Watermark), b.ring(blocks, FullClear)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// phase runs requests at the fixed rate for a while and returns the
	// neighbour's bytes a nanosecond meanwhile.
	phase := func(request func()) float64 {
		const length = 60 * time.Millisecond
		bytes0, spent0 := streamed.Load(), spent.Load()
		start := time.Now()
		for done := 0; time.Since(start) < length; done++ {
			for time.Since(start) < time.Duration(done)*time.Second/perSecond {
			}
			request()
		}
		return float64(streamed.Load()-bytes0) / float64(spent.Load()-spent0)
	}
	nothing := func() {}
	kinds := []func(){
		nothing,
		func() { watermark.request() },
		func() { fullClear.request() },
		func() { ordinary() },
	}
	rates := make([][]float64, len(kinds))
	for range 41 {
		before := phase(nothing)
		for i, request := range kinds {
			now := phase(request)
			after := phase(nothing) // what it is relative to lies on both sides of it
			rates[i] = append(rates[i], 2*now/(before+after))
			before = after
		}
	}
	close(quit)
	<-stopped
	idle, w, f, o := kernelbench.Median(rates[0]), kernelbench.Median(rates[1]), kernelbench.Median(rates[2]), kernelbench.Median(rates[3])
	b.print("neighbour that streams DRAM, idle / idle (how sure the next rows are)", 0, idle)
	b.print(fmt.Sprintf("neighbour at %d requests a second / idle, Watermark", perSecond), 0.93, w)
	b.print("the same, FullClear", 0, f)
	b.print("the same, whole wipe with ordinary stores", 0, o)
	b.print("lead of Watermark over FullClear", 0.06, w-f)
	b.print("lead of Watermark over the whole wipe with ordinary stores", 0, w-o)
}

// threadTime is the CPU time of the calling thread: time in which another
// process had the core does not count.
func threadTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return ts.Nano()
}
