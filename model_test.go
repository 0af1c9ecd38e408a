package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

// A model runs one sequence of operations, decoded from bytes, on a pool, and
// keeps beside it what must be true by the simplest means there are: a list of
// what was handed out with a copy of what was written to it, and the offset
// of the last byte that anybody wrote. After each step it looks at the memory
// itself.
type model struct {
	t     testing.TB
	data  []byte // the whole sequence
	src   source
	pool  *Pool
	ws    *Workspace
	blk   *block // nil: a workspace without a block
	mode  Mode   // as set on the pool
	half  [2]modelHalf
	snaps []*modelSnapshot
	fills int // so that no two pieces get the same bytes
	trace []string

	tidy    bool // never release with a reservation open
	ended   int64
	bad     int64 // violations that must have been reported
	reports chan *Violation
}

// A modelHalf is what one arena must be.
type modelHalf struct {
	*model
	id      Half
	a       *Arena
	mem     []byte
	pos     int // P
	mark    int // W: the highest P or R there was
	written int // one past the last byte that was written
	over    bool
	spilled int
	res     *piece   // the open reservation
	live    []*piece // handed out and not given up
	views   []*piece // earlier results of Buffer.Bytes
	bufs    []*modelBuffer
}

// A piece is memory that was handed out.
type piece struct {
	got  []byte // as handed out
	want []byte // what must be in it
	off  int    // in the half; -1: not in the half
}

func (p *piece) end() int { return p.off + len(p.got) }

type modelSnapshot struct {
	s     Snapshot
	of    *Arena
	pos   int
	stale bool
}

// A source decodes numbers from bytes, and gives zeros when there are no more.
type source struct{ rest []byte }

func (s *source) byte() byte {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return b
}

// below returns a number from 0 to n-1.
func (s *source) below(n int) int {
	switch {
	case n <= 1:
		return 0
	case n <= 256:
		return int(s.byte()) % n
	}
	return (int(s.byte())<<8 | int(s.byte())) % n
}

// size returns a size. Those at which arithmetic goes wrong have great weight.
func (h *modelHalf) size() int {
	s := &h.src
	switch b := s.byte(); {
	case b < 100:
		return int(b)
	case b < 140:
		w := weirdSizes(MinHalfSize)
		return w[s.below(len(w))]
	case b < 190:
		return h.room() + s.below(19) - 9
	case b < 235:
		return s.below(len(h.mem)/4 + 100)
	case b < 245:
		return math.MaxInt - s.below(80)
	case b < 250:
		return -1 - s.below(9)
	}
	return math.MinInt + s.below(9)
}

type modelOp struct {
	name   string
	weight int
	run    func(*modelHalf)
}

// modelOps has each operation as often as its weight says.
var modelOps = func() (ops []modelOp) {
	for _, op := range []modelOp{
		{"Alloc", 8, (*modelHalf).alloc},
		{"AllocAligned", 3, (*modelHalf).allocAligned},
		{"TryAlloc", 3, (*modelHalf).tryAlloc},
		{"Copy", 3, (*modelHalf).copy},
		{"typed", 3, (*modelHalf).typed},
		{"Reserve", 6, (*modelHalf).reserve},
		{"Commit", 9, (*modelHalf).commit},
		{"Abort", 4, (*modelHalf).abort},
		{"Snapshot", 6, (*modelHalf).snapshot},
		{"Rewind", 8, (*modelHalf).rewind},
		{"write", 6, (*modelHalf).write},
		{"write late", 4, (*modelHalf).writeLate},
		{"append", 2, (*modelHalf).appendTo},
		{"Buffer", 3, (*modelHalf).newBuffer},
		{"Buffer.Write", 10, (*modelHalf).bufferWrite},
		{"Buffer.ReadFrom", 5, (*modelHalf).bufferRead},
		{"Buffer.AvailableBuffer", 5, (*modelHalf).bufferScratch},
		{"Buffer.Grow", 2, (*modelHalf).bufferGrow},
		{"Buffer.Bytes", 3, (*modelHalf).bufferBytes},
		{"Audit", 1, (*modelHalf).audit},
		{"SetMode", 2, (*modelHalf).setMode},
		{"Reset", 2, (*modelHalf).reset},
		{"Release", 2, (*modelHalf).release},
	} {
		for range op.weight {
			ops = append(ops, op)
		}
	}
	return ops
}()

const modelSteps = 300 // of one sequence at most

