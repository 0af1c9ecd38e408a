//go:build (linux || darwin || freebsd || netbsd || openbsd || dragonfly) && !(386 || arm || mips || mipsle)

package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// faultOf runs f as touching does and requires that a fence stopped it.
func faultOf(t *testing.T, f func()) *FenceFault {
	t.Helper()
	v := touching(f)
	require.NotNil(t, v, "nothing stopped it")
	fault := FenceFaultOf(v)
	require.NotNil(t, fault, "%v", v)
	return fault
}

// releaseHere has a name that must stand in reports.
//
//go:noinline
func releaseHere(ws *Workspace) { ws.Release() }

//go:noinline
func acquireHere(p *Pool) *Workspace { return p.Acquire() }

func TestFenceStopsLateReadsAndWrites(t *testing.T) {
	for _, cfg := range []Config{{Debug: Fence}, {Debug: Fence, Memory: Mapped, Mode: Watermark}, {FenceEvery: 1}, {Debug: Fence, ClientSize: MinHalfSize, BackendSize: 3 * MinHalfSize}} {
		cfg.Name = "late"
		p := newTestPool(t, cfg)
		touches := int64(0)
		for n := range 4 {
			ws := acquireHere(p.Pool)
			requireClean(t, ws)
			size := [2]int{ws.Client().Size(), ws.Backend().Size()}
			slices := [2][]byte{ws.Client().Alloc(size[Client]), ws.Backend().Alloc(size[Backend])}
			stain(slices[Client], n)
			stain(slices[Backend], n)
			releaseHere(ws)
			for _, h := range bothHalves {
				b := slices[h]
				for _, i := range []int{0, 1, size[h] / 2, size[h] - 1} {
					for _, touch := range []func(){func() { sink = b[i] }, func() { b[i] = 'x' }} {
						f := faultOf(t, touch)
						touches++
						require.Equal(t, "late", f.Pool)
						require.EqualValues(t, n+1, f.Workspace)
						require.Equal(t, h, f.Half)
						require.Equal(t, i, f.Offset)
						require.Equal(t, size[h], f.Size)
						require.Contains(t, f.Acquired[0], "(*Pool).acquire pool.go:")
						require.Contains(t, f.Released[0], "(*Pool).giveBack pool.go:")
						require.Contains(t, strings.Join(f.Acquired, "\n"), "workspace.acquireHere fence_test.go:")
						require.Contains(t, strings.Join(f.Released, "\n"), "workspace.releaseHere fence_test.go:")
						require.ErrorIs(t, f, ErrReleased)
						require.NotErrorIs(t, f, ErrMisuse)
						text, err := json.Marshal(f)
						require.NoError(t, err)
						for _, s := range []string{f.Error(), string(text), fmt.Sprintf("%+v %#v", f, f)} {
							require.NotContains(t, s, "<tag0000", "no contents of memory")
							require.Contains(t, s, "releaseHere")
						}
						require.Contains(t, f.Error(), fmt.Sprintf("workspace %d of pool \"late\": byte %d of the %s half (%d bytes)", n+1, i, h, size[h]))
					}
				}
			}
		}
		s := p.Stats()
		require.Equal(t, touches, s.LateTouches)
		require.EqualValues(t, 4, s.Fenced)
		require.Equal(t, 4, s.Quarantined)
		require.Zero(t, s.Idle)
		require.Zero(t, s.Violations)
	}
}

// Where a tenure ends, that of a neighbour may begin.
func TestTenuresEndWhereTheirRegionEnds(t *testing.T) {
	p := newTestPool(t, Config{Debug: Fence})
	ws := p.Acquire()
	defer ws.Release()
	own, all := ws.blk.tenure, ws.blk.region.all
	fences.Lock()
	others := fences.tenures
	fences.tenures = map[*tenure]struct{}{own: {}} // a neighbour would hide what lies behind the end
	fences.Unlock()
	defer func() {
		fences.Lock()
		fences.tenures = others
		fences.Unlock()
	}()
	for _, c := range []struct {
		offset int
		in     bool
	}{{-1, false}, {0, true}, {len(all) - 1, true}, {len(all), false}} {
		got, released := tenureAt(addressOf(all) + uintptr(c.offset))
		require.Equal(t, c.in, got == own, "offset %d", c.offset)
		if c.in {
			require.Nil(t, released)
		}
	}
}

