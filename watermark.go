package workspace

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"sync/atomic"
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
// Only [Arena.lower] takes P down and only [Arena.closeReservation] takes R
// down, and both raise the field mark first. While P merely grows, P is the
// mark; so the field lags behind, and W is what [Arena.high] computes.

// Errors of this package. Panics carry errors that wrap them, too.
var (
	// ErrFull says that an allocation fits neither the half nor, where it may
	// go to the heap, the spill limit.
	ErrFull = errors.New("workspace: full")
	// ErrReleased says that the workspace was used after its release.
	ErrReleased = errors.New("workspace: used after release")
	// ErrReserved says that the operation must wait until the open reservation
	// of the half is committed or aborted.
	ErrReserved = errors.New("workspace: a reservation is open")
	// ErrStale says that a Snapshot or Buffer refers to memory which was
	// given up by a Rewind or Reset since.
	ErrStale = errors.New("workspace: stale")
	// ErrMisuse says that an argument or a handle is wrong in another way.
	ErrMisuse = errors.New("workspace: misuse")
)

const (
	minAlign = 8  // of every allocation that does not ask for more
	maxAlign = 64 // halves begin on a multiple of it
)

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
func (h Half) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

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
	mem   []byte                // the half; E is its length
	pos   int                   // P
	limit int                   // E; 0 while a reservation is open, which keeps Alloc out
	mark  int                   // W as of the last time P or R went down
	skip  int                   // operations to the next audit

	// Cold.
	ws      *Workspace
	half    Half
	over    bool   // something did not fit, since acquire or Reset
	spilled int    // bytes of MaxSpill used, since acquire or Reset
	res     []byte // the open reservation, nil when there is none
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
}

// A cut is a Rewind that may have made snapshots stale: those numbered up to
// seq that lie above pos. Arena.cuts is sorted by both fields; a cut that a
// later and lower one covers is dropped.
type cut struct {
	seq uint64
	pos int
}

// A Snapshot is a position of an Arena to go back to with [Arena.Rewind].
// The zero value belongs to no arena.
type Snapshot struct {
	arena *Arena
	pos   int
	seq   uint64
}

// begin puts the arena over mem for a request that starts now. All of mem must
// be zero. skip is the sampler's gap carried over from the previous request.
func (a *Arena) begin(ws *Workspace, h Half, mem []byte, skip int) {
	a.ws, a.half = ws, h
	a.mem, a.limit = mem, len(mem)
	a.skip, a.from = skip, skip
	a.oldest = 1
	a.self.Store(a)
}

// usable reports whether the arena is alive and no copy. It must be asked
// before any other field is read: after a release another goroutine may own
// them.
func (a *Arena) usable() bool { return a.self.Load() == a }