// runModel runs the sequence that data holds, and ends the last request.
func runModel(t testing.TB, data []byte) {
	m := newModel(t, data)
	for range modelSteps {
		if len(m.src.rest) == 0 {
			break
		}
		m.step()
	}
	m.finish()
	m.end()
}

// newModel makes the pool that the first byte of data describes and acquires
// the first workspace.
func newModel(t testing.TB, data []byte) *model {
	m := &model{t: t, data: data, src: source{data}, reports: make(chan *Violation, 64)}
	head := int(m.src.byte())
	cfg := Config{
		Mode:       Mode(head % int(numModes)),
		AuditEvery: 1,
		MaxIdle:    1,
		MaxSpill:   []int{-1, 100, 5000, 1 << 20}[head>>2&3],
		ClientSize: MinHalfSize, BackendSize: MinHalfSize,
		OnViolation: func(v *Violation) { m.reports <- v },
		Logger:      slog.New(slog.DiscardHandler),
	}
	switch head >> 4 & 3 {
	case 1:
		cfg.ClientSize = 2 * MinHalfSize
	case 2:
		cfg.BackendSize = 3 * MinHalfSize
	}
	if head>>6&1 != 0 {
		cfg.AuditEvery = -1
	}
	var err error
	if m.pool, err = NewPool(cfg); err != nil {
		t.Fatal(err)
	}
	if head == 0xff {
		m.pool.Close() // from here on workspaces have no block
	}
	m.mode = cfg.Mode
	m.acquire()
	return m
}

// fail ends the test, with all that is needed to run the sequence again.
func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s\nlast steps: %s\nsequence: []byte(%q)", fmt.Sprintf(format, args...), strings.Join(m.trace[max(0, len(m.trace)-20):], ", "), m.data)
}

// step runs one operation and checks everything.
func (m *model) step() {
	b := m.src.byte()
	op := modelOps[int(b>>1)%len(modelOps)]
	h := &m.half[b&1]
	m.trace = append(m.trace, op.name+" "+h.id.String())
	op.run(h)
	m.check()
}

// note adds what is known about the step to the trace.
func (m *model) note(args ...any) {
	m.trace[len(m.trace)-1] += " " + fmt.Sprint(args...)
}

// call runs f and returns its error, or the error it panicked with.
func (m *model) call(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = r
		default:
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// expect fails unless err is want, or one of want.
func (m *model) expect(err error, want ...error) {
	m.t.Helper()
	for _, w := range want {
		if err == nil && w == nil || w != nil && errors.Is(err, w) {
			return
		}
	}
	m.fail("error is %v, want %v", err, want)
}

// fill returns n bytes, none of them zero, that differ from call to call.
func (m *model) fill(n int) []byte {
	m.fills++
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + (m.fills*37+i)%255)
	}
	return b
}

// acquire takes a workspace. It must be empty and zero.
func (m *model) acquire() {
	m.ws = m.pool.Acquire()
	m.blk = m.ws.blk
	for i, a := range []*Arena{m.ws.Client(), m.ws.Backend()} {
		m.half[i] = modelHalf{model: m, id: Half(i), a: a, mem: a.mem()}
		if m.blk != nil && unsafe.SliceData(a.mem()) != unsafe.SliceData(m.blk.half(Half(i))) {
			m.fail("the %s arena is over other memory", Half(i))
		}
	}
	if m.ws.Mode() != m.mode {
		m.fail("mode %s, want %s", m.ws.Mode(), m.mode)
	}
	m.check()
}

// end checks the pool after the last release.
func (m *model) end() {
	s := m.pool.Stats()
	switch {
	case s.InUse != 0 || s.Acquired != s.Released+s.Abandoned:
		m.fail("balance: %d acquired, %d released, %d abandoned, %d in use", s.Acquired, s.Released, s.Abandoned, s.InUse)
	case s.Violations != m.bad:
		m.fail("%d violations, want %d", s.Violations, m.bad)
	case s.Acquired != m.ended:
		m.fail("%d acquired, want %d", s.Acquired, m.ended)
	}
}

// check looks at everything that must hold at any moment.
func (m *model) check() {
	for i := range m.half {
		m.half[i].check()
	}
	if m.blk != nil && (!guardIntact(m.blk.guard(Client)) || !guardIntact(m.blk.guard(Backend))) {
		m.fail("guard damaged")
	}
	if m.pool.tripped.Load() {
		m.fail("the breaker is open")
	}
}

var modelZeros [3 * MinHalfSize]byte

