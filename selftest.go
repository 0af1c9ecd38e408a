package workspace

import (
	"errors"
	"fmt"
	"io"
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
// The requests, counters, breaker and OnViolation of p have no part in it. It takes
// about a millisecond and may be called from any goroutine at any time: at start, and
// then daily. The error wraps [ErrSelfTest] and says what did not react.
func (p *Pool) SelfTest() error {
	p.mustBeMade()
	for _, h := range []Half{Client, Backend} {
		size := p.cfg.ClientSize
		if h == Backend {
			size = p.cfg.BackendSize
		}
		for _, past := range []int{0, (size - selfTestMark) / 2, size - selfTestMark - 1} {
			if err := p.selfTest(h, selfTestMark+past); err != nil {
				return fmt.Errorf("%w: byte %d of the %s half: %w", ErrSelfTest, selfTestMark+past, h, err)
			}
		}
	}
	return nil
}

// selfTestMark is the mark past which a byte is planted.
const selfTestMark = 104

// selfTest plants a byte at offset off of the half h.
func (p *Pool) selfTest(h Half, off int) error {
	reported := make(chan *Violation, maxReports)
	probe, err := NewPool(Config{
		Name: p.cfg.Name + " self-test", ClientSize: p.cfg.ClientSize, BackendSize: p.cfg.BackendSize,
		Mode: Watermark, AuditEvery: 1, MaxIdle: 1,
		OnViolation: func(v *Violation) { reported <- v },
		Logger:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}

	clean := probe.Acquire()
	clean.arena(h).Alloc(selfTestMark)
	clean.Release()
	if s := probe.Stats(); s.Violations != 0 || s.BreakerOpen || s.Idle != 1 {
		return fmt.Errorf("a clean request: %d violations, breaker open: %v, %d blocks to reuse; want 0, false, 1", s.Violations, s.BreakerOpen, s.Idle)
	}

	ws := probe.Acquire()
	a := ws.arena(h)
	a.Alloc(selfTestMark - minAlign)
	mem := a.mem()
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

func (ws *Workspace) arena(h Half) *Arena {
	if h == Client {
		return ws.Client()
	}
	return ws.Backend()
}
