package workspace

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// allModes are the modes in which the promise is the same.
var allModes = []Mode{Shadow, Watermark, FullClear}

// weirdSizes are the numbers at which size arithmetic goes wrong.
func weirdSizes(half int) []int {
	return []int{
		0, 1, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097,
		half/2 - 1, half / 2, half/2 + 1, half - 65, half - 64, half - 9, half - 8, half - 7, half - 1, half, half + 1, half + 64,
	}
}

// A testPool is a Pool whose violations are collected. Unless the test says
// otherwise with expectViolations, it fails if there are any at the end.
type testPool struct {
	*Pool
	t        testing.TB
	mu       sync.Mutex
	reported []*Violation
	expected bool
}

// newTestPool makes a pool. A zero MaxIdle means one slot, so that the next
// acquire gets the block that was just released; a zero AuditEvery audits every
// operation. At the end of the test the balance must hold and nothing be in use.
func newTestPool(t testing.TB, cfg Config) *testPool {
	t.Helper()
	tp := &testPool{t: t}
	if cfg.MaxIdle == 0 {
		cfg.MaxIdle = 1
	}
	if cfg.AuditEvery == 0 {
		cfg.AuditEvery = 1
	}
	if cfg.OnViolation == nil {
		cfg.OnViolation = func(v *Violation) {
			tp.mu.Lock()
			defer tp.mu.Unlock()
			tp.reported = append(tp.reported, v)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := NewPool(cfg)
	require.NoError(t, err)
	tp.Pool = p
	t.Cleanup(func() {
		s := p.Stats()
		require.Equal(t, s.Acquired, s.Released+s.Abandoned+s.InUse, "acquired = released + abandoned + in use")
		require.Zero(t, s.InUse, "workspaces still in use")
		if !tp.expected {
			require.Zero(t, s.Violations, "violations")
		}
	})
	return tp
}

// expectViolations says that this test provokes violations.
func (tp *testPool) expectViolations() { tp.expected = true }

// violations waits until n reports have arrived and returns them.
func (tp *testPool) violations(n int) []*Violation {
	tp.t.Helper()
	tp.expectViolations()
	var got []*Violation
	require.Eventually(tp.t, func() bool {
		tp.mu.Lock()
		defer tp.mu.Unlock()
		got = append([]*Violation(nil), tp.reported...)
		return len(got) >= n
	}, waitLimit, pollEvery, "violations reported")
	require.Len(tp.t, got, n)
	return got
}

// mappedConfigs are the ways to get mapped memory: none where there are none.
func mappedConfigs() []Config {
	if !canMap {
		return nil
	}
	return []Config{{Memory: Mapped}, {Debug: Fence, Quarantine: 1}, {FenceEvery: 2}, {Memory: Mapped, Debug: Poison, FenceEvery: 3}}
}

// tag is 16 bytes, none of them zero, that belong to request n alone.
func tag(n int) []byte { return []byte(fmt.Sprintf("<tag%011d>", n)) }

// stain fills b, up to its capacity, with the tag of request n.
func stain(b []byte, n int) {
	b = b[:cap(b)]
	t := tag(n)
	for i := range b {
		b[i] = t[i%len(t)]
	}
}

// blockOf returns the memory of the block behind a live workspace.
func blockOf(ws *Workspace) []byte { return ws.blk.mem }

// blockAddr tells whether two workspaces have, or had, the same block. It
// takes the address as a number, so that it keeps nothing alive.
func blockAddr(ws *Workspace) string { return fmt.Sprintf("%p", ws.blk) }

// requireClean checks that both halves of a fresh workspace are zero and the
// guards intact: what the next request would find.
func requireClean(t testing.TB, ws *Workspace) {
	t.Helper()
	for _, h := range []Half{Client, Backend} {
		mem := ws.blk.half(h)
		if i := firstNonZero(mem); i >= 0 {
			require.Failf(t, "foreign bytes", "%s half: first non-zero byte at %d of %d, %d in all", h, i, len(mem), countNonZero(mem))
		}
		require.True(t, guardIntact(ws.blk.guard(h)), "%s guard", h)
	}
}

// requireNoTag checks that b holds no byte sequence that looks like any tag but own.
func requireNoTag(t testing.TB, b []byte, own int) {
	t.Helper()
	b = bytes.ReplaceAll(b, tag(own), nil)
	require.False(t, bytes.Contains(b, []byte("<tag")), "a foreign tag")
}

const (
	waitLimit = 10 * time.Second
	pollEvery = time.Millisecond
)

// requirePanicIs runs f and checks that it panics with an error that wraps want.
func requirePanicIs(t testing.TB, want error, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		r := recover()
		require.NotNil(t, r, "no panic, want %v", want)
		err, ok := r.(error)
		require.True(t, ok, "panic with %v (%T), want an error", r, r)
		require.ErrorIs(t, err, want)
	}()
	f()
}

// lastNonZero returns the offset of the last byte of b that is not zero, or -1.
func lastNonZero(b []byte) int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0 {
			return i
		}
	}
	return -1
}

// countNonZero returns how many bytes of b are not zero.
func countNonZero(b []byte) int {
	n := 0
	for _, c := range b {
		if c != 0 {
			n++
		}
	}
	return n
}
