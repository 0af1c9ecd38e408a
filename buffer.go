package workspace

import (
	"fmt"
	"io"
	"unsafe"
)

const (
	bufferMin  = 64       // AvailableBuffer and ReadFrom have at least this, if the half has it
	bufferRead = 4 << 10  // by this much or more ReadFrom grows the buffer
	bufferStep = 64 << 10 // and by no more than this

	maxEmptyReads = 100 // as in package bufio
)

// A Buffer is an append-only writer into an Arena. While it is the last
// allocation it grows in place, by just what is written; after that it moves to
// a larger piece, and once the half is full to the heap, which counts as an
// overflow. It shows only what was written to it.
//
// Its methods that return an error return one that wraps [ErrReleased] after
// the release, [ErrStale] after the arena was rewound to before the end of the
// buffer or reset, [ErrReserved] while a reservation is open and growth is
// needed, and [ErrFull] when MaxSpill is used up. The other methods panic with
// it. A Buffer belongs to the goroutine that owns its arena.
type Buffer struct {
	self *Buffer // the buffer itself, so that a copy is found
	a    *Arena
	buf  []byte // what was written; cap is what the buffer owns
	end  int    // where the owned piece ends in the half
	seq  uint64 // number of the last growth, as of a Snapshot at end
	heap bool   // buf is on the heap
}

var (
	_ io.Writer       = (*Buffer)(nil)
	_ io.StringWriter = (*Buffer)(nil)
	_ io.ByteWriter   = (*Buffer)(nil)
	_ io.ReaderFrom   = (*Buffer)(nil)
)

// Buffer returns an empty Buffer on the arena. It takes no memory until it is
// written to. Several may be in use, but only the last allocation grows in place.
func (a *Arena) Buffer() *Buffer {
	a.mustBeUsable("Buffer")
	a.seq++
	b := &Buffer{a: a, seq: a.seq}
	b.self = b
	return b
}

// check returns why the buffer may not be used, or nil.
func (b *Buffer) check(method string) error {
	switch {
	case b == nil || b.a == nil:
		return fmt.Errorf("%w: Buffer.%s: this Buffer came from no Arena", ErrMisuse, method)
	case b.self != b:
		return fmt.Errorf("%w: Buffer.%s: this Buffer is a copy", ErrMisuse, method)
	case !b.a.usable():
		return fmt.Errorf("%w, by Buffer.%s", b.a.unusable("Buffer"), method)
	case b.seq < b.a.oldest || cap(b.buf) > 0 && !b.heap && !b.a.current(b.seq, b.end):
		return fmt.Errorf("%w: Buffer.%s: the %s half was rewound to before its end, or reset", ErrStale, method, b.a.half)
	}
	return nil
}

func (b *Buffer) mustCheck(method string) {
	if err := b.check(method); err != nil {
		panic(err)
	}
}

// grow makes room for at least n more bytes. Where the buffer is the last
// allocation it becomes exactly that much longer, else it moves to a piece of
// at least twice its length.
func (b *Buffer) grow(method string, n int) error {
	need := n - b.free()
	if need <= 0 {
		return nil
	}
	if b.heap {
		return b.growHeap(method, n)
	}
	a := b.a
	if b.last() && need <= a.limit-a.pos {
		start := b.end - cap(b.buf)
		if _, err := a.bump(need, 1, false); err != nil {
			return a.explain(method, n, err)
		}
		b.own(start)
		return nil
	}
	size := n
	if have := len(b.buf); have > 0 {
		room := a.room()
		if n > room-have {
			return b.growHeap(method, n)
		}
		size = min(max(2*have, have+n), room)
	}
	off, err := a.bump(size, minAlign, false)
	if err == ErrFull {
		return b.growHeap(method, n)
	}
	if err != nil {
		return a.explain(method, n, err)
	}
	copy(a.mem()[off:], b.buf)
	b.own(off)
	return nil
}

// free returns how many bytes can be written without growth.
func (b *Buffer) free() int { return cap(b.buf) - len(b.buf) }

// last reports whether the buffer is the last allocation of its half.
func (b *Buffer) last() bool { return cap(b.buf) > 0 && b.end == b.a.pos }

// own makes the piece from off to the position the buffer's. It begins with
// what was written.
func (b *Buffer) own(off int) {
	a := b.a
	a.seq++
	b.seq, b.end = a.seq, a.pos
	b.buf = a.mem()[off : off+len(b.buf) : a.pos]
}

