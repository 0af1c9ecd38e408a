package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrConfig says that a field of a Config, or a setting made later, is out
	// of range.
	ErrConfig = errors.New("workspace: bad configuration")
	// ErrClosed says that the pool is closed.
	ErrClosed = errors.New("workspace: pool closed")
	// ErrLimit says that Config.MaxLive blocks are alive.
	ErrLimit = errors.New("workspace: too many live blocks")
)

// A Mode says what is wiped when a request ends. In each mode the block is all
// zero afterwards, and in each mode the mark is tracked and audited.
type Mode uint8

// The modes. The zero value is Shadow: an optimisation that could leak is
// switched on only after audits on the user's own traffic have shown that it
// does not.
const (
	Shadow    Mode = iota // wipe both halves whole; watch what Watermark would have left
	Watermark             // wipe each half up to its mark
	FullClear             // wipe both halves whole
	numModes
)

var modeNames = [numModes]string{"shadow", "watermark", "fullclear"}

// String returns the lower-case name of the mode.
func (m Mode) String() string { return nameOf(modeNames[:], int(m), "mode") }

// MarshalText writes the name of the mode.
func (m Mode) MarshalText() ([]byte, error) {
	if m >= numModes {
		return nil, fmt.Errorf("%w: Mode %d", ErrConfig, m)
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads a name in any case, so that a Mode can be a flag
// (flag.TextVar) or stand in a configuration file.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, name := range modeNames {
		if strings.EqualFold(name, string(text)) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("%w: mode %q is none of shadow, watermark, fullclear", ErrConfig, text)
}

// Config configures a [Pool]. The zero value works.
type Config struct {
	// Name stands in statistics and reports. Empty means "default".
	Name string

	// ClientSize and BackendSize are the sizes of the halves in bytes: multiples
	// of 4096 from 4096 to 64 MB. 0 means 256 KB.
	ClientSize, BackendSize int

	// Mode is the mode at the start. See Pool.SetMode.
	Mode Mode

	// Canary is the share of requests, 0 to 1, that run in Watermark while the
	// pool is in Shadow. See Pool.SetCanary.
	Canary float64

	// AuditEvery is the mean number of operations on a half between two audits:
	// 1 audits each, 0 means 20,000, a negative value turns sampled audits off.
	// The highest value is 16,777,216.
	AuditEvery int

	// MaxIdle is how many wiped blocks wait for a request at the most. 0 means
	// 64; a negative value keeps none.
	MaxIdle int

	// MaxLive is how many blocks may be alive outside the idle list: in use, or
	// abandoned and still referred to by something. 0 means no limit. Beyond it
	// Acquire hands out workspaces without a block, which take everything from
	// the heap, and AcquireContext returns ErrLimit.
	MaxLive int

	// MaxSpill is how many bytes each half of a workspace may take from the heap
	// for what does not fit. 0 means 64 MB; a negative value allows none.
	MaxSpill int

	// OnViolation is told of each violation, after the memory was wiped, in a
	// goroutine of its own. At most 16 run at once; further reports are dropped
	// and counted. A panic in it is caught and counted. Nil means: log to Logger.
	OnViolation func(*Violation)

	// Logger gets violations, mode changes and warnings. Nil means slog.Default().
	Logger *slog.Logger

	draw func() uint64 // source of random numbers; nil: math/rand/v2
}

const (
	defaultMaxIdle  = 64
	defaultMaxSpill = 64 << 20
	maxReports      = 16 // reports under way at once
)

// withDefaults returns the Config with zero values filled in, or an error that
// names the field and its value.
func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		size *int
	}{{"ClientSize", &c.ClientSize}, {"BackendSize", &c.BackendSize}} {
		if *f.size == 0 {
			*f.size = DefaultHalfSize
		}
		if *f.size < MinHalfSize || *f.size > MaxHalfSize || *f.size%HalfSizeStep != 0 {
			return c, fmt.Errorf("%w: %s is %d bytes, want a multiple of %d from %d to %d", ErrConfig, f.name, *f.size, HalfSizeStep, MinHalfSize, MaxHalfSize)
		}
	}
	switch {
	case c.Mode >= numModes:
		return c, fmt.Errorf("%w: Mode is %d, want one of Shadow, Watermark, FullClear", ErrConfig, c.Mode)
	case !(c.Canary >= 0 && c.Canary <= 1):
		return c, fmt.Errorf("%w: Canary is %v, want 0 to 1", ErrConfig, c.Canary)
	case c.AuditEvery > maxAuditEvery:
		return c, fmt.Errorf("%w: AuditEvery is %d, want at most %d", ErrConfig, c.AuditEvery, maxAuditEvery)
	case c.MaxLive < 0:
		return c, fmt.Errorf("%w: MaxLive is %d, want 0 or more", ErrConfig, c.MaxLive)
	case c.MaxSpill > math.MaxInt-maxAlign:
		return c, fmt.Errorf("%w: MaxSpill is %d, want at most %d", ErrConfig, c.MaxSpill, math.MaxInt-maxAlign)
	}
	if c.Name == "" {
		c.Name = "default"
	}
	if c.AuditEvery == 0 {
		c.AuditEvery = DefaultAuditEvery
	}
	c.MaxIdle = defaulted(c.MaxIdle, defaultMaxIdle)
	c.MaxSpill = defaulted(c.MaxSpill, defaultMaxSpill)
	if c.draw == nil {
		c.draw = rand.Uint64 // seeded by the system: no two processes run in step
	}
	return c, nil
}

