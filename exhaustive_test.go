package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModel runs long random sequences. Here are all short ones: every sequence of
// up to so many operations on a half of 32 bytes, each step compared with a model
// that knows what every single byte must hold. Each sequence ends in a release, and
// the next one gets the block as the wipe left it.
//
// Two sequences that lead to the same state need not both be carried on: what can
// follow is the same. A state is all that the model knows and all that the arena
// keeps; of the bytes it is which ones are dirty, as nothing depends on their values.

var exhaustiveDepth = flag.Int("exhaustive", 0, "operations in a sequence of the exhaustive check; 0: the default")

const tinyHalf = 32

// A tinyOp is one operation, on the arena and on the model.
type tinyOp struct {
	name string
	run  func(*tinyRun)
}

// tinyAlphabet returns the operations that there are at any moment. To them come a
// Rewind for each Snapshot taken so far and, at the end, the release.
func tinyAlphabet() []tinyOp {
	return []tinyOp{
		{"Abort", (*tinyRun).abort},
		{"Alloc(1)", func(r *tinyRun) { r.alloc(1) }},
		{"Alloc(7)", func(r *tinyRun) { r.alloc(7) }},
		{"Alloc(8)", func(r *tinyRun) { r.alloc(8) }},
		{"Alloc(9)", func(r *tinyRun) { r.alloc(9) }},
		{"TryAlloc(9)", func(r *tinyRun) { r.tryAlloc(9) }},
		{"TryAlloc(33)", func(r *tinyRun) { r.tryAlloc(tinyHalf + 1) }},
		{"Reserve(9)", func(r *tinyRun) { r.reserve(9) }},
		{"Commit(0)", func(r *tinyRun) { r.commit(0) }},
		{"Commit(5)", func(r *tinyRun) { r.commit(5) }},
		{"Commit(9)", func(r *tinyRun) { r.commit(9) }},
		{"Commit(10)", func(r *tinyRun) { r.commit(10) }},
		{"Snapshot", (*tinyRun).snapshot},
		{"Reset", (*tinyRun).reset},
	}
}

const opAbort = 0 // of the alphabet

// A tinyModel is what the half must be.
type tinyModel struct {
	bytes   [tinyHalf]byte // what the half holds
	dirty   [tinyHalf]bool // written by this request
	pos     int
	mark    int // the highest end of all that was handed out
	over    bool
	spilled int
	open    bool // a reservation is
	openOff int  // -1: it is on the heap
	openLen int
	snaps   []tinySnapshot
}

type tinySnapshot struct {
	pos   int
	stale bool // the half was rewound to below pos, or reset, since
}

// place is where n bytes must come from: an offset, or -1 for the heap.
func (m *tinyModel) place(n int) (off int, err error) {
	if m.open {
		return -1, ErrReserved
	}
	off = alignUp(m.pos, 8)
	if off+n > tinyHalf {
		m.over = true
		return -1, nil
	}
	m.mark = max(m.mark, off+n)
	return off, nil
}

func (m *tinyModel) room() int {
	if m.open {
		return 0
	}
	return tinyHalf - alignUp(m.pos, 8)
}

// rewind makes each snapshot above pos stale, whenever it was taken.
func (m *tinyModel) rewind(pos int) {
	m.pos = pos
	for i := range m.snaps {
		if m.snaps[i].pos > pos {
			m.snaps[i].stale = true
		}
	}
}

func (m *tinyModel) reset() {
	snaps := m.snaps
	for i := range snaps {
		snaps[i].stale = true
	}
	*m = tinyModel{snaps: snaps}
}

// A tinyRun is one sequence: a workspace, and the model of one half.
type tinyRun struct {
	t     testing.TB
	ops   []tinyOp
	pool  *Pool
	half  Half
	blk   *block
	ws    *Workspace
	a     *Arena
	mem   []byte // the half
	m     tinyModel
	snaps []Snapshot
	res   []byte // the open reservation
	path  []byte // the operations so far
	steps int    // of all sequences
	left  int64  // releases with a reservation open
	key   []byte
}