func (h *modelHalf) check() {
	a := h.a
	h.mark = max(h.mark, h.pos)
	if h.res != nil && h.res.off >= 0 {
		h.mark = max(h.mark, h.res.end())
	}
	w := a.Mark()
	switch {
	case a.Position() != h.pos:
		h.fail("%s half: position %d, want %d", h.id, a.Position(), h.pos)
	case w != h.mark:
		h.fail("%s half: mark %d, want %d", h.id, w, h.mark)
	case w < h.written:
		h.fail("%s half: mark %d, but %d bytes were written", h.id, w, h.written)
	case w > len(h.mem):
		h.fail("%s half: mark %d of %d", h.id, w, len(h.mem))
	case !bytes.Equal(h.mem[w:], modelZeros[:len(h.mem)-w]):
		h.fail("%s half: a byte past the mark %d is not zero", h.id, w)
	case a.Room() != h.room():
		h.fail("%s half: room %d, want %d", h.id, a.Room(), h.room())
	case a.Overflowed() != h.over:
		h.fail("%s half: overflowed %v, want %v", h.id, a.Overflowed(), h.over)
	case a.spilled != h.spilled || h.spilled > h.pool.cfg.MaxSpill:
		h.fail("%s half: %d bytes spilled, want %d of at most %d", h.id, a.spilled, h.spilled, h.pool.cfg.MaxSpill)
	case a.Size() != len(h.mem):
		h.fail("%s half: size %d", h.id, a.Size())
	}
	for _, p := range h.live {
		if !bytes.Equal(p.got, p.want) {
			h.fail("%s half: the piece of %d bytes at %d has changed", h.id, len(p.got), p.off)
		}
	}
	for _, p := range h.views {
		if !bytes.Equal(p.got, p.want) {
			h.fail("%s half: what Bytes returned, %d bytes at %d, has changed", h.id, len(p.got), p.off)
		}
	}
	for _, b := range h.bufs {
		if b.stale {
			continue
		}
		if got := b.b.Bytes(); !bytes.Equal(got, b.want) || cap(got) != len(got) || b.b.Len() != len(b.want) {
			h.fail("%s half: the buffer holds %d bytes, cap %d; want %d", h.id, len(got), cap(got), len(b.want))
		}
	}
}

func (h *modelHalf) room() int {
	if h.res != nil {
		return 0
	}
	return max(0, len(h.mem)-alignUp(h.pos, 8))
}

func alignUp(n, align int) int { return (n + align - 1) / align * align }

// offset says where in the half b begins, and whether it lies in it whole.
func (h *modelHalf) offset(b []byte) (off int, inside bool) {
	if len(h.mem) == 0 || cap(b) == 0 {
		return -1, false
	}
	o := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(h.mem)))
	if o >= uintptr(len(h.mem)) {
		if h.blk != nil && uintptr(unsafe.Pointer(unsafe.SliceData(b)))-uintptr(unsafe.Pointer(unsafe.SliceData(h.blk.mem))) < uintptr(len(h.blk.mem)) {
			h.fail("%d bytes outside of the %s half, but in the block", cap(b), h.id)
		}
		return -1, false
	}
	if uintptr(cap(b)) > uintptr(len(h.mem))-o {
		h.fail("%d bytes at %d reach beyond the %s half", cap(b), o, h.id)
	}
	return int(o), true
}

// wrote notes that somebody may have written to all of b.
func (h *modelHalf) wrote(b []byte) {
	if off, inside := h.offset(b); inside && len(b) > 0 {
		h.written = max(h.written, off+len(b))
	}
}

// mustBeApart fails if the n bytes at off are also somebody else's.
func (h *modelHalf) mustBeApart(off, n int, but *modelBuffer) {
	apart := func(p *piece) bool { return p.off < 0 || off+n <= p.off || p.end() <= off }
	for _, p := range h.live {
		if !apart(p) {
			h.fail("%d bytes at %d overlap %d at %d", n, off, len(p.got), p.off)
		}
	}
	for _, p := range h.views {
		if but == nil && !apart(p) {
			h.fail("%d bytes at %d overlap what Bytes returned: %d at %d", n, off, len(p.got), p.off)
		}
	}
	for _, b := range h.bufs {
		if b != but && !b.stale && !apart(&b.own) {
			h.fail("%d bytes at %d overlap the buffer's %d at %d", n, off, len(b.own.got), b.own.off)
		}
	}
}

