package workspace

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unsafe"
)

// The picture that this file keeps true. One half of a block:
//
//	0          P         R          W                     E
//	|----------|---------|----------|---------------------|#######|
//	 allocated  reserved  dirty      zero, every byte      guard
//
// P is the position, the end of what is allocated. R is the end of the open
// reservation, or 0. W is the high-water mark. E is the end of the half.
//
// Three sentences make it safe. Every byte at or past W is zero. W is never
// lowered between the moment a request gets the half and the moment it is
// wiped. Whoever can write to a byte got it through P or R, so W >= P and W >= R
// cover all of them, whatever they wrote.
//
// Until the wipe only [Arena.lower] takes P down and only
// [Arena.closeReservation] takes R down, and both raise the field mark first. While P merely grows, P is the
// mark; so the field lags behind, and W is what [Arena.high] computes.

// A Half says which half of a workspace is meant.
type Half uint8

// The two halves.
const (
	Client Half = iota
	Backend
)

var halfNames = [...]string{"client", "backend"}

// String returns "client" or "backend".
func (h Half) String() string { return nameOf(halfNames[:], int(h), "half") }

// MarshalText writes the name, for JSON and logs.
func (h Half) MarshalText() ([]byte, error) { return nameText(h, halfNames[:], "half") }

// UnmarshalText reads a name in any case.
func (h *Half) UnmarshalText(text []byte) error { return parseName(h, halfNames[:], "half", text) }

// An Arena is one half of a [Workspace]: a bump allocator over zeroed memory.
// Get it from [Workspace.Client] or [Workspace.Backend]; the zero value and
// copies are refused with a panic.
//
// Slices taken from an Arena are valid until the workspace is released or
// reset, or the arena is rewound to before them. Their capacity is their
// length, so append never reaches a neighbour.
//
// An Arena belongs to one goroutine at a time. The two arenas of a workspace
// share nothing that an allocation writes, so two goroutines may each use one.
type Arena struct {
	// Hot: what Alloc reads and writes, one cache line.
	self  atomic.Pointer[Arena] // the arena itself while it may be used, else nil
	base  *byte                 // the half, see mem
	size  int                   // E
	pos   int                   // P
	limit int                   // E; 0 while a reservation is open, which keeps Alloc out
	mark  int                   // W as of the last time P or R went down
	skip  int                   // operations until afterSlow looks

	// Cold.
	ws      *Workspace
	sampled bool // the countdown ends with an audit
	lead    int  // operations of it that come after skip
	half    Half
	over    bool  // something did not fit, since acquire or Reset
	spilled int   // bytes of MaxSpill used, since acquire or Reset
	res     *byte // the open reservation, see reservation; nil when there is none
	resLen  int
	resEnd  int    // R; 0 when none is open or it is on the heap
	seq     uint64 // snapshots taken so far
	oldest  uint64 // snapshots with a lower number are stale
	cuts    []cut
	from    int // skip as it was when tally.ops was last brought up to date
	tally   tally
}

// tally is what an arena counts for Stats while the request runs.
type tally struct {
	ops, wiped, saved, spilled, overflows int64
	mark                                  int // the highest at the end of a message
}

// begin puts the arena over mem for a request that starts now. All of mem must
// be zero. next is the sampler's countdown carried over from the previous request.
func (a *Arena) begin(ws *Workspace, h Half, mem []byte, next countdown) {
	a.ws, a.half = ws, h
	a.base, a.size, a.limit = unsafe.SliceData(mem), len(mem), len(mem)
	a.arm(next)
	a.oldest = 1
	a.self.Store(a)
}

// mem returns the half. It and the open reservation are kept as a pointer and a
// length since a slice would be printed whole by package fmt when the handle
// stands in a private field and the verb does not fit, as in %s: Format is not
// asked then.
func (a *Arena) mem() []byte { return unsafe.Slice(a.base, a.size) }

// usable reports whether the arena is alive and no copy. It must be asked
// before any other field is read: after a release another goroutine may own
// them.
func (a *Arena) usable() bool { return a != nil && a.self.Load() == a }

