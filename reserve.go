package workspace

import (
	"fmt"
	"unsafe"
)

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
	return a.reservation()
}

// reservation returns the open reservation.
func (a *Arena) reservation() []byte { return unsafe.Slice(a.res, a.resLen) }

// open makes res the open reservation, with R at end.
func (a *Arena) open(res []byte, end int) {
	a.res, a.resLen, a.resEnd = unsafe.SliceData(res), len(res), end
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
	if n < 0 || n > a.resLen {
		panic(fmt.Errorf("%w: Arena.Commit(%d): %d bytes are reserved", ErrMisuse, n, a.resLen))
	}
	b := a.reservation()[:n:n]
	if a.resEnd > 0 { // not on the heap
		a.pos += n
	}
	a.closeReservation()
	a.after(OpCommit)
	return b
}

// Abort ends the open reservation and keeps nothing, but for up to 7 bytes of
// alignment. It does nothing when none
// is open, so it may be deferred.
func (a *Arena) Abort() {
	a.mustBeUsable("Abort")
	if a.res == nil {
		return
	}
	a.closeReservation()
	a.after(OpAbort)
}

func (a *Arena) mustNotBeReserved(method string) {
	if a.res != nil {
		panic(fmt.Errorf("%w: Arena.%s on the %s half", ErrReserved, method, a.half))
	}
}