// defaulted reads a limit for which 0 means def and a negative value none.
func defaulted(v, def int) int {
	if v == 0 {
		return def
	}
	return max(v, 0)
}

// A Pool hands out workspaces and takes them back. Make one with [NewPool]; all
// of its methods may be called from any goroutine at any time.
type Pool struct {
	cfg       Config
	sampler   sampler
	tripped   atomic.Bool  // the breaker is open
	abandoned atomic.Int64 // abandoned blocks that are not collected yet
	warned    atomic.Bool  // the log has the hint about foreign goroutines
	reports   chan struct{}

	// mu guards everything below. Nothing is wiped, audited, allocated or
	// logged while it is held. A workspace that one goroutine released and
	// another acquires next is handed over under it.
	mu     sync.Mutex
	idle   []*block // wiped; the last one was in use last, so its memory is the hottest
	closed bool
	mode   Mode
	canary float64
	n      Stats // only its counters
}

// NewPool returns a Pool. The error wraps [ErrConfig] and names the field that
// is out of range.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Pool{
		cfg:     cfg,
		sampler: newSampler(cfg.AuditEvery, cfg.draw),
		reports: make(chan struct{}, maxReports),
		mode:    cfg.Mode,
		canary:  cfg.Canary,
	}, nil
}

// Acquire returns a workspace: both halves zero, empty, and nobody else's. It
// must be given back with [Workspace.Release], best by a deferred call.
//
// It never fails and never waits. When Config.MaxLive is reached, and after
// Close, the workspace has no block: it works, and takes all from the heap.
func (p *Pool) Acquire() *Workspace {
	for {
		if ws := p.take(); ws != nil {
			return ws
		}
	}
}

// AcquireContext is Acquire for callers that would rather be refused than get a
// workspace without a block: it returns [ErrLimit] or [ErrClosed] instead, and
// the context's error when ctx is done. It does not wait, and does not keep ctx.
func (p *Pool) AcquireContext(ctx context.Context) (*Workspace, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("workspace: pool %q: %w", p.cfg.Name, err)
	}
	p.mu.Lock()
	closed, full := p.closed, p.fullLocked()
	p.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("%w: %q", ErrClosed, p.cfg.Name)
	case full:
		return nil, fmt.Errorf("%w: pool %q has MaxLive %d", ErrLimit, p.cfg.Name, p.cfg.MaxLive)
	}
	return p.Acquire(), nil
}

// fullLocked reports whether one more block would be more than MaxLive.
func (p *Pool) fullLocked() bool {
	inUse := p.n.Acquired - p.n.Released - p.n.Abandoned
	return p.cfg.MaxLive > 0 && inUse+p.abandoned.Load() >= int64(p.cfg.MaxLive)
}