// After Close there is no quarantine: what is released then is not watched.
func TestFenceAfterClose(t *testing.T) {
	p := newTestPool(t, Config{Debug: Fence})
	before := p.Acquire()
	early := before.Client().Alloc(8)
	before.Release()
	ws := p.Acquire()
	b, region := ws.Client().Alloc(8), ws.blk.region
	p.Close()
	ws.Release()
	for _, b := range [][]byte{early, b} {
		v := touching(func() { b[0] = 1 })
		require.NotNil(t, v, "it is inaccessible all the same")
		require.Nil(t, FenceFaultOf(v))
	}
	spare.Lock()
	defer spare.Unlock()
	require.True(t, slices.Contains(spare.regions[region.sizes], region), "its addresses may be used again")
}

func TestFenceStopsAtTheEdgesOfTheHalves(t *testing.T) {
	p := newTestPool(t, Config{Debug: Fence, Name: "edges"})
	ws := acquireHere(p.Pool)
	for _, h := range bothHalves {
		half := ws.blk.half(h)
		first := unsafe.Pointer(unsafe.SliceData(half))
		for _, off := range []int{-1, len(half), len(half) + 4000} {
			f := faultOf(t, func() { sink = *(*byte)(unsafe.Add(first, off)) })
			want := FenceFault{Pool: "edges", Workspace: 1, Half: h, Offset: off, Size: len(half), Acquired: f.Acquired}
			if h == Backend && off == -1 {
				// The page between the halves counts for the one in front.
				want.Half, want.Offset = Client, int(uintptr(first)-1-address(ws.blk.half(Client)))
			}
			require.Equal(t, want, *f)
			require.ErrorIs(t, f, ErrMisuse)
			require.ErrorContains(t, f, "outside of memory in use")
			require.ErrorContains(t, f, "acquireHere")
		}
	}
	require.Zero(t, p.Stats().LateTouches, "the workspace is in use")
	ws.Release()
}

// A somebodysAddress is what a user may panic with. Its method must not be called.
type somebodysAddress struct{ at uintptr }

func (a *somebodysAddress) Addr() uintptr { return a.at }

func TestFenceFaultOfExplainsNothingElse(t *testing.T) {
	p := newTestPool(t, Config{Memory: Mapped, MaxIdle: -1})
	ws := p.Acquire()
	b := ws.Client().Alloc(8)
	ws.Release()
	var null *int
	var none map[string]int
	for what, v := range map[string]any{
		"nil": nil, "error": ErrReleased, "string": "x", "address of nothing": touching(func() { *null = 1 }),
		"nil map": touching(func() { none["x"] = 1 }), "mapped, not fenced": touching(func() { b[0] = 1 }),
		"an address of the user's": (*somebodysAddress)(nil),
	} {
		require.Nil(t, FenceFaultOf(v), what)
	}
}

// The addresses come back after as many further releases as the Config says, the
// first to go first, and the books of them do not grow.
func TestQuarantine(t *testing.T) {
	for _, quarantine := range []int{1, 2, 7, 0} {
		p := newTestPool(t, Config{Debug: Fence, Quarantine: quarantine, ClientSize: 23 * MinHalfSize, BackendSize: MinHalfSize})
		if quarantine == 0 {
			quarantine = 256
		}
		for len(spare.regions[[2]int{23 * MinHalfSize, MinHalfSize}]) > 0 {
			takeSpare([2]int{23 * MinHalfSize, MinHalfSize})
		}
		var order []uintptr
		for n := range 3*quarantine + 3 {
			ws := p.Acquire()
			at := address(ws.blk.mem)
			if n <= quarantine {
				require.NotContains(t, order, at, "release %d", n)
				order = append(order, at)
			} else {
				require.Equal(t, order[n%(quarantine+1)], at, "release %d", n)
			}
			requireClean(t, ws)
			stain(ws.Client().Alloc(100), n)
			ws.Release()
			require.Equal(t, min(n+1, quarantine), p.Stats().Quarantined)
		}
		fences.Lock()
		known := 0
		for tenure := range fences.tenures {
			if tenure.pool == p.Pool {
				known++
			}
		}
		fences.Unlock()
		require.Equal(t, quarantine, known)
		require.Zero(t, p.fences)
	}
}

