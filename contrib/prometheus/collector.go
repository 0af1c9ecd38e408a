// Package workspaceprom exports the Stats of workspace pools to Prometheus.
//
//	prometheus.MustRegister(workspaceprom.NewCollector(pool))
package workspaceprom

import (
	"fmt"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-workspace/workspace"
)

// A Collector is a [prometheus.Collector] for pools. It reads the Stats of each
// pool once a scrape, so the sums of one scrape agree: acquired is released,
// abandoned and in use together. Nothing is counted twice, and nothing is done
// between scrapes. Make one with NewCollector.
type Collector struct {
	pools []*workspace.Pool
	build []string
}

// NewCollector returns a Collector for all pools of a program. Register one for
// all of them: each exports workspace_build_info, and Prometheus refuses the
// same series twice. It panics when a pool is nil, and when two pools have the same
// name: nobody could tell their series apart.
func NewCollector(pools ...*workspace.Pool) *Collector {
	seen := map[string]bool{}
	for i, p := range pools {
		if p == nil {
			panic(fmt.Errorf("workspaceprom: pool %d is nil", i))
		}
		name := p.Stats().Pool
		if seen[name] {
			panic(fmt.Errorf("workspaceprom: two pools have the name %q: set Config.Name", name))
		}
		seen[name] = true
	}
	return &Collector{pools: pools, build: buildLabels()}
}

// A family is a metric with the labels of its series.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

var families []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("workspace_"+name, help, labels, nil)
	families = append(families, d)
	return d
}

func counter(name, help string, labels ...string) family {
	return family{describe(name+"_total", help, append([]string{"pool"}, labels...)...), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) family {
	return family{describe(name, help, append([]string{"pool"}, labels...)...), prometheus.GaugeValue}
}

var (
	buildInfo = describe("build_info", "1; the build, what it runs on, and the code that wipes and audits.", "version", "revision", "goversion", "kernel", "cpu_model")

	ops          = counter("ops", "Operations that could have been audited.", "half", "mode")
	audits       = counter("audits", "Audits: sampled, or forced by a caller or the open breaker.", "half", "mode", "trigger")
	auditBytes   = counter("audit_bytes", "Bytes read by audits.", "half", "mode")
	auditSeconds = counter("audit_seconds", "Time spent on audits.", "half", "mode")
	violations   = counter("violations", "Violations: bytes past the mark that were not zero, damaged guards, bad accounting.", "half", "mode")
	wiped        = counter("wiped_bytes", "Zeros written when requests ended.", "half", "mode")
	saved        = counter("saved_bytes", "Bytes past the mark when requests ended: not written in mode watermark.", "half", "mode")
	overflows    = counter("overflows", "Requests for which something did not fit into the half.", "half", "mode")
	released     = counter("released", "Workspaces that were wiped and came back.", "mode")
	abandoned    = counter("abandoned", "Workspaces that ended in doubt, so that their block was abandoned.", "reason")
	markBytes    = describe("mark_bytes", "The highest mark that a request left in the half.", "pool", "half")

	modeSet     = gauge("mode", "1 for the mode that new requests get (canaries aside), else 0.", "mode")
	configured  = gauge("configured_mode", "1 for the mode that was set, else 0.", "mode")
	halfBytes   = gauge("half_bytes", "Size of the half.", "half")
	blocks      = gauge("blocks", "Blocks that are not in use: idle, abandoned and not collected yet, in quarantine.", "state")
	scalarStats = []struct {
		family
		value func(s *workspace.Stats) float64
	}{
		{counter("acquired", "Workspaces handed out."), func(s *workspace.Stats) float64 { return float64(s.Acquired) }},
		{counter("blocks_created", "Blocks made."), func(s *workspace.Stats) float64 { return float64(s.Created) }},
		{counter("blocks_discarded", "Clean blocks let go of."), func(s *workspace.Stats) float64 { return float64(s.Discarded) }},
		{counter("blockless", "Workspaces handed out without a block."), func(s *workspace.Stats) float64 { return float64(s.Blockless) }},
		{counter("spilled_bytes", "Heap bytes used for want of room."), func(s *workspace.Stats) float64 { return float64(s.SpilledBytes) }},
		{counter("double_releases", "Calls of Release on an ended workspace."), func(s *workspace.Stats) float64 { return float64(s.DoubleReleases) }},
		{counter("breaker_trips", "How often the breaker opened."), func(s *workspace.Stats) float64 { return float64(s.BreakerTrips) }},
		{counter("reports_dropped", "Reports and log lines that were dropped."), func(s *workspace.Stats) float64 { return float64(s.ReportsDropped) }},
		{counter("reporter_panics", "Calls of a reporter or logger that panicked."), func(s *workspace.Stats) float64 { return float64(s.ReporterPanics) }},
		{counter("fenced", "Fenced blocks handed out."), func(s *workspace.Stats) float64 { return float64(s.Fenced) }},
		{counter("fence_skipped", "Blocks that were drawn to be fenced and were not."), func(s *workspace.Stats) float64 { return float64(s.FenceSkipped) }},
		{counter("late_touches", "Late touches of fenced blocks that were explained."), func(s *workspace.Stats) float64 { return float64(s.LateTouches) }},
		{counter("map_failures", "System calls for mapped memory that failed."), func(s *workspace.Stats) float64 { return float64(s.MapFailures) }},
		{gauge("in_use", "Workspaces in use."), func(s *workspace.Stats) float64 { return float64(s.InUse) }},
		{gauge("idle_limit_blocks", "How many blocks are kept idle at most."), func(s *workspace.Stats) float64 { return float64(s.MaxIdle) }},
		{gauge("breaker_open", "1 after a violation, until Rearm."), func(s *workspace.Stats) float64 { return truth(s.BreakerOpen) }},
		{gauge("host_excluded", "1 where the host canary keeps the pool out of mode watermark."), func(s *workspace.Stats) float64 { return truth(s.HostExcluded) }},
		{gauge("mode_source_lost", "1 while the source of the mode fails."), func(s *workspace.Stats) float64 { return truth(s.SourceLost) }},
		{gauge("canary_ratio", "Share of requests that run in mode watermark while the pool is in shadow."), func(s *workspace.Stats) float64 { return s.Canary }},
		{gauge("audit_interval_ops", "Mean operations between sampled audits of a half; 0: off."), func(s *workspace.Stats) float64 { return float64(max(0, s.AuditEvery)) }},
		{gauge("last_violation_timestamp_seconds", "When the last violation was found; 0: never."), func(s *workspace.Stats) float64 { return float64(s.LastViolation) }},
	}
)

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range families {
		ch <- d
	}
}

