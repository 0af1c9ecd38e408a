package workspace

import (
	"log/slog"
	"time"
)

// The breaker opens at the first violation. From then on each request is wiped
// whole, whatever its mode, and audited when it ends: safe, and the evidence
// keeps coming. It stays open until someone calls Rearm.

const maxReports = 16 // reports under way at once

// report counts a violation, opens the breaker, and tells the user of it without
// ever waiting for him.
func (p *Pool) report(v *Violation) {
	v.Time, v.Pool, v.Kernel, v.Build, v.Stack = time.Now(), p.cfg.Name, kernelName, buildName(), callers(1)
	trip := false
	from, to := p.change("violation", func() {
		p.n.Violations++
		p.n.LastViolation = v.Time.Unix()
		p.n.Modes[v.Mode].half(v.Half).Violations++
		if trip = p.tripped.CompareAndSwap(false, true); trip {
			p.n.BreakerTrips++
			p.trip = breakerRecord{Build: v.Build, Pool: v.Pool, Kind: v.Kind.String(), Time: v.Time}
		}
	})
	if trip {
		go p.saveBreaker() // a slow disk must not hold up a request
		p.emit(Event{Kind: BreakerTripped, From: from, To: to, Cause: v.Kind.String()})
	}
	p.emit(Event{Kind: ViolationFound, From: to, To: to, Cause: v.Kind.String(), Violation: v})
	p.tell(func() {
		if p.cfg.OnViolation != nil {
			p.cfg.OnViolation(v)
			return
		}
		if left, ok := p.mayLog(v.Time); ok {
			p.logger().Error("workspace: violation", "violation", v, "not_logged_before", left)
		}
	})
}

// tell runs f, which calls code of the user, in a goroutine of its own: a
// request must not wait for it, nor end in a panic of it.
func (p *Pool) tell(f func()) {
	select {
	case p.reports <- struct{}{}:
	default:
		p.mu.Lock()
		p.n.ReportsDropped++
		p.mu.Unlock()
		return
	}
	go func() {
		defer func() {
			if recover() != nil {
				p.mu.Lock()
				p.n.ReporterPanics++
				p.mu.Unlock()
			}
			<-p.reports
		}()
		f()
	}()
}

// maxLogBurst is how many violations are logged at once; afterwards it is one a
// second. All are counted.
const maxLogBurst = 10

// mayLog decides whether a violation goes to the log, and how many did not since
// the last one that did.
func (p *Pool) mayLog(now time.Time) (left int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.logged >= maxLogBurst && now.Sub(p.lastLog) < time.Second {
		p.unlogged++
		return 0, false
	}
	left, p.unlogged = p.unlogged, 0
	p.logged++
	p.lastLog = now
	return left, true
}

// Rearm closes the breaker after someone has understood why it opened. The
// reason goes to the log. It reports whether the breaker was open.
func (p *Pool) Rearm(reason string) bool {
	closed := false
	from, to := p.change("rearmed: "+reason, func() { closed = p.tripped.CompareAndSwap(true, false) })
	if !closed {
		return false
	}
	p.saveBreaker()
	p.emit(Event{Kind: BreakerRearmed, From: from, To: to, Cause: reason})
	p.logger().Warn("workspace: breaker rearmed", "pool", p.cfg.Name, "reason", reason)
	return true
}

func (p *Pool) logger() *slog.Logger {
	if p.cfg.Logger != nil {
		return p.cfg.Logger
	}
	return slog.Default()
}