// A message boundary ends the life of what was handed out before it.
func TestResetOfAFencedWorkspace(t *testing.T) {
	p := newTestPool(t, Config{Debug: Fence})
	ws := p.Acquire()
	for n := range 10 {
		a, b := ws.Client().Alloc(1000), ws.Backend().Copy(tag(n))
		stain(a, n)
		ws.Reset()
		for h, old := range map[Half][]byte{Client: a, Backend: b} {
			f := faultOf(t, func() { sink = old[0] })
			require.Equal(t, h, f.Half)
			require.EqualValues(t, 1, f.Workspace)
			require.Contains(t, strings.Join(f.Released, "\n"), "Workspace).Reset")
		}
		require.Zero(t, ws.Client().Mark())
		requireClean(t, ws)
	}
	ws.Release()
	s := p.Stats()
	require.EqualValues(t, 11, s.Fenced)
	require.EqualValues(t, 11, s.Created)
	require.EqualValues(t, 11, s.Discarded)
	require.EqualValues(t, 1, s.Released)
	require.Zero(t, p.fences)
}

func TestFenceEveryTakesItsShare(t *testing.T) {
	const requests, every = 4000, 20
	next := uint64(0)
	p := newTestPool(t, Config{FenceEvery: every, AuditEvery: -1, draw: func() uint64 {
		next += 0x9e3779b97f4a7c15 // equidistributed
		return next
	}})
	for n := range requests {
		ws := p.Acquire()
		requireClean(t, ws)
		b := ws.Client().Copy(tag(n))
		fenced := ws.blk.tenure != nil
		ws.Release()
		require.Equal(t, fenced, touching(func() { sink = b[0] }) != nil, "the others stay ordinary blocks")
	}
	s := p.Stats()
	require.InDelta(t, requests/every, s.Fenced, 4*math.Sqrt(requests/every))
	require.Zero(t, s.FenceSkipped)
	require.Equal(t, 1, s.Idle)
	require.Equal(t, s.Fenced+1, s.Created)
	require.Equal(t, s.Fenced, s.Discarded)
}

func TestFenceEveryIsBounded(t *testing.T) {
	p := newTestPool(t, Config{FenceEvery: 1})
	all, _ := acquireMany(p.Pool, 3*maxFences)
	fenced := 0
	for _, ws := range all {
		if ws.blk.tenure != nil {
			fenced++
		}
	}
	require.Equal(t, 16, fenced, "as the doc comment of FenceEvery says")
	require.EqualValues(t, maxFences, p.Stats().Fenced)
	require.EqualValues(t, 2*maxFences, p.Stats().FenceSkipped)
	for _, ws := range all {
		ws.Release()
	}
	ws := p.Acquire()
	require.NotNil(t, ws.blk.tenure, "there is room again")
	ws.Release()
}