// mustBeUsable panics unless the arena is alive and no copy.
func (a *Arena) mustBeUsable(method string) {
	if !a.usable() {
		panic(a.unusable(method))
	}
}

// unusable says why the arena may not be used.
func (a *Arena) unusable(method string) error {
	switch {
	case a == nil || a.ws == nil:
		return fmt.Errorf("%w: Arena.%s: this Arena came from no Workspace", ErrMisuse, method)
	case a.self.Load() != nil:
		return fmt.Errorf("%w: Arena.%s: this Arena is a copy", ErrMisuse, method)
	}
	return fmt.Errorf("%w: Arena.%s on the %s half", ErrReleased, method, a.half)
}

// high returns W: the end of all that this request can have written.
func (a *Arena) high() int { return max(a.mark, a.pos, a.resEnd) }

// lower sets the position to p, at or below the present one. It is the only
// code that takes P down.
func (a *Arena) lower(p int) {
	a.mark = max(a.mark, a.pos)
	a.pos = p
}

// closeReservation ends the open reservation. The whole of it counts as
// written: the caller had the raw slice, and may still have it.
func (a *Arena) closeReservation() {
	a.mark = max(a.mark, a.resEnd)
	a.res, a.resLen, a.resEnd = nil, 0, 0
	a.limit = a.size
}

// after ends every operation: the integrity check, and one tick of the sampler.
func (a *Arena) after(op Op) {
	if a.due() {
		a.afterSlow(op)
	}
}

// due is the part of after that each operation pays. It is apart from it since
// the compiler inlines this and not that, which saves Alloc a quarter of its time.
func (a *Arena) due() bool {
	a.skip--
	return a.skip <= 0 || !a.sound()
}

// sound is the integrity check: P, W and R lie inside the half. Compared
// unsigned, so that a negative value fails as well.
func (a *Arena) sound() bool {
	e := uint(a.size)
	return uint(a.pos) <= e && uint(a.mark) <= e && uint(a.resEnd) <= e
}

//go:noinline
func (a *Arena) afterSlow(op Op) {
	if !a.sound() {
		a.distrust(op)
	}
	if a.skip > 0 {
		return
	}
	a.countOps()
	if a.size > 0 {
		a.ws.blk.trails[a.half].add(Step{op, a.pos, a.high()})
	}
	if a.lead > 0 {
		a.lead--
		a.skip, a.from = 1, 1
		return
	}
	sampled := a.sampled
	a.arm(a.ws.pool.countdown())
	if sampled && a.size > 0 {
		a.audit(op, true)
	}
}

// arm starts a countdown. The last operations before an audit come one by one to
// afterSlow, which takes them down.
func (a *Arena) arm(next countdown) {
	a.sampled = next.audit
	if next.audit {
		a.lead = min(next.ops-1, trailLen-1)
	}
	a.skip = next.ops - a.lead
	a.from = a.skip
}

// left is the countdown that is left.
func (a *Arena) left() countdown { return countdown{a.skip + a.lead, a.sampled} }

// countOps brings tally.ops up to date. The hot path counts nothing: the
// sampler's countdown tells how many operations there were.
func (a *Arena) countOps() {
	a.tally.ops += int64(a.from) - int64(a.skip)
	a.from = a.skip
}

// distrust reports accounting that contradicts itself. From then on the whole
// half counts as written and as full.
func (a *Arena) distrust(op Op) *Violation {
	v := &Violation{Kind: BadAccounting, Size: a.size, Mark: a.mark, First: -1, Last: -1, Guard: true}
	a.res, a.resLen, a.resEnd = nil, 0, 0
	a.pos, a.limit, a.mark = a.size, a.size, a.size
	a.ws.violated(a, v, op)
	return v
}

// audit reads everything past the mark, and the guard. What it finds is
// wiped, then reported; the block will be abandoned.
func (a *Arena) audit(op Op, sampled bool) *Violation {
	if !a.sound() {
		return a.distrust(op)
	}
	off := a.high()
	guard := a.ws.blk.guard(a.half)
	start := time.Now()
	v := inspect(a.mem(), guard, off)
	a.ws.pool.countAudit(a.ws.mode, a.half, sampled, a.size-off, start)
	if v != nil {
		zero(a.mem()[off:])
		restoreGuard(guard)
		if sampled {
			v.Trail = a.ws.blk.trails[a.half].list()
		}
		a.ws.violated(a, v, op)
	}
	return v
}

