package workspace

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// selfTestReport is how long a report may take: it comes from another goroutine.
const selfTestReport = 10 * time.Second

// SelfTest shows that this process would notice a leak. In a private pool, with the
// half sizes of this one, it plants single bytes past the mark of each half and
// requires the whole chain to react: the sampled audit finds the byte at its offset,
// wipes it and reports it, the counter rises, the breaker opens, and the block is
// abandoned. A clean request must cause none of that.
//
// The requests, counters, breaker and OnViolation of p have no part in it. It
// allocates six blocks and lets them go. Any goroutine may call it at any time: at start,
// and then daily. The error wraps [ErrSelfTest] and says what did not react.
func (p *Pool) SelfTest() error {
	p.mustBeMade()
	for _, h := range []struct {
		half  Half
		arena func(*Workspace) *Arena
		size  int
	}{{Client, (*Workspace).Client, p.cfg.ClientSize}, {Backend, (*Workspace).Backend, p.cfg.BackendSize}} {
		for _, off := range []int{selfTestMark, (selfTestMark + h.size) / 2, h.size - 1} {
			if err := p.plant(h.arena, off); err != nil {
				return fmt.Errorf("%w: byte %d of the %s half: %w", ErrSelfTest, off, h.half, err)
			}
		}
	}
	return nil
}

// selfTestMark is the mark past which a byte is planted.
const selfTestMark = 104

// plant runs a clean request, then one that plants a byte at offset off of a half.
func (p *Pool) plant(arena func(*Workspace) *Arena, off int) error {
	reported := make(chan *Violation, maxReports)
	probe, err := NewPool(Config{
		Name: p.cfg.Name + " self-test", ClientSize: p.cfg.ClientSize, BackendSize: p.cfg.BackendSize,
		Mode: Watermark, AuditEvery: 1, MaxIdle: 1,
		OnViolation: func(v *Violation) { reported <- v },
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}

	clean := probe.Acquire()
	arena(clean).Alloc(selfTestMark)
	clean.Release()
	if s := probe.Stats(); s.Violations != 0 || s.BreakerOpen || s.Idle != 1 {
		return fmt.Errorf("a clean request: %d violations, breaker open: %v, %d blocks to reuse; want 0, false, 1", s.Violations, s.BreakerOpen, s.Idle)
	}

	ws := probe.Acquire()
	a := arena(ws)
	h, mem := a.half, a.mem()
	a.Alloc(selfTestMark - minAlign)
	mem[off] = 0x80
	a.Alloc(minAlign) // an operation like any other: its audit is the sampler's
	left := mem[off]
	ws.Release()

	select {
	case v := <-reported:
		if v.Kind != DirtyTail || v.Half != h || v.Op != OpAlloc || v.First != off || v.Last != off || v.Count != 1 {
			return fmt.Errorf("reported as something else: %w", v)
		}
	case <-time.After(selfTestReport):
		return fmt.Errorf("not reported within %v", selfTestReport)
	}
	s := probe.Stats()
	switch {
	case left != 0:
		return errors.New("found, but not wiped")
	case s.Violations != 1 || s.Modes[Watermark].half(h).Violations != 1:
		return fmt.Errorf("%d violations counted, want 1", s.Violations)
	case !s.BreakerOpen || s.BreakerTrips != 1 || s.Effective != Shadow:
		return fmt.Errorf("the breaker is not open: mode %s, %d trips", s.Effective, s.BreakerTrips)
	case s.Abandoned != 1 || s.Doubts.Violation != 1 || s.Idle != 0:
		return fmt.Errorf("the block was not abandoned: %d abandoned, %d idle", s.Abandoned, s.Idle)
	}
	return nil
}
