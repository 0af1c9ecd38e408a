package workspace

import (
	"bytes"
	"fmt"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/require"
)

// The leak check runs many requests of all kinds over few blocks. Each writes a
// tag of its own into all that it gets, up to the capacity. Before it writes
// anything it probes its block for bytes of those before, and it looks for their
// tags in what it is handed. All of that is plain code of this file: what the
// library believes about positions and marks does not enter.

// findings count what must never be.
type findings struct {
	DirtyBlocks    int // requests whose block was not all zero at the start
	DirtyAllocs    int // allocations that were not zero
	ForeignTags    int // tags of other requests
	ChangedAnswers int // slices that no longer held what the request had written
	First          string
}

func (f *findings) note(format string, args ...any) {
	if f.First == "" {
		f.First = fmt.Sprintf(format, args...)
	}
}

func (f *findings) add(o findings) {
	f.DirtyBlocks += o.DirtyBlocks
	f.DirtyAllocs += o.DirtyAllocs
	f.ForeignTags += o.ForeignTags
	f.ChangedAnswers += o.ChangedAnswers
	if o.First != "" {
		f.note("%s", o.First)
	}
}

var (
	zeros   = make([]byte, DefaultHalfSize)
	tagHead = tag(0)[:5]
)

// isTag reports whether b, which begins with tagHead, is a tag and not pieces of
// several.
func isTag(b []byte) bool {
	for _, c := range b[len(tagHead) : len(b)-1] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return b[len(b)-1] == '>'
}

// foreignTags counts the tags in b that are not own. A tag that is cut counts
// as none.
func foreignTags(b, own []byte) (n int) {
	for {
		i := bytes.Index(b, tagHead)
		if i < 0 {
			return n
		}
		b = b[i:]
		if len(b) >= len(own) && isTag(b[:len(own)]) && !bytes.Equal(b[:len(own)], own) {
			n++
		}
		b = b[len(tagHead):]
	}
}

// smear is stain for long slices: it fills b, up to its capacity, with t.
func smear(b, t []byte) {
	b = b[:cap(b)]
	for n := copy(b, t); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// smeared reports whether b is as smear left it.
func smeared(b, t []byte) bool {
	n := min(len(b), len(t))
	return bytes.Equal(b[:n], t[:n]) && bytes.Equal(b[n:], b[:len(b)-n])
}

func allZeros(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

// extents is how far the halves of a block were written.
type extents [2]int

// A ledger knows how far the last request wrote in each block, by addresses.
type ledger struct {
	mu    sync.Mutex
	wrote map[*block]extents
}

func (l *ledger) get(blk *block) (e extents, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known = l.wrote[blk]
	return e, known
}

func (l *ledger) set(blk *block, e extents) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrote) > 100 { // abandoned blocks are in there, too
		clear(l.wrote)
	}
	l.wrote[blk] = e
}

func (l *ledger) forget(blk *block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wrote, blk)
}

// A tenant makes requests, one after the other.
type tenant struct {
	pool   *Pool
	ledger *ledger
	random *rand.Rand
	next   int              // number of the next request
	step   int              // to the one after
	before func(*tenant)    // called before each request
	fault  func(*Workspace) // what goes wrong just before a release
	ended  [numEndings]int  // requests by how they ended
	found  findings
}

// Every so many requests all of a block is probed. Else as far as the last
// request in it wrote.
const fullProbe = 32

// How requests end.
const (
	endsPlainly  = iota
	endsEarly    // released before the handler returns
	endsReset    // after several messages
	endsHeld     // a goroutine still writes when the owner has released
	endsPanic    // the deferred Release still runs
	endsOverflow // the block was too small
	endsHTTP     // a handler of HandlerFunc
	endsHTTPPanic
	numEndings
)

func (v *tenant) drawEnding() int {
	for _, c := range []struct{ perMille, ending int }{
		{50, endsEarly}, {50, endsReset}, {20, endsHeld}, {30, endsPanic}, {8, endsOverflow}, {100, endsHTTP}, {2, endsHTTPPanic},
	} {
		if v.random.IntN(1000) < c.perMille {
			return c.ending
		}
	}
	return endsPlainly
}

