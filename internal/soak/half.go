package main

import (
	"errors"
	"math"
	"unsafe"

	"github.com/go-workspace/workspace"
)

// A half is one Arena as a handler uses it: it looks at all it gets before it writes
// its tag there, and looks again later.
type half struct {
	v      *visit
	name   string
	a      *workspace.Arena
	pieces []piece
	notes  []*note
	marks  []mark
	steps  int
}

// A piece is an allocation. Its first bytes are written, the rest is zero.
type piece struct {
	via     string
	b       []byte
	written int
}

// A note is a Buffer and how much was written to it.
type note struct {
	buf     *workspace.Buffer
	written int
	at      int // the step of the last write
}

// A mark is a Snapshot and what there was then.
type mark struct {
	snap   workspace.Snapshot
	pieces int
	at     int
}

// size draws how much to allocate: mostly little, with a heavy tail; now and then
// about all of the half, or more than that.
func (h *half) size() int {
	rng := h.v.rng
	switch rng.IntN(250) {
	case 0:
		return workspace.DefaultHalfSize + 1 + rng.IntN(100<<10)
	case 1, 2:
		return max(0, h.a.Room()-rng.IntN(100))
	case 3:
		return 0
	}
	return heavyTail(rng.Float64(), 32, 200<<10)
}

// heavyTail turns a number from 0 to 1 into a size from least to most, so that twice the
// size is a bit less than half as likely.
func heavyTail(u, least float64, most int) int {
	return int(math.Min(least/math.Pow(1-u, 1.2), float64(most)))
}

// step does one thing, at random.
func (h *half) step() {
	h.steps++
	rng := h.v.rng
	switch n := rng.IntN(100); {
	case n < 30:
		h.take("Alloc", h.a.Alloc(h.size()))
	case n < 36:
		align := 1 << rng.IntN(7)
		b := h.a.AllocAligned(h.size(), align)
		if len(b) > 0 && uintptr(unsafe.Pointer(&b[0]))%uintptr(align) != 0 {
			h.v.fault("AllocAligned(%d) on the %s half: the address is not aligned", align, h.name)
		}
		h.take("AllocAligned", b)
	case n < 42:
		b, err := h.a.TryAlloc(h.size())
		if err == nil {
			h.take("TryAlloc", b)
		} else if !errors.Is(err, workspace.ErrFull) {
			h.v.mayBeDead(err)
		}
	case n < 48:
		src := h.v.tag.make(0, h.size())
		h.keep(piece{"Copy", h.a.Copy(src), len(src)})
	case n < 54:
		s := workspace.MakeSlice[uint64](h.a, h.size()/8)
		h.take("MakeSlice", unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*8))
	case n < 58:
		p := workspace.Alloc[[40]byte](h.a)
		h.take("Alloc[T]", p[:])
	case n < 70:
		h.reserve()
	case n < 84:
		h.write()
	case n < 90:
		h.marks = append(h.marks, mark{h.a.Snapshot(), len(h.pieces), h.steps})
	case n < 95:
		h.rewind()
	case n < 97 && rng.IntN(4) == 0:
		h.probe()
	default:
		h.check()
	}
}

// take looks at a fresh allocation and writes to a part of it.
func (h *half) take(via string, b []byte) {
	h.v.wantZero(via, h.name, b)
	n := h.v.rng.IntN(len(b) + 1)
	if h.v.rng.IntN(2) == 0 {
		n = len(b)
	}
	h.v.tag.fill(b[:n])
	h.keep(piece{via, b, n})
}

func (h *half) keep(p piece) {
	if cap(p.b) != len(p.b) {
		h.v.fault("%s on the %s half: a slice of %d bytes has capacity %d", p.via, h.name, len(p.b), cap(p.b))
	}
	h.pieces = append(h.pieces, p)
}

// reserve opens a reservation, writes to it, and ends it in one way or the other.
func (h *half) reserve() {
	rng := h.v.rng
	b := h.a.Reserve(h.size())
	h.v.wantOwn("Reserve", h.name, b)
	n := rng.IntN(len(b) + 1)
	h.v.tag.fill(b[:n])
	if rng.IntN(3) == 0 {
		h.a.Abort()
		return
	}
	n = rng.IntN(n + 1)
	h.keep(piece{"Commit", h.a.Commit(n), n})
}

