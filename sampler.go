package workspace

import (
	"math"
	"math/bits"
)

// DefaultAuditEvery is the mean number of operations between two audits of a
// half when Config.AuditEvery is 0.
const DefaultAuditEvery = 20_000

const maxAuditEvery = 1 << 24

// A sampler decides which operations are audited: each one independently with
// probability 1/every. It does so by drawing the gap to the next audit from the
// geometric distribution, so that an operation costs one decrement.
//
// A fixed gap would not do: with 20,000 it would look at one single step of a
// request that makes 8, 10, 16, 20, 25, 32, 40 or 100 operations, and never at a
// workspace that lives fewer operations than the gap. The geometric distribution
// has no memory, so a gap may be carried from one request to the next.
//
// For the same reason a gap may be drawn in pieces, each at the rate that holds
// when its time has come: see chunk.
//
// A sampler is read-only once made; goroutines may share it.
type sampler struct {
	// digits[j] is the probability that bit j of gap-1 is set, in units of 2^-64.
	digits []uint64
	draw   func() uint64 // uniform over all 64-bit values; safe for concurrent use
	off    bool
	chunk  int // longest countdown: math.MaxInt, or maxChunk where the rate may change
}

// maxChunk is how many operations a half may be behind a change of the rate.
const maxChunk = 4096

// A countdown is how many operations there are until the sampler is asked again,
// and whether the last of them is audited.
type countdown struct {
	ops   int
	audit bool
}

// newSampler makes a sampler with a mean gap of every operations. A negative
// value turns it off, 0 means DefaultAuditEvery.
//
// The binary digits of a geometric variable are independent of each other, and
// with q = 1-1/every bit j is set with probability q^(2^j) / (1 + q^(2^j)). The
// table below holds these in 64-bit integers, so each platform draws the same
// gaps from the same random numbers; a float logarithm would not.
func newSampler(every int, draw func() uint64) sampler {
	s := sampler{draw: draw, off: every < 0, chunk: math.MaxInt}
	if every == 0 {
		every = DefaultAuditEvery
	}
	if every <= 1 {
		return s // q is 0: no digit is ever set, each gap is 1
	}
	step, _ := bits.Div64(1, 0, uint64(every)) // 2^64 / every
	q := -step                                 // 2^64 * (1 - 1/every)
	for {
		// q/(1+q), both halves scaled so that they fit.
		t, _ := bits.Div64(q>>1, q<<63, 1<<63+q>>1)
		if t == 0 {
			return s
		}
		s.digits = append(s.digits, t)
		q, _ = bits.Mul64(q, q)
	}
}

// gap draws how many operations there are to the next audit, that one included:
// 1 or more. When the sampler is off it returns the largest int; a tick that
// counts so far down just asks again.
func (s *sampler) gap() int {
	if s.off {
		return math.MaxInt
	}
	n := uint64(0)
	for j, t := range s.digits {
		if s.draw() < t {
			n |= 1 << j
		}
	}
	return 1 + int(min(n, math.MaxInt-1))
}

// next draws a countdown. A gap that is longer than chunk is cut there and
// forgotten: what is left of a geometric gap is distributed as a new one.
func (s *sampler) next() countdown {
	n := s.gap()
	if n > s.chunk {
		return countdown{s.chunk, false}
	}
	return countdown{n, !s.off}
}