var plainRequest = &http.Request{Method: http.MethodGet, Header: http.Header{}}

// run makes one request.
func (v *tenant) run() {
	if v.before != nil {
		v.before(v)
	}
	r := &request{tenant: v, own: tag(v.next), ending: v.drawEnding()}
	v.next += v.step
	v.ended[r.ending]++

	if r.ending == endsHTTP || r.ending == endsHTTPPanic {
		defer func() {
			if e := recover(); e != nil && e != http.ErrAbortHandler {
				panic(e)
			}
		}()
		v.pool.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request, ws *Workspace) {
			r.serve(ws)
			if r.ending == endsHTTPPanic {
				panic(http.ErrAbortHandler)
			}
		}).ServeHTTP(nil, plainRequest)
		return
	}

	ws := v.pool.Acquire()
	if r.ending == endsPanic {
		defer func() { recover() }()
	}
	if r.ending != endsEarly && r.ending != endsHeld {
		defer ws.Release()
	}
	r.serve(ws)
	switch r.ending {
	case endsEarly:
		ws.Release()
	case endsHeld:
		late, done := ws.Client().Alloc(64), ws.Hold()
		released, gone := make(chan struct{}), make(chan struct{})
		go func() {
			<-released
			smear(late, r.own) // the block is still this request's
			done()
			close(gone)
		}()
		ws.Release()
		close(released)
		<-gone
	case endsPanic:
		panic("handler")
	}
}

// A request is the state of one.
type request struct {
	*tenant
	own    []byte // its tag
	ending int
	ws     *Workspace
	answer [][]byte
	wrote  extents
}

// serve is what the handler does.
func (r *request) serve(ws *Workspace) {
	r.ws = ws
	blk := ws.blk
	r.look(blk)
	messages := 1
	if r.ending == endsReset {
		messages = 3
	}
	for m := range messages {
		if m > 0 {
			ws.Reset()
			r.answer = r.answer[:0]
		}
		for range 1 + r.random.IntN(6) {
			r.use(arenaOf(ws, Half(r.random.IntN(2))))
		}
		if r.ending == endsOverflow {
			r.zeroed(ws.Client().Alloc(100<<10 + r.random.IntN(300<<10)))
			r.zeroed(ws.Backend().Alloc(200 << 10))
		}
		// The answer goes out, to someone who looks for what is not in it.
		for _, b := range r.answer {
			if !smeared(b, r.own) {
				r.found.ChangedAnswers++
				r.found.ForeignTags += foreignTags(b, r.own)
				r.found.note("request %s in %s: the answer was changed", r.own, ws.mode)
			}
		}
	}
	if r.ending == endsHeld {
		r.ledger.forget(blk) // where the goroutine will write is not known here
	} else {
		r.ledger.set(blk, r.wrote)
	}
	if r.fault != nil {
		r.fault(ws)
	}
}

// look probes the block as it was acquired.
func (r *request) look(blk *block) {
	last, known := r.ledger.get(blk)
	all := !known || r.random.IntN(fullProbe) == 0
	dirty := false
	for _, h := range bothHalves {
		mem := blk.half(h)
		if !all {
			mem = mem[:last[h]]
		}
		if !allZeros(mem) {
			dirty = true
			r.found.ForeignTags += foreignTags(mem, r.own)
			r.found.note("request %s in %s: the %s half is dirty", r.own, r.ws.mode, h)
		}
	}
	if dirty {
		r.found.DirtyBlocks++
	}
}

// write fills b.
func (r *request) write(b []byte) {
	smear(b, r.own)
	r.noteWrite(b)
}

// noteWrite notes how far b reaches into which half.
func (r *request) noteWrite(b []byte) {
	for _, h := range bothHalves {
		mem := r.ws.blk.half(h)
		if off := address(b) - address(mem); off < uintptr(len(mem)) {
			r.wrote[h] = max(r.wrote[h], int(off)+cap(b))
		}
	}
}

// zeroed takes b as memory that must be zero, and writes it full.
func (r *request) zeroed(b []byte) {
	b = b[:cap(b)]
	if !allZeros(b) {
		r.found.DirtyAllocs++
		r.found.ForeignTags += foreignTags(b, r.own)
		r.found.note("request %s in %s: %d bytes that are not zero", r.own, r.ws.mode, len(b))
	}
	r.write(b)
	r.answer = append(r.answer, b)
}

