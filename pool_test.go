package workspace

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// smallPool is newTestPool with halves of 4 and 8 KB.
func smallPool(t testing.TB, cfg Config) *testPool {
	t.Helper()
	cfg.ClientSize, cfg.BackendSize = MinHalfSize, 2*MinHalfSize
	return newTestPool(t, cfg)
}

// arenaOf returns the arena of one half.
func arenaOf(ws *Workspace, h Half) *Arena {
	if h == Client {
		return ws.Client()
	}
	return ws.Backend()
}

var bothHalves = []Half{Client, Backend}

// forModesAndHalves runs f once for each mode and half.
func forModesAndHalves(t *testing.T, f func(t *testing.T, m Mode, h Half)) {
	for _, m := range allModes {
		for _, h := range bothHalves {
			t.Run(fmt.Sprintf("%s %s", m, h), func(t *testing.T) { f(t, m, h) })
		}
	}
}

func TestPoolConfigLimits(t *testing.T) {
	for _, c := range []struct {
		field, value string
		cfg          Config
	}{
		{"ClientSize", "-1", Config{ClientSize: -1}},
		{"ClientSize", "-4096", Config{ClientSize: -4096}},
		{"ClientSize", "1", Config{ClientSize: 1}},
		{"ClientSize", "4095", Config{ClientSize: MinHalfSize - 1}},
		{"ClientSize", "4097", Config{ClientSize: MinHalfSize + 1}},
		{"ClientSize", "262145", Config{ClientSize: DefaultHalfSize + 1}},
		{"ClientSize", "67112960", Config{ClientSize: MaxHalfSize + HalfSizeStep}},
		{"ClientSize", fmt.Sprint(math.MaxInt), Config{ClientSize: math.MaxInt}},
		{"ClientSize", fmt.Sprint(math.MinInt), Config{ClientSize: math.MinInt}},
		{"BackendSize", "-1", Config{BackendSize: -1}},
		{"BackendSize", "100", Config{BackendSize: 100}},
		{"BackendSize", "67112960", Config{BackendSize: MaxHalfSize + HalfSizeStep}},
		{"Mode", "3", Config{Mode: numModes}},
		{"Mode", "255", Config{Mode: 255}},
		{"Canary", "-0.01", Config{Canary: -0.01}},
		{"Canary", "1.01", Config{Canary: 1.01}},
		{"Canary", "NaN", Config{Canary: math.NaN()}},
		{"Canary", "+Inf", Config{Canary: math.Inf(1)}},
		{"Canary", "-Inf", Config{Canary: math.Inf(-1)}},
		{"AuditEvery", "16777217", Config{AuditEvery: maxAuditEvery + 1}},
		{"AuditEvery", fmt.Sprint(math.MaxInt), Config{AuditEvery: math.MaxInt}},
		{"MaxLive", "-1", Config{MaxLive: -1}},
		{"MaxSpill", fmt.Sprint(math.MaxInt), Config{MaxSpill: math.MaxInt}},
	} {
		p, err := NewPool(c.cfg)
		require.Nil(t, p, "%s %s", c.field, c.value)
		require.ErrorIs(t, err, ErrConfig)
		require.Regexp(t, `\b`+c.field+` is .*`, err.Error())
		require.Contains(t, err.Error(), c.value)
	}
	for _, cfg := range []Config{
		{},
		{ClientSize: MinHalfSize, BackendSize: MaxHalfSize},
		{ClientSize: MaxHalfSize, BackendSize: MinHalfSize},
		{ClientSize: 3 * HalfSizeStep},
		{Mode: FullClear, Canary: 1, AuditEvery: maxAuditEvery},
		{AuditEvery: math.MinInt, MaxIdle: math.MinInt, MaxSpill: math.MinInt},
		{AuditEvery: 1, MaxIdle: math.MaxInt, MaxLive: math.MaxInt, MaxSpill: math.MaxInt - maxAlign},
		{Canary: math.SmallestNonzeroFloat64},
		{Canary: math.Copysign(0, -1)},
	} {
		p, err := NewPool(cfg)
		require.NoError(t, err, "%+v", cfg)
		ws := p.Acquire()
		ws.Client().Alloc(100)
		ws.Release()
		require.EqualValues(t, 1, p.Stats().Released)
	}
}

func TestPoolConfigDefaults(t *testing.T) {
	p, err := NewPool(Config{})
	require.NoError(t, err)
	require.Equal(t, Shadow, p.Mode(), "the careful mode")
	s := p.Stats()
	require.Equal(t, Stats{Pool: "default", Kernel: kernelName, AuditEvery: 20_000, MaxIdle: 64, ClientSize: 256 << 10, BackendSize: 256 << 10, Modes: s.Modes}, s)
	require.Equal(t, 64<<20, p.cfg.MaxSpill)

	p, err = NewPool(Config{MaxIdle: -7, MaxSpill: -7, AuditEvery: -7})
	require.NoError(t, err)
	require.Zero(t, p.cfg.MaxIdle, "none")
	require.Zero(t, p.cfg.MaxSpill, "none")
	require.True(t, p.sampler.Load().off)
	ws := p.Acquire()
	defer ws.Release()
	requirePanicIs(t, ErrFull, func() { ws.Client().Alloc(DefaultHalfSize + 1) })
}

func TestPoolSetModeRefusesWhatIsNone(t *testing.T) {
	p := smallPool(t, Config{Mode: FullClear})
	for _, m := range []Mode{numModes, 77, 255} {
		err := p.SetMode(m)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, fmt.Sprintf("mode %d", m))
		require.Equal(t, FullClear, p.Mode(), "unchanged")
	}
}