// take returns a workspace with a block, or nil when that block turned out to be
// bad: then it was abandoned, and the next one is to be tried.
func (p *Pool) take() *Workspace {
	ws := &Workspace{pool: p}
	var blk *block
	p.mu.Lock()
	mode := p.effectiveLocked()
	if mode == Shadow && !p.tripped.Load() && p.canary > 0 && float64(p.cfg.draw()>>11)*0x1p-53 < p.canary {
		mode = Watermark
	}
	blockless := p.closed || p.fullLocked()
	p.n.Acquired++
	switch last := len(p.idle) - 1; {
	case blockless:
		p.n.Blockless++
	case last >= 0:
		blk, p.idle[last] = p.idle[last], nil
		p.idle = p.idle[:last]
	default:
		p.n.Created++
	}
	p.mu.Unlock()

	if blk == nil && !blockless {
		blk = newBlock(p.cfg.ClientSize, p.cfg.BackendSize, p.sampler.gap)
	}
	ws.begin(blk, mode)
	ws.client.after(OpAcquire)
	ws.backend.after(OpAcquire)
	if ws.doubts.Load() != 0 {
		// An audit found a byte that was written while the block lay idle. It
		// was wiped and reported; the request gets another block all the same.
		ws.release()
		return nil
	}
	return ws
}

// effectiveLocked is the mode for a request that is no canary: the more careful
// of the one that was set and what the breaker allows.
func (p *Pool) effectiveLocked() Mode {
	if p.mode == Watermark && p.tripped.Load() {
		return Shadow
	}
	return p.mode
}

// giveBack ends the use of a block: it goes to the idle list, or on any doubt to
// the collector. quiet says that no other goroutine can be in the arenas, so
// that their counts may be read.
func (p *Pool) giveBack(ws *Workspace, quiet bool) {
	doubts := ws.doubts.Load()
	if doubts != 0 && ws.blk != nil {
		p.abandoned.Add(1)
		// The gauge goes down when the collector has found that nothing, no
		// handle and no slice, refers to the memory any more.
		runtime.AddCleanup(&ws.blk.mem[0], func(p *Pool) { p.abandoned.Add(-1) }, p)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.n.Modes[ws.mode]
	if quiet {
		p.addLocked(&m.Client, &ws.client)
		p.addLocked(&m.Backend, &ws.backend)
	}
	if doubts != 0 {
		p.n.Abandoned++
		p.n.Doubts.count(doubts)
		return
	}
	p.n.Released++
	m.Released++
	switch {
	case ws.blk == nil:
	case p.closed || len(p.idle) >= p.cfg.MaxIdle:
		p.n.Discarded++
	default:
		p.idle = append(p.idle, ws.blk)
	}
}

// count adds one under the first reason of the list.
func (d *DoubtStats) count(doubts uint32) {
	for i, c := range [numDoubts]*int64{&d.Running, &d.Violation, &d.Reservation, &d.Panic, &d.Upgrade, &d.Abandon} {
		if doubts&(1<<i) != 0 {
			*c++
			return
		}
	}
}

func (p *Pool) addLocked(h *HalfStats, a *Arena) {
	h.Ops += a.tally.ops
	h.WipedBytes += a.tally.wiped
	h.SavedBytes += a.tally.saved
	h.Overflows += a.tally.overflows
	p.n.SpilledBytes += a.tally.spilled
}

func (p *Pool) countDoubleRelease() {
	p.mu.Lock()
	p.n.DoubleReleases++
	p.mu.Unlock()
}

// countAudit counts one audit that read n bytes.
func (p *Pool) countAudit(m Mode, h Half, sampled bool, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.n.Modes[m].half(h)
	if sampled {
		s.Audits++
	} else {
		s.ForcedAudits++
	}
	s.AuditBytes += int64(n)
}

func (m *ModeStats) half(h Half) *HalfStats {
	if h == Client {
		return &m.Client
	}
	return &m.Backend
}

// Mode returns the mode that was set.
func (p *Pool) Mode() Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// SetMode sets the mode for requests that begin from now on. Those under way
// keep theirs. The error wraps [ErrConfig] when m is none of the modes.
//
// While the breaker is open Watermark has the effect of Shadow.
func (p *Pool) SetMode(m Mode) error {
	if m >= numModes {
		return fmt.Errorf("%w: mode %d", ErrConfig, m)
	}
	p.mu.Lock()
	old := p.mode
	p.mode = m
	p.mu.Unlock()
	if old != m {
		p.logger().Info("workspace: mode changed", "pool", p.cfg.Name, "from", old.String(), "to", m.String())
	}
	return nil
}

// SetCanary sets the share of requests, 0 to 1, that run in Watermark while the
// pool is in Shadow. Each request is drawn by itself. 0 takes none and 1 takes
// all. The error wraps [ErrConfig] for any other value.
func (p *Pool) SetCanary(share float64) error {
	if !(share >= 0 && share <= 1) {
		return fmt.Errorf("%w: canary share %v, want 0 to 1", ErrConfig, share)
	}
	p.mu.Lock()
	p.canary = share
	p.mu.Unlock()
	return nil
}

// Rearm closes the breaker after someone has understood why it opened. The
// reason goes to the log. It reports whether the breaker was open.
func (p *Pool) Rearm(reason string) bool {
	if !p.tripped.CompareAndSwap(true, false) {
		return false
	}
	p.logger().Warn("workspace: breaker rearmed", "pool", p.cfg.Name, "reason", reason)
	return true
}

// Trim lets go of idle blocks until at most keep are left, and returns how many
// went. The collector takes their memory. keep < 0 counts as 0.
func (p *Pool) Trim(keep int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trimLocked(keep)
}

func (p *Pool) trimLocked(keep int) int {
	n := max(0, len(p.idle)-max(0, keep))
	// The longest idle go first: their memory is the coldest.
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	p.n.Discarded += int64(n)
	return n
}

// Close lets go of the idle blocks and keeps no more. Workspaces in use stay
// valid, and are wiped when they are released. Closing twice is fine.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.trimLocked(0)
}