// raw takes b as memory that may hold earlier bytes of this request, and writes
// it full.
func (r *request) raw(b []byte) {
	b = b[:cap(b)]
	if n := foreignTags(b, r.own); n > 0 {
		r.found.ForeignTags += n
		r.found.note("request %s in %s: foreign tags in raw memory", r.own, r.ws.mode)
	}
	r.write(b)
}

// size draws a size. Most are small, so that a million requests are soon done.
func (r *request) size() int {
	if r.ending == endsOverflow {
		return r.random.IntN(50 << 10)
	}
	switch d := r.random.IntN(200); {
	case d < 10:
		return 0
	case d < 150:
		return r.random.IntN(100)
	case d < 199:
		return r.random.IntN(2000)
	}
	return r.random.IntN(20 << 10)
}

// use does one thing with one half.
func (r *request) use(a *Arena) {
	n := r.size()
	switch r.random.IntN(12) {
	case 0:
		r.raw(a.Reserve(n))
		r.answer = append(r.answer, a.Commit(r.random.IntN(n+1)))
	case 1:
		r.raw(a.Reserve(n))
		a.Abort()
	case 2:
		s, sent := a.Snapshot(), len(r.answer)
		r.zeroed(a.Alloc(n))
		r.zeroed(a.Alloc(n / 2))
		a.Rewind(s)
		r.answer = r.answer[:sent] // what was given up is not sent
		r.zeroed(a.Alloc(n / 3))
	case 3:
		b := a.Buffer()
		for range 3 {
			_, _ = b.Write(bytes.Repeat(r.own, n/48+1))
		}
		r.answer = append(r.answer, b.Bytes())
		r.noteWrite(b.Bytes())
	case 4:
		b := a.Buffer()
		_, _ = b.ReadFrom(bytes.NewReader(bytes.Repeat(r.own, n/16+1)))
		r.answer = append(r.answer, b.Bytes())
		r.noteWrite(b.Bytes())
		r.raw(b.AvailableBuffer())
	case 5:
		xs := MakeSlice[uint64](a, n/8)
		r.zeroed(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(xs))), 8*len(xs)))
	case 6:
		if b, err := a.TryAlloc(n); err == nil {
			r.zeroed(b)
		}
	case 7:
		b := a.Copy(r.own)
		r.noteWrite(b)
		r.answer = append(r.answer, b)
	case 8:
		r.zeroed(a.AllocAligned(n, 1<<r.random.IntN(7)))
	default:
		r.zeroed(a.Alloc(n))
	}
}

// A leakRun is one run of many requests.
type leakRun struct {
	config   Config
	requests int
	before   func(*tenant)
	fault    func(*Workspace) // a negative control: violations are expected
}

// do makes the requests, with twice as many tenants as run at once. Half of
// these have a pool and a block of their own, so that each request finds what
// the last one left; the others share a pool.
func (run leakRun) do(t *testing.T) (found findings, ended [numEndings]int, pools []*testPool) {
	t.Helper()
	workers := min(max(runtime.GOMAXPROCS(0), 2), 8)
	newPool := func(idle int) (*Pool, *ledger) {
		cfg := run.config
		cfg.MaxIdle = idle
		p := newTestPool(t, cfg)
		if run.fault != nil {
			p.expectViolations()
		}
		pools = append(pools, p)
		return p.Pool, &ledger{wrote: map[*block]extents{}}
	}
	shared, sharedLedger := newPool(workers)
	tenants := make([]*tenant, 2*workers)
	var wg sync.WaitGroup
	for i := range tenants {
		v := &tenant{
			pool: shared, ledger: sharedLedger, before: run.before, fault: run.fault,
			random: rand.New(rand.NewPCG(uint64(i), 1)), next: i + 1, step: len(tenants),
		}
		if i < workers {
			v.pool, v.ledger = newPool(1)
		}
		tenants[i] = v
		wg.Go(func() {
			for range run.requests / len(tenants) {
				v.run()
			}
		})
	}
	wg.Wait()
	for _, v := range tenants {
		found.add(v.found)
		for i, n := range v.ended {
			ended[i] += n
		}
	}
	return found, ended, pools
}