// What a request is wiped by hangs on the mode at its acquire alone.
func TestPoolModeCountsAtAcquire(t *testing.T) {
	p := smallPool(t, Config{})
	for _, before := range allModes {
		for _, after := range allModes {
			require.NoError(t, p.SetMode(before))
			was := p.Stats().Modes[before]
			ws := p.Acquire()
			require.Equal(t, before, ws.Mode())
			ws.Client().Alloc(64)
			require.NoError(t, p.SetMode(after))
			require.Equal(t, before, ws.Mode())
			ws.Release()
			now := p.Stats().Modes[before]
			wiped := int64(MinHalfSize)
			if before == Watermark {
				wiped = 64
			}
			require.Equal(t, was.Client.WipedBytes+wiped, now.Client.WipedBytes, "%s, then %s", before, after)
			require.Equal(t, was.Released+1, now.Released)
		}
	}
}

func TestPoolCanaryShare(t *testing.T) {
	count := func(p *Pool, requests int) (canaries int) {
		for range requests {
			ws := p.Acquire()
			if ws.Mode() == Watermark {
				canaries++
			}
			ws.Release()
		}
		return canaries
	}
	n := scaled(20_000, 4000)

	t.Run("none and all are exact", func(t *testing.T) {
		for _, draw := range []func() uint64{nil, allZero, allOnes} {
			p := smallPool(t, Config{draw: draw, AuditEvery: -1})
			require.Zero(t, count(p.Pool, n))
			require.NoError(t, p.SetCanary(1))
			require.Equal(t, n, count(p.Pool, n))
			require.NoError(t, p.SetCanary(0))
			require.Zero(t, count(p.Pool, n))
		}
	})
	t.Run("a quarter", func(t *testing.T) {
		p := smallPool(t, Config{Canary: 0.25, draw: pcg(9), AuditEvery: -1})
		require.InDelta(t, 0.25*float64(n), count(p.Pool, n), 4*math.Sqrt(float64(n)*0.25*0.75))
		s := p.Stats()
		require.Equal(t, 0.25, s.Canary)
		require.Equal(t, Shadow, s.Effective)
		require.Equal(t, int64(n), s.Modes[Shadow].Released+s.Modes[Watermark].Released, "each under its own mode")
	})
	t.Run("neighbours are drawn apart", func(t *testing.T) {
		p := smallPool(t, Config{Canary: 0.5, draw: pcg(10), AuditEvery: -1})
		same, last := 0, Shadow
		for range n {
			ws := p.Acquire()
			if ws.Mode() == last {
				same++
			}
			last = ws.Mode()
			ws.Release()
		}
		require.InDelta(t, n/2, same, 4*math.Sqrt(float64(n)/4))
	})
	t.Run("only in shadow", func(t *testing.T) {
		p := smallPool(t, Config{Canary: 1, Mode: FullClear, AuditEvery: -1})
		require.Zero(t, count(p.Pool, 100))
		require.NoError(t, p.SetMode(Watermark))
		require.NoError(t, p.SetCanary(0))
		require.Equal(t, 100, count(p.Pool, 100), "the mode itself needs no canary")
	})
	t.Run("out of range", func(t *testing.T) {
		p := smallPool(t, Config{Canary: 0.125})
		for _, share := range []float64{-1e-9, 1.0000001, 25, math.NaN(), math.Inf(1), math.Inf(-1)} {
			err := p.SetCanary(share)
			require.ErrorIs(t, err, ErrConfig)
			require.ErrorContains(t, err, fmt.Sprint(share))
			require.Equal(t, 0.125, p.Stats().Canary, "unchanged")
		}
	})
}

// acquireMany returns n workspaces and the addresses of their blocks.
func acquireMany(p *Pool, n int) (all []*Workspace, addrs []string) {
	for range n {
		ws := p.Acquire()
		all, addrs = append(all, ws), append(addrs, blockAddr(ws))
	}
	return all, addrs
}

func releaseAll(all []*Workspace) {
	for _, ws := range all {
		ws.Release()
	}
}

// The memory that was in use last is the hottest.
func TestPoolHandsOutTheLastReleasedFirst(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 8}).Pool
	all, addrs := acquireMany(p, 4)
	releaseAll(all)
	again, got := acquireMany(p, 4)
	for i := range got {
		require.Equal(t, addrs[3-i], got[i])
	}
	require.EqualValues(t, 4, p.Stats().Created)
	releaseAll(again)
}

func TestPoolKeepsNoMoreThanMaxIdle(t *testing.T) {
	for _, c := range []struct{ maxIdle, want int }{{1, 1}, {3, 3}, {-1, 0}} {
		p := smallPool(t, Config{MaxIdle: c.maxIdle}).Pool
		all, _ := acquireMany(p, 5)
		releaseAll(all)
		s := p.Stats()
		require.Equal(t, c.want, s.Idle)
		require.Equal(t, c.want, len(p.idle))
		require.EqualValues(t, 5-c.want, s.Discarded)
		require.EqualValues(t, 5, s.Released, "released all the same")
	}
}

func TestPoolTrim(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 8}).Pool
	all, addrs := acquireMany(p, 5)
	releaseAll(all)
	for _, c := range []struct{ keep, gone, left int }{{9, 0, 5}, {5, 0, 5}, {3, 2, 3}, {3, 0, 3}, {2, 1, 2}} {
		require.Equal(t, c.gone, p.Trim(c.keep))
		require.Equal(t, c.left, p.Stats().Idle)
	}
	for i := len(p.idle); i < cap(p.idle); i++ {
		require.Nil(t, p.idle[:cap(p.idle)][i], "a slot behind the list would keep the block alive")
	}
	last, got := acquireMany(p, 1)
	require.Equal(t, addrs[4], got[0], "the hottest stayed")
	releaseAll(last)
	require.Equal(t, 2, p.Trim(-1))
	require.Zero(t, p.Stats().Idle)
	require.EqualValues(t, 5, p.Stats().Discarded)
	require.Zero(t, p.Trim(0))
}

