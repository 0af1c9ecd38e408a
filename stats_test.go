package workspace

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// eachInt calls f for each integer field of v, which may be nested.
func eachInt(v reflect.Value, path string, f func(path string, field reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachInt(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Array:
		for i := range v.Len() {
			eachInt(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
	case reflect.Int, reflect.Int64:
		f(path, v)
	}
}

// A field that is added to HalfStats must be added to the sums.
func TestTotalsSumEveryField(t *testing.T) {
	var s Stats
	next := int64(0)
	want := map[string]int64{}
	for m := range s.Modes {
		s.Modes[m].Mode = Mode(m)
		for _, h := range []*HalfStats{&s.Modes[m].Client, &s.Modes[m].Backend} {
			eachInt(reflect.ValueOf(h).Elem(), "", func(path string, field reflect.Value) {
				next = next*2 + 1
				next %= 1_000_003
				field.SetInt(next)
				want[path] += next
			})
		}
	}
	total := s.Totals()
	got := map[string]int64{}
	eachInt(reflect.ValueOf(total), "", func(path string, field reflect.Value) { got[path] = field.Int() })
	require.Equal(t, want, got)

	var sum HalfStats
	for _, m := range s.Modes {
		sum = sum.plus(m.Totals())
		require.Equal(t, m.Client.plus(m.Backend), m.Totals())
	}
	require.Equal(t, total, sum)
}

func TestStatsAsJSON(t *testing.T) {
	p := newTestPool(t, Config{Name: "edge", Mode: Watermark, Canary: 0.25, ClientSize: 8192, BackendSize: 4096})
	ws := p.Acquire()
	ws.Client().Alloc(100)
	ws.Backend().Alloc(5000)
	ws.Release()
	p.Acquire().Abandon()
	s := p.Stats()

	text, err := json.Marshal(s)
	require.NoError(t, err)
	var back Stats
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, s, back)

	// Dashboards read these names.
	require.Contains(t, string(text), `"pool":"edge","mode":"watermark","effective_mode":"watermark","canary":0.25,"breaker_open":false,"host_excluded":false,"source_lost":false,"audit_every":1,"audit_budget":0,`)
	require.Contains(t, string(text), `"modes":[{"mode":"shadow",`)
	require.Contains(t, string(text), `"acquired":2,"released":1,"abandoned":1,"in_use":0,"doubts":{"running":0,"violation":0,"reservation":0,"panic":0,"upgrade":0,"abandon":1},`)
	snake := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	var tree any
	require.NoError(t, json.Unmarshal(text, &tree))
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				require.Regexp(t, snake, name)
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(tree)
}

func TestStatsDescribeThePool(t *testing.T) {
	p := newTestPool(t, Config{Name: "edge", Canary: 0.5, ClientSize: 8192, BackendSize: 4096, AuditEvery: 77, MaxIdle: 3})
	a, b := p.Acquire(), p.Acquire()
	a.Release()
	s := p.Stats()
	require.Equal(t, Stats{
		Pool: "edge", Mode: Shadow, Effective: Shadow, Canary: 0.5, AuditEvery: 77, Kernel: kernelName,
		ClientSize: 8192, BackendSize: 4096, Acquired: 2, Released: 1, InUse: 1, Idle: 1, MaxIdle: 3, Created: 2,
		Modes: s.Modes,
	}, s)
	for m, stats := range s.Modes {
		require.Equal(t, Mode(m), stats.Mode)
	}
	b.Release()
	require.Equal(t, 2, p.Stats().Idle)

	p2 := newTestPool(t, Config{AuditEvery: -5, MaxIdle: -1})
	s = p2.Stats()
	require.Equal(t, "default", s.Pool)
	require.Equal(t, -5, s.AuditEvery, "negative: off")
	require.Zero(t, s.MaxIdle)
	require.Equal(t, DefaultHalfSize, s.ClientSize)
}

// Bytes are counted by what was done: in Watermark the mark, else the half.
func TestWipedAndSavedBytes(t *testing.T) {
	const size, used = 8192, 1000
	for _, mode := range allModes {
		p := newTestPool(t, Config{Mode: mode, ClientSize: size, BackendSize: size})
		ws := p.Acquire()
		ws.Client().Alloc(used)
		ws.Reset()
		ws.Client().Alloc(2 * used)
		ws.Release()
		m := p.Stats().Modes[mode]
		require.Positive(t, m.Client.AuditNanos)
		m.Client.AuditNanos = 0
		want := HalfStats{Marks: [NumMarks]int64{1: 1}, MarkBytes: 2 * used, Ops: 5, Audits: 5, WipedBytes: 2 * size, SavedBytes: 2*size - 3*used, AuditBytes: 5*size - 2*used - 2*2*used}
		if mode == Watermark {
			want.WipedBytes = 3 * used
		}
		require.Equal(t, want, m.Client, mode)
		require.Equal(t, int64(2*size), m.Backend.SavedBytes, mode)
		require.Equal(t, int64(1), m.Released, mode)
		for other := range p.Stats().Modes {
			if Mode(other) != mode {
				require.Zero(t, p.Stats().Modes[other].Totals(), "nothing ran in %s", Mode(other))
			}
		}
	}
}

func TestOverflowsAndSpillsAreCounted(t *testing.T) {
	p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, MaxSpill: 10_000})
	ws := p.Acquire()
	ws.Client().Alloc(5000)
	ws.Client().Alloc(4100)                // the same request: once
	_, err := ws.Backend().TryAlloc(10000) // did not fit, took nothing from the heap
	require.ErrorIs(t, err, ErrFull)
	requirePanicIs(t, ErrFull, func() { ws.Client().Alloc(10_000) })
	require.Zero(t, p.Stats().SpilledBytes, "added at the end")
	ws.Release()
	s := p.Stats()
	require.EqualValues(t, 9100, s.SpilledBytes)
	require.EqualValues(t, 1, s.Modes[Shadow].Client.Overflows)
	require.EqualValues(t, 1, s.Modes[Shadow].Backend.Overflows)
}