// requireReuse checks that at least 99 of 100 requests got a block that another
// one had used. Without reuse a leak test tests nothing: sync.Pool would drop a
// quarter of all under the race detector (golang/go#36516, #52360).
func requireReuse(t *testing.T, pools []*testPool) {
	t.Helper()
	for _, p := range pools {
		s := p.Stats()
		require.LessOrEqual(t, 100*(s.Created-int64(s.MaxIdle)), s.Acquired, "blocks created for %d requests: %d", s.Acquired, s.Created)
		require.Zero(t, s.Blockless)
	}
}

// The acceptance test of the library: of a million requests that do all there is
// to do, none sees a byte of another. It knows what Optionsbleed
// (CVE-2017-9798) was found by: odd bytes in answers.
func TestNoRequestSeesAnother(t *testing.T) {
	requests := scaled(1_000_000, 20_000)
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			found, ended, pools := leakRun{
				config:   Config{Mode: mode, AuditEvery: DefaultAuditEvery},
				requests: requests / len(allModes),
			}.do(t)
			require.Equal(t, findings{}, found)
			requireReuse(t, pools)
			for ending, n := range ended {
				require.Positive(t, n, "requests with the ending %d", ending)
			}
			var spilled, overflows int64
			for _, p := range pools {
				s := p.Stats()
				require.Equal(t, s.Acquired, s.Modes[mode].Released+s.Abandoned)
				require.Equal(t, s.Abandoned, s.Doubts.Panic)
				spilled += s.SpilledBytes
				overflows += s.Totals().Overflows
			}
			require.Positive(t, spilled)
			require.Positive(t, overflows)
		})
	}
}

// The same in memory of the other kinds, and with the aids for debugging.
func TestNoRequestSeesAnotherInOtherMemory(t *testing.T) {
	configs := append(mappedConfigs(), Config{Debug: Poison})
	for _, cfg := range configs {
		cfg.Mode, cfg.AuditEvery = Watermark, DefaultAuditEvery
		t.Run(fmt.Sprint(cfg.Memory, cfg.Debug, cfg.FenceEvery), func(t *testing.T) {
			found, _, pools := leakRun{config: cfg, requests: scaled(6_000, 2_000)}.do(t)
			require.Equal(t, findings{}, found)
			if cfg.Debug != Fence && cfg.FenceEvery == 0 {
				requireReuse(t, pools)
			}
			for _, p := range pools {
				require.Zero(t, p.Stats().MapFailures)
			}
		})
	}
}

// Requests that wipe all and requests that wipe to the mark share blocks, while
// the mode changes all the time. thanos-io/thanos#8745.
func TestNoRequestSeesAnotherWhileModesChange(t *testing.T) {
	found, _, pools := leakRun{
		config:   Config{AuditEvery: DefaultAuditEvery},
		requests: scaled(100_000, 10_000),
		before: func(v *tenant) {
			switch v.random.IntN(10) {
			case 0:
				_ = v.pool.SetMode(Mode(v.random.IntN(int(numModes))))
			case 1:
				_ = v.pool.SetCanary(v.random.Float64())
			case 2:
				if v.random.IntN(200) == 0 { // requests that come meanwhile get new blocks
					v.pool.AuditIdle()
				}
			}
		},
	}.do(t)
	require.Equal(t, findings{}, found)
	requireReuse(t, pools)
	for _, p := range pools {
		for _, m := range p.Stats().Modes {
			require.Positive(t, m.Released, m.Mode)
		}
	}
}

// plantedFaults are mistakes of accounting as they could be in the library.
var plantedFaults = map[string]func(*Workspace){
	"the marks are forgotten": func(ws *Workspace) {
		ws.client.pos, ws.client.mark = 0, 0
		ws.backend.pos, ws.backend.mark = 0, 0
	},
	"one half is forgotten": func(ws *Workspace) {
		ws.backend.pos, ws.backend.mark = 0, 0
	},
	"a rewind takes the mark along": func(ws *Workspace) {
		ws.client.mark, ws.backend.mark = 0, 0
	},
	"the mark is one too low": func(ws *Workspace) {
		low := max(0, ws.client.high()-1)
		ws.client.pos, ws.client.mark = min(ws.client.pos, low), low
	},
}