// Pools that keep the largest buffer that ever was, or as many as there ever were,
// never give the memory of a burst back (golang/go#23199, grpc/grpc-go#8500).
func TestFootprintAfterABurst(t *testing.T) {
	const idle, burst = 8, 60
	p := newTestPool(t, Config{MaxIdle: idle, AuditEvery: -1}).Pool
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	all, _ := acquireMany(p, burst)
	for i, ws := range all {
		smear(ws.Client().Alloc(DefaultHalfSize), tag(i))
		if i%20 == 0 {
			smear(ws.Backend().Alloc(8<<20), tag(i)) // from the heap
		}
	}
	releaseAll(all)
	clear(all)
	visitors(t, p, 100, scaled(50, 3)) // then one request at a time
	s := p.Stats()
	require.Equal(t, idle, s.Idle)
	require.EqualValues(t, burst, s.Created)
	require.EqualValues(t, burst-idle, s.Discarded)
	const blockSize = 2 * (DefaultHalfSize + guardSize)
	for _, blk := range p.idle {
		require.Len(t, blk.mem, blockSize, "overflow memory does not enter the pool")
		require.Equal(t, blockSize, cap(blk.mem))
	}
	require.LessOrEqual(t, heap()-before, int64(idle*blockSize*11/10), "what the pool keeps, and a tenth")
	runtime.KeepAlive(p)
}

// dgraph-io/badger#1136, numtide/treefmt#696.
func TestPoolClose(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 8}).Pool
	idle, _ := acquireMany(p, 2)
	inUse := p.Acquire()
	b := inUse.Client().Alloc(96)
	stain(b, 1)
	releaseAll(idle)
	require.Equal(t, 2, p.Stats().Idle)

	p.Close()
	p.Close()
	require.Zero(t, p.Stats().Idle)
	require.EqualValues(t, 2, p.Stats().Discarded)
	require.Equal(t, bytes.Repeat(tag(1), 6), b, "what is in use stays")
	mem := inUse.client.mem()
	inUse.Client().Alloc(100)
	inUse.Release()
	require.Equal(t, -1, firstNonZero(mem), "and is wiped")
	require.Zero(t, p.Stats().Idle, "but not kept")
	require.EqualValues(t, 3, p.Stats().Discarded)

	_, err := p.AcquireContext(context.Background())
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorContains(t, err, `"default"`)
	requireBlockless(t, p.Acquire())
	require.EqualValues(t, 1, p.Stats().Blockless)
	require.Zero(t, p.Trim(0))
	blocks, bad := p.AuditIdle()
	require.Zero(t, blocks)
	require.Zero(t, bad)
	require.NoError(t, p.SetMode(Watermark))
}

// requireBlockless checks that ws works without a block, and releases it.
func requireBlockless(t *testing.T, ws *Workspace) {
	t.Helper()
	for _, h := range bothHalves {
		a := arenaOf(ws, h)
		require.Zero(t, a.Size())
		require.Zero(t, a.Room())
		require.Zero(t, a.Mark())
		b := a.Alloc(100)
		require.Len(t, b, 100)
		require.Equal(t, -1, firstNonZero(b))
		require.True(t, a.Overflowed())
		_, err := a.TryAlloc(1)
		require.ErrorIs(t, err, ErrFull)
		a.Reserve(10)
		require.Len(t, a.Commit(5), 5)
		_, err = a.Buffer().Write([]byte("buffered"))
		require.NoError(t, err)
		a.Rewind(a.Snapshot())
	}
	require.NoError(t, ws.Audit())
	ws.Reset()
	require.False(t, ws.Client().Overflowed())
	ws.Release()
	requirePanicIs(t, ErrReleased, func() { ws.Client() })
}

func TestPoolCloseAndTrimWhileBusy(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 8, AuditEvery: 10}).Pool
	const holders = 64
	var wg sync.WaitGroup
	closed := make(chan struct{})
	for w := range holders {
		wg.Go(func() {
			for more := 5; more > 0; { // so many rounds after the Close
				ws := p.Acquire()
				b := ws.Client().Alloc(500)
				stain(b, w)
				runtime.Gosched()
				if !bytes.Equal(b[:16], tag(w)) {
					t.Errorf("worker %d lost its bytes", w)
				}
				ws.Release()
				select {
				case <-closed:
					more--
				default:
				}
			}
		})
	}
	for i := range 200 {
		p.Trim(i % 3)
		p.AuditIdle()
	}
	p.Close()
	p.Close()
	close(closed)
	wg.Wait()
	s := p.Stats()
	require.Zero(t, s.Idle)
	require.Equal(t, s.Created, s.Discarded)
	require.Positive(t, s.Blockless)
}

func TestPoolAcquireContext(t *testing.T) {
	p := smallPool(t, Config{Name: "edge", MaxLive: 1})
	ctx, cancel := context.WithCancelCause(context.Background())
	ws, err := p.AcquireContext(ctx)
	require.NoError(t, err)
	require.Equal(t, MinHalfSize, ws.Client().Size())

	_, err = p.AcquireContext(ctx)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, `"edge"`)

	why := errors.New("client went away")
	cancel(why)
	_, err = p.AcquireContext(ctx)
	require.ErrorIs(t, err, why)
	canceled, cancel2 := context.WithCancel(context.Background())
	cancel2()
	_, err = p.AcquireContext(canceled)
	require.ErrorIs(t, err, context.Canceled)
	late, cancel3 := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel3()
	_, err = p.AcquireContext(late)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	ws.Client().Alloc(10) // the end of ctx has no effect on what was taken
	ws.Release()
	s := p.Stats()
	require.EqualValues(t, 1, s.Acquired, "a refusal is no acquire")
	require.Zero(t, s.Blockless)
}

func TestPoolMaxLive(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 4, MaxLive: 2})
	all, _ := acquireMany(p.Pool, 2)
	requireBlockless(t, p.Acquire())
	requireBlockless(t, p.Acquire())
	require.EqualValues(t, 2, p.Stats().Blockless)
	all[0].Release()
	ws := p.Acquire()
	require.NotZero(t, ws.Client().Size(), "there is room again: those without a block do not count")
	ws.Release()
	releaseAll(all)
	require.EqualValues(t, 2, p.Stats().Created)
	require.Equal(t, 2, p.Stats().Idle)
}