// On the heap a handler that runs on with a bare slice is safe, and so it is where
// its block happened to be fenced. That costs a place among the fenced blocks.
func TestFenceEverySparesWhoMayRunOn(t *testing.T) {
	p := newTestPool(t, Config{FenceEvery: 1})
	var kept [][]byte
	for n := range maxFences {
		ws := p.Acquire()
		kept = append(kept, ws.Client().Copy(tag(n)))
		ws.Abandon()
	}
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	for n, b := range kept {
		require.Equal(t, tag(n), b)
	}
	s := p.Stats()
	require.EqualValues(t, maxFences, s.AbandonedLive)
	require.Zero(t, s.FenceSkipped)
	ws := p.Acquire()
	require.Nil(t, ws.blk.tenure)
	ws.Release()
	require.EqualValues(t, 1, p.Stats().FenceSkipped)

	// A violation was wiped, and its request is over: nobody is spared.
	p = newTestPool(t, Config{FenceEvery: 1})
	b := func() []byte {
		ws := p.Acquire()
		defer ws.Release()
		ws.Client().mem()[5000] = 1
		return ws.Client().Alloc(8)
	}()
	p.violations(1)
	require.Eventually(t, func() bool {
		runtime.GC()
		return p.Stats().AbandonedLive == 0
	}, waitLimit, pollEvery)
	requireBlocked(t, b)
}

// Where nobody can recover, the log is all there is beside the crash.
func TestReleaseOfAFencedBlockIsLogged(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		level  slog.Level
		logged bool
	}{
		{Config{FenceEvery: 1}, slog.LevelInfo, true},
		{Config{Debug: Fence}, slog.LevelInfo, false},
		{Config{Debug: Fence}, slog.LevelDebug, true},
	} {
		var log lockedBuffer
		c.cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: c.level}))
		p := newTestPool(t, c.cfg)
		ws := p.Acquire()
		half := ws.blk.half(Backend)
		releaseHere(ws)
		for range maxReports {
			p.reports <- struct{}{}
		}
		if !c.logged {
			require.Empty(t, log.String())
			continue
		}
		require.Contains(t, log.String(), fmt.Sprintf("backend=%#x-%#x", address(half), address(half)+uintptr(len(half))))
		require.Contains(t, log.String(), "workspace.releaseHere fence_test.go:")
		require.Contains(t, log.String(), "workspace=1")
	}
}

func TestTestPoolBlocksItsAddressesForEver(t *testing.T) {
	var mems [][]byte
	require.Empty(t, verdict(func(p *Pool) {
		late := p.Acquire()
		for _, ws := range []*Workspace{p.Acquire(), p.Acquire()} {
			mems = append(mems, ws.blk.mem)
			ws.Release()
		}
		p.Close()
		mems = append(mems, late.blk.mem)
		late.Release()
	}))
	next := newTestPool(t, Config{Debug: Fence})
	for range 3 * len(mems) {
		ws := next.Acquire()
		for _, mem := range mems {
			require.False(t, addressOf(ws.blk.mem) == addressOf(mem), "the next test has the addresses")
		}
		defer ws.Release()
	}
}

func TestTestPoolSaysWhatItCouldNotFence(t *testing.T) {
	var log, many safeBuffer
	got := verdict(func(p *Pool) {
		sysMap = func(int) ([]byte, error) { return nil, errors.New("refused for the test") }
		defer func() { sysMap = mapRange }()
		p.Acquire().Release()
		require.Eventually(t, func() bool { return len(p.reports) == 0 }, waitLimit, pollEvery)
		require.Equal(t, 1, strings.Count(log.String(), "the system refused mapped memory"))
		require.Contains(t, log.String(), "refused for the test")
	}, func(c *Config) {
		c.ClientSize, c.Logger = 29*MinHalfSize, slog.New(slog.NewTextHandler(&log, nil)) // no spare region has this size
	})
	require.Equal(t, []string{"workspace.TestPool: 1 blocks were not fenced, since the system refused to map memory"}, got)

	// Of many failures the log has the first.
	p := newTestPool(t, Config{Memory: Mapped, ClientSize: 29 * MinHalfSize, MaxIdle: -1, Logger: slog.New(slog.NewTextHandler(&many, nil))})
	sysMap = func(int) ([]byte, error) { return nil, errors.New("refused for the test") }
	defer func() { sysMap = mapRange }()
	for range 3 {
		p.Acquire().Release()
		require.Eventually(t, func() bool { return len(p.reports) == 0 }, waitLimit, pollEvery)
	}
	require.EqualValues(t, 3, p.Stats().MapFailures)
	require.Equal(t, 1, strings.Count(many.String(), "the system refused mapped memory"))
}