// Negative control: with a fault in the accounting, the leak check above goes
// off in Watermark. In the modes that wipe all the same fault does no harm, and
// with audits it is found and reported before the next request gets the block.
func TestLeakCheckFindsPlantedFaults(t *testing.T) {
	requests := scaled(3000, 600)
	for name, fault := range plantedFaults {
		t.Run(name, func(t *testing.T) {
			found, _, pools := leakRun{config: Config{Mode: Watermark, AuditEvery: -1}, requests: requests, fault: fault}.do(t)
			require.Positive(t, found.DirtyBlocks)
			require.Positive(t, found.DirtyAllocs)
			require.NotEmpty(t, found.First)
			if name != "the mark is one too low" { // which leaves single bytes
				require.Positive(t, found.ForeignTags)
			}
			requireReuse(t, pools)

			for _, mode := range []Mode{Shadow, FullClear} {
				found, _, pools = leakRun{config: Config{Mode: mode, AuditEvery: -1}, requests: requests, fault: fault}.do(t)
				require.Equal(t, findings{}, found, mode)
				requireReuse(t, pools)
			}
			for _, mode := range allModes {
				small := Config{Mode: mode, AuditEvery: 1, ClientSize: 16 << 10, BackendSize: 8 << 10} // audits of each operation take long
				found, _, pools = leakRun{config: small, requests: 200, fault: fault}.do(t)
				require.Equal(t, findings{}, found, "%s with audits", mode)
				for _, p := range pools {
					require.True(t, p.Stats().BreakerOpen, "%s: the audits report it", mode)
				}
			}
		})
	}
}

// The pieces that the leak check is made of.
func TestLeakCheckItself(t *testing.T) {
	own, other := tag(1), tag(2)
	for _, size := range []int{0, 1, 15, 16, 17, 1000} {
		b := make([]byte, size)
		smear(b, own)
		require.True(t, smeared(b, own), size)
		require.Zero(t, foreignTags(b, own), size)
		require.Equal(t, size/len(own), foreignTags(b, other), size)
		for i := range b {
			b[i]++
			require.False(t, smeared(b, own), "byte %d of %d", i, size)
			b[i]--
		}
		for i := range b {
			clear(b)
			require.True(t, allZeros(b))
			b[i] = 1
			require.False(t, allZeros(b), "byte %d of %d", i, size)
		}
	}
	mixed := slices.Concat([]byte("xx<tag"), own, other[:10], other, own[3:])
	require.Equal(t, 1, foreignTags(mixed, own))
	long := make([]byte, 3*len(zeros)+5)
	require.True(t, allZeros(long))
	long[len(long)-1] = 1
	require.False(t, allZeros(long))

	// A second owner of the block is noticed.
	p := newTestPool(t, Config{})
	v := &tenant{pool: p.Pool, ledger: &ledger{wrote: map[*block]extents{}}, random: rand.New(rand.NewPCG(1, 1)), next: 1}
	r := &request{tenant: v, own: own, ws: p.Acquire()}
	r.zeroed(r.ws.Client().Alloc(100))
	require.Equal(t, extents{100, 0}, r.wrote)
	r.zeroed(r.ws.Backend().Alloc(50)[:0])
	require.Equal(t, extents{100, 50}, r.wrote)
	smear(blockOf(r.ws)[10:60:60], other)
	require.False(t, smeared(r.answer[0], own))
	require.Positive(t, foreignTags(r.answer[0], own))
	require.Equal(t, findings{}, v.found)
	r.look(r.ws.blk)
	require.Equal(t, 1, v.found.DirtyBlocks)
	require.Positive(t, v.found.ForeignTags)
	r.ws.Release()
}