// fail ends the test. Only a difference gets here.
func (r *tinyRun) fail(format string, args ...any) {
	r.t.Helper()
	var names []string
	for _, op := range r.path {
		if i := int(op) - len(r.ops); i >= 0 {
			names = append(names, fmt.Sprintf("Rewind to snapshot %d", i))
		} else {
			names = append(names, r.ops[op].name)
		}
	}
	require.FailNow(r.t, fmt.Sprintf(format, args...), "%s, %s half, after: %s", r.pool.Mode(), r.half, strings.Join(names, ", "))
}

// begin gets the block for a new sequence. Nothing clears it: it must be clean.
func (r *tinyRun) begin() {
	if r.blk == nil {
		r.blk = newBlock(tinyHalf, tinyHalf, r.pool.countdown)
		r.pool.idle = append(r.pool.idle, r.blk)
	}
	r.ws = r.pool.Acquire()
	r.a, r.mem = arenaOf(r.ws, r.half), r.blk.half(r.half)
	r.m, r.snaps, r.res, r.path = tinyModel{snaps: r.m.snaps[:0]}, r.snaps[:0], nil, r.path[:0]
	if addr(r.a.mem()) != addr(r.mem) || r.a.Size() != tinyHalf {
		r.fail("the arena is over other memory")
	}
	r.check()
}

// step runs one operation and compares everything.
func (r *tinyRun) step(op byte) {
	r.steps++
	r.path = append(r.path, op)
	if i := int(op) - len(r.ops); i >= 0 {
		r.rewind(i)
	} else {
		r.ops[op].run(r)
	}
	r.check()
}

// check compares the arena and its memory with the model.
func (r *tinyRun) check() {
	a, m := r.a, &r.m
	switch {
	case a.Position() != m.pos:
		r.fail("position %d, want %d", a.Position(), m.pos)
	case a.Mark() != m.mark:
		r.fail("mark %d, want %d", a.Mark(), m.mark)
	case a.Room() != m.room():
		r.fail("room %d, want %d", a.Room(), m.room())
	case a.Overflowed() != m.over:
		r.fail("overflowed %v, want %v", a.Overflowed(), m.over)
	case a.spilled != m.spilled:
		r.fail("%d bytes spilled, want %d", a.spilled, m.spilled)
	}
	for i, c := range r.mem {
		switch {
		case i >= a.Mark() && c != 0:
			r.fail("byte %d is not zero: it lies past the mark %d", i, a.Mark())
		case m.dirty[i] != (c != 0):
			r.fail("byte %d is dirty: %v, want %v", i, c != 0, m.dirty[i])
		case c != m.bytes[i]:
			r.fail("byte %d has changed", i)
		}
	}
	r.checkGuards()
}

func (r *tinyRun) checkGuards() {
	if !guardIntact(r.blk.guard(Client)) || !guardIntact(r.blk.guard(Backend)) {
		r.fail("a guard is damaged")
	}
}

// try runs f, which must panic with an error that wraps want, or not at all when
// want is nil. It reports whether f came to its end.
func (r *tinyRun) try(want error, f func()) bool {
	r.t.Helper()
	var got any
	func() {
		defer func() { got = recover() }()
		f()
	}()
	if err, ok := got.(error); got != want && !(ok && want != nil && errors.Is(err, want)) {
		r.fail("panic with %v, want %v", got, want)
	}
	return got == nil
}

// mustLieAt checks that b is n bytes at off and no more, or is on the heap.
func (r *tinyRun) mustLieAt(b []byte, n, off int) {
	r.t.Helper()
	if len(b) != n || cap(b) != n {
		r.fail("len %d, cap %d, want %d", len(b), cap(b), n)
	}
	if n == 0 {
		return
	}
	if off >= 0 {
		if got := int(addr(b) - addr(r.mem)); got != off {
			r.fail("%d bytes at %d, want %d", n, got, off)
		}
		return
	}
	if addr(b)-addr(r.blk.mem) < uintptr(len(r.blk.mem)) {
		r.fail("%d bytes of the block, want them from the heap", n)
	}
}

