package workspace

import (
	"fmt"
	"io"
	"math"
	"sync/atomic"
)

// Sizes of a half in bytes.
const (
	DefaultHalfSize = 256 << 10 // when Config names none
	MinHalfSize     = 4 << 10
	MaxHalfSize     = 64 << 20
	HalfSizeStep    = 4 << 10 // sizes are multiples of it
)

// A Workspace is the scratch memory of one request: two halves, each zeroed
// when the request gets it and wiped when the request ends. [Pool.Acquire]
// makes one. It is a fresh handle each time and is never reused, so a handle
// that is kept too long is dead; it never becomes somebody else's.
//
// After Release, and once no hold is open, every method panics with an error that
// wraps [ErrReleased], except Release itself.
//
// Release, Hold and the function that Hold returns may be called from any
// goroutine, but Release not while another uses the workspace without a hold.
// The rest belongs to the goroutine that serves the request, except
// that the two halves may be used by two goroutines at once.
type Workspace struct {
	client  Arena
	shares  atomic.Int32  // the owner's and one for each open hold; 0: dead
	ended   atomic.Bool   // the owner has released
	doubts  atomic.Uint32 // reasons not to reuse the block, as 1<<Doubt
	mode    Mode          // fixed at acquire
	pool    *Pool
	blk     *block // nil: no block, everything comes from the heap
	backend Arena
}

// A doubt is a reason to abandon a block instead of reusing it.
type doubt uint8

// A block with several is counted under the first of this list.
const (
	doubtRunning     doubt = iota // another goroutine took the workspace from the context and may still run
	doubtViolation                // an audit or a check found something
	doubtReservation              // a reservation was open at the end
	doubtPanic                    // the handler panicked or ended its goroutine
	doubtUpgrade                  // the request may have handed its connection on: Upgrade or CONNECT
	doubtAbandon                  // Workspace.Abandon was called
	numDoubts
)

// leftAlone are the doubts with which someone may still use the memory. Such a
// block is not wiped: a late reader finds its own bytes, and the collector
// zeroes the memory before anyone else gets it.
const leftAlone = 1<<doubtRunning | 1<<doubtPanic | 1<<doubtUpgrade | 1<<doubtAbandon

// doubt marks the block for abandonment. Any goroutine may call it.
func (ws *Workspace) doubt(d doubt) { ws.doubts.Or(1 << d) }

// begin gives the workspace its block, or none when blk is nil, and makes it live.
func (ws *Workspace) begin(blk *block, mode Mode) {
	ws.blk, ws.mode = blk, mode
	ws.shares.Store(1)
	if blk == nil {
		ws.client.begin(ws, Client, nil, countdown{ops: math.MaxInt})
		ws.backend.begin(ws, Backend, nil, countdown{ops: math.MaxInt})
		return
	}
	ws.client.begin(ws, Client, blk.half(Client), blk.next[Client])
	ws.backend.begin(ws, Backend, blk.half(Backend), blk.next[Backend])
}

// copied reports whether ws is not a handle that a Pool made: nil, the zero
// value, or a copy. A copy would have a position of its own over the same memory.
func (ws *Workspace) copied() bool { return ws == nil || ws.client.ws != ws }

func (ws *Workspace) mustBeLive(method string) {
	if ws.copied() || ws.shares.Load() <= 0 {
		panic(ws.dead(method))
	}
}

func (ws *Workspace) dead(method string) error {
	switch {
	case ws == nil:
		return fmt.Errorf("%w: Workspace.%s on nil: is the handler behind Pool.Middleware?", ErrMisuse, method)
	case ws.pool == nil:
		return fmt.Errorf("%w: Workspace.%s: this Workspace came from no Pool", ErrMisuse, method)
	case ws.copied():
		return fmt.Errorf("%w: Workspace.%s: this Workspace is a copy", ErrMisuse, method)
	}
	return fmt.Errorf("%w: Workspace.%s", ErrReleased, method)
}

// Client returns the half for the side that talks to the client.
func (ws *Workspace) Client() *Arena {
	ws.mustBeLive("Client")
	return &ws.client
}

// Backend returns the half for the side that talks to backends.
func (ws *Workspace) Backend() *Arena {
	ws.mustBeLive("Backend")
	return &ws.backend
}

// Mode returns the mode that this workspace got at acquire.
func (ws *Workspace) Mode() Mode {
	ws.mustBeLive("Mode")
	return ws.mode
}

// Release ends the request's use of the workspace. Once no hold is open, the
// memory is checked and wiped, and goes back to the pool; on any doubt it is
// abandoned instead. Slices of it must not be used afterwards.
//
// A second Release does nothing but count (Stats.DoubleReleases): it can't
// reach the block, which may be another request's by then.
//
// As a deferred call it also runs when the caller panics. The block is then
// wiped and reused, since the panic unwinds whoever used it. The HTTP
// middleware is stricter and abandons it.
func (ws *Workspace) Release() {
	if ws.copied() {
		panic(ws.dead("Release"))
	}
	if !ws.release() && ws.doubts.Load()&(1<<doubtAbandon) == 0 { // a deferred Release after Abandon is fine
		ws.pool.countDoubleRelease()
	}
}

// release gives up the owner's share, once; it reports whether this call did.
func (ws *Workspace) release() bool {
	if !ws.ended.CompareAndSwap(false, true) {
		return false
	}
	ws.drop()
	return true
}