// AuditIdle audits every block that is idle now, whole. It returns how many it
// read and how many violations it found; bad blocks are wiped, reported and let
// go. Requests that come meanwhile get other blocks. These audits are counted
// apart from the sampled ones.
func (p *Pool) AuditIdle() (blocks, violations int) {
	p.mu.Lock()
	idle, mode := p.idle, p.effectiveLocked()
	p.idle = nil
	p.mu.Unlock()

	var clean []*block
	for _, blk := range idle {
		found := 0
		for _, h := range []Half{Client, Backend} {
			v := inspect(blk.half(h), blk.guard(h), 0)
			p.countAudit(mode, h, false, len(blk.half(h)))
			if v != nil {
				found++
				zero(blk.half(h))
				v.Half, v.Op, v.Mode = h, OpForced, mode
				p.report(v)
			}
		}
		violations += found
		if found == 0 {
			clean = append(clean, blk)
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.n.Discarded += int64(len(idle) - len(clean))
	p.idle = append(clean, p.idle...) // what came back meanwhile is hotter
	keep := p.cfg.MaxIdle
	if p.closed {
		keep = 0
	}
	p.trimLocked(keep)
	return len(idle), violations
}

// report counts a violation, opens the breaker, and tells the user of it without
// ever waiting for him.
func (p *Pool) report(v *Violation) {
	v.Time, v.Pool, v.Kernel, v.Build, v.Stack = time.Now(), p.cfg.Name, kernelName, buildName(), callers(1)
	trip := p.tripped.CompareAndSwap(false, true)
	p.mu.Lock()
	p.n.Violations++
	p.n.Modes[v.Mode].half(v.Half).Violations++
	if trip {
		p.n.BreakerTrips++
	}
	p.mu.Unlock()

	select {
	case p.reports <- struct{}{}:
		go p.deliver(v)
	default:
		p.mu.Lock()
		p.n.ReportsDropped++
		p.mu.Unlock()
	}
}

func (p *Pool) deliver(v *Violation) {
	defer func() {
		if recover() != nil {
			p.mu.Lock()
			p.n.ReporterPanics++
			p.mu.Unlock()
		}
		<-p.reports
	}()
	if p.cfg.OnViolation != nil {
		p.cfg.OnViolation(v)
		return
	}
	p.logger().Error("workspace: violation", "violation", v)
}

func (p *Pool) logger() *slog.Logger {
	if p.cfg.Logger != nil {
		return p.cfg.Logger
	}
	return slog.Default()
}

// Stats returns the counters and gauges as they are at one moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.n
	s.Pool, s.Mode, s.Effective, s.Canary = p.cfg.Name, p.mode, p.effectiveLocked(), p.canary
	s.BreakerOpen, s.AuditEvery, s.Kernel = p.tripped.Load(), p.cfg.AuditEvery, kernelName
	s.ClientSize, s.BackendSize = p.cfg.ClientSize, p.cfg.BackendSize
	s.InUse = s.Acquired - s.Released - s.Abandoned
	s.Idle, s.MaxIdle, s.AbandonedLive = len(p.idle), p.cfg.MaxIdle, p.abandoned.Load()
	for m := range s.Modes {
		s.Modes[m].Mode = Mode(m)
	}
	return s
}