// leaveEverywhere makes one request that stains both halves to the last byte, by
// one of several ways.
func leaveEverywhere(p *Pool, n int) (blk string) {
	ws := p.Acquire()
	defer ws.Release()
	for _, h := range bothHalves {
		a := arenaOf(ws, h)
		switch n % 4 {
		case 0:
			smear(a.Alloc(a.Size()), tag(n))
		case 1:
			smear(a.Reserve(a.Size()), tag(n))
			a.Abort()
		case 2:
			s := a.Snapshot()
			smear(a.Alloc(a.Size()), tag(n))
			a.Rewind(s)
		case 3:
			b := a.Buffer()
			b.Grow(a.Size())
			smear(b.AvailableBuffer(), tag(n))
		}
		if n%3 == 0 {
			smear(a.Alloc(a.Size()+1), tag(n)) // from the heap
		}
	}
	return blockAddr(ws)
}

// A length that claims more than was written must send zeros, not what others
// left. CVE-2014-0160 (Heartbleed).
func TestClaimedLengthSendsZeros(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pairs := scaled(1000, 200)
	for _, mode := range allModes {
		p := newTestPool(t, Config{Mode: mode, AuditEvery: -1}).Pool
		for i := range pairs {
			blk := leaveEverywhere(p, i)
			ws := p.Acquire()
			require.Equal(t, blk, blockAddr(ws), "the same block, or nothing is tested")
			for _, h := range bothHalves {
				claimed, written := 64<<10, 16
				if i > 0 {
					claimed = 1 + random.IntN(DefaultHalfSize)
					written = random.IntN(claimed + 1)
				}
				b := arenaOf(ws, h).Alloc(claimed)
				smear(b[:written:written], tag(-i))
				sent := b[:cap(b)]
				require.Len(t, sent, claimed)
				if !smeared(sent[:written], tag(-i)) || !allZeros(sent[written:]) {
					require.Failf(t, "foreign bytes", "%s, %s half, pair %d: %d tags of others in %d bytes", mode, h, i, foreignTags(sent, tag(-i)), claimed)
				}
			}
			ws.Release()
		}
	}
}

// Memory is wiped when it is given back, not when it is taken: what lies idle is
// clean. gin-gonic/gin#2558.
func TestIdleBlocksAreClean(t *testing.T) {
	for _, mode := range allModes {
		p := newTestPool(t, Config{Mode: mode, AuditEvery: -1})
		v := &tenant{pool: p.Pool, ledger: &ledger{wrote: map[*block]extents{}}, random: rand.New(rand.NewPCG(3, 3)), next: 1, step: 1}
		for range scaled(3000, 500) {
			v.run()
			for _, blk := range p.idle {
				for _, h := range bothHalves {
					require.True(t, allZeros(blk.half(h)), "%s: %s half", mode, h)
					require.True(t, guardIntact(blk.guard(h)))
				}
			}
		}
		require.Len(t, p.idle, 1)
		require.Equal(t, findings{}, v.found)
	}
}

// A block that lies idle refers to nothing of the request that had it.
func TestIdleBlocksForgetTheRequest(t *testing.T) {
	p := newTestPool(t, Config{MaxIdle: 4})
	handles := make([]weak.Pointer[Workspace], 4)
	buffers := make([]weak.Pointer[Buffer], 4)
	spills := make([]weak.Pointer[byte], 4)
	all, _ := acquireMany(p.Pool, len(handles))
	for i, ws := range all {
		handles[i] = weak.Make(ws)
		a := ws.Client()
		b := a.Buffer()
		_, _ = b.WriteString("something")
		buffers[i] = weak.Make(b)
		a.Rewind(a.Snapshot())
		spills[i] = weak.Make(unsafe.SliceData(a.Alloc(DefaultHalfSize)))
		a.Reserve(10)
		a.Commit(5)
		ws.Release()
	}
	clear(all)
	all = nil
	require.Eventually(t, func() bool {
		runtime.GC()
		for i := range handles {
			if handles[i].Value() != nil || buffers[i].Value() != nil || spills[i].Value() != nil {
				return false
			}
		}
		return true
	}, waitLimit, pollEvery, "handles, buffers and spilled memory of ended requests are collected")
	require.Equal(t, 4, p.Stats().Idle)
	require.Equal(t, []string{"mem []uint8", "halves [2][]uint8", "guards [2][]uint8", "next [2]workspace.countdown", "trails [2]workspace.trail", "rests [2]int64",
		"region *workspace.region", "tenure *workspace.tenure", "poisoned bool"}, fieldsOf(reflect.TypeFor[block]()),
		"a new field of a block must not refer to a request")
}

