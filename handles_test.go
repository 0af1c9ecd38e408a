package workspace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A copy of a Pool shares the memory of its idle list: both would hand out the
// same block. The zero value has no sizes.
func TestCopiedAndZeroPoolsAreRefused(t *testing.T) {
	pool := newTestPool(t, Config{})
	pool.Acquire().Release()
	taken := copyPool(pool.Pool)
	for name, p := range map[string]*Pool{"copy": taken, "zero": {}, "nil": nil} {
		t.Run(name, func(t *testing.T) {
			requirePanicIs(t, ErrMisuse, func() { p.Acquire() })
			requirePanicIs(t, ErrMisuse, func() { p.AcquireContext(context.Background()) })
		})
	}
	require.EqualValues(t, 1, pool.Stats().Acquired, "the pool itself is unharmed")
	require.EqualValues(t, 0, taken.Stats().InUse, "nor is the lock of the copy held")
	pool.Acquire().Release()
}

// copyPool copies what matters of a Pool, field by field, as go vet would not
// allow a copy of the locks.
func copyPool(p *Pool) *Pool {
	c := &Pool{self: p.self, cfg: p.cfg, reports: p.reports, idle: p.idle, mode: p.mode}
	c.sampler.Store(p.sampler.Load())
	return c
}

// Sizes of zero are refused, too, while a reservation is open.
func TestReservationRefusesEmptyValues(t *testing.T) {
	pool := newTestPool(t, Config{})
	ws := pool.Acquire()
	defer ws.Release()
	a := ws.Client()
	a.Reserve(10)
	requirePanicIs(t, ErrReserved, func() { a.Alloc(0) })
	requirePanicIs(t, ErrReserved, func() { MakeSlice[uint64](a, 0) })
	requirePanicIs(t, ErrReserved, func() { MakeSlice[struct{}](a, 10) })
	requirePanicIs(t, ErrReserved, func() { Alloc[struct{}](a) })
	a.Abort()
}

// Nested snapshots cost the handle some memory. Reset gives it up, and a dead
// handle keeps none.
func TestSnapshotsAreForgotten(t *testing.T) {
	pool := newTestPool(t, Config{AuditEvery: -1})
	ws := pool.Acquire()
	a := ws.Client()
	nest := func() {
		for range 100 {
			s := a.Snapshot()
			a.Alloc(8)
			a.Snapshot()
			a.Rewind(s)
			a.Alloc(8)
		}
		require.NotEmpty(t, a.cuts)
	}
	nest()
	ws.Reset()
	require.Zero(t, cap(a.cuts))
	nest()
	ws.Release()
	require.Zero(t, cap(a.cuts))
}
