package workspace

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The shape against the same numbers computed one by one.
func TestShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 2000 {
		half := make([]byte, 1+rng.IntN(300))
		clean := []byte{0, poisonByte}[n%2]
		for i := range half {
			half[i] = clean
			if rng.IntN(1+n%40) == 0 {
				half[i] ^= byte(rng.IntN(256))
			}
		}
		off := rng.IntN(len(half) + 1)
		var runs []Run
		bits, count, longest := 0, 0, 0
		for i := off; i < len(half); i++ {
			if half[i] == clean {
				continue
			}
			count++
			for b := half[i] ^ clean; b != 0; b &= b - 1 {
				bits++
			}
			if k := len(runs) - 1; k >= 0 && runs[k].Offset+runs[k].Length == i {
				runs[k].Length++
			} else {
				runs = append(runs, Run{i, 1})
			}
			longest = max(longest, runs[len(runs)-1].Length)
		}
		v := &Violation{Kind: DirtyTail, Guard: true}
		v.describe(half, off, clean)
		want := &Violation{Kind: DirtyTail, Guard: true, First: -1, Last: -1, Count: count, Bits: bits, Runs: len(runs), LongestRun: longest, Stable: true, Hints: v.Hints}
		if count > 0 {
			last := runs[len(runs)-1]
			want.First, want.Last, want.RunList = runs[0].Offset, last.Offset+last.Length-1, runs[:min(len(runs), maxRuns)]
		}
		require.Equal(t, want, v)
	}
}

func TestHints(t *testing.T) {
	const (
		atMark, apart = "it begins at the mark", "it lies apart from the mark"
		oneBit        = "a single bit"
		lines, pages  = "whole cache lines", "whole pages"
		guard         = "the guard is damaged"
		gone, moving  = "it was clean at the second look", "it changed while it was looked at"
	)
	for _, c := range []struct {
		name string
		v    Violation
		want []string
	}{
		{"at the mark", Violation{Mark: 100, First: 100, Last: 102, Count: 3, Bits: 5, Runs: 1, RunList: []Run{{100, 3}}, Stable: true, Guard: true}, []string{atMark}},
		{"apart", Violation{Mark: 100, First: 101, Last: 102, Count: 2, Bits: 5, Runs: 1, RunList: []Run{{101, 2}}, Stable: true, Guard: true}, []string{apart}},
		{"one bit", Violation{Mark: 100, First: 500, Last: 500, Count: 1, Bits: 1, Runs: 1, RunList: []Run{{500, 1}}, Stable: true, Guard: true}, []string{oneBit, apart}},
		{"lines", Violation{Mark: 100, First: 128, Last: 383, Count: 192, Bits: 500, Runs: 2, RunList: []Run{{128, 64}, {256, 128}}, Stable: true, Guard: true}, []string{apart, lines}},
		{"lines, and more", Violation{Mark: 100, First: 128, Last: 400, Count: 193, Bits: 500, Runs: 2, RunList: []Run{{128, 64}, {256, 129}}, Stable: true, Guard: true}, []string{apart}},
		{"not from a line's start", Violation{Mark: 100, First: 129, Last: 192, Count: 64, Bits: 500, Runs: 1, RunList: []Run{{129, 64}}, Stable: true, Guard: true}, []string{apart}},
		{"pages", Violation{Mark: 4096, First: 4096, Last: 8191, Count: 4096, Bits: 9000, Runs: 1, RunList: []Run{{4096, 4096}}, Stable: true, Guard: true}, []string{atMark, pages}},
		{"more runs than are listed", Violation{Mark: 0, First: 64, Last: 9000, Count: 64 * 17, Bits: 9000, Runs: 17, RunList: slices.Repeat([]Run{{64, 64}}, 16), Stable: true, Guard: true}, []string{apart}},
		{"guard", Violation{Kind: GuardDamaged, First: -1, Last: -1, Stable: true}, []string{guard}},
		{"tail and guard", Violation{Mark: 0, First: 0, Last: 1, Count: 2, Bits: 4, Runs: 1, RunList: []Run{{0, 2}}, Stable: true}, []string{atMark, guard}},
		{"poison", Violation{Kind: PoisonDamaged, First: 3, Last: 3, Count: 1, Bits: 2, Runs: 1, RunList: []Run{{3, 1}}, Stable: true, Guard: true}, nil},
		{"gone", Violation{First: -1, Last: -1, Stable: true, Guard: true}, []string{gone}},
		{"moving", Violation{First: 7, Last: 7, Count: 1, Bits: 3, Runs: 1, RunList: []Run{{7, 1}}, Guard: true}, []string{moving, apart}},
	} {
		got := c.v.hints()
		require.Len(t, got, len(c.want), "%s: %q", c.name, got)
		for i, want := range c.want {
			require.True(t, strings.HasPrefix(got[i], want), "%s: %q", c.name, got)
		}
	}
}