// Collect reads the pools. Any number of goroutines may call it.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for i, p := range c.pools {
		s := p.Stats()
		if i == 0 {
			ch <- prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, append(c.build[:3:3], s.Kernel, c.build[3])...)
		}
		collect(ch, &s)
	}
}

func collect(ch chan<- prometheus.Metric, s *workspace.Stats) {
	send := func(f family, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, append([]string{s.Pool}, labels...)...)
	}
	for _, m := range scalarStats {
		send(m.family, m.value(s))
	}
	marks := [2]workspace.HalfStats{}
	for _, m := range s.Modes {
		mode := m.Mode.String()
		send(released, float64(m.Released), mode)
		send(modeSet, truth(m.Mode == s.Effective), mode)
		send(configured, truth(m.Mode == s.Mode), mode)
		for i, h := range []workspace.HalfStats{m.Client, m.Backend} {
			half := workspace.Half(i).String()
			send(ops, float64(h.Ops), half, mode)
			send(audits, float64(h.Audits), half, mode, "sampled")
			send(audits, float64(h.ForcedAudits), half, mode, "forced")
			send(auditBytes, float64(h.AuditBytes), half, mode)
			send(auditSeconds, float64(h.AuditNanos)/1e9, half, mode)
			send(violations, float64(h.Violations), half, mode)
			send(wiped, float64(h.WipedBytes), half, mode)
			send(saved, float64(h.SavedBytes), half, mode)
			send(overflows, float64(h.Overflows), half, mode)
			marks[i].MarkBytes += h.MarkBytes
			for b, n := range h.Marks {
				marks[i].Marks[b] += n
			}
		}
	}
	for i, h := range marks {
		half := workspace.Half(i).String()
		send(halfBytes, float64([]int{s.ClientSize, s.BackendSize}[i]), half)
		ch <- histogram(s.Pool, half, h)
	}
	for reason, n := range map[string]int64{
		"running": s.Doubts.Running, "violation": s.Doubts.Violation, "reservation": s.Doubts.Reservation,
		"panic": s.Doubts.Panic, "upgrade": s.Doubts.Upgrade, "abandon": s.Doubts.Abandon,
	} {
		send(abandoned, float64(n), reason)
	}
	for state, n := range map[string]int64{
		"idle": int64(s.Idle), "abandoned": s.AbandonedLive, "quarantined": int64(s.Quarantined),
	} {
		send(blocks, float64(n), state)
	}
}

// histogram is the marks of one half. Prometheus wants each bucket to count the
// smaller ones, too.
func histogram(pool, half string, h workspace.HalfStats) prometheus.Metric {
	buckets, count := map[float64]uint64{}, uint64(0)
	for i, n := range h.Marks {
		count += uint64(n)
		if bound := workspace.MarkBound(i); bound != math.MaxInt {
			buckets[float64(bound)] = count
		}
	}
	return prometheus.MustNewConstHistogram(markBytes, count, float64(h.MarkBytes), buckets, pool, half)
}