// requireBalance checks what must hold at every moment, however busy the pool is.
func requireBalance(t *testing.T, s Stats, most int64) {
	t.Helper()
	require.Equal(t, s.Acquired, s.Released+s.Abandoned+s.InUse)
	require.GreaterOrEqual(t, s.InUse, int64(0))
	require.LessOrEqual(t, s.InUse, most)
	d := s.Doubts
	require.Equal(t, s.Abandoned, d.Running+d.Violation+d.Reservation+d.Panic+d.Upgrade+d.Abandon, "each abandoned one has a reason")
	released := int64(0)
	for _, m := range s.Modes {
		released += m.Released
	}
	require.Equal(t, s.Released, released, "each released one has a mode")
	require.Equal(t, s.Created, int64(s.Idle)+s.InUse+s.Discarded+s.Abandoned, "each block is somewhere")
	require.LessOrEqual(t, s.Idle, s.MaxIdle)
}

// Counters that are read while others write must add up at each scrape.
// go-kruda/kruda#143.
func TestBalanceHoldsAtEachScrape(t *testing.T) {
	const workers = 8
	p := newTestPool(t, Config{MaxIdle: 4, ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: 10, Canary: 0.5}).Pool
	rounds := scaled(5000, 500)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := pcg(uint64(w))
			for range rounds {
				ws := p.Acquire()
				ws.Client().Alloc(int(random() % 5000))
				switch random() % 8 {
				case 0:
					ws.Abandon()
				case 1:
					done := ws.Hold()
					ws.Release()
					done()
				case 2:
					ws.doubt(doubtPanic)
					ws.Release()
				case 3:
					ws.Reset()
					ws.Release()
					ws.Release()
				default:
					ws.Release()
				}
				if w == 0 && random()%50 == 0 {
					p.Trim(1)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	last := p.Stats()
	for scrapes, done := 0, false; !done || scrapes < 2; scrapes++ {
		select {
		case <-finished:
			done = true
		default:
		}
		s := p.Stats()
		requireBalance(t, s, workers)
		requireNoCounterFell(t, last, s)
		last = s
	}
	require.EqualValues(t, workers*rounds, last.Acquired)
	require.Zero(t, last.InUse)
	require.Positive(t, last.Modes[Watermark].Released)
	require.Positive(t, last.Doubts.Panic)
	require.Positive(t, last.Doubts.Abandon)
	require.Positive(t, last.DoubleReleases)
}

// gauges are the integers of Stats that may go down.
var gauges = map[string]bool{".InUse": true, ".Idle": true, ".AbandonedLive": true, ".Quarantined": true, ".LastViolation": true}

func requireNoCounterFell(t *testing.T, before, after Stats) {
	t.Helper()
	old := map[string]int64{}
	eachInt(reflect.ValueOf(before), "", func(path string, f reflect.Value) { old[path] = f.Int() })
	eachInt(reflect.ValueOf(after), "", func(path string, f reflect.Value) {
		if f.Int() < old[path] && !gauges[path] {
			require.Failf(t, "counter fell", "%s from %d to %d", path, old[path], f.Int())
		}
	})
}

// Counters cross 2^32 and 2^53 unharmed, and approach the end of their type
// without a panic. linkerd/linkerd2#603.
func TestCountersFarUp(t *testing.T) {
	run := func(preset int64) (before, after Stats) {
		p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize})
		p.expectViolations() // the preset ones
		eachInt(reflect.ValueOf(&p.n).Elem(), "", func(path string, f reflect.Value) { f.SetInt(preset) })
		p.n.Abandoned = 0 // acquired = released + abandoned + in use
		before = p.Stats()
		for i := range 100 {
			ws := p.Acquire()
			ws.Client().Alloc(5000)
			if i%10 == 0 {
				ws.Abandon()
				continue
			}
			ws.Release()
			ws.Release()
		}
		return before, p.Stats()
	}
	difference := func(before, after Stats) map[string]int64 {
		d := map[string]int64{}
		eachInt(reflect.ValueOf(before), "", func(path string, f reflect.Value) { d[path] = -f.Int() })
		eachInt(reflect.ValueOf(after), "", func(path string, f reflect.Value) { d[path] += f.Int() })
		delete(d, ".AbandonedLive") // is up to the collector
		maps.DeleteFunc(d, func(path string, _ int64) bool { return strings.HasSuffix(path, ".AuditNanos") })
		return d
	}
	want := difference(run(0))
	require.EqualValues(t, 100, want[".Acquired"])
	require.EqualValues(t, 90, want[".DoubleReleases"])
	for _, preset := range []int64{1<<32 - 50, 1<<53 - 50, math.MaxInt64 - 1<<30} {
		before, after := run(preset)
		require.Equal(t, want, difference(before, after), "from %d", preset)
		eachInt(reflect.ValueOf(after), "", func(path string, f reflect.Value) {
			require.GreaterOrEqual(t, f.Int(), int64(0), path)
		})
		text, err := json.Marshal(after)
		require.NoError(t, err)
		var back Stats
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, after, back, "as JSON, which some readers take for floats")
	}
	// Even past the end differences are right, as they wrap like the counters.
	before, after := run(math.MaxInt64 - 50)
	require.Equal(t, want, difference(before, after))
	require.NotPanics(t, func() { after.Totals() })
}

