package workspace

import (
	"fmt"
	"sort"
)

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