// Position returns how many bytes from the start of the half are allocated.
func (a *Arena) Position() int {
	a.mustBeUsable("Position")
	return a.pos
}

// Mark returns the high-water mark: every byte of the half at or past it is
// zero. It never goes down before the release or a Reset.
func (a *Arena) Mark() int {
	a.mustBeUsable("Mark")
	return a.high()
}

// Room returns the size in bytes of the largest Alloc that stays in the half. It
// is 0 while a reservation is open.
func (a *Arena) Room() int {
	a.mustBeUsable("Room")
	return a.room()
}

func (a *Arena) room() int {
	return max(0, a.limit-(a.pos+minAlign-1)&^(minAlign-1))
}

// Size returns the size of the half in bytes. It is 0 in a workspace without a
// block: see Config.MaxLive.
func (a *Arena) Size() int {
	a.mustBeUsable("Size")
	return a.size
}

// Overflowed reports whether anything did not fit since the request, or the
// message that [Workspace.Reset] began, started. A Rewind does not clear it: an
// answer that was built in part must not go out as if it were whole.
func (a *Arena) Overflowed() bool {
	a.mustBeUsable("Overflowed")
	return a.over
}

// Format prints what kind of handle it is and nothing of the memory, for every verb.
func (a *Arena) Format(f fmt.State, _ rune) {
	if a == nil {
		io.WriteString(f, "workspace.Arena(nil)")
		return
	}
	fmt.Fprintf(f, "workspace.Arena(%s)", a.half)
}

// finish ends a message: the checks of op, then the wipe. Afterwards the arena
// is empty and every byte of the half is zero, unless the block will be
// abandoned to someone who may still read it.
func (a *Arena) finish(op Op) {
	if a.res != nil {
		v := &Violation{Kind: OpenReservation, Size: a.size, Mark: a.high(), First: -1, Last: -1, Guard: true}
		a.closeReservation()
		if a.ws.doubts.Load()&(1<<doubtPanic) == 0 { // else the panic explains it
			a.ws.violated(a, v, op)
		}
	}
	a.after(op)
	if a.ws.pool.tripped.Load() {
		a.audit(op, false)
	}
	guard := a.ws.blk.guard(a.half)
	if !guardIntact(guard) {
		restoreGuard(guard)
		a.ws.violated(a, &Violation{Kind: GuardDamaged, Size: a.size, Mark: a.high(), First: -1, Last: -1}, op)
	}
	a.countOps()
	a.tally.mark = max(a.tally.mark, a.high())
	if op == OpRelease && a.ws.doubts.Load()&leftAlone != 0 {
		return
	}
	w := a.high()
	a.tally.saved += int64(a.size - w)
	zero(a.mem()[:w])
	if a.ws.wipesAll() {
		a.wipeRest(w)
		w = a.size
	}
	a.tally.wiped += int64(w)
	a.pos, a.mark = 0, 0
}

// coldAfter is how many bytes the pool must have wiped past marks before what was
// wiped first is in no cache any more.
const coldAfter = 32 << 20

// wipeRest wipes what lies past the mark w. Only such wipes and the sampled audits
// touch that memory. So where many blocks take turns it has left the caches since
// the last wipe, and is kept out of them; where few do, it is still there.
func (a *Arena) wipeRest(w int) {
	rest := a.mem()[w:]
	if a.restIsCold(len(rest)) {
		zeroCold(rest)
		return
	}
	zero(rest)
}

// restIsCold counts n bytes and reports whether this half was last wiped past its
// mark more than coldAfter bytes ago.
func (a *Arena) restIsCold(n int) bool {
	now := a.ws.pool.rests.Add(int64(n))
	last := &a.ws.blk.rests[a.half]
	cold := now-*last > coldAfter
	*last = now
	return cold
}
