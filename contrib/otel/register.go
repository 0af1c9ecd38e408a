// Package workspaceotel exports the Stats of workspace pools as OpenTelemetry metrics.
//
//	reg, err := workspaceotel.Register(otel.Meter("workspace"), pool)
package workspaceotel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/go-workspace/workspace"
)

// An instrument is one metric, and how to read its values from the Stats of a pool.
type instrument struct {
	name, unit, description string
	counter                 bool
	read                    func(s *workspace.Stats, observe func(v float64, attrs ...attribute.KeyValue))
}

func scalar(value func(s *workspace.Stats) int64) func(*workspace.Stats, func(float64, ...attribute.KeyValue)) {
	return func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) { observe(float64(value(s))) }
}

// halves reads a value of each half in each mode.
func halves(value func(h *workspace.HalfStats) float64) func(*workspace.Stats, func(float64, ...attribute.KeyValue)) {
	return func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		for _, m := range s.Modes {
			for i, h := range []workspace.HalfStats{m.Client, m.Backend} {
				observe(value(&h), attribute.String("half", workspace.Half(i).String()), attribute.String("mode", m.Mode.String()))
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// instruments are all metrics. Each value has the attribute "pool". OpenTelemetry has
// no histogram that is read from outside, so of the marks there are sum and count.
var instruments = []instrument{
	{"workspace.ops", "{operation}", "Operations that could have been audited.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.Ops) })},
	{"workspace.audits", "{audit}", "Sampled audits.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.Audits) })},
	{"workspace.audits.forced", "{audit}", "Audits that a caller or the open breaker asked for.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.ForcedAudits) })},
	{"workspace.audits.io", "By", "Bytes read by audits.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.AuditBytes) })},
	{"workspace.audits.time", "s", "Time spent on audits.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.AuditNanos) / 1e9 })},
	{"workspace.violations", "{violation}", "Violations.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.Violations) })},
	{"workspace.wiped", "By", "Zeros written when requests ended.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.WipedBytes) })},
	{"workspace.saved", "By", "Bytes past the mark when requests ended: not written in mode watermark.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.SavedBytes) })},
	{"workspace.overflows", "{request}", "Requests for which something did not fit into the half.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.Overflows) })},
	{"workspace.marks.sum", "By", "Sum of the highest marks that requests left.", true, halves(func(h *workspace.HalfStats) float64 { return float64(h.MarkBytes) })},
	{"workspace.marks.count", "{request}", "Requests in workspace.marks.sum.", true, halves(func(h *workspace.HalfStats) float64 {
		n := int64(0)
		for _, m := range h.Marks {
			n += m
		}
		return float64(n)
	})},
	{"workspace.acquired", "{workspace}", "Workspaces handed out.", true, scalar(func(s *workspace.Stats) int64 { return s.Acquired })},
	{"workspace.released", "{workspace}", "Workspaces that were wiped and came back.", true, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		for _, m := range s.Modes {
			observe(float64(m.Released), attribute.String("mode", m.Mode.String()))
		}
	}},
	{"workspace.abandoned", "{workspace}", "Workspaces that ended in doubt, so that their block was abandoned.", true, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		for reason, n := range map[string]int64{
			"running": s.Doubts.Running, "violation": s.Doubts.Violation, "reservation": s.Doubts.Reservation,
			"panic": s.Doubts.Panic, "upgrade": s.Doubts.Upgrade, "abandon": s.Doubts.Abandon,
		} {
			observe(float64(n), attribute.String("reason", reason))
		}
	}},
	{"workspace.blocks.created", "{block}", "Blocks made.", true, scalar(func(s *workspace.Stats) int64 { return s.Created })},
	{"workspace.blocks.discarded", "{block}", "Clean blocks let go of.", true, scalar(func(s *workspace.Stats) int64 { return s.Discarded })},
	{"workspace.blockless", "{workspace}", "Workspaces handed out without a block.", true, scalar(func(s *workspace.Stats) int64 { return s.Blockless })},
	{"workspace.spilled", "By", "Heap bytes used for want of room.", true, scalar(func(s *workspace.Stats) int64 { return s.SpilledBytes })},
	{"workspace.double_releases", "{call}", "Calls of Release on an ended workspace.", true, scalar(func(s *workspace.Stats) int64 { return s.DoubleReleases })},
	{"workspace.breaker.trips", "{trip}", "How often the breaker opened.", true, scalar(func(s *workspace.Stats) int64 { return s.BreakerTrips })},
	{"workspace.reports.dropped", "{report}", "Reports and log lines that were dropped.", true, scalar(func(s *workspace.Stats) int64 { return s.ReportsDropped })},
	{"workspace.reports.panics", "{call}", "Calls of a reporter or logger that panicked.", true, scalar(func(s *workspace.Stats) int64 { return s.ReporterPanics })},
	{"workspace.fenced", "{block}", "Fenced blocks handed out.", true, scalar(func(s *workspace.Stats) int64 { return s.Fenced })},
	{"workspace.fence.skipped", "{block}", "Blocks that were drawn to be fenced and were not.", true, scalar(func(s *workspace.Stats) int64 { return s.FenceSkipped })},
	{"workspace.late_touches", "{touch}", "Late touches of fenced blocks that were explained.", true, scalar(func(s *workspace.Stats) int64 { return s.LateTouches })},
	{"workspace.map_failures", "{call}", "System calls for mapped memory that failed.", true, scalar(func(s *workspace.Stats) int64 { return s.MapFailures })},

	{"workspace.in_use", "{workspace}", "Workspaces in use.", false, scalar(func(s *workspace.Stats) int64 { return s.InUse })},
	{"workspace.blocks", "{block}", "Blocks that are not in use: idle, abandoned and not collected yet, in quarantine.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		observe(float64(s.Idle), attribute.String("state", "idle"))
		observe(float64(s.AbandonedLive), attribute.String("state", "abandoned"))
		observe(float64(s.Quarantined), attribute.String("state", "quarantined"))
	}},
	{"workspace.blocks.idle_limit", "{block}", "How many blocks are kept idle at most.", false, scalar(func(s *workspace.Stats) int64 { return int64(s.MaxIdle) })},
	{"workspace.half.size", "By", "Size of the half.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		observe(float64(s.ClientSize), attribute.String("half", workspace.Client.String()))
		observe(float64(s.BackendSize), attribute.String("half", workspace.Backend.String()))
	}},
	{"workspace.mode", "1", "1 for the mode that new requests get (canaries aside), else 0.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		for _, m := range s.Modes {
			observe(truth(m.Mode == s.Effective), attribute.String("mode", m.Mode.String()))
		}
	}},
	{"workspace.mode.configured", "1", "1 for the mode that was set, else 0.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) {
		for _, m := range s.Modes {
			observe(truth(m.Mode == s.Mode), attribute.String("mode", m.Mode.String()))
		}
	}},
	{"workspace.breaker.open", "1", "1 after a violation, until Rearm.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) { observe(truth(s.BreakerOpen)) }},
	{"workspace.host_excluded", "1", "1 where the host canary keeps the pool out of mode watermark.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) { observe(truth(s.HostExcluded)) }},
	{"workspace.mode.source_lost", "1", "1 while the source of the mode fails.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) { observe(truth(s.SourceLost)) }},
	{"workspace.canary", "1", "Share of requests that run in mode watermark while the pool is in shadow.", false, func(s *workspace.Stats, observe func(float64, ...attribute.KeyValue)) { observe(s.Canary) }},
	{"workspace.audits.interval", "{operation}", "Mean operations between sampled audits of a half; 0: off.", false, scalar(func(s *workspace.Stats) int64 { return int64(max(0, s.AuditEvery)) })},
	{"workspace.last_violation", "s", "When the last violation was found, in seconds since 1970; 0: never.", false, scalar(func(s *workspace.Stats) int64 { return s.LastViolation })},
}

// Register makes the instruments of all pools on a meter. It reads the Stats of each pool
// once a collection, so the values of one collection agree. Unregister the
// registration to end it. It returns an error when a pool is nil, two pools have
// the same name, or the meter refuses an instrument.
func Register(meter metric.Meter, pools ...*workspace.Pool) (metric.Registration, error) {
	seen := map[string]bool{}
	for i, p := range pools {
		if p == nil {
			return nil, fmt.Errorf("workspaceotel: pool %d is nil", i)
		}
		name := p.Stats().Pool
		if seen[name] {
			return nil, fmt.Errorf("workspaceotel: two pools have the name %q: set Config.Name", name)
		}
		seen[name] = true
	}
	var made []metric.Float64Observable
	var all []metric.Observable
	var errs []error
	for _, i := range instruments {
		var o metric.Float64Observable
		var err error
		if i.counter {
			o, err = meter.Float64ObservableCounter(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		} else {
			o, err = meter.Float64ObservableGauge(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		}
		made, all, errs = append(made, o), append(all, o), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("workspaceotel: %w", err)
	}
	return meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, p := range pools {
			s := p.Stats()
			pool := attribute.String("pool", s.Pool)
			for n, i := range instruments {
				i.read(&s, func(v float64, attrs ...attribute.KeyValue) {
					to.ObserveFloat64(made[n], v, metric.WithAttributes(append(attrs, pool)...))
				})
			}
		}
		return nil
	}, all...)
}