// write writes to a new Buffer or to an earlier one.
func (h *half) write() {
	rng := h.v.rng
	if len(h.notes) == 0 || rng.IntN(3) == 0 {
		h.notes = append(h.notes, &note{buf: h.a.Buffer(), at: h.steps})
	}
	n := h.notes[rng.IntN(len(h.notes))]
	n.at = h.steps
	b := h.v.tag.make(n.written, heavyTail(rng.Float64(), 16, 64<<10))
	var err error
	if rng.IntN(3) > 0 {
		_, err = n.buf.Write(b)
	} else {
		free := n.buf.AvailableBuffer()
		h.v.wantOwn("AvailableBuffer", h.name, free[:cap(free)])
		_, err = n.buf.Write(append(free, b...))
	}
	if err != nil {
		h.v.mayBeDead(err)
		return
	}
	n.written += len(b)
}

// rewind goes back to one of the snapshots and forgets what came after it.
func (h *half) rewind() {
	if len(h.marks) == 0 {
		return
	}
	i := h.v.rng.IntN(len(h.marks))
	m := h.marks[i]
	h.a.Rewind(m.snap)
	h.marks = h.marks[:i+1]
	h.pieces = h.pieces[:m.pieces]
	kept := h.notes[:0]
	for _, n := range h.notes {
		if n.at < m.at {
			kept = append(kept, n)
		}
	}
	h.notes = kept
}

// probe looks at all that is free in the half.
func (h *half) probe() {
	rng := h.v.rng
	if rng.IntN(2) == 0 {
		h.v.wantOwn("Reserve of the rest", h.name, h.a.Reserve(h.a.Room()))
		h.a.Abort()
		return
	}
	snap := h.a.Snapshot()
	h.v.wantZero("Alloc of the rest", h.name, h.a.Alloc(h.a.Room()))
	h.a.Rewind(snap)
}

// probeFresh looks at all of a half that nothing was taken from yet. Not even own bytes
// may be in it.
func (h *half) probeFresh() {
	b := h.a.Reserve(h.a.Room())
	h.v.wantZero("Reserve of a fresh half", h.name, b)
	h.a.Abort()
}

// check looks whether everything is as it was written.
func (h *half) check() {
	h.checkPieces()
	for _, n := range h.notes {
		b := n.buf.Bytes()
		if len(b) != n.written {
			h.v.fault("a Buffer on the %s half has %d bytes, %d were written", h.name, len(b), n.written)
		}
		h.v.wantWritten("Buffer", h.name, b)
	}
}

// checkPieces is check without a use of handles, which may be dead.
func (h *half) checkPieces() {
	for _, p := range h.pieces {
		h.v.wantWritten(p.via, h.name, p.b[:p.written])
		h.v.wantZero("the unwritten rest of "+p.via, h.name, p.b[p.written:])
	}
}

// forget drops everything, after a Reset.
func (h *half) forget() { h.pieces, h.notes, h.marks = nil, nil, nil }

// answer returns n bytes of the tag in memory of the half, got in one of many ways.
func (h *half) answer(n int) []byte {
	h.steps++
	rng := h.v.rng
	switch rng.IntN(5) {
	case 0:
		b := h.a.Reserve(n + rng.IntN(1000))
		h.v.wantOwn("Reserve", h.name, b)
		h.v.tag.fill(b)
		b = h.a.Commit(n)
		h.keep(piece{"Commit", b, n})
		return b
	case 1:
		buf := &note{buf: h.a.Buffer(), at: h.steps}
		for rest := n; rest > 0; {
			m := min(rest, 1+rng.IntN(32<<10))
			if _, err := buf.buf.Write(h.v.tag.make(buf.written, m)); err != nil {
				h.v.mayBeDead(err)
				break
			}
			buf.written += m
			rest -= m
		}
		h.notes = append(h.notes, buf)
		return buf.buf.Bytes()
	case 2:
		b := h.a.Copy(h.v.tag.make(0, n))
		h.keep(piece{"Copy", b, n})
		return b
	case 3:
		b := workspace.MakeSlice[byte](h.a, n)
		h.v.wantZero("MakeSlice", h.name, b)
		h.v.tag.fill(b)
		h.keep(piece{"MakeSlice", b, n})
		return b
	default:
		b := h.a.Alloc(n)
		h.v.wantZero("Alloc", h.name, b)
		h.v.tag.fill(b)
		h.keep(piece{"Alloc", b, n})
		return b
	}
}