// growHeap moves the buffer to the heap, or grows it there: to twice its length
// where the budget allows that.
func (b *Buffer) growHeap(method string, n int) error {
	a, have := b.a, len(b.buf)
	if a.res != nil {
		return a.explain(method, n, ErrReserved)
	}
	if n > a.spillLeft()-have {
		a.overflow()
		return a.explain(method, n, ErrFull)
	}
	size := min(max(have+n, 2*have, bufferMin), a.spillLeft())
	a.spill(size)
	buf := make([]byte, have, size)
	copy(buf, b.buf)
	b.buf, b.heap = buf, true
	a.after(OpAlloc)
	return nil
}

// Write appends p. It writes all of p or nothing.
func (b *Buffer) Write(p []byte) (int, error) {
	if err := b.ready("Write", len(p)); err != nil {
		return 0, err
	}
	b.buf = append(b.buf, p...)
	return len(p), nil
}

// WriteString appends s. It writes all of s or nothing.
func (b *Buffer) WriteString(s string) (int, error) {
	if err := b.ready("WriteString", len(s)); err != nil {
		return 0, err
	}
	b.buf = append(b.buf, s...)
	return len(s), nil
}

// WriteByte appends c.
func (b *Buffer) WriteByte(c byte) error {
	if err := b.ready("WriteByte", 1); err != nil {
		return err
	}
	b.buf = append(b.buf, c)
	return nil
}

// ready checks the buffer and makes room for n bytes, so that the append that
// follows stays inside what the buffer owns.
func (b *Buffer) ready(method string, n int) error {
	if err := b.check(method); err != nil {
		return err
	}
	return b.grow(method, n)
}

// Grow makes room for n more bytes, so that writing them needs no further
// growth. It panics when n is negative.
func (b *Buffer) Grow(n int) {
	b.mustCheck("Grow")
	if n < 0 {
		panic(fmt.Errorf("%w: Buffer.Grow: negative size %d", ErrMisuse, n))
	}
	if err := b.grow("Grow", n); err != nil {
		panic(err)
	}
}

// ReadFrom appends all that r delivers until io.EOF or an error.
func (b *Buffer) ReadFrom(r io.Reader) (n int64, err error) {
	for empty := 0; ; {
		if err := b.check("ReadFrom"); err != nil {
			return n, err
		}
		if b.free() < bufferMin {
			if err := b.grow("ReadFrom", b.readStep()); err != nil {
				return n, err
			}
		}
		start, have, free := unsafe.SliceData(b.buf), len(b.buf), b.buf[len(b.buf):cap(b.buf)]
		m, err := r.Read(free)
		if m < 0 || m > len(free) {
			panic(fmt.Errorf("%w: Buffer.ReadFrom: the reader returned %d from a Read of %d bytes", ErrMisuse, m, len(free)))
		}
		if late := b.check("ReadFrom"); late != nil {
			return n, late // r released or rewound the memory it read into
		}
		if unsafe.SliceData(b.buf) != start || len(b.buf) != have {
			panic(fmt.Errorf("%w: Buffer.ReadFrom: the reader used the Buffer that reads from it", ErrMisuse))
		}
		b.buf = b.buf[:len(b.buf)+m]
		n += int64(m)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if m > 0 {
			empty = 0
		} else if empty++; empty == maxEmptyReads {
			return n, io.ErrNoProgress
		}
	}
}

// readStep returns by how much ReadFrom grows a buffer: modestly, as growth in
// place copies nothing, and by no more than the half has if it has enough.
func (b *Buffer) readStep() int {
	step := min(max(bufferRead, len(b.buf)/4), bufferStep)
	if room := b.a.room(); b.last() && !b.heap && room >= bufferMin {
		step = min(step, room)
	}
	return step
}

// AvailableBuffer returns an empty slice with room to append to and then to pass
// to Write at once, as for strconv.AppendInt. Its bytes may be written freely;
// they count only once they are written.
func (b *Buffer) AvailableBuffer() []byte {
	b.mustCheck("AvailableBuffer")
	if b.free() < bufferMin && !b.heap && b.a.room() >= len(b.buf)+bufferMin {
		if err := b.grow("AvailableBuffer", bufferMin); err != nil {
			panic(err)
		}
	}
	return b.buf[len(b.buf):]
}

// Bytes returns what was written, with cap equal to len. It stays valid, and
// keeps showing these bytes, while the arena's memory is valid.
func (b *Buffer) Bytes() []byte {
	b.mustCheck("Bytes")
	return b.buf[:len(b.buf):len(b.buf)]
}

// String returns a copy of what was written.
func (b *Buffer) String() string {
	b.mustCheck("String")
	return string(b.buf)
}

// Len returns how many bytes were written.
func (b *Buffer) Len() int {
	b.mustCheck("Len")
	return len(b.buf)
}