func TestPoolMaxLiveHoldsUnderLoad(t *testing.T) {
	const limit = 3
	p := smallPool(t, Config{MaxIdle: limit, MaxLive: limit, AuditEvery: 100}).Pool
	var live, refused atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range scaled(2000, 300) {
				ws, err := p.AcquireContext(context.Background())
				if err != nil {
					refused.Add(1)
					runtime.Gosched()
					continue
				}
				if n := live.Add(1); n > limit {
					t.Errorf("%d blocks in use", n)
				}
				runtime.Gosched()
				live.Add(-1)
				ws.Release()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, p.Stats().Created, int64(limit))
	require.Zero(t, p.Stats().Blockless)
	require.Positive(t, refused.Load())
}

// requireAbandonedLive collects garbage until the gauge is n.
func requireAbandonedLive(t *testing.T, p *Pool, n int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC()
		return p.Stats().AbandonedLive == n
	}, waitLimit, pollEvery, "abandoned blocks that are still referred to")
}

// Not reusing blocks must not become a leak of memory: what is abandoned counts
// against MaxLive until the collector has it. gofiber/fiber#4359, #4347.
func TestPoolAbandonedBlocksAreCountedUntilCollected(t *testing.T) {
	p := smallPool(t, Config{MaxLive: 3}).Pool
	kept := make([][]byte, 3)
	for i := range kept {
		ws := p.Acquire()
		kept[i] = ws.Client().Alloc(10)
		if i == 2 {
			kept[i] = ws.Backend().Alloc(2 * MinHalfSize)[8000:] // the far end of the other half
		}
		ws.Abandon()
	}
	requireAbandonedLive(t, p, 3)
	runtime.GC()
	requireAbandonedLive(t, p, 3)
	_, err := p.AcquireContext(context.Background())
	require.ErrorIs(t, err, ErrLimit)
	requireBlockless(t, p.Acquire())

	for i := range kept {
		require.NotNil(t, kept[i])
		kept[i] = nil
		requireAbandonedLive(t, p, int64(2-i))
		ws, err := p.AcquireContext(context.Background())
		require.NoError(t, err)
		ws.Release()
	}
	require.EqualValues(t, 3, p.Stats().Abandoned)
}

// A dead handle must not keep the memory alive, even if it is kept itself.
func TestPoolDeadHandlesKeepNoBlock(t *testing.T) {
	p := smallPool(t, Config{}).Pool
	handles := make([]*Workspace, 20)
	arenas := make([]*Arena, len(handles))
	snapshots := make([]Snapshot, len(handles))
	for i := range handles {
		ws := p.Acquire()
		ws.Client().Alloc(10)
		handles[i], arenas[i], snapshots[i] = ws, ws.Backend(), ws.Client().Snapshot()
		ws.Abandon()
	}
	requireAbandonedLive(t, p, 0)
	runtime.KeepAlive(handles)
	runtime.KeepAlive(arenas)
	runtime.KeepAlive(snapshots)
}

// Each place that can find a stray byte opens the breaker, and in each the
// request goes on with clean memory while the block is never used again.
func TestBreakerOpensWhereverAByteIsFound(t *testing.T) {
	for _, site := range []struct {
		name  string
		op    Op
		audit int // AuditEvery
		mark  int // expected, of the half with the byte
		run   func(t *testing.T, p *Pool, h Half)
	}{
		{"written while idle, found at acquire", OpAcquire, 1, 0, func(t *testing.T, p *Pool, h Half) {
			ws := p.Acquire()
			bad := blockAddr(ws)
			ws.Release()
			p.idle[0].half(h)[3000] = 1
			ws = p.Acquire()
			require.NotEqual(t, bad, blockAddr(ws), "the request gets another block")
			requireClean(t, ws)
			ws.Release()
		}},
		{"found at alloc", OpAlloc, 1, 72, func(t *testing.T, p *Pool, h Half) {
			ws := p.Acquire()
			a := arenaOf(ws, h)
			a.Alloc(64)
			a.mem()[3000] = 1
			a.Alloc(8)
			require.Equal(t, byte(0), a.mem()[3000], "wiped at once")
			ws.Release()
		}},
		{"found at release", OpRelease, 1, 64, func(t *testing.T, p *Pool, h Half) {
			ws := p.Acquire()
			arenaOf(ws, h).Alloc(64)
			arenaOf(ws, h).mem()[3000] = 1
			ws.Release()
		}},
		{"found at reset", OpReset, 1, 64, func(t *testing.T, p *Pool, h Half) {
			ws := p.Acquire()
			arenaOf(ws, h).Alloc(64)
			arenaOf(ws, h).mem()[3000] = 1
			ws.Reset()
			requireClean(t, ws)
			ws.Release()
		}},
		{"found by Audit", OpForced, -1, 64, func(t *testing.T, p *Pool, h Half) {
			ws := p.Acquire()
			arenaOf(ws, h).Alloc(64)
			require.NoError(t, ws.Audit())
			arenaOf(ws, h).mem()[3000] = 1
			var v *Violation
			require.ErrorAs(t, ws.Audit(), &v)
			require.Equal(t, h, v.Half)
			require.Equal(t, p.cfg.Name, v.Pool, "the error is the filled in report")
			require.NoError(t, ws.Audit(), "it was wiped")
			ws.Release()
		}},
		{"found by AuditIdle", OpForced, -1, 0, func(t *testing.T, p *Pool, h Half) {
			p.Acquire().Release()
			p.idle[0].half(h)[3000] = 1
			blocks, bad := p.AuditIdle()
			require.Equal(t, 1, blocks)
			require.Equal(t, 1, bad)
			require.Zero(t, p.Stats().Idle)
		}},
	} {
		t.Run(site.name, func(t *testing.T) {
			forModesAndHalves(t, func(t *testing.T, m Mode, h Half) {
				p := smallPool(t, Config{Name: "edge", Mode: m, AuditEvery: site.audit})
				start := time.Now()
				site.run(t, p.Pool, h)

				v := p.violations(1)[0]
				require.Contains(t, strings.Join(v.Stack, "\n"), "TestBreakerOpensWhereverAByteIsFound")
				require.WithinRange(t, v.Time, start.Add(-time.Second), time.Now().Add(time.Second))
				size := MinHalfSize * (1 + int(h))
				require.Equal(t, &Violation{
					Pool: "edge", Half: h, Kind: DirtyTail, Op: site.op, Mode: m, Size: size, Mark: site.mark,
					First: 3000, Last: 3000, Count: 1, Bits: v.Bits, Runs: 1, LongestRun: 1, RunList: []Run{{3000, 1}}, Stable: true,
					Hints: v.Hints, Trail: v.Trail, Guard: true, Kernel: kernelName, Build: buildName(), Stack: v.Stack, Time: v.Time,
				}, v)

				s := p.Stats()
				require.True(t, s.BreakerOpen)
				require.EqualValues(t, 1, s.BreakerTrips)
				require.EqualValues(t, 1, s.Violations)
				require.EqualValues(t, 1, s.Modes[m].half(h).Violations)
				require.EqualValues(t, 1, s.Totals().Violations)
				require.EqualValues(t, 1, s.Doubts.Violation+s.Discarded, "the block is gone")
				require.Equal(t, s.Abandoned, s.Doubts.Violation)
				require.Equal(t, m, s.Mode, "what was set stays visible")
				if m == FullClear {
					require.Equal(t, FullClear, s.Effective, "the most careful stays")
				} else {
					require.Equal(t, Shadow, s.Effective)
				}
				ws := p.Acquire()
				requireClean(t, ws)
				ws.Release()
			})
		})
	}
}

