package workspace

import (
	"fmt"
	"unsafe"
)

const (
	minAlign = 8  // of every allocation that does not ask for more
	maxAlign = 64 // halves begin on a multiple of it
)

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
		zero(a.mem()[off:min(end, a.mark)])
	}
	a.pos = end
	if a.due() {
		a.afterSlow(OpAlloc)
	}
	return a.mem()[off:end:end]
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
	if a.due() {
		a.afterSlow(OpAlloc)
	}
	return a.mem()[off:end:end]
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
	return a.mem()[off : off+n : off+n]
}

// place finds where n bytes at a multiple of align would go; it moves nothing.
// The error is a bare sentinel, for explain. Sizes are compared with the room
// that is left; nothing is added before it is known to fit.
func (a *Arena) place(n, align int) (off int, err error) {
	switch {
	case !a.usable():
		return 0, ErrReleased
	case a.res != nil:
		return 0, ErrReserved
	case n < 0:
		return 0, ErrMisuse
	case n == 0:
		return a.pos, nil
	}
	off = (a.pos + align - 1) &^ (align - 1)
	if n > a.size-off {
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
			zero(a.mem()[off:min(off+n, a.mark)])
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
	return fmt.Errorf("%w: Arena.%s(%d): %d of %d bytes left in the %s half, and %d of MaxSpill", err, method, n, a.room(), a.size, a.half, a.spillLeft())
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
