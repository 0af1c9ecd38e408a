package workspace

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
)

// Stats are the counters and gauges of a [Pool] at one moment. Counters begin at
// zero with the pool and never go down. Acquired is always the sum of Released,
// Abandoned and InUse.
type Stats struct {
	Pool         string  `json:"pool"`
	Mode         Mode    `json:"mode"`           // as set
	Effective    Mode    `json:"effective_mode"` // what a request gets now, canaries apart
	Canary       float64 `json:"canary"`         // share of requests in Watermark while the pool is in Shadow
	BreakerOpen  bool    `json:"breaker_open"`   // a violation made the pool fall back
	HostExcluded bool    `json:"host_excluded"`  // the host canary keeps the pool out of Watermark
	SourceLost   bool    `json:"source_lost"`    // the source of the mode fails, which keeps it out, too: see Pool.Follow
	AuditEvery   int     `json:"audit_every"`    // mean operations between audits at present; negative: off
	AuditBudget  int     `json:"audit_budget"`   // audits a second, as configured; 0: no limit
	Kernel       string  `json:"kernel"`         // the clear and verify code in use
	ClientSize   int     `json:"client_size"`    // bytes
	BackendSize  int     `json:"backend_size"`   // bytes

	Acquired  int64 `json:"acquired"`  // counter: workspaces handed out
	Released  int64 `json:"released"`  // counter: workspaces whose block was wiped and could be reused
	Abandoned int64 `json:"abandoned"` // counter: workspaces whose block, if any, was left to the collector
	InUse     int64 `json:"in_use"`    // gauge

	Doubts DoubtStats `json:"doubts"` // counters: Abandoned by reason

	Idle          int   `json:"idle"`           // gauge: blocks waiting for a request
	MaxIdle       int   `json:"max_idle"`       // configured
	Created       int64 `json:"created"`        // counter: blocks allocated
	Discarded     int64 `json:"discarded"`      // counter: idle blocks let go: MaxIdle, Trim, Close, bad in AuditIdle
	AbandonedLive int64 `json:"abandoned_live"` // gauge: abandoned blocks that something still refers to; mapped ones: their handle
	Blockless     int64 `json:"blockless"`      // counter: workspaces handed out without a block: MaxLive, Close

	Memory       Memory `json:"memory"`        // as configured
	Debug        Debug  `json:"debug"`         // as configured
	FenceEvery   int    `json:"fence_every"`   // as configured; 0: none
	Fenced       int64  `json:"fenced"`        // counter: fenced blocks handed out
	FenceSkipped int64  `json:"fence_skipped"` // counter: blocks that were drawn to be fenced and were not: too many at once, or the system refused
	Quarantined  int    `json:"quarantined"`   // gauge: fenced blocks whose addresses are blocked
	LateTouches  int64  `json:"late_touches"`  // counter: late touches that FenceFaultOf explained
	MapFailures  int64  `json:"map_failures"`  // counter: system calls for mapped memory that failed

	DoubleReleases int64 `json:"double_releases"` // counter: calls of Release on an ended workspace
	SpilledBytes   int64 `json:"spilled_bytes"`   // counter: heap bytes used for want of room
	Violations     int64 `json:"violations"`      // counter: all kinds, all modes
	LastViolation  int64 `json:"last_violation"`  // gauge: when the last one was found, in seconds since 1970; 0: never
	BreakerTrips   int64 `json:"breaker_trips"`   // counter
	ReportsDropped int64 `json:"reports_dropped"` // counter: reports and log lines that were dropped, since 16 others were under way
	ReporterPanics int64 `json:"reporter_panics"` // counter: calls of OnViolation or of the logger that panicked

	Modes [numModes]ModeStats `json:"modes"` // indexed by Mode
}

// DoubtStats counts abandoned workspaces by the reason.
type DoubtStats struct {
	Running     int64 `json:"running"`
	Violation   int64 `json:"violation"`
	Reservation int64 `json:"reservation"`
	Panic       int64 `json:"panic"`
	Upgrade     int64 `json:"upgrade"`
	Abandon     int64 `json:"abandon"`
}

// ModeStats are the counters of the workspaces that ran in one mode.
type ModeStats struct {
	Mode     Mode      `json:"mode"`
	Released int64     `json:"released"`
	Client   HalfStats `json:"client"`
	Backend  HalfStats `json:"backend"`
}

// HalfStats are the counters of one half of the workspaces that ran in one
// mode. Operations, bytes and overflows are added when a workspace ends; those
// of a workspace that was abandoned while its handler may run are lost.
type HalfStats struct {
	Ops          int64 `json:"ops"`           // operations that could have been audited
	Audits       int64 `json:"audits"`        // sampled audits
	ForcedAudits int64 `json:"forced_audits"` // audits asked for, or due to the open breaker
	AuditBytes   int64 `json:"audit_bytes"`   // bytes read by both
	AuditNanos   int64 `json:"audit_nanos"`   // nanoseconds spent on both
	Violations   int64 `json:"violations"`
	WipedBytes   int64 `json:"wiped_bytes"` // zeros written when requests ended
	SavedBytes   int64 `json:"saved_bytes"` // bytes past the mark at that time: not written in Watermark, for nothing in the other modes
	Overflows    int64 `json:"overflows"`   // requests for which something did not fit

	// Marks is a histogram of the highest mark that each request left in the half:
	// Marks[i] counts those of at most MarkBound(i) bytes that are in no bucket before.
	// MarkBytes is the sum of these marks. Requests without a block, and those that
	// were abandoned while their handler may run, are in neither.
	Marks     [NumMarks]int64 `json:"marks"`
	MarkBytes int64           `json:"mark_bytes"`
}