func fieldsOf(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		names = append(names, t.Field(i).Name+" "+t.Field(i).Type.String())
	}
	return names
}

// Nothing that a user can set turns the wiping off: no field, no mode, no
// environment variable, no build tag. grpc/grpc-go#8910 is about the temptation.
// What is new must be added here, by someone who has thought about that.
func TestNothingTurnsWipingOff(t *testing.T) {
	require.Equal(t, []string{
		"Name string",
		"ClientSize int",
		"BackendSize int",
		"Mode workspace.Mode",
		"Canary float64",
		"HostCanary *workspace.HostCanary",
		"BreakerFile string",
		"AuditEvery int",
		"AuditBudget int",
		"MaxIdle int",
		"MaxLive int",
		"MaxSpill int",
		"Memory workspace.Memory",
		"Lock bool",
		"HugePages bool",
		"Debug workspace.Debug",
		"FenceEvery int",
		"Quarantine int",
		"OnViolation func(*workspace.Violation)",
		"OnEvent func(workspace.Event)",
		"Logger *slog.Logger",
		"draw func() uint64",
		"watch *workspace.watch",
	}, fieldsOf(reflect.TypeFor[Config]()), "fields of Config")
	require.Len(t, allModes, int(numModes))

	// The extremes of all of them, and after each request a clean block.
	for _, mode := range allModes {
		for _, cfg := range append(mappedConfigs(), []Config{
			{Debug: Poison},
			{Canary: 1},
			{HostCanary: &HostCanary{BasisPoints: allBasisPoints}},
			{BreakerFile: filepath.Join(t.TempDir(), "breaker")},
			{AuditBudget: 1},
			{AuditEvery: -1},
			{AuditEvery: maxAuditEvery, MaxIdle: 1000, MaxLive: 1000, MaxSpill: -1},
			{ClientSize: MinHalfSize, BackendSize: MinHalfSize, MaxSpill: 1 << 30},
			{ClientSize: 4 * DefaultHalfSize, BackendSize: MinHalfSize, AuditEvery: 100},
		}...) {
			cfg.Mode = mode
			p := newTestPool(t, cfg)
			blk := ""
			for n := range 8 {
				ws := p.Acquire()
				if n > 0 && cfg.Debug != Fence && cfg.FenceEvery == 0 {
					require.Equal(t, blk, blockAddr(ws))
				}
				requireClean(t, ws)
				blk = blockAddr(ws)
				for _, h := range bothHalves {
					a := arenaOf(ws, h)
					smear(a.Alloc(a.Size()-8*n), tag(n))
				}
				ws.Release()
			}
		}
	}

	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	asm, err := filepath.Glob("*.s")
	require.NoError(t, err)
	files = append(files, asm...)
	require.Contains(t, files, "pool.go", "the sources must be here")
	knownTags := strings.Fields("386 amd64 arm arm64 mips mipsle linux darwin windows freebsd netbsd openbsd dragonfly unix race purego gc")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if strings.HasSuffix(name, ".go") {
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
			require.NoError(t, err)
			for _, imp := range file.Imports {
				// testpool.go writes a file and reads nothing. breakerfile.go reads the files
				// that Config.BreakerFile and ModeFile name, which make a pool more careful,
				// or set one of the modes. No more than that comes in.
				if slices.Contains([]string{"testpool.go", "breakerfile.go"}, name) && imp.Path.Value == `"os"` {
					require.NotRegexp(t, `Getenv|LookupEnv|Environ|os\.Args`, string(text), name)
					continue
				}
				require.NotContains(t, []string{`"os"`, `"flag"`, `"syscall"`}, imp.Path.Value, "%s: this is how settings come in from outside", name)
			}
		}
		for line := range strings.Lines(string(text)) {
			if !constraint.IsGoBuild(line) {
				continue
			}
			expr, err := constraint.Parse(strings.TrimSpace(line))
			require.NoError(t, err)
			expr.Eval(func(tag string) bool {
				require.Contains(t, knownTags, tag, "a build tag in %s", name)
				return true
			})
		}
	}
}