func TestMarksAreCountedOncePerRequest(t *testing.T) {
	for i, c := range []struct{ mark, bucket int }{
		{0, 0}, {1, 0}, {1024, 0}, {1025, 1}, {2048, 1}, {2049, 2}, {65_536, 6}, {65_537, 7}, {131_073, 8}, {262_144, 8}, {262_145, 9}, {1 << 20, 9},
	} {
		p := newTestPool(t, Config{BackendSize: 1 << 20})
		ws := p.Acquire()
		ws.Backend().Alloc(c.mark)
		ws.Release()
		h := p.Stats().Modes[Shadow].Backend
		want := [NumMarks]int64{}
		want[c.bucket] = 1
		require.Equal(t, want, h.Marks, "case %d: mark %d", i, c.mark)
		require.EqualValues(t, c.mark, h.MarkBytes)
		require.LessOrEqual(t, c.mark, MarkBound(c.bucket))
		if c.bucket > 0 {
			require.Greater(t, c.mark, MarkBound(c.bucket-1))
		}
	}
	for _, i := range []int{-1, NumMarks} {
		require.PanicsWithError(t, fmt.Sprintf("%v: MarkBound(%d), want 0 to 9", ErrMisuse, i), func() { MarkBound(i) })
	}

	// The highest of all messages; also of a request whose block was abandoned, but
	// not of one that had no block.
	p := newTestPool(t, Config{MaxLive: 1})
	ws := p.Acquire()
	start := ws.Client().Snapshot()
	ws.Client().Alloc(5000)
	ws.Client().Rewind(start)
	ws.Reset()
	ws.Client().Alloc(10)
	none := p.Acquire()
	none.Client().Alloc(100_000)
	none.Release()
	ws.Abandon()
	h := p.Stats().Modes[Shadow].Client
	require.Equal(t, [NumMarks]int64{3: 1}, h.Marks)
	require.EqualValues(t, 5000, h.MarkBytes)
}

func TestSubTakesEachCounter(t *testing.T) {
	var now, then Stats
	for i, s := range []*Stats{&now, &then} {
		eachInt(reflect.ValueOf(s).Elem(), "", func(_ string, v reflect.Value) { v.SetInt(int64(1000 - 700*i)) })
	}
	eachInt(reflect.ValueOf(now.Sub(then)), "", func(path string, v reflect.Value) {
		if v.Kind() == reflect.Int64 && !gauges[path] {
			require.EqualValues(t, 700, v.Int(), path)
		} else {
			require.EqualValues(t, 1000, v.Int(), "%s is not a counter", path)
		}
	})
}

func TestStatsAllocateNothing(t *testing.T) {
	p := newTestPool(t, Config{})
	p.Acquire().Release()
	var s Stats
	require.Zero(t, testing.AllocsPerRun(100, func() { s = p.Stats().Sub(s) }))
}

func TestStatsInALogLine(t *testing.T) {
	p := newTestPool(t, Config{Name: "edge"})
	ws := p.Acquire()
	ws.Client().Copy(tag(1))
	ws.Release()
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "stats", p.Stats())
	require.Contains(t, b.String(), "stats.pool=edge stats.mode=shadow stats.effective_mode=shadow stats.breaker_open=false stats.acquired=1 stats.released=1")
	require.Contains(t, b.String(), "stats.audits=5 stats.violations=0 stats.bound_95=0.45")
	require.NotContains(t, b.String(), string(tag(1)))
}