// predict says where n bytes must come from: from offset off, or from elsewhere
// (-1), or with which error they are refused. It notes the overflow.
func (h *modelHalf) predict(n, align int, heap bool) (off int, err error) {
	switch {
	case h.res != nil:
		return -1, ErrReserved
	case n < 0:
		return -1, ErrMisuse
	case n == 0:
		return -1, nil
	}
	if off = alignUp(h.pos, align); off <= len(h.mem) && n <= len(h.mem)-off {
		return off, nil
	}
	h.over = true
	if heap && n <= h.pool.cfg.MaxSpill-h.spilled {
		h.spilled += n
		return -1, nil
	}
	return -1, ErrFull
}

// take does one allocation that must return want, or n zeros if want is nil.
func (h *modelHalf) take(n, align int, heap bool, want []byte, f func() ([]byte, error)) {
	h.note(n)
	off, wantErr := h.predict(n, align, heap)
	var got []byte
	err := h.call(func() (err error) { got, err = f(); return err })
	h.expect(err, wantErr)
	if err != nil {
		return
	}
	if want == nil {
		want = make([]byte, n)
	}
	h.handedOut(got, n, align, off, want)
	if off >= 0 {
		h.pos = off + n
	}
}

// handedOut checks a piece and keeps it.
func (h *modelHalf) handedOut(got []byte, n, align, off int, want []byte) {
	if got == nil || len(got) != n || cap(got) != n {
		h.fail("%d bytes with cap %d handed out, want %d", len(got), cap(got), n)
	}
	if n == 0 {
		return
	}
	if at, _ := h.offset(got); at != off {
		h.fail("handed out at %d, want %d", at, off)
	}
	if p := uintptr(unsafe.Pointer(unsafe.SliceData(got))); p%uintptr(align) != 0 {
		h.fail("address %#x is no multiple of %d", p, align)
	}
	if !bytes.Equal(got, want) {
		h.fail("%d bytes handed out at %d with the wrong contents", n, off)
	}
	if off >= 0 {
		h.mustBeApart(off, n, nil)
	}
	h.live = append(h.live, &piece{got, bytes.Clone(want), off})
	if len(h.live) > 40 {
		h.live = h.live[1:] // forget one, or the checks take too long
	}
}

func (h *modelHalf) alloc() {
	n := h.size()
	h.take(n, 8, true, nil, func() ([]byte, error) { return h.a.Alloc(n), nil })
}

func (h *modelHalf) allocAligned() {
	n, align := h.size(), 1<<h.src.below(7)
	h.take(n, align, true, nil, func() ([]byte, error) { return h.a.AllocAligned(n, align), nil })
}

func (h *modelHalf) tryAlloc() {
	n := h.size()
	h.take(n, 8, false, nil, func() ([]byte, error) { return h.a.TryAlloc(n) })
}

func (h *modelHalf) copy() {
	b := h.fill(min(max(0, h.size()), 2*len(h.mem)))
	if len(b)%2 == 0 {
		h.take(len(b), 8, true, b, func() ([]byte, error) { return h.a.Copy(b), nil })
	} else {
		h.take(len(b), 8, true, b, func() ([]byte, error) { return h.a.CopyString(string(b)), nil })
	}
	h.wrote(h.mem[:h.pos]) // no more than that
}

type modelType struct {
	A byte
	B uint32
	C [3]float64
}

func (h *modelHalf) typed() {
	const size = int(unsafe.Sizeof(modelType{}))
	n := 1 + h.src.below(100)
	switch h.src.below(3) {
	case 0:
		h.take(size, 8, true, nil, func() ([]byte, error) { return bytesOf(Alloc[modelType](h.a), 1), nil })
	case 1:
		h.take(n*size, 8, true, nil, func() ([]byte, error) { return bytesOf(unsafe.SliceData(MakeSlice[modelType](h.a, n)), n), nil })
	case 2:
		words := make([]uint64, n)
		for i := range words {
			words[i] = rand.Uint64() | 1
		}
		want := bytes.Clone(bytesOf(&words[0], n))
		h.take(n*8, 8, true, want, func() ([]byte, error) { return bytesOf(unsafe.SliceData(CopyOf(h.a, words)), n), nil })
		h.wrote(h.mem[:h.pos])
	}
}

// bytesOf is the memory of n values at p.
func bytesOf[T any](p *T, n int) []byte {
	size := n * int(unsafe.Sizeof(*p))
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), size)[:size:size]
}