// mustBeUsable panics unless the arena is alive and no copy.
func (a *Arena) mustBeUsable(method string) {
	if a == nil || !a.usable() {
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
	a.res, a.resEnd = nil, 0
	a.limit = len(a.mem)
}

// after ends every operation: the integrity check, and one tick of the sampler.
func (a *Arena) after(op Op) {
	a.skip--
	if a.skip <= 0 || !a.sound() {
		a.afterSlow(op)
	}
}

// sound is the integrity check: P, W and R lie inside the half. Compared
// unsigned, so that a negative value fails as well.
func (a *Arena) sound() bool {
	e := uint(len(a.mem))
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
	s := &a.ws.pool.sampler
	a.skip = s.gap()
	a.from = a.skip
	if !s.off && a.mem != nil {
		a.audit(op, true)
	}
}

// countOps brings tally.ops up to date. The hot path counts nothing: the
// sampler's countdown tells how many operations there were.
func (a *Arena) countOps() {
	a.tally.ops += int64(a.from) - int64(a.skip)
	a.from = a.skip
}

// distrust reports accounting that contradicts itself. From then on the whole
// half counts as written and as full.
func (a *Arena) distrust(op Op) {
	v := &Violation{Kind: BadAccounting, Size: len(a.mem), Mark: a.mark, First: -1, Last: -1, Guard: true}
	a.res, a.resEnd = nil, 0
	a.pos, a.limit, a.mark = len(a.mem), len(a.mem), len(a.mem)
	a.ws.violated(a, v, op)
}

// audit reads everything past the mark, and the guard. What it finds is
// wiped, then reported; the block will be abandoned.
func (a *Arena) audit(op Op, sampled bool) *Violation {
	off := a.high()
	guard := a.ws.blk.guard(a.half)
	v := inspect(a.mem, guard, off)
	a.ws.pool.countAudit(a.ws.mode, a.half, sampled, len(a.mem)-off)
	if v != nil {
		zero(a.mem[off:])
		restoreGuard(guard)
		a.ws.violated(a, v, op)
	}
	return v
}

// Alloc returns n zeroed bytes, len and cap n, at an address that is a multiple
// of 8. When the half has no room they come from the heap: [Arena.Overflowed]
// is then true and Stats counts it. n == 0 returns an empty slice, moves
// nothing, and works in a full half.
//
// Alloc panics when n is negative, when the heap would be needed for more than
// Config.MaxSpill, when a reservation is open, and after the release.
func (a *Arena) Alloc(n int) []byte {
	if !a.usable() {
		return a.allocSlow("Alloc", n, minAlign)
	}
	off := (a.pos + minAlign - 1) &^ (minAlign - 1)
	if n <= 0 || n > a.limit-off {
		return a.allocSlow("Alloc", n, minAlign)
	}
	end := off + n
	if off < a.mark { // only after a Rewind or a short Commit
		zero(a.mem[off:min(end, a.mark)])
	}
	a.pos = end
	a.after(OpAlloc)
	return a.mem[off:end:end]
}

// AllocAligned is Alloc with an address that is a multiple of align: a power of
// two from 1 to 64. Any other align panics.
func (a *Arena) AllocAligned(n, align int) []byte {
	if align < 1 || align > maxAlign || align&(align-1) != 0 {
		panic(fmt.Errorf("%w: Arena.AllocAligned: align %d is not a power of two from 1 to %d", ErrMisuse, align, maxAlign))
	}
	return a.allocSlow("AllocAligned", n, align)
}

// TryAlloc is Alloc that never goes to the heap: without room it returns an
// error that wraps [ErrFull], and moves nothing. It returns errors also where
// Alloc panics: [ErrMisuse] for a negative n, [ErrReserved], [ErrReleased].
func (a *Arena) TryAlloc(n int) ([]byte, error) {
	off, err := a.bump(n, minAlign, true)
	if err != nil {
		return nil, a.explain("TryAlloc", n, err)
	}
	return a.got(off, n), nil
}

// Copy returns the bytes of b in memory of the arena, len and cap len(b). It
// goes to the heap, and panics, when Alloc would.
func (a *Arena) Copy(b []byte) []byte {
	dst := a.allocDirty("Copy", len(b))
	copy(dst, b)
	return dst
}

// CopyString is Copy for a string.
func (a *Arena) CopyString(s string) []byte {
	dst := a.allocDirty("CopyString", len(s))
	copy(dst, s)
	return dst
}

// allocDirty is Alloc without the zeroing: its callers write every byte.
func (a *Arena) allocDirty(method string, n int) []byte {
	if !a.usable() {
		panic(a.unusable(method))
	}
	off := (a.pos + minAlign - 1) &^ (minAlign - 1)
	if n <= 0 || n > a.limit-off {
		return a.allocSlow(method, n, minAlign)
	}
	end := off + n
	a.pos = end
	a.after(OpAlloc)
	return a.mem[off:end:end]
}

// allocSlow is every allocation that may go to the heap, with all checks.
//
//go:noinline
func (a *Arena) allocSlow(method string, n, align int) []byte {
	off, err := a.bump(n, align, true)
	switch err {
	case nil:
		return a.got(off, n)
	case ErrFull:
		b := a.mustSpill(method, n, align)
		a.after(OpAlloc)
		return b
	}
	panic(a.explain(method, n, err))
}

// got returns the n bytes at off that bump has handed out.
func (a *Arena) got(off, n int) []byte {
	if n == 0 {
		return []byte{}
	}
	return a.mem[off : off+n : off+n]
}

// place finds where n bytes at a multiple of align would go; it moves nothing.
// The error is a bare sentinel, for explain. Sizes are compared with the room
// that is left; nothing is added before it is known to fit.
func (a *Arena) place(n, align int) (off int, err error) {
	switch {
	case a == nil || !a.usable():
		return 0, ErrReleased
	case a.res != nil:
		return 0, ErrReserved
	case n < 0:
		return 0, ErrMisuse
	case n == 0:
		return a.pos, nil
	}
	off = (a.pos + align - 1) &^ (align - 1)
	if n > len(a.mem)-off {
		a.overflow()
		return 0, ErrFull
	}
	return off, nil
}

// bump moves P up by n bytes from the next multiple of align and returns where
// they begin, zeroed if asked. On an error, of the kind that place returns,
// nothing has moved.
func (a *Arena) bump(n, align int, zeroed bool) (off int, err error) {
	off, err = a.place(n, align)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		if zeroed && off < a.mark {
			zero(a.mem[off:min(off+n, a.mark)])
		}
		a.pos = off + n
	}
	a.after(OpAlloc)
	return off, nil
}