func TestBreakerSkipsEachBadIdleBlock(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 4})
	all, addrs := acquireMany(p.Pool, 4)
	releaseAll(all)
	for _, i := range []int{1, 2, 3} {
		p.idle[i].half(Backend)[i] = 0xff
	}
	ws := p.Acquire()
	require.Equal(t, addrs[0], blockAddr(ws))
	require.Len(t, p.violations(3), 3)
	ws.Release()
	require.EqualValues(t, 3, p.Stats().Abandoned)
	require.EqualValues(t, 1, p.Stats().BreakerTrips, "it was open already")
}

// trip opens the breaker of a pool by a planted byte.
func trip(t *testing.T, p *testPool) {
	t.Helper()
	p.expectViolations()
	ws := p.Acquire()
	ws.client.mem()[len(ws.client.mem())-1] = 1
	require.Error(t, ws.Audit())
	ws.Release()
	require.True(t, p.Stats().BreakerOpen)
}

// Requests that began in Watermark are wiped whole once the breaker is open:
// their marks are in doubt, too.
func TestBreakerReachesRequestsUnderWay(t *testing.T) {
	p := smallPool(t, Config{Mode: Watermark, MaxIdle: 4, AuditEvery: -1})
	ws := p.Acquire()
	ws.Client().Alloc(64)
	before := p.Acquire()
	before.Release()
	require.Zero(t, p.Stats().Modes[Watermark].Client.WipedBytes, "a wipe up to the mark")
	trip(t, p)
	was := p.Stats().Modes[Watermark]
	require.Equal(t, Watermark, ws.Mode())
	ws.Release()
	now := p.Stats().Modes[Watermark]
	require.EqualValues(t, MinHalfSize, now.Client.WipedBytes-was.Client.WipedBytes)
	require.EqualValues(t, 2*MinHalfSize, now.Backend.WipedBytes-was.Backend.WipedBytes)
	require.EqualValues(t, 1, now.Client.ForcedAudits-was.Client.ForcedAudits)
}

func TestBreakerAuditsEachReleaseUntilRearmed(t *testing.T) {
	p := smallPool(t, Config{Mode: Watermark, AuditEvery: -1})
	trip(t, p)
	require.Zero(t, p.Stats().Totals().Audits)
	before := p.Stats().Modes[Shadow]
	for range 10 {
		ws := p.Acquire()
		require.Equal(t, Shadow, ws.Mode())
		ws.Client().Alloc(64)
		ws.Release()
	}
	m := p.Stats().Modes[Shadow]
	require.EqualValues(t, 10, m.Client.ForcedAudits-before.Client.ForcedAudits)
	require.EqualValues(t, 10, m.Backend.ForcedAudits-before.Backend.ForcedAudits)
	require.EqualValues(t, 10*(MinHalfSize-64), m.Client.AuditBytes)

	// It still looks: a further byte is found without any sampling.
	ws := p.Acquire()
	ws.backend.mem()[100] = 1
	ws.Release()
	found := p.violations(2)
	require.ElementsMatch(t, []Op{OpForced, OpRelease}, []Op{found[0].Op, found[1].Op})
	require.EqualValues(t, 1, p.Stats().BreakerTrips)

	require.True(t, p.Rearm("the cause is known"))
	require.False(t, p.Rearm("again"))
	require.Equal(t, Watermark, p.Stats().Effective)
	require.False(t, p.Stats().BreakerOpen)
	forced := p.Stats().Totals().ForcedAudits
	ws = p.Acquire()
	require.Equal(t, Watermark, ws.Mode())
	ws.Release()
	require.Equal(t, forced, p.Stats().Totals().ForcedAudits)
	trip(t, p)
	require.EqualValues(t, 2, p.Stats().BreakerTrips)
}

func TestBreakerStopsCanaries(t *testing.T) {
	p := smallPool(t, Config{Canary: 1, AuditEvery: -1})
	mode := func() Mode {
		ws := p.Acquire()
		defer ws.Release()
		return ws.Mode()
	}
	require.Equal(t, Watermark, mode())
	trip(t, p)
	require.Equal(t, Shadow, mode())
	require.NoError(t, p.SetCanary(1))
	require.Equal(t, Shadow, mode(), "whatever is set meanwhile")
	require.NoError(t, p.SetMode(Watermark))
	require.Equal(t, Shadow, mode())
	require.NoError(t, p.SetMode(FullClear))
	require.Equal(t, FullClear, mode())
	require.NoError(t, p.SetMode(Shadow))
	p.Rearm("")
	require.Equal(t, Watermark, mode(), "the canaries are back")
}