// write overwrites a part of a live piece.
func (h *modelHalf) write() {
	if len(h.live) == 0 {
		return
	}
	p := h.live[h.src.below(len(h.live))]
	from := h.src.below(len(p.got))
	b := p.got[from:]
	copy(p.want[from:], h.fill(len(b)))
	copy(b, p.want[from:])
	h.wrote(b)
}

// writeLate overwrites all that was given up but lies below the mark, as
// somebody may who kept a slice over a Rewind, an Abort or a short Commit.
func (h *modelHalf) writeLate() {
	if h.res != nil {
		return
	}
	b := h.mem[h.pos:h.mark]
	copy(b, h.fill(len(b)))
	h.wrote(b)
}

// appendTo appends to a live piece, which must move it elsewhere.
func (h *modelHalf) appendTo() {
	if len(h.live) == 0 {
		return
	}
	p := h.live[h.src.below(len(h.live))]
	more := append(p.got, h.fill(100)...)
	copy(more, h.fill(len(more)))
}

func (h *modelHalf) reserve() {
	n := h.size()
	h.note(n)
	off, wantErr := h.predict(n, 8, true)
	var got []byte
	err := h.call(func() error { got = h.a.Reserve(n); return nil })
	h.expect(err, wantErr)
	if err != nil {
		return
	}
	if got == nil || len(got) != n || cap(got) != n {
		h.fail("%d bytes with cap %d reserved, want %d", len(got), cap(got), n)
	}
	h.res = &piece{got: got, off: -1}
	if off >= 0 {
		if at, _ := h.offset(got); at != off {
			h.fail("reserved at %d, want %d", at, off)
		}
		h.mustBeApart(off, n, nil)
		h.res.off = off
	}
	h.moved(alignUp(h.pos, 8))
	if h.src.byte()%4 > 0 { // the full extent, whatever will be committed
		copy(got, h.fill(n))
		h.wrote(got)
	}
}

// moved takes over a position that may have gone up to high for alignment.
func (h *modelHalf) moved(high int) {
	p := h.a.Position()
	if p < h.pos || p > high {
		h.fail("position %d, want %d to %d", p, h.pos, high)
	}
	h.pos = p
}

// closed notes the end of the reservation.
func (h *modelHalf) closed() {
	if h.res.off >= 0 {
		h.mark = max(h.mark, h.res.end())
	}
	h.res = nil
}

func (h *modelHalf) commit() {
	n, wantErr := 0, ErrMisuse
	if h.res != nil {
		size := len(h.res.got)
		n = []int{0, size, size - 1, size + 1, -1, h.src.below(size + 1), h.src.below(size + 1), size}[h.src.below(8)]
		if n >= 0 && n <= size {
			wantErr = nil
		}
	}
	h.note(n)
	var got []byte
	err := h.call(func() error { got = h.a.Commit(n); return nil })
	h.expect(err, wantErr)
	if err != nil {
		return
	}
	r := h.res
	h.closed()
	if n > 0 && r.off >= 0 {
		h.pos = r.off + n
	}
	h.handedOut(got, n, 8, r.off, r.got[:n])
}

func (h *modelHalf) abort() {
	h.expect(h.call(func() error { h.a.Abort(); return nil }), nil)
	if h.res != nil {
		h.closed()
	}
}

func (h *modelHalf) snapshot() {
	var s Snapshot
	err := h.call(func() error { s = h.a.Snapshot(); return nil })
	if h.res != nil {
		h.expect(err, ErrReserved)
		return
	}
	h.expect(err, nil)
	h.snaps = append(h.snaps, &modelSnapshot{s: s, of: h.a, pos: h.pos})
	if len(h.snaps) > 50 {
		h.snaps = h.snaps[1:]
	}
}

// rewind goes to any snapshot: of this half or the other, of this request or an
// earlier one, stale or not, or none.
func (h *modelHalf) rewind() {
	s := &modelSnapshot{}
	if n := h.src.below(len(h.snaps) + 1); n > 0 {
		s = h.snaps[len(h.snaps)-n]
	}
	h.note(s.pos)
	err := h.call(func() error { h.a.Rewind(s.s); return nil })
	switch {
	case s.of != h.a:
		h.expect(err, ErrMisuse, ErrReserved)
	case h.res != nil:
		h.expect(err, ErrReserved, ErrStale)
	case s.stale:
		h.expect(err, ErrStale)
	default:
		h.expect(err, nil)
	}
	if err == nil {
		h.giveUp(s.pos)
	}
}

