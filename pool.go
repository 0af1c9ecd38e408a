package workspace

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A Pool hands out workspaces and takes them back. Make one with [NewPool]; all
// of its methods may be called from any goroutine at any time.
type Pool struct {
	self      *Pool // the pool itself: a copy would share its idle list
	cfg       Config
	watch     *watch // nil except in a TestPool
	sampler   atomic.Pointer[sampler]
	tripped   atomic.Bool  // the breaker is open
	rests     atomic.Int64 // bytes past the mark that were wiped, see Arena.wipeRest
	abandoned atomic.Int64 // abandoned blocks that are not collected yet
	warned    atomic.Bool  // the log has the hint about foreign goroutines
	reports   chan struct{}

	fileMu sync.Mutex // guards Config.BreakerFile; before mu

	// mu guards everything below. No block is wiped, audited or allocated, and
	// nothing is logged, while it is held. A workspace that one goroutine released and
	// another acquires next is handed over under it.
	mu       sync.Mutex
	idle     []*block  // wiped; the last one was in use last, so its memory is the hottest
	out      int64     // blocks in use
	fences   int64     // fenced ones among them, and abandoned ones that are not collected
	blocked  []*tenure // in quarantine, the longest first
	closed   bool
	mode     Mode
	canary   float64
	barred   bool // the host canary keeps this pool out of Watermark
	lost     bool // the source of the mode fails: see Follow
	trip     breakerRecord
	logged   int // violations
	lastLog  time.Time
	unlogged int64 // since then
	budget   budget
	n        Stats // only its counters
}

// NewPool returns a Pool. The error wraps [ErrConfig] and names the field that
// is out of range.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg:     cfg,
		reports: make(chan struct{}, maxReports),
		mode:    cfg.Mode,
		canary:  cfg.Canary,
		barred:  !cfg.HostCanary.Includes(cfg.Name),
		watch:   cfg.watch,
	}
	p.self = p
	p.budget = budget{perSecond: cfg.AuditBudget, every: cfg.AuditEvery, since: time.Now()}
	p.resample()
	if cfg.Lock || cfg.HugePages {
		// Better now than at the first request.
		b, err := newMappedBlock(cfg.ClientSize, cfg.BackendSize, p.countdown, advice{lock: cfg.Lock, huge: cfg.HugePages})
		if err != nil {
			return nil, fmt.Errorf("%w: Lock is %v, HugePages is %v: %w", ErrConfig, cfg.Lock, cfg.HugePages, err)
		}
		p.letGo(b)
	}
	p.loadBreaker()
	if err := selfTest(); err != nil {
		p.logger().Error("workspace: the assembly failed its self-test; plain Go code is used instead", "pool", cfg.Name, "kernel", kernelName, "error", err)
	}
	return p, nil
}

// Acquire returns a workspace: both halves zero, empty, and nobody else's. It
// must be given back with [Workspace.Release], best by a deferred call.
//
// It never fails and never waits. When Config.MaxLive is reached, and after
// Close, the workspace has no block: it works, and takes all from the heap.
func (p *Pool) Acquire() *Workspace {
	ws, _ := p.acquire(false)
	return ws
}

// AcquireContext is Acquire for callers that would rather be refused than get a
// workspace without a block: it returns [ErrLimit] or [ErrClosed] instead, and
// the cause when ctx is done. It does not wait, and does not keep ctx.
func (p *Pool) AcquireContext(ctx context.Context) (*Workspace, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("workspace: pool %q: %w", p.cfg.Name, err)
	}
	ws, err := p.acquire(true)
	if err != nil {
		return nil, fmt.Errorf("%w: pool %q", err, p.cfg.Name)
	}
	return ws, nil
}

// acquire takes blocks until one is good. strict says to return a bare sentinel
// instead of a workspace without a block.
func (p *Pool) acquire(strict bool) (*Workspace, error) {
	for {
		blk, mode, err := p.take(strict)
		if err != nil {
			return nil, err
		}
		ws := &Workspace{pool: p}
		ws.begin(blk, mode)
		if blk == nil {
			p.watch.acquired(ws)
			return ws, nil
		}
		if blk.poisoned {
			ws.unpoison()
		}
		ws.client.after(OpAcquire)
		ws.backend.after(OpAcquire)
		if ws.doubts.Load() == 0 {
			p.watch.acquired(ws)
			return ws, nil
		}
		// An audit found a byte that was written while the block lay idle. It
		// was wiped and reported; the request gets another block all the same.
		ws.release()
	}
}