// write fills all of b, which lies at off, with the number of this step.
func (r *tinyRun) write(b []byte, off int) {
	for i := range b {
		b[i] = byte(len(r.path))
		if off >= 0 {
			r.m.bytes[off+i], r.m.dirty[off+i] = b[i], true
		}
	}
}

func (r *tinyRun) alloc(n int) {
	off, want := r.m.place(n)
	var b []byte
	if !r.try(want, func() { b = r.a.Alloc(n) }) {
		return
	}
	if off < 0 {
		r.m.spilled += n
	}
	r.allocated(b, n, off)
}

func (r *tinyRun) tryAlloc(n int) {
	off, want := r.m.place(n)
	if want == nil && off < 0 {
		want = ErrFull // rather than the heap
	}
	var b []byte
	var err error
	r.try(nil, func() { b, err = r.a.TryAlloc(n) })
	if !errors.Is(err, want) || err != nil && b != nil {
		r.fail("TryAlloc(%d) returned %d bytes and error %v, want %v", n, len(b), err, want)
	}
	if err == nil {
		r.allocated(b, n, off)
	}
}

// allocated checks what an allocation returned, and uses it.
func (r *tinyRun) allocated(b []byte, n, off int) {
	r.t.Helper()
	if off >= 0 {
		r.m.pos = off + n
	}
	r.mustLieAt(b, n, off)
	for i, c := range b {
		if c != 0 {
			r.fail("byte %d of what was handed out is not zero", i)
		}
	}
	r.write(b, off)
}

func (r *tinyRun) reserve(n int) {
	off, want := r.m.place(n)
	if !r.try(want, func() { r.res = r.a.Reserve(n) }) {
		return
	}
	r.m.open, r.m.openOff, r.m.openLen = true, off, n
	r.mustLieAt(r.res, n, off)
	if off >= 0 {
		r.m.pos = off
		if !bytes.Equal(r.res, r.m.bytes[off:off+n]) {
			r.fail("Reserve(%d) changed what it handed out", n)
		}
	} else {
		r.m.spilled += n
	}
	r.write(r.res, off)
}

func (r *tinyRun) commit(n int) {
	var want error
	if !r.m.open || n > r.m.openLen {
		want = ErrMisuse
	}
	var b []byte
	if !r.try(want, func() { b = r.a.Commit(n) }) {
		return
	}
	r.mustLieAt(b, n, r.m.openOff)
	if n > 0 && addr(b) != addr(r.res) {
		r.fail("Commit(%d) returned other bytes than were reserved", n)
	}
	if r.m.openOff >= 0 {
		r.m.pos += n
	}
	r.closed()
}

func (r *tinyRun) abort() {
	r.try(nil, r.a.Abort)
	r.closed()
}

func (r *tinyRun) closed() {
	r.m.open, r.m.openOff, r.m.openLen = false, 0, 0
	r.res = nil
}

// unreserved is the error of an operation that an open reservation keeps out.
func (r *tinyRun) unreserved() error {
	if r.m.open {
		return ErrReserved
	}
	return nil
}

func (r *tinyRun) snapshot() {
	var s Snapshot
	if r.try(r.unreserved(), func() { s = r.a.Snapshot() }) {
		r.snaps = append(r.snaps, s)
		r.m.snaps = append(r.m.snaps, tinySnapshot{pos: r.m.pos})
	}
}

func (r *tinyRun) rewind(i int) {
	want := r.unreserved()
	if want == nil && r.m.snaps[i].stale {
		want = ErrStale
	}
	if r.try(want, func() { r.a.Rewind(r.snaps[i]) }) {
		r.m.rewind(r.m.snaps[i].pos)
	}
}