func TestAuditIdle(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 8, AuditEvery: -1, Mode: Watermark})
	blocks, bad := p.AuditIdle()
	require.Zero(t, blocks+bad)
	all, addrs := acquireMany(p.Pool, 4)
	releaseAll(all)
	blocks, bad = p.AuditIdle()
	require.Equal(t, 4, blocks)
	require.Zero(t, bad)
	c := p.Stats().Modes[Watermark].Client
	require.EqualValues(t, 4, c.ForcedAudits)
	require.EqualValues(t, 4*MinHalfSize, c.AuditBytes)
	require.Zero(t, c.Audits)

	// One byte, both halves, a guard: three violations in two blocks.
	first := p.idle[1]
	first.half(Client)[0], first.half(Backend)[2*MinHalfSize-1] = 1, 1
	p.idle[3].guard(Backend)[0]++
	blocks, bad = p.AuditIdle()
	require.Equal(t, 4, blocks)
	require.Equal(t, 3, bad)
	require.Len(t, p.violations(3), 3)
	require.Equal(t, 2, p.Stats().Idle)
	require.EqualValues(t, 2, p.Stats().Discarded)
	require.Equal(t, -1, firstNonZero(first.half(Client)), "wiped, as something seems to refer to it")
	require.Equal(t, -1, firstNonZero(first.half(Backend)))
	rest, got := acquireMany(p.Pool, 2)
	require.Equal(t, []string{addrs[2], addrs[0]}, got, "the others are still in their order")
	releaseAll(rest)
}

// While AuditIdle reads, requests come and go.
func TestAuditIdleBesideRequests(t *testing.T) {
	p := smallPool(t, Config{MaxIdle: 4, AuditEvery: 50}).Pool
	var wg sync.WaitGroup
	var done atomic.Bool
	for range 4 {
		wg.Go(func() {
			for !done.Load() {
				all, _ := acquireMany(p, 2)
				all[0].Client().Alloc(100)
				releaseAll(all)
			}
		})
	}
	for range scaled(2000, 300) {
		blocks, bad := p.AuditIdle()
		if bad != 0 || blocks > 4 || p.Stats().Idle > 4 {
			t.Errorf("%d of %d blocks bad, %d idle", bad, blocks, p.Stats().Idle)
		}
	}
	done.Store(true)
	wg.Wait()
	s := p.Stats()
	require.Equal(t, s.Created, int64(s.Idle)+s.Discarded, "no block was lost or doubled")
}

// What comes back while AuditIdle reads is hotter than what it reads.
func TestAuditIdleKeepsTheHottestLast(t *testing.T) {
	const blocks = 16
	p := newTestPool(t, Config{MaxIdle: blocks, AuditEvery: -1}).Pool
	for range 20 {
		ws := p.Acquire()
		rest, _ := acquireMany(p, blocks-1)
		releaseAll(rest)
		hot := blockAddr(ws)
		startAuditIdle(p, ws.Release)
		last, got := acquireMany(p, 1)
		require.Equal(t, hot, got[0])
		releaseAll(last)
	}
}

// A pool that is closed while AuditIdle has its blocks gets none of them back.
func TestAuditIdleBesideClose(t *testing.T) {
	const blocks = 16
	for range 5 {
		p := newTestPool(t, Config{MaxIdle: blocks, AuditEvery: -1}).Pool
		all, _ := acquireMany(p, blocks)
		releaseAll(all)
		startAuditIdle(p, p.Close)
		require.Zero(t, p.Stats().Idle)
		require.EqualValues(t, blocks, p.Stats().Discarded)
	}
}

// startAuditIdle runs AuditIdle, and meanwhile, once that has taken the idle
// blocks, during.
func startAuditIdle(p *Pool, during func()) {
	audited := make(chan struct{})
	go func() {
		defer close(audited)
		p.AuditIdle()
	}()
	for p.Stats().Idle > 0 {
		select {
		case <-audited:
			during()
			return
		default:
			runtime.Gosched()
		}
	}
	during()
	<-audited
}

func TestDamagedGuardIsFound(t *testing.T) {
	forModesAndHalves(t, func(t *testing.T, m Mode, h Half) {
		for _, at := range []int{0, 1, 31, guardSize - 1} {
			// Without any audit, at release.
			p := smallPool(t, Config{Mode: m, AuditEvery: -1})
			ws := p.Acquire()
			a := arenaOf(ws, h)
			a.Alloc(64)
			guard, mem := ws.blk.guard(h), a.mem()
			guard[at] ^= 0x10
			ws.Release()
			v := p.violations(1)[0]
			require.Equal(t, []any{GuardDamaged, h, OpRelease, m, 64, -1, -1, 0, false}, []any{v.Kind, v.Half, v.Op, v.Mode, v.Mark, v.First, v.Last, v.Count, v.Guard})
			require.True(t, guardIntact(guard), "restored")
			require.Equal(t, -1, firstNonZero(mem))
			s := p.Stats()
			require.EqualValues(t, 1, s.Doubts.Violation)
			require.Zero(t, s.Idle)
			require.True(t, s.BreakerOpen)
			require.EqualValues(t, len(mem), s.Modes[m].half(h).WipedBytes, "on doubt all of the half, in each mode")

			// By an audit, once.
			p = smallPool(t, Config{Mode: m})
			ws = p.Acquire()
			ws.blk.guard(h)[at] ^= 0x10
			arenaOf(ws, h).Alloc(8)
			ws.Release()
			v = p.violations(1)[0]
			require.Equal(t, []any{GuardDamaged, OpAlloc, false}, []any{v.Kind, v.Op, v.Guard})

			// While the block lies idle.
			p = smallPool(t, Config{Mode: m})
			p.Acquire().Release()
			p.idle[0].guard(h)[at] ^= 0x10
			p.Acquire().Release()
			require.Equal(t, OpAcquire, p.violations(1)[0].Op)
		}
	})
}