func TestTrailBeforeASampledAudit(t *testing.T) {
	p := newTestPool(t, Config{Mode: Watermark, AuditEvery: 20_000, draw: fixedGap(t, 20_000, 20)})
	ws := p.Acquire() // 1
	a := ws.Client()
	ops := int64(1)
	for i := range 13 { // 2 to 14
		a.Alloc(8 * (i + 1))
		ops++
	}
	s := a.Snapshot() // 15
	b := a.Alloc(100) // 16
	a.Rewind(s)       // 17
	a.Alloc(8)        // 18
	a.mem()[5000] = 7
	require.Zero(t, p.Stats().Totals().Audits)
	ws.Release() // 19
	require.Zero(t, p.Stats().Violations, "the audit comes later")
	_ = b
	ws = p.Acquire() // 20, on the same block: Watermark left the byte
	ws.Release()
	v := p.violations(1)[0]
	require.Equal(t, OpAcquire, v.Op)
	pos := func(n int) int { return 8 * n * (n + 1) / 2 }
	want := []Step{}
	for i := 4; i <= 13; i++ { // operations 5 to 14
		want = append(want, Step{OpAlloc, pos(i), pos(i)})
	}
	want = append(want, Step{OpSnapshot, pos(13), pos(13)}, Step{OpAlloc, pos(13) + 100, pos(13) + 100}, Step{OpRewind, pos(13), pos(13) + 100},
		Step{OpAlloc, pos(13) + 8, pos(13) + 100}, Step{OpRelease, pos(13) + 8, pos(13) + 100}, Step{OpAcquire, 0, 0})
	require.Equal(t, want, v.Trail)
	require.EqualValues(t, ops+5+2, p.Stats().Modes[Watermark].Client.Ops, "each operation is counted once")
}

func TestTrailsChangeNoGap(t *testing.T) {
	for _, gap := range []int{1, 2, 15, 16, 17, 18, 100} {
		p := newTestPool(t, Config{AuditEvery: 20_000, draw: fixedGap(t, 20_000, gap)})
		ws := p.Acquire()
		for op := 2; op <= 5*gap; op++ {
			if op%7 == 0 {
				ws.Release()
				ws = p.Acquire()
				op++ // two operations
				if op > 5*gap {
					break
				}
				continue
			}
			ws.Client().Alloc(1)
		}
		ws.Release()
		s := p.Stats().Modes[Shadow].Client
		require.Equal(t, s.Ops/int64(gap), s.Audits, "gap %d, %d operations", gap, s.Ops)
	}
}

func TestForcedAuditsHaveNoTrail(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: 1}) // so each operation is taken down
	ws := p.Acquire()
	ws.Client().mem()[5000] = 1
	require.Error(t, ws.Audit())
	ws.Release()
	v := p.violations(1)[0]
	require.Nil(t, v.Trail)
	require.Equal(t, []Run{{5000, 1}}, v.RunList)
}

// Counters see all; the log sees ten at once, and then one a second.
func TestViolationsAreLoggedAtALimitedRate(t *testing.T) {
	now := time.Unix(0, 0)
	p := newTestPool(t, Config{})
	logged := func(after time.Duration) (left int64, ok bool) {
		now = now.Add(after)
		return p.mayLog(now)
	}
	for range maxLogBurst {
		left, ok := logged(0)
		require.True(t, ok)
		require.Zero(t, left)
	}
	for range 5 {
		_, ok := logged(100 * time.Millisecond)
		require.False(t, ok)
	}
	left, ok := logged(500 * time.Millisecond)
	require.True(t, ok, "a second after the last one")
	require.EqualValues(t, 5, left)
	_, ok = logged(999 * time.Millisecond)
	require.False(t, ok)
	left, ok = logged(time.Millisecond)
	require.True(t, ok)
	require.EqualValues(t, 1, left)

	lines := make(chan string, 1000)
	cfg := Config{Mode: Watermark, MaxIdle: 1, AuditEvery: 1, Logger: slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) { lines <- string(b); return len(b), nil }), nil))}
	q, err := NewPool(cfg)
	require.NoError(t, err)
	for range 3 * maxLogBurst {
		plantViolation(q)
		whileQuiet(q, func() {})
	}
	require.EqualValues(t, 3*maxLogBurst, q.Stats().Violations)
	require.GreaterOrEqual(t, len(lines), maxLogBurst)
	require.Less(t, len(lines), 2*maxLogBurst, "unless this took ten seconds")
	require.Contains(t, <-lines, "not_logged_before=0")
}