// giveUp notes that all from p on is nobody's any more.
func (h *modelHalf) giveUp(p int) {
	h.mark = max(h.mark, h.pos)
	h.pos = p
	keep := func(list []*piece) (kept []*piece) {
		for _, q := range list {
			if q.off < 0 || q.end() <= p {
				kept = append(kept, q)
			}
		}
		return kept
	}
	h.live, h.views = keep(h.live), keep(h.views)
	for _, s := range h.snaps {
		s.stale = s.stale || s.of == h.a && s.pos > p
	}
	for _, b := range h.bufs {
		b.stale = b.stale || b.own.off >= 0 && b.own.end() > p
	}
}

func (h *modelHalf) audit() { h.expect(h.ws.Audit(), nil) }

// setMode must not reach this request.
func (h *modelHalf) setMode() {
	was := h.ws.Mode()
	h.mode = Mode(h.src.below(int(numModes)))
	h.expect(h.pool.SetMode(h.mode), nil)
	if h.ws.Mode() != was {
		h.fail("the mode changed while the request ran")
	}
}

func (h *modelHalf) reset() {
	m := h.model
	err := m.call(func() error { m.ws.Reset(); return nil })
	if m.half[0].res != nil || m.half[1].res != nil {
		m.expect(err, ErrReserved)
		return
	}
	m.expect(err, nil)
	for i := range m.half {
		h := &m.half[i]
		h.giveUp(0)
		h.live, h.views = nil, nil
		h.mark, h.written, h.over, h.spilled = 0, 0, false, 0
		for _, b := range h.bufs {
			b.stale = true
		}
	}
	for _, s := range m.snaps {
		s.stale = true
	}
}

// release ends the request and begins the next one.
func (h *modelHalf) release() {
	m, was := h.model, h.model.blk
	reused := m.finish()
	m.acquire()
	if was != nil && (m.blk == was) != reused {
		m.fail("the next request got the same block: %v", m.blk == was)
	}
}

// finish ends the request. It reports whether the block may be used again.
func (m *model) finish() (reused bool) {
	open := int64(0)
	for i := range m.half {
		if m.half[i].res == nil {
			continue
		}
		if m.tidy {
			m.half[i].abort()
		} else if m.blk != nil {
			open++
		}
	}
	before := m.pool.Stats()
	m.ws.Release()
	m.ended++
	after := m.pool.Stats()
	m.bad += open
	if open == 0 && after.Released != before.Released+1 || open > 0 && after.Abandoned != before.Abandoned+1 {
		m.fail("released %d, abandoned %d", after.Released-before.Released, after.Abandoned-before.Abandoned)
	}
	if m.pool.Rearm("model") != (open > 0) {
		m.fail("breaker open after a release with %d open reservations", open)
	}
	if m.blk != nil {
		for _, id := range []Half{Client, Backend} {
			if mem := m.blk.half(id); !bytes.Equal(mem, modelZeros[:len(mem)]) {
				m.fail("%s half after the release: byte %d is not zero", id, firstNonZero(mem))
			}
		}
	}
	for i := range m.half {
		m.half[i].mustBeDead()
	}
	return open == 0
}

// mustBeDead tries what was kept of an ended request.
func (h *modelHalf) mustBeDead() {
	h.expect(h.call(func() error { h.a.Alloc(1); return nil }), ErrReleased)
	h.expect(h.call(func() error { _, err := h.a.TryAlloc(0); return err }), ErrReleased)
	h.expect(h.call(func() error { h.a.Abort(); return nil }), ErrReleased)
	for _, s := range h.snaps {
		if s.of == h.a {
			h.expect(h.call(func() error { h.a.Rewind(s.s); return nil }), ErrReleased)
		}
	}
	for _, b := range h.bufs {
		h.expect(h.call(func() error { _, err := b.b.Write(nil); return err }), ErrReleased)
	}
}

// A modelBuffer is what a Buffer must be.
type modelBuffer struct {
	b     *Buffer
	want  []byte
	own   piece // what it owns; off is -1 when it owns nothing in the half
	heap  bool
	stale bool
}

func (h *modelHalf) newBuffer() {
	h.bufs = append(h.bufs, &modelBuffer{b: h.a.Buffer(), own: piece{off: -1}})
	if len(h.bufs) > 8 {
		h.bufs = h.bufs[1:]
	}
}

// buffer picks a buffer, stale or not. There is always one.
func (h *modelHalf) buffer() *modelBuffer {
	if len(h.bufs) == 0 {
		h.newBuffer()
	}
	return h.bufs[len(h.bufs)-1-h.src.below(len(h.bufs))]
}