// Varnish's lists of such faults: a reservation left open on an error path.
func TestOpenReservationIsReported(t *testing.T) {
	forModesAndHalves(t, func(t *testing.T, m Mode, h Half) {
		p := smallPool(t, Config{Mode: m, AuditEvery: -1})
		ws := p.Acquire()
		a := arenaOf(ws, h)
		mem := a.mem()
		stain(a.Alloc(100), 1)
		stain(a.Reserve(1000), 2)
		ws.Release()
		v := p.violations(1)[0]
		require.Equal(t, []any{OpenReservation, h, OpRelease, m, 1104, true}, []any{v.Kind, v.Half, v.Op, v.Mode, v.Mark, v.Guard})
		require.Equal(t, []int{-1, -1, 0}, []int{v.First, v.Last, v.Count}, "nothing was read")
		require.Equal(t, -1, firstNonZero(mem))
		s := p.Stats()
		require.EqualValues(t, 1, s.Doubts.Reservation)
		require.EqualValues(t, 1, s.Abandoned)
		require.Zero(t, s.Idle)
		require.True(t, s.BreakerOpen)
	})
}

// Accounting that contradicts itself is not trusted with anything: the whole half
// counts as dirty.
func TestBadAccountingIsReported(t *testing.T) {
	size := func(a *Arena) int { return len(a.mem()) }
	faults := map[string]func(a *Arena){
		"position past the end":        func(a *Arena) { a.pos = size(a) + 1 },
		"position negative":            func(a *Arena) { a.pos = -1 },
		"position huge":                func(a *Arena) { a.pos = math.MaxInt },
		"mark past the end":            func(a *Arena) { a.mark = size(a) + 1 },
		"mark negative":                func(a *Arena) { a.mark = math.MinInt },
		"reservation past the end":     func(a *Arena) { a.resEnd = size(a) + 1 },
		"reservation negative":         func(a *Arena) { a.resEnd = -8 },
		"all at once":                  func(a *Arena) { a.pos, a.mark, a.resEnd = -1, -1, math.MaxInt },
		"position past the end, by 64": func(a *Arena) { a.pos = size(a) + 64 },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			forModesAndHalves(t, func(t *testing.T, m Mode, h Half) {
				p := smallPool(t, Config{Mode: m, AuditEvery: -1})
				ws := p.Acquire()
				a := arenaOf(ws, h)
				mem := a.mem()
				stain(a.Alloc(1000), 1)
				mem[len(mem)-1] = 1 // what the lost mark should have covered
				fault(a)
				ws.Release()
				v := p.violations(1)[0]
				require.Equal(t, []any{BadAccounting, h, OpRelease, m, len(mem)}, []any{v.Kind, v.Half, v.Op, v.Mode, v.Size})
				require.Equal(t, -1, firstNonZero(mem))
				s := p.Stats()
				require.EqualValues(t, 1, s.Doubts.Violation)
				require.Zero(t, s.Idle)
				require.EqualValues(t, len(mem), s.Modes[m].half(h).WipedBytes)
				require.GreaterOrEqual(t, s.Modes[m].half(h).SavedBytes, int64(0))

				// At the next operation already, if there is one.
				p = smallPool(t, Config{Mode: m, AuditEvery: -1})
				ws = p.Acquire()
				a = arenaOf(ws, h)
				a.Alloc(1000)
				fault(a)
				a.after(OpSnapshot)
				require.Equal(t, OpSnapshot, p.violations(1)[0].Op)
				require.Zero(t, a.Room(), "counts as full")
				require.Equal(t, a.Size(), a.Mark(), "and as written")
				require.Len(t, a.Alloc(100), 100)
				ws.Release()
				require.Len(t, p.violations(1), 1)
			})
		})
	}
}

// A logSink collects what is logged. It may be read while loggers write.
type logSink struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *logSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *logSink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// records waits for n records and returns them.
func (s *logSink) records(t *testing.T, n int) (all []map[string]any) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(s.String(), "\n") >= n }, waitLimit, pollEvery)
	for line := range strings.Lines(s.String()) {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		all = append(all, r)
	}
	require.Len(t, all, n)
	return all
}

// The leak detector must not leak. What lies past the mark may be another
// request's secret.
func TestReportsHoldNoContents(t *testing.T) {
	const secret = "passw0rd=hunter2"
	var sink logSink
	old := slog.Default()
	defer slog.SetDefault(old)
	slog.SetDefault(slog.New(slog.NewJSONHandler(&sink, nil)))
	p, err := NewPool(Config{Name: "edge", AuditEvery: 1})
	require.NoError(t, err)
	ws := p.Acquire()
	copy(ws.client.mem()[5000:], secret)
	failure := ws.Audit()
	ws.Release()

	r := sink.records(t, 1)[0]
	require.Equal(t, "ERROR", r["level"])
	require.Equal(t, "workspace: violation", r["msg"])
	v := r["violation"].(map[string]any)
	require.Equal(t, "edge", v["pool"])
	require.Equal(t, "dirty-tail", v["kind"])
	require.EqualValues(t, 5000, v["first"])
	require.EqualValues(t, 5000+len(secret)-1, v["last"])
	require.EqualValues(t, len(secret), v["count"])
	require.Contains(t, v["stack"], "TestReportsHoldNoContents")
	require.Regexp(t, `^[^ ]+\.violated `, v["stack"], "the stack begins where the violation was found")

	asJSON, err := json.Marshal(failure)
	require.NoError(t, err)
	for _, text := range []string{sink.String(), failure.Error(), string(asJSON), fmt.Sprintf("%v %+v %#v %q", failure, failure, failure, failure)} {
		for at := 0; at+4 <= len(secret); at++ {
			part := []byte(secret[at : at+4])
			decimal := strings.Trim(fmt.Sprint(part), "[]")
			for _, form := range []string{string(part), hex.EncodeToString(part), decimal, strings.ReplaceAll(decimal, " ", ","), strings.ReplaceAll(decimal, " ", ", ")} {
				require.NotContains(t, text, form)
			}
			require.NotContains(t, text, base64.StdEncoding.EncodeToString(part[:3]))
		}
	}
}