// take returns a block, or nil where none may be had and strict is false, and the
// mode for the request.
func (p *Pool) take(strict bool) (*block, Mode, error) {
	p.mustBeMade()
	p.mu.Lock()
	refused := p.refusalLocked()
	if refused != nil && strict {
		p.mu.Unlock()
		return nil, 0, refused
	}
	mode := p.effectiveLocked()
	if mode == Shadow && p.canary > 0 && p.mayLocked() && float64(p.cfg.draw()>>11)*0x1p-53 < p.canary {
		mode = Watermark
	}
	p.n.Acquired++
	if refused != nil {
		p.n.Blockless++
		p.mu.Unlock()
		return nil, mode, nil
	}
	p.out++
	var blk *block
	fence, number := p.fencesLocked(), p.n.Acquired
	if last := len(p.idle) - 1; last >= 0 && !fence {
		blk, p.idle[last] = p.idle[last], nil
		p.idle = p.idle[:last]
	} else {
		p.n.Created++
	}
	p.mu.Unlock()
	if blk == nil {
		blk = p.newBlock(fence, number)
	}
	return blk, mode, nil
}

// mustBeMade panics unless NewPool made p.
func (p *Pool) mustBeMade() {
	if p == nil || p.self != p {
		panic(errNotMade)
	}
}

var errNotMade = fmt.Errorf("%w: this Pool came not from NewPool, or is a copy", ErrMisuse)

// refusalLocked returns why no further block may be handed out, or nil.
func (p *Pool) refusalLocked() error {
	switch {
	case p.closed:
		return ErrClosed
	case p.cfg.MaxLive > 0 && p.out+p.abandoned.Load() >= int64(p.cfg.MaxLive):
		return ErrLimit
	}
	return nil
}

// effectiveLocked is the mode for a request that is no canary: the most careful
// of the one that was set and what the breaker, the host canary and a source of the
// mode that fails allow.
func (p *Pool) effectiveLocked() Mode {
	if p.mode == Watermark && !p.mayLocked() {
		return Shadow
	}
	return p.mode
}

// mayLocked reports whether any request may run in Watermark.
func (p *Pool) mayLocked() bool { return !p.barred && !p.lost && !p.tripped.Load() }

// giveBack ends the use of a block: it goes to the idle list, or on any doubt to
// the collector. quiet says that no other goroutine can be in the arenas, so
// that their counts may be read.
func (p *Pool) giveBack(ws *Workspace, quiet bool) {
	doubts, blk := ws.doubts.Load(), ws.blk
	if blk != nil {
		blk.close(p.cfg.Debug, doubts != 0)
	}
	over, gone := p.settle(ws, doubts, quiet)
	p.watch.ended(ws)
	over.forget()
	if gone {
		p.letGo(blk)
	}
	if blk == nil || doubts == 0 {
		return
	}
	// The gauge goes down when the collector has found that nothing refers to the
	// memory any more: no handle, and on the heap no slice.
	if blk.region == nil {
		runtime.AddCleanup(unsafe.SliceData(blk.mem), func(p *Pool) { p.abandoned.Add(-1) }, p)
		return
	}
	if p.cfg.Memory == Heap && p.cfg.Debug != Fence && doubts&leftAlone != 0 {
		// FenceEvery must not end a program that heap memory would leave alone: the
		// block stays open for ever. There are at most maxFences.
		return
	}
	runtime.AddCleanup(ws, func(m abandonedMapping) { m.collected() }, abandonedMapping{p, blk.region, blk.tenure})
}

// settle is the part of giveBack that is done under the lock. gone says that the
// block is clean and not kept; over is what left the quarantine.
func (p *Pool) settle(ws *Workspace, doubts uint32, quiet bool) (over *tenure, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.n.Modes[ws.mode]
	if ws.blk != nil {
		p.out--
	}
	if quiet {
		p.addLocked(&m.Client, &ws.client)
		p.addLocked(&m.Backend, &ws.backend)
	}
	if doubts != 0 {
		if ws.blk != nil {
			p.abandoned.Add(1)
		}
		p.n.Abandoned++
		p.n.Doubts.count(doubts)
		return nil, false
	}
	p.n.Released++
	m.Released++
	switch {
	case ws.blk == nil:
	case ws.blk.tenure != nil:
		p.n.Discarded++
		p.fences--
		return p.quarantineLocked(ws.blk.tenure), false
	case p.closed || len(p.idle) >= p.cfg.MaxIdle:
		p.n.Discarded++
		return nil, true
	default:
		p.idle = append(p.idle, ws.blk)
	}
	return nil, false
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
	if a.ws.blk != nil {
		h.addMark(a.tally.mark)
	}
}

func (p *Pool) countDoubleRelease() {
	p.mu.Lock()
	p.n.DoubleReleases++
	p.mu.Unlock()
}