// explain makes the error for a user out of one that place returned.
func (a *Arena) explain(method string, n int, err error) error {
	switch err {
	case ErrReleased:
		return a.unusable(method)
	case ErrMisuse:
		return fmt.Errorf("%w: Arena.%s: negative size %d", err, method, n)
	case ErrReserved:
		return fmt.Errorf("%w: Arena.%s(%d) on the %s half", err, method, n, a.half)
	}
	return fmt.Errorf("%w: Arena.%s(%d): %d of %d bytes left in the %s half, and %d of MaxSpill", err, method, n, a.room(), len(a.mem), a.half, a.spillLeft())
}

// overflow notes that something did not fit. It is counted once a request, or
// once a message where Reset divides the request.
func (a *Arena) overflow() {
	if !a.over {
		a.over = true
		a.tally.overflows++
	}
}

// mustSpill allocates n zeroed bytes on the heap, at a multiple of align, for an
// allocation that had no room. That memory is never pooled.
func (a *Arena) mustSpill(method string, n, align int) []byte {
	if !a.spill(n) {
		panic(a.explain(method, n, ErrFull))
	}
	b := make([]byte, n+align-1)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(align-1))
	return b[off : off+n : off+n]
}

// spill takes n bytes of the half's budget for heap memory, if it has them.
func (a *Arena) spill(n int) bool {
	a.overflow()
	if n > a.spillLeft() {
		return false
	}
	a.spilled += n
	a.tally.spilled += int64(n)
	return true
}

func (a *Arena) spillLeft() int { return a.ws.pool.cfg.MaxSpill - a.spilled }

// Snapshot notes the present position. It panics while a reservation is open.
func (a *Arena) Snapshot() Snapshot {
	a.mustBeUsable("Snapshot")
	a.mustNotBeReserved("Snapshot")
	a.seq++
	s := Snapshot{arena: a, pos: a.pos, seq: a.seq}
	a.after(OpSnapshot)
	return s
}

// Rewind goes back to s: everything allocated since is given up, and its memory
// will be handed out again, zeroed. The mark stays where it is. The same
// snapshot may be used again. Overflowed stays true.
//
// Rewind panics, with nothing moved, when s is of another arena ([ErrMisuse]),
// when a Rewind to a lower position or a Reset came after s ([ErrStale]), and
// while a reservation is open ([ErrReserved]).
func (a *Arena) Rewind(s Snapshot) {
	a.mustBeUsable("Rewind")
	if s.arena != a {
		panic(fmt.Errorf("%w: Arena.Rewind: the Snapshot is of another Arena", ErrMisuse))
	}
	a.mustNotBeReserved("Rewind")
	if !a.current(s.seq, s.pos) {
		panic(fmt.Errorf("%w: Arena.Rewind to %d on the %s half: it was rewound below that, or reset, since the Snapshot", ErrStale, s.pos, a.half))
	}
	if a.seq > s.seq {
		n := len(a.cuts)
		for n > 0 && a.cuts[n-1].pos >= s.pos {
			n--
		}
		a.cuts = append(a.cuts[:n], cut{a.seq, s.pos})
	}
	a.lower(s.pos)
	a.after(OpRewind)
}