// Who takes the reports himself gets no log of them.
func TestReporterReplacesTheLog(t *testing.T) {
	var sink logSink
	p := newTestPool(t, Config{Logger: slog.New(slog.NewJSONHandler(&sink, nil))})
	plantAndRelease(p.Pool)
	p.violations(1)
	require.Eventually(t, func() bool { return len(p.reports) == 0 }, waitLimit, pollEvery)
	require.Empty(t, sink.String())
}

// plantAndRelease makes one violation in a pool that audits each operation.
func plantAndRelease(p *Pool) {
	ws := p.Acquire()
	ws.client.mem()[len(ws.client.mem())-1] = 1
	ws.Release()
}

// Whatever the reporter does, the memory is wiped and released first.
func TestReporterCannotStopTheWipe(t *testing.T) {
	for name, reporter := range map[string]func(p *Pool){
		"panics":             func(*Pool) { panic("reporter") },
		"panics with nil":    func(*Pool) { panic(nil) },
		"ends its goroutine": func(*Pool) { runtime.Goexit() },
		"uses the pool": func(p *Pool) {
			p.Stats()
			p.Acquire().Release()
			p.AuditIdle()
			p.Trim(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p *testPool
			var calls atomic.Int64
			p = smallPool(t, Config{OnViolation: func(*Violation) {
				calls.Add(1)
				reporter(p.Pool)
			}})
			p.expectViolations()
			const n = 3 * maxReports
			for i := range int64(n) {
				plantAndRelease(p.Pool)
				require.Eventually(t, func() bool { return calls.Load() == i+1 }, waitLimit, pollEvery)
				require.Eventually(t, func() bool { return len(p.reports) == 0 }, waitLimit, pollEvery, "its place is free again")
			}
			s := p.Stats()
			require.EqualValues(t, n, s.Violations)
			require.EqualValues(t, n, s.Abandoned)
			require.Zero(t, s.ReportsDropped)
			if strings.HasPrefix(name, "panics") {
				require.EqualValues(t, n, s.ReporterPanics)
			} else {
				require.Zero(t, s.ReporterPanics)
			}
		})
	}
}

func TestLoggerThatPanicsIsCounted(t *testing.T) {
	p, err := NewPool(Config{AuditEvery: 1, Logger: slog.New(panicHandler{slog.DiscardHandler})})
	require.NoError(t, err)
	plantAndRelease(p)
	require.Eventually(t, func() bool { return p.Stats().ReporterPanics == 1 }, waitLimit, pollEvery)
	require.EqualValues(t, 1, p.Stats().Violations)
}

// A panicHandler panics when something is logged.
type panicHandler struct{ slog.Handler }

func (panicHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panicHandler) Handle(context.Context, slog.Record) error { panic("handler") }

func TestReporterThatBlocksCostsReportsOnly(t *testing.T) {
	block := make(chan struct{})
	var started, ended atomic.Int64
	p := smallPool(t, Config{OnViolation: func(*Violation) {
		started.Add(1)
		<-block
		ended.Add(1)
	}})
	p.expectViolations()
	for range maxReports + 5 {
		plantAndRelease(p.Pool) // does not wait
	}
	s := p.Stats()
	require.EqualValues(t, maxReports+5, s.Violations)
	require.EqualValues(t, maxReports+5, s.Abandoned)
	require.EqualValues(t, 5, s.ReportsDropped)
	require.Eventually(t, func() bool { return started.Load() == maxReports }, waitLimit, pollEvery)
	require.Zero(t, ended.Load())
	ws := p.Acquire()
	requireClean(t, ws)
	ws.Release()

	close(block)
	require.Eventually(t, func() bool { return ended.Load() == maxReports && len(p.reports) == 0 }, waitLimit, pollEvery)
	plantAndRelease(p.Pool)
	require.Eventually(t, func() bool { return ended.Load() == maxReports+1 }, waitLimit, pollEvery, "reports flow again")
	require.EqualValues(t, 5, p.Stats().ReportsDropped)
}

// The report comes after the wipe: whoever gets it may look at the memory.
func TestReportComesAfterTheWipe(t *testing.T) {
	seen := make(chan int, 1)
	var mem []byte
	p := smallPool(t, Config{AuditEvery: -1, OnViolation: func(v *Violation) { seen <- firstNonZero(mem[v.Mark:]) }})
	p.expectViolations()
	ws := p.Acquire()
	ws.Client().Alloc(64)
	mem = ws.client.mem()
	mem[100] = 1
	require.Error(t, ws.Audit())
	require.Equal(t, -1, <-seen)
	ws.Release()
}

func TestModeChangesAndRearmAreLogged(t *testing.T) {
	var sink logSink
	p := smallPool(t, Config{Name: "edge", AuditEvery: -1, Logger: slog.New(slog.NewJSONHandler(&sink, nil))})
	require.NoError(t, p.SetMode(Shadow)) // no change
	require.Error(t, p.SetMode(99))
	require.False(t, p.Rearm("nothing to rearm"))
	require.NoError(t, p.SetMode(Watermark))
	trip(t, p)
	require.NoError(t, p.SetMode(FullClear))
	require.True(t, p.Rearm("fixed in v2"))
	require.NoError(t, p.SetCanary(0.5))
	var got []string
	for _, r := range sink.records(t, 3) {
		require.Equal(t, "edge", r["pool"])
		got = append(got, fmt.Sprint(r["level"], " ", r["msg"], " ", r["from"], " ", r["to"], " ", r["reason"]))
	}
	require.Equal(t, []string{
		"INFO workspace: mode changed shadow watermark <nil>",
		"INFO workspace: mode changed watermark fullclear <nil>",
		"WARN workspace: breaker rearmed <nil> <nil> fixed in v2",
	}, got)
}