// countAudit counts one audit that read n bytes and began at start.
func (p *Pool) countAudit(m Mode, h Half, sampled bool, n int, start time.Time) {
	took := time.Since(start).Nanoseconds()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.n.Modes[m].half(h)
	if sampled {
		s.Audits++
		if p.budget.spend(start) {
			p.resample()
		}
	} else {
		s.ForcedAudits++
	}
	s.AuditBytes += int64(n)
	s.AuditNanos += took
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
	return p.setMode(m, "SetMode")
}

func (p *Pool) setMode(m Mode, cause string) error {
	if m >= numModes {
		return fmt.Errorf("%w: mode %d", ErrConfig, m)
	}
	var old Mode
	p.change(cause, func() { old, p.mode, p.lost = p.mode, m, false })
	if old != m {
		p.logger().Info("workspace: mode changed", "pool", p.cfg.Name, "from", old.String(), "to", m.String(), "cause", cause)
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

// Trim lets go of idle blocks until at most keep are left, and returns how many
// went. Blocks that AuditIdle is reading at the moment are not idle. The collector
// takes their memory; that of mapped blocks the system has back at once. keep < 0
// counts as 0.
func (p *Pool) Trim(keep int) int {
	p.mu.Lock()
	gone := p.trimLocked(keep)
	p.mu.Unlock()
	p.letAllGo(gone)
	return len(gone)
}

// trimLocked takes blocks off the idle list until keep are left, and returns them.
func (p *Pool) trimLocked(keep int) []*block {
	n := max(0, len(p.idle)-max(0, keep))
	// The longest idle go first: their memory is the coldest.
	gone := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.n.Discarded += int64(n)
	return gone
}

func (p *Pool) letAllGo(blocks []*block) {
	for _, b := range blocks {
		p.letGo(b)
	}
}

// Close lets go of the idle blocks and keeps no more, and ends the quarantine of
// fenced ones. Workspaces in use stay valid, and are wiped when they are released.
// Closing twice is fine.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	gone, blocked := p.trimLocked(0), p.blocked
	p.blocked = nil
	p.mu.Unlock()
	p.letAllGo(gone)
	for _, t := range blocked {
		t.forever = t.forever || p.watch != nil
		t.forget()
	}
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
			look := inspect
			if blk.poisoned {
				look = inspectPoison
			}
			start := time.Now()
			v := look(blk.half(h), blk.guard(h), 0)
			p.countAudit(mode, h, false, len(blk.half(h)), start)
			if v != nil {
				found++
				zero(blk.half(h))
				v.Half, v.Op, v.Mode = h, OpForced, mode
				p.report(v)
			}
		}
		violations += found
		switch {
		case found == 0:
			clean = append(clean, blk)
		case blk.region != nil:
			p.blockForEver(blk.region)
		}
	}

	p.mu.Lock()
	p.n.Discarded += int64(len(idle) - len(clean))
	p.idle = append(clean, p.idle...) // what came back meanwhile is hotter
	keep := p.cfg.MaxIdle
	if p.closed {
		keep = 0
	}
	gone := p.trimLocked(keep)
	p.mu.Unlock()
	p.letAllGo(gone)
	return len(idle), violations
}

// Format prints the name of the pool, for every verb: some would print idle blocks
// whole.
func (p *Pool) Format(f fmt.State, _ rune) {
	if p == nil {
		io.WriteString(f, "workspace.Pool(nil)")
		return
	}
	fmt.Fprintf(f, "workspace.Pool(%q)", p.cfg.Name)
}

// Stats returns the counters and gauges as they are at one moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.n
	s.Pool, s.Mode, s.Effective, s.Canary = p.cfg.Name, p.mode, p.effectiveLocked(), p.canary
	s.BreakerOpen, s.AuditEvery, s.Kernel = p.tripped.Load(), p.budget.every, kernelName
	s.HostExcluded, s.SourceLost = p.barred, p.lost
	s.AuditBudget, s.ClientSize, s.BackendSize = p.cfg.AuditBudget, p.cfg.ClientSize, p.cfg.BackendSize
	s.InUse = s.Acquired - s.Released - s.Abandoned
	s.Idle, s.MaxIdle, s.AbandonedLive = len(p.idle), p.cfg.MaxIdle, p.abandoned.Load()
	s.Memory, s.Debug, s.FenceEvery, s.Quarantined = p.cfg.Memory, p.cfg.Debug, p.cfg.FenceEvery, len(p.blocked)
	for m := range s.Modes {
		s.Modes[m].Mode = Mode(m)
	}
	return s
}