// current reports whether position pos, noted as number seq, has stayed
// allocated since. The first cut at or after seq is the lowest of them.
func (a *Arena) current(seq uint64, pos int) bool {
	if seq < a.oldest || pos > a.pos {
		return false
	}
	i := sort.Search(len(a.cuts), func(i int) bool { return a.cuts[i].seq >= seq })
	return i == len(a.cuts) || a.cuts[i].pos >= pos
}

func (a *Arena) mustNotBeReserved(method string) {
	if a.res != nil {
		panic(fmt.Errorf("%w: Arena.%s on the %s half", ErrReserved, method, a.half))
	}
}

// Reserve opens a reservation of n bytes: memory for something whose final size
// is known only once it is written. It returns the raw bytes, len and cap n.
// They may hold earlier bytes of this request, never of another. Without room
// they come from the heap, as with Alloc. Until [Arena.Commit] or [Arena.Abort]
// every other allocation, Snapshot and Rewind of the half is refused.
//
// A reservation costs a wipe of its full extent, whatever is committed: the
// arena can't know what was written. A [Buffer] knows, and costs only that.
//
// Reserve panics when Alloc would. A reservation still open when the workspace
// is released is a fault: it is reported and the block is abandoned.
func (a *Arena) Reserve(n int) []byte {
	off, err := a.place(n, minAlign)
	switch err {
	case nil:
		a.pos = off
		a.open(a.got(off, n), off+n)
	case ErrFull:
		a.open(a.mustSpill("Reserve", n, minAlign), 0)
	default:
		panic(a.explain("Reserve", n, err))
	}
	return a.res
}

// open makes res the open reservation, with R at end.
func (a *Arena) open(res []byte, end int) {
	a.res, a.resEnd = res, end
	a.limit = 0
	a.after(OpReserve)
}

// Commit ends the open reservation and keeps its first n bytes, which it
// returns with len and cap n. It panics, and the reservation stays open, when n
// is negative or more than was reserved; it panics when none is open.
func (a *Arena) Commit(n int) []byte {
	a.mustBeUsable("Commit")
	if a.res == nil {
		panic(fmt.Errorf("%w: Arena.Commit(%d): no reservation is open on the %s half", ErrMisuse, n, a.half))
	}
	if n < 0 || n > len(a.res) {
		panic(fmt.Errorf("%w: Arena.Commit(%d): %d bytes are reserved", ErrMisuse, n, len(a.res)))
	}
	b := a.res[:n:n]
	if a.resEnd > 0 { // not on the heap
		a.pos += n
	}
	a.closeReservation()
	a.after(OpCommit)
	return b
}

// Abort ends the open reservation and keeps nothing. It does nothing when none
// is open, so it may be deferred.
func (a *Arena) Abort() {
	a.mustBeUsable("Abort")
	if a.res == nil {
		return
	}
	a.closeReservation()
	a.after(OpAbort)
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
	return len(a.mem)
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
// is empty and every byte of the half is zero.
func (a *Arena) finish(op Op) {
	if a.res != nil {
		v := &Violation{Kind: OpenReservation, Size: len(a.mem), Mark: a.high(), First: -1, Last: -1, Guard: true}
		a.closeReservation()
		a.ws.violated(a, v, op)
	}
	a.after(op)
	if a.ws.pool.tripped.Load() {
		a.audit(op, false)
	}
	guard := a.ws.blk.guard(a.half)
	if !guardIntact(guard) {
		restoreGuard(guard)
		a.ws.violated(a, &Violation{Kind: GuardDamaged, Size: len(a.mem), Mark: a.high(), First: -1, Last: -1}, op)
	}
	w := a.high()
	a.tally.saved += int64(len(a.mem) - w)
	if a.ws.wipesAll() {
		w = len(a.mem)
	}
	zero(a.mem[:w])
	a.tally.wiped += int64(w)
	a.pos, a.mark = 0, 0
	a.countOps()
}
