package workspace

import "math/bits"

// maxRuns is how many runs of dirty bytes a Violation lists.
const maxRuns = 16

// A Run is a row of bytes that were not as they must be: offset in the half and length, in bytes.
type Run struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// A shape says where memory differs from what it must hold, and by how much,
// without saying what stands there.
type shape struct {
	first, last, count, bits, runs, longest int
	list                                    [maxRuns]Run
}

// shapeOf compares each byte of half from off on with clean, in one pass: so the
// numbers agree with each other, also when somebody writes meanwhile. Only
// violations need it, so it need not be fast.
func shapeOf(half []byte, off int, clean byte) shape {
	s := shape{first: -1, last: -1}
	run := 0 // length of the one that ends here
	for i := off; i < len(half); i++ {
		b := half[i] ^ clean
		if b == 0 {
			run = 0
			continue
		}
		if s.first < 0 {
			s.first = i
		}
		s.last = i
		s.count++
		s.bits += bits.OnesCount8(b)
		if run++; run == 1 {
			s.runs++
		}
		s.longest = max(s.longest, run)
		if s.runs <= maxRuns {
			s.list[s.runs-1] = Run{i - run + 1, run}
		}
	}
	return s
}

// describe fills in what the dirty bytes look like. It reads them twice: a fault
// of the machine, or a writer that is still at work, may look otherwise then.
func (v *Violation) describe(half []byte, off int, clean byte) {
	s := shapeOf(half, off, clean)
	v.First, v.Last, v.Count, v.Bits, v.Runs, v.LongestRun = s.first, s.last, s.count, s.bits, s.runs, s.longest
	v.RunList = append([]Run(nil), s.list[:min(s.runs, maxRuns)]...)
	v.Stable = s == shapeOf(half, off, clean)
	v.Hints = v.hints()
}

// hints are guesses that follow from the shape alone.
func (v *Violation) hints() (hints []string) {
	hint := func(when bool, text string) {
		if when {
			hints = append(hints, text)
		}
	}
	blocks := func(size int) bool { // all runs that are listed are whole blocks
		for _, r := range v.RunList {
			if r.Offset%size != 0 || r.Length%size != 0 {
				return false
			}
		}
		return v.Count > 0 && v.Runs <= maxRuns
	}
	tail := v.Kind == DirtyTail
	hint(v.Count == 0 && tail, "it was clean at the second look: somebody writes at this moment, or the memory of this machine is bad")
	hint(v.Count > 0 && !v.Stable, "it changed while it was looked at: somebody writes at this moment")
	hint(v.Bits == 1, "a single bit: on one host and never again, suspect its memory")
	hint(v.Count > 0 && tail && v.First == v.Mark, "it begins at the mark: one byte too many, or memory written after it was given up")
	hint(v.Count > 0 && tail && v.First > v.Mark, "it lies apart from the mark: a slice that was kept and written late, or a wipe that left it out")
	hint(blocks(4096), "whole pages: suspect the code that wipes, or the system")
	hint(!blocks(4096) && blocks(64), "whole cache lines: suspect the code that wipes")
	hint(!v.Guard, "the guard is damaged: a write ran over the end of the half")
	return hints
}

// trailLen is how many operations are taken down.
const trailLen = 16

// A Step is an operation of a half and where it left the position and the mark, in
// bytes.
type Step struct {
	Op       Op  `json:"op"`
	Position int `json:"position"`
	Mark     int `json:"mark"`
}

// A trail is the last operations of a half that were taken down: those before a
// sampled audit. It belongs to the block, so it begins with what the request before
// did, if this one is young.
type trail struct {
	steps [trailLen]Step
	n     int // so far
}

func (t *trail) add(s Step) {
	t.steps[t.n%trailLen] = s
	t.n++
}

// list returns the steps, the oldest first.
func (t *trail) list() (steps []Step) {
	for i := max(0, t.n-trailLen); i < t.n; i++ {
		steps = append(steps, t.steps[i%trailLen])
	}
	return steps
}