// Abandon is Release without reuse: the block is left to the garbage collector
// and counted. It is for the case that someone may still hold a slice of it,
// such as an I/O operation that was cancelled and may complete late. A slice
// alone keeps heap memory alive, but not mapped or fenced memory: keep a hold
// instead where Config.Memory, Debug or FenceEvery ask for such.
func (ws *Workspace) Abandon() {
	ws.mustBeLive("Abandon")
	ws.doubt(doubtAbandon)
	ws.release()
}

// Hold keeps the workspace, and with it the block, beyond Release: until done
// is called. For memory that is handed to something that outlives the handler.
// done may be called from any goroutine; only its first call counts.
func (ws *Workspace) Hold() (done func()) {
	for {
		ws.mustBeLive("Hold")
		if n := ws.shares.Load(); n > 0 && ws.shares.CompareAndSwap(n, n+1) {
			break
		}
	}
	var once atomic.Bool
	id := ws.pool.watch.held(ws)
	return func() {
		if once.CompareAndSwap(false, true) {
			ws.pool.watch.let(ws, id)
			ws.drop()
		}
	}
}

// Go runs f in a new goroutine and holds the workspace until f returns.
func (ws *Workspace) Go(f func()) {
	done := ws.Hold()
	go func() {
		defer done()
		f()
	}()
}

// Reset marks a message boundary inside a long request: both halves are
// checked, wiped to their marks (whole, where the mode says so) and empty
// again. Every slice, Snapshot and Buffer taken before is dead.
// Overflowed is false again, and the budget of MaxSpill is new.
//
// Reset panics while a hold or a reservation is open.
func (ws *Workspace) Reset() {
	ws.mustBeLive("Reset")
	if ws.ended.Load() { // only a hold keeps it alive
		panic(fmt.Errorf("%w: Workspace.Reset", ErrReleased))
	}
	if n := ws.shares.Load() - 1; n > 0 {
		panic(fmt.Errorf("%w: Workspace.Reset: holds are open: %d", ErrMisuse, n))
	}
	ws.client.mustNotBeReserved("Reset")
	ws.backend.mustNotBeReserved("Reset")
	for _, a := range []*Arena{&ws.client, &ws.backend} {
		if ws.blk != nil {
			a.finish(OpReset)
		}
		a.oldest, a.cuts = a.seq+1, nil
		a.over, a.spilled = false, 0
	}
	if ws.blk != nil && ws.blk.tenure != nil {
		ws.refence()
	}
}

// wipesAll reports whether a wipe must cover whole halves: in every mode but
// Watermark, and whenever the breaker is open or there is a doubt.
func (ws *Workspace) wipesAll() bool {
	return ws.mode != Watermark || ws.doubts.Load() != 0 || ws.pool.tripped.Load()
}

// Audit checks both halves now: that every byte past the marks is zero and both
// guards are intact. The error is a [*Violation]; it has been reported like any
// other. These audits are counted apart from the sampled ones. Both halves must
// be at rest. A workspace without a block has nothing to audit.
func (ws *Workspace) Audit() error {
	ws.mustBeLive("Audit")
	if ws.blk == nil {
		return nil
	}
	c, b := ws.client.audit(OpForced, false), ws.backend.audit(OpForced, false)
	switch {
	case c != nil:
		return c
	case b != nil:
		return b
	}
	return nil
}

// Format prints what kind of handle it is and nothing of the memory, for every verb.
func (ws *Workspace) Format(f fmt.State, _ rune) {
	switch {
	case ws == nil:
		io.WriteString(f, "workspace.Workspace(nil)")
	case ws.shares.Load() <= 0:
		io.WriteString(f, "workspace.Workspace(released)")
	default:
		io.WriteString(f, "workspace.Workspace(live)")
	}
}

// violated marks the block for abandonment and reports v, found in a by op.
func (ws *Workspace) violated(a *Arena, v *Violation, op Op) {
	d := doubtViolation
	if v.Kind == OpenReservation {
		d = doubtReservation
	}
	ws.doubt(d)
	v.Half, v.Op, v.Mode = a.half, op, ws.mode
	ws.pool.report(v)
}

// drop gives up one share. The last one ends the workspace.
func (ws *Workspace) drop() {
	if ws.shares.Add(-1) == 0 {
		ws.end()
	}
}

// end takes the block away from the handle and gives it back. It runs once.
func (ws *Workspace) end() {
	ws.client.self.Store(nil)
	ws.backend.self.Store(nil)
	if ws.doubts.Load()&(1<<doubtRunning) != 0 {
		// Another goroutine may be inside the arenas at this moment. Nothing
		// of them is read or written; they go to the collector as they are.
		ws.pool.giveBack(ws, false)
		return
	}
	if ws.blk != nil {
		ws.client.finish(OpRelease)
		ws.backend.finish(OpRelease)
		ws.blk.next = [2]countdown{ws.client.left(), ws.backend.left()}
	}
	ws.pool.giveBack(ws, true)
	// A dead handle must not keep the memory alive.
	ws.blk = nil
	for _, a := range []*Arena{&ws.client, &ws.backend} {
		a.base, a.size, a.res, a.cuts = nil, 0, nil, nil
	}
}