// grows says what must come of growing b by n bytes. In place the new position
// is known, elsewhere only its least.
func (h *modelHalf) grows(b *modelBuffer, n int) (atLeast int, exact bool, err error) {
	free := len(b.own.got) - len(b.want)
	switch {
	case b.stale:
		return h.pos, true, ErrStale
	case n <= free:
		return h.pos, true, nil
	case h.res != nil:
		return h.pos, true, ErrReserved
	case !b.heap && b.own.off >= 0 && b.own.end() == h.pos && n-free <= len(h.mem)-h.pos:
		return h.pos + n - free, true, nil
	case !b.heap && n <= h.room()-len(b.want):
		return alignUp(h.pos, 8) + len(b.want) + n, false, nil
	}
	h.over = true
	if n <= h.pool.cfg.MaxSpill-h.spilled-len(b.want) {
		return h.pos, true, nil
	}
	return h.pos, true, ErrFull
}

// grown takes over what b owns after an operation that may have grown it. It
// looks into the Buffer, as this can't be seen from outside.
func (h *modelHalf) grown(b *modelBuffer) {
	if h.a.Position() < h.pos || h.a.spilled < h.spilled {
		h.fail("growth took the position or the budget down")
	}
	h.pos, h.spilled = h.a.Position(), h.a.spilled
	if b.stale {
		return
	}
	all := b.b.buf[:cap(b.b.buf)]
	off, inside := h.offset(all)
	if b.heap && inside {
		h.fail("the buffer came back from the heap")
	}
	b.heap = cap(all) > 0 && !inside
	if b.heap && !h.over {
		h.fail("the buffer is on the heap, and nothing overflowed")
	}
	b.own = piece{got: all, off: off}
	if inside {
		if b.own.end() > h.pos {
			h.fail("the buffer owns %d bytes at %d, and the position is %d", len(all), off, h.pos)
		}
		h.mustBeApart(off, len(all), b)
	}
}

func (h *modelHalf) bufferWrite() {
	b := h.buffer()
	p := h.fill(min(max(0, h.size()), 2*len(h.mem)+100))
	kind := h.src.below(3)
	if kind == 2 {
		p = h.fill(1)
	}
	h.note(len(p))
	pos, exact, wantErr := h.grows(b, len(p))
	n := 0
	err := h.call(func() (err error) {
		switch kind {
		case 0:
			n, err = b.b.Write(p)
		case 1:
			n, err = b.b.WriteString(string(p))
		case 2:
			if err = b.b.WriteByte(p[0]); err == nil {
				n = 1
			}
		}
		return err
	})
	h.expect(err, wantErr)
	if err == nil && n != len(p) || err != nil && n != 0 {
		h.fail("%d of %d bytes written, error %v", n, len(p), err)
	}
	if h.grown(b); h.pos < pos || exact && h.pos != pos {
		h.fail("position %d, want %d", h.pos, pos)
	}
	if err == nil {
		b.want = append(b.want, p...)
		h.wrote(b.own.got[:len(b.want)])
	}
}

func (h *modelHalf) bufferGrow() {
	b, n := h.buffer(), h.size()
	h.note(n)
	pos, exact, wantErr := h.grows(b, n)
	if n < 0 && !b.stale {
		wantErr = ErrMisuse
	}
	h.expect(h.call(func() error { b.b.Grow(n); return nil }), wantErr)
	if h.grown(b); h.pos < pos || exact && h.pos != pos {
		h.fail("position %d, want %d", h.pos, pos)
	}
	if wantErr == nil && len(b.own.got)-len(b.want) < n {
		h.fail("%d bytes free after Grow(%d)", len(b.own.got)-len(b.want), n)
	}
}

// bufferScratch writes to all of AvailableBuffer and then hands a part of it, or
// nothing, to Write.
func (h *modelHalf) bufferScratch() {
	b := h.buffer()
	var free []byte
	err := h.call(func() error { free = b.b.AvailableBuffer(); return nil })
	if b.stale {
		h.expect(err, ErrStale)
		return
	}
	h.expect(err, nil)
	spilled := h.spilled
	h.grown(b)
	if len(free) != 0 || cap(free) != len(b.own.got)-len(b.want) || h.spilled != spilled {
		h.fail("AvailableBuffer: len %d, cap %d, %d bytes from the heap; the buffer has %d free", len(free), cap(free), h.spilled-spilled, len(b.own.got)-len(b.want))
	}
	if room := h.room() - len(b.want); cap(free) < bufferMin && !b.heap && room >= bufferMin {
		h.fail("AvailableBuffer: cap %d, but there is room", cap(free))
	}
	free = free[:cap(free)]
	copy(free, h.fill(len(free)))
	h.wrote(free)
	n := min(h.src.below(bufferMin), len(free))
	if _, err := b.b.Write(free[:n]); err != nil {
		h.fail("a Write of AvailableBuffer failed: %v", err)
	}
	b.want = append(b.want, free[:n]...)
}