func (r *tinyRun) reset() {
	if r.try(r.unreserved(), r.ws.Reset) {
		r.m.reset()
		r.mustBeClean()
	}
}

// release ends the sequence. With a reservation open that is a fault: the block is
// wiped and abandoned, so the next sequence needs another.
func (r *tinyRun) release() {
	r.ws.Release()
	r.mustBeClean()
	idle := len(r.pool.idle) == 1 && r.pool.idle[0] == r.blk
	if idle == r.m.open || r.pool.tripped.Load() != r.m.open {
		r.fail("reservation open: %v, but block reused: %v, breaker open: %v", r.m.open, idle, r.pool.tripped.Load())
	}
	if r.m.open {
		r.left++
		r.pool.Rearm("the reservation was left open on purpose")
		r.blk = nil
	}
}

// mustBeClean checks that a wipe has left nothing in either half.
func (r *tinyRun) mustBeClean() {
	for _, h := range []Half{Client, Backend} {
		for i, c := range r.blk.half(h) {
			if c != 0 {
				r.fail("the wipe left byte %d of the %s half", i, h)
			}
		}
	}
	r.checkGuards()
}

// replay runs a sequence from the start, and releases the one before.
func (r *tinyRun) replay(path string) {
	if r.m.open {
		r.step(opAbort)
	}
	r.release()
	r.begin()
	for i := range len(path) {
		r.step(path[i])
	}
}