// NumMarks is the number of buckets of [HalfStats].Marks.
const NumMarks = 10

// MarkBound returns the upper bound, in bytes, of bucket i of [HalfStats].Marks:
// 1 KB, 2 KB and so on to 256 KB, and math.MaxInt for the last. It panics when i is
// not from 0 to NumMarks-1.
func MarkBound(i int) int {
	switch {
	case i < 0 || i >= NumMarks:
		panic(fmt.Errorf("%w: MarkBound(%d), want 0 to %d", ErrMisuse, i, NumMarks-1))
	case i == NumMarks-1:
		return math.MaxInt
	}
	return 1 << (10 + i)
}

// addMark counts a mark of n bytes.
func (h *HalfStats) addMark(n int) {
	h.Marks[min(bits.Len(uint(max(0, n-1))>>10), NumMarks-1)]++
	h.MarkBytes += int64(n)
}

// Totals returns the sum over both halves.
func (m ModeStats) Totals() HalfStats { return m.Client.plus(m.Backend) }

// Totals returns the sum over modes and halves.
func (s Stats) Totals() HalfStats {
	var t HalfStats
	for _, m := range s.Modes {
		t = t.plus(m.Totals())
	}
	return t
}

func (h HalfStats) plus(o HalfStats) HalfStats { return h.add(o, 1) }

// add returns h plus sign times o.
func (h HalfStats) add(o HalfStats, sign int64) HalfStats {
	h.Ops += sign * o.Ops
	h.Audits += sign * o.Audits
	h.ForcedAudits += sign * o.ForcedAudits
	h.AuditBytes += sign * o.AuditBytes
	h.AuditNanos += sign * o.AuditNanos
	h.Violations += sign * o.Violations
	h.WipedBytes += sign * o.WipedBytes
	h.SavedBytes += sign * o.SavedBytes
	h.Overflows += sign * o.Overflows
	h.MarkBytes += sign * o.MarkBytes
	for i, n := range o.Marks {
		h.Marks[i] += sign * n
	}
	return h
}

// Sub returns what happened between two moments: each counter of s less that of
// an earlier reading of the same pool. Gauges and settings are those of s.
func (s Stats) Sub(earlier Stats) Stats {
	for _, c := range [][2]*int64{
		{&s.Acquired, &earlier.Acquired}, {&s.Released, &earlier.Released}, {&s.Abandoned, &earlier.Abandoned},
		{&s.Doubts.Running, &earlier.Doubts.Running}, {&s.Doubts.Violation, &earlier.Doubts.Violation}, {&s.Doubts.Reservation, &earlier.Doubts.Reservation},
		{&s.Doubts.Panic, &earlier.Doubts.Panic}, {&s.Doubts.Upgrade, &earlier.Doubts.Upgrade}, {&s.Doubts.Abandon, &earlier.Doubts.Abandon},
		{&s.Created, &earlier.Created}, {&s.Discarded, &earlier.Discarded}, {&s.Blockless, &earlier.Blockless},
		{&s.Fenced, &earlier.Fenced}, {&s.FenceSkipped, &earlier.FenceSkipped}, {&s.LateTouches, &earlier.LateTouches}, {&s.MapFailures, &earlier.MapFailures},
		{&s.DoubleReleases, &earlier.DoubleReleases}, {&s.SpilledBytes, &earlier.SpilledBytes}, {&s.Violations, &earlier.Violations},
		{&s.BreakerTrips, &earlier.BreakerTrips}, {&s.ReportsDropped, &earlier.ReportsDropped}, {&s.ReporterPanics, &earlier.ReporterPanics},
	} {
		*c[0] -= *c[1]
	}
	for m := range s.Modes {
		s.Modes[m].Released -= earlier.Modes[m].Released
		s.Modes[m].Client = s.Modes[m].Client.add(earlier.Modes[m].Client, -1)
		s.Modes[m].Backend = s.Modes[m].Backend.add(earlier.Modes[m].Backend, -1)
	}
	return s
}

// LogValue is what a log line about a pool needs: the state, and the sums.
func (s Stats) LogValue() slog.Value {
	t := s.Totals()
	return slog.GroupValue(
		slog.String("pool", s.Pool), slog.String("mode", s.Mode.String()), slog.String("effective_mode", s.Effective.String()), slog.Bool("breaker_open", s.BreakerOpen),
		slog.Int64("acquired", s.Acquired), slog.Int64("released", s.Released), slog.Int64("abandoned", s.Abandoned), slog.Int64("in_use", s.InUse), slog.Int("idle", s.Idle),
		slog.Int64("ops", t.Ops), slog.Int64("audits", t.Audits), slog.Int64("violations", s.Violations), slog.Float64("bound_95", s.ViolationBound(0.95)),
		slog.Int64("wiped_bytes", t.WipedBytes), slog.Int64("saved_bytes", t.SavedBytes), slog.Int64("spilled_bytes", s.SpilledBytes),
	)
}

// ViolationBound returns an upper limit, at the given confidence, for the share
// of operations after which some byte past the mark was not zero, over all modes
// of the pool's life. See [ViolationBound].
func (s Stats) ViolationBound(confidence float64) float64 {
	t := s.Totals()
	return ViolationBound(t.Audits, t.Violations, confidence)
}