func (h *modelHalf) bufferBytes() {
	b := h.buffer()
	var got []byte
	err := h.call(func() error { got = b.b.Bytes(); return nil })
	if b.stale {
		h.expect(err, ErrStale)
		return
	}
	h.expect(err, nil)
	off, _ := h.offset(got)
	h.views = append(h.views, &piece{got, bytes.Clone(b.want), off})
	if len(h.views) > 20 {
		h.views = h.views[1:]
	}
}

// A modelReader delivers bytes in pieces and ends in one of many ways. It uses
// all of each slice it gets as scratch space, as a Reader may.
type modelReader struct {
	h         *modelHalf
	left      int
	step      int
	how       int
	delivered []byte
	empty     int
}

const (
	readEOF = iota
	readEOFWithData
	readError
	readPanic
	readTooMuch
	readNegative
	readNothing
	readEndings
)

func (r *modelReader) Read(p []byte) (int, error) {
	h := r.h
	copy(p, h.fill(len(p)))
	h.wrote(p)
	n := min(r.left, r.step, len(p))
	r.left -= n
	if r.left == 0 && (n == 0 || r.how == readEOFWithData) {
		switch r.how {
		case readEOFWithData, readEOF:
			r.delivered = append(r.delivered, p[:n]...)
			return n, io.EOF
		case readError:
			return 0, errModel
		case readPanic:
			panic(errModel)
		case readTooMuch:
			return len(p) + 1, nil
		case readNegative:
			return -1, nil
		case readNothing:
			r.empty++
			return 0, nil
		}
	}
	r.delivered = append(r.delivered, p[:n]...)
	return n, nil
}

var errModel = errors.New("model")

func (h *modelHalf) bufferRead() {
	b := h.buffer()
	r := &modelReader{
		h:    h,
		left: min(max(0, h.size()), 2*len(h.mem)+100),
		step: 1 + h.src.below(700),
		how:  h.src.below(readEndings),
	}
	r.step = max(r.step, r.left/20) // not too many audits
	all := r.left
	h.note(all, r.step, r.how)
	n := int64(0)
	err := h.call(func() (err error) { n, err = b.b.ReadFrom(r); return err })
	if b.stale {
		h.expect(err, ErrStale)
		if len(r.delivered) > 0 {
			h.fail("a stale buffer read")
		}
		return
	}
	h.over = h.over || h.a.Overflowed() && all > h.room()-2*len(b.want)-bufferRead-bufferMin // a near miss counts
	switch {
	case h.res != nil && errors.Is(err, ErrReserved):
	case h.over && errors.Is(err, ErrFull):
	case len(r.delivered) != all:
		h.fail("read %d of %d bytes, error %v", len(r.delivered), all, err)
	default:
		h.expect(err, [readEndings]error{nil, nil, errModel, errModel, ErrMisuse, ErrMisuse, io.ErrNoProgress}[r.how])
	}
	panics := r.how == readPanic || r.how == readTooMuch || r.how == readNegative
	if !panics && n != int64(len(r.delivered)) {
		h.fail("ReadFrom returned %d, and %d bytes were delivered", n, len(r.delivered))
	}
	h.grown(b)
	b.want = append(b.want, r.delivered...)
}

// randomSequence returns n bytes that seed alone decides.
func randomSequence(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 20260101))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// fewer is n, or an eighth of it under -short and where everything is slow.
func fewer(n int) int {
	if testing.Short() || raceEnabled {
		return max(1, n/8)
	}
	return n
}

// Random sequences of operations, the same ones each time.
func TestModel(t *testing.T) {
	for seed := range fewer(3000) {
		runModel(t, randomSequence(uint64(seed), 20+seed%400))
	}
}

// A workspace without a block behaves the same, and takes all from the heap.
func TestModelBlockless(t *testing.T) {
	for seed := range fewer(200) {
		runModel(t, append([]byte{0xff}, randomSequence(uint64(seed), 300)...))
	}
}