// state is what the rest of a sequence depends on: what the model knows, and
// what the arena keeps beyond that. All of it are small numbers.
func (r *tinyRun) state() []byte {
	a, m := r.a, &r.m
	var dirty uint32
	for i, d := range m.dirty {
		dirty |= uint32(bit(d)) << i
	}
	k := binary.LittleEndian.AppendUint32(r.key[:0], dirty)
	k = append(k, byte(m.pos), byte(m.mark), bit(m.over), byte(m.spilled), bit(m.open), byte(m.openOff), byte(m.openLen))
	for i, s := range m.snaps {
		k = append(k, byte(s.pos), bit(s.stale), byte(r.snaps[i].seq))
	}
	k = append(k, byte(a.limit), byte(a.mark), bit(a.res != nil), byte(a.resLen), byte(a.resEnd), byte(a.seq), byte(a.oldest))
	for _, c := range a.cuts {
		k = append(k, byte(c.seq), byte(c.pos))
	}
	r.key = k
	return k
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// tinyCount says how much was looked at.
type tinyCount struct {
	states    int   // that differ
	sequences int64 // that lead from state to state
}

// A tinySearch looks for all states, those that are few operations away first.
type tinySearch struct {
	*tinyRun
	merge bool           // go on from each state only once
	known map[string]int // the number of each state
	paths []string       // the shortest sequence to each
	next  [][]int        // where each operation leads from there
}

func newTinySearch(t testing.TB, ops []tinyOp, mode Mode, half Half, merge bool) *tinySearch {
	pool := newTestPool(t, Config{Mode: mode, AuditEvery: -1, OnViolation: func(*Violation) {}})
	pool.expectViolations()
	s := &tinySearch{tinyRun: &tinyRun{t: t, ops: ops, pool: pool.Pool, half: half}, merge: merge, known: map[string]int{}}
	s.begin()
	s.number("")
	return s
}

// number returns the number of the present state, to which path has led.
func (s *tinySearch) number(path string) int {
	k := s.state()
	if id, ok := s.known[string(k)]; ok && s.merge {
		return id
	}
	id := len(s.paths)
	s.known[string(k)] = id
	s.paths = append(s.paths, path)
	return id
}

// run runs all sequences of up to depth operations.
func (s *tinySearch) run(depth int) tinyCount {
	for range depth {
		for _, path := range s.paths[len(s.next):] { // found by the round before
			s.expand(path)
		}
	}
	s.release()
	if got := s.pool.Stats().Violations; got != s.left {
		s.fail("%d violations, want %d", got, s.left)
	}
	got := tinyCount{len(s.known), s.sequences(depth)}
	s.t.Logf("%d sequences of up to %d operations, through %d states; %d steps in %d workspaces",
		got.sequences, depth, got.states, s.steps, s.pool.Stats().Acquired)
	return got
}

// expand runs each operation in the state that path leads to, and the release
// with a reservation open where there is one. After an operation that changed
// nothing the next one runs in the same workspace.
func (s *tinySearch) expand(path string) {
	here := len(s.next)
	s.replay(path)
	var to []int
	for op := range len(s.ops) + len(s.snaps) {
		if op > 0 && to[op-1] != here {
			s.replay(path)
		}
		s.step(byte(op))
		to = append(to, s.number(path+string(rune(op))))
	}
	s.next = append(s.next, to)
	s.replay(path)
	if s.m.open {
		s.release()
		s.begin()
	}
}

// sequences counts the ways from the first state on, of 1 to depth operations.
func (s *tinySearch) sequences(depth int) (sum int64) {
	ways := make([]int64, len(s.paths))
	ways[0] = 1
	for range depth {
		longer := make([]int64, len(s.paths))
		for from, to := range s.next {
			for _, id := range to {
				longer[id] += ways[from]
				sum += ways[from]
			}
		}
		ways = longer
	}
	return sum
}

// tinyCounts is what a search of each depth finds. The numbers change with the
// alphabet, and with what the arena remembers.
var tinyCounts = []tinyCount{
	{1, 0}, {8, 14}, {47, 211}, {267, 2_997}, {1_433, 42_597}, {6_898, 608_404},
	{30_238, 8_736_436}, {124_021, 126_158_082}, {482_216, 1_832_513_805},
}

// All sequences, in each mode. The longest run in Watermark, where there is most
// to go wrong; in a short run and under the race detector they are shorter.
func TestExhaustive(t *testing.T) {
	for _, c := range []struct {
		mode  Mode
		half  Half
		depth int
	}{
		{Watermark, Client, scaled(7, 5)},
		{Watermark, Backend, scaled(5, 4)},
		{Shadow, Client, scaled(5, 4)},
		{FullClear, Client, scaled(5, 4)},
	} {
		if *exhaustiveDepth > 0 {
			c.depth = *exhaustiveDepth
		}
		t.Run(fmt.Sprintf("%s, %s half, depth %d", c.mode, c.half, c.depth), func(t *testing.T) {
			s := newTinySearch(t, tinyAlphabet(), c.mode, c.half, true)
			got := s.run(c.depth)
			if c.depth < len(tinyCounts) {
				require.Equal(t, tinyCounts[c.depth], got)
			}
		})
	}
}

// Some faults in what makes a snapshot stale take longer sequences to show. They
// need no other operations than these.
func TestExhaustiveRewinds(t *testing.T) {
	s := newTinySearch(t, []tinyOp{
		{"Alloc(1)", func(r *tinyRun) { r.alloc(1) }},
		{"Snapshot", (*tinyRun).snapshot},
	}, Watermark, Client, true)
	counts := map[int]tinyCount{9: {5_092, 142_416}, 10: {12_132, 820_986}}
	depth := scaled(10, 9)
	require.Equal(t, counts[depth], s.run(depth))
}

// That states are merged loses nothing: a search that runs each sequence to its
// end finds the same number of sequences and the same states.
func TestExhaustiveMerge(t *testing.T) {
	const depth = 3
	merged, all := newTinySearch(t, tinyAlphabet(), Watermark, Client, true), newTinySearch(t, tinyAlphabet(), Watermark, Client, false)
	got := all.run(depth)
	require.Equal(t, merged.run(depth), got)
	require.EqualValues(t, len(all.paths)-1, got.sequences)
	for k := range all.known {
		require.Contains(t, merged.known, k)
	}
}
