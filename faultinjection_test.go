package workspace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Here the accounting of an arena forgets something, after one in so many operations.
// The chance that a sampled audit finds that is worked out beforehand, for each kind
// of fault and each mode, and what is found is counted. The code of the library is as
// it always is: a fault is put into the fields or the memory of an arena from outside,
// as a library with that fault would have left them after the operation.

// A requestOp is one operation of a request on a half: one tick of its sampler.
type requestOp struct {
	op    Op
	reach int // P or, while a reservation is open, R after it, in units
	do    func(a *Arena, unit int, s *Snapshot)
}

// requestOps are what each request does on either half. Sizes are in units: the
// reservation of a short request ends after a quarter of the half, that of a tall one
// at its end. What a request gets it writes full.
var requestOps = []requestOp{
	{OpAcquire, 0, nil},
	{OpAlloc, 2, allocUnits(2)},
	{OpReserve, mostUnits, func(a *Arena, unit int, _ *Snapshot) { soil(a.Reserve((mostUnits - 2) * unit)) }},
	{OpCommit, 3, func(a *Arena, unit int, _ *Snapshot) { a.Commit(unit) }},
	{OpAlloc, 5, allocUnits(2)},
	{OpSnapshot, 5, func(a *Arena, _ int, s *Snapshot) { *s = a.Snapshot() }},
	{OpAlloc, 13, allocUnits(8)},
	{OpRewind, 5, func(a *Arena, _ int, s *Snapshot) { a.Rewind(*s) }},
	{OpAlloc, 6, allocUnits(1)},
	{OpAlloc, 7, allocUnits(1)},
	{OpAlloc, 8, allocUnits(1)},
	{OpAlloc, 9, allocUnits(1)},
	{OpRelease, 9, nil},
}

const (
	mostUnits   = 32
	tallUnit    = MinHalfSize / mostUnits // bytes
	shortUnit   = tallUnit / 4
	tallShare   = 0.25 // of the requests
	strikeEvery = 5    // mean number of operations between two faults
)

func allocUnits(n int) func(*Arena, int, *Snapshot) {
	return func(a *Arena, unit int, _ *Snapshot) { soil(a.Alloc(n * unit)) }
}

var dirt = tag(1)

func soil(b []byte) { smear(b, dirt) }

// A faultKind is a fault that an arena could have.
type faultKind struct {
	name  string
	after []Op // it can strike after these; after OpRelease: while the block is idle
	// strike does it, and returns the offset of the highest byte that is then not zero
	// and past the mark; -1: there is no room for this fault.
	strike func(in *injector, s spot) int
}

// A spot is where a fault may strike.
type spot struct {
	mem  []byte // the half
	a    *Arena // nil while the block is idle
	mark int    // W; of an idle block: as it was at the wipe
	last byte   // of an idle block: what was at W-1 before the wipe
}

// How many operations on the half can see such a fault:
//
//   - a write past the mark: the rest of the request, or until one reaches over it
//   - a Rewind that drops the mark: the 5 that follow
//   - a Commit that reports less: the 9 that follow
//   - a wipe that stops a byte short: as the byte is the last one that the request
//     wrote, the next one reaches over it with its third operation, and 2 can see it.
//     But a short request after a tall one does not reach there: all its 13 can see it
//   - a stale write: as that; and where the next request allocates first, only 1
//
// In Shadow that is all, and so D = 1-(1-r)^L. In Watermark what the first three left
// is then in the same place as the last two, and each of the five stays until a request
// reaches over it: see injector.later.
var faultKinds = []faultKind{
	{
		"a write past the mark", []Op{OpAcquire, OpAlloc, OpReserve, OpCommit, OpSnapshot, OpRewind},
		func(in *injector, s spot) int {
			if s.mark == len(s.mem) {
				return -1
			}
			off := s.mark // one byte too many
			if in.random.IntN(2) == 0 {
				off += in.random.IntN(len(s.mem) - s.mark)
			}
			s.mem[off] = 1
			return off
		},
	},
	// These two strike when the audit of the Rewind or Commit itself has gone by. In a
	// library with the fault that one would see it, too: it would be found sooner.
	{"a rewind that drops the mark", []Op{OpRewind}, dropMark},
	{"a commit that reports less than was written", []Op{OpCommit}, dropMark},
	{
		"a wipe that stops a byte short", []Op{OpRelease},
		func(_ *injector, s spot) int {
			s.mem[s.mark-1] = s.last
			return s.mark - 1
		},
	},
	{
		"a stale write while the block is idle", []Op{OpRelease},
		func(in *injector, s spot) int {
			off := in.random.IntN(len(s.mem))
			s.mem[off] = 1
			return off
		},
	},
}

// accountingKinds is how many of faultKinds, from the first on, are faults of the
// accounting: those that do no harm in Shadow.
const accountingKinds = 3

// dropMark makes the position the mark. After a Commit that is as if what was
// committed were all that was written: the reservation begins where all that was
// written before it ends.
func dropMark(_ *injector, s spot) int {
	s.a.mark = s.a.pos
	return s.mark - 1
}

// An event is a fault that has struck and is still there.
type event struct {
	half    Half
	off     int  // see faultKind.strike
	next    int  // the operation of this request before which it struck; of a later one: 0
	looks   int  // operations of this request so far that could see it
	reached bool // a later request got the block with it
}

// An injector makes requests, one after the other, on a pool of one block, and lets
// faults of one kind strike, one at a time.
//
// What it counts as found was found by a sampled audit. The others that there are, at
// the release, need an open breaker, and it is closed again after each finding.
type injector struct {
	t       *testing.T
	pool    *Pool
	kind    faultKind
	random  *rand.Rand
	live    *event // nil: there is no fault now
	reports chan *Violation
	onFound func(e event, v *Violation, b *block) // may be nil; called while the breaker is open

	struck  int
	found   int
	early   int                 // of those found: at acquire, by a request that then got another block
	reached int                 // of those struck
	want    [len(rates)]float64 // how many of those struck should be found, at each rate
}

// rates are multiples of the rate of audits: the right one, and two that are wrong.
var rates = [...]float64{1, 0.5, 2}

func newInjector(t *testing.T, kind faultKind, mode Mode, every int, seed uint64) *injector {
	in := &injector{t: t, kind: kind, random: rand.New(rand.NewPCG(0xfa017, seed)), reports: make(chan *Violation, 1)}
	p := newTestPool(t, Config{
		Mode: mode, AuditEvery: every, draw: pcg(seed), ClientSize: MinHalfSize, BackendSize: MinHalfSize,
		OnViolation: func(v *Violation) { in.reports <- v },
	})
	p.expectViolations()
	in.pool = p.Pool
	return in
}

// run makes requests until n faults have struck and are over.
func (in *injector) run(n int) *injector {
	for in.struck < n || in.live != nil {
		in.request(in.struck < n)
	}
	return in
}

// request makes one request. armed says that a fault may strike.
func (in *injector) request(armed bool) {
	unit := shortUnit
	if in.random.Float64() < tallShare {
		unit = tallUnit
	}
	var blk *block
	if n := len(in.pool.idle); n > 0 {
		blk = in.pool.idle[n-1]
	}
	ws := in.pool.Acquire()
	if in.pool.tripped.Load() { // found at acquire
		require.False(in.t, ws.blk == blk, "the request must get another block")
		ws.Release()
		in.early++
		in.wasFound(blk)
		return
	}
	blk = ws.blk
	in.begins(blk)
	var snapshots [2]Snapshot
	for i, o := range requestOps[:len(requestOps)-1] {
		for _, h := range bothHalves {
			a := arenaOf(ws, h)
			if o.do != nil {
				o.do(a, unit, &snapshots[h])
			}
			in.look(a)
			in.maybe(armed, i, unit, h, spot{mem: a.mem(), a: a, mark: a.high()})
		}
	}
	var idle [2]spot
	for _, h := range bothHalves {
		a := arenaOf(ws, h)
		in.look(a) // for the release, which audits before it wipes
		idle[h] = spot{mem: a.mem(), mark: mostUnits * unit, last: a.mem()[mostUnits*unit-1]}
	}
	ws.Release()
	if in.pool.tripped.Load() {
		in.wasFound(blk)
		return
	}
	in.ends(unit)
	for _, h := range bothHalves {
		in.maybe(armed, len(requestOps)-1, unit, h, idle[h])
	}
}

// maybe lets the fault strike after requestOps[i], with its chance, if it can there.
func (in *injector) maybe(armed bool, i, unit int, h Half, s spot) {
	if !armed || in.live != nil || !slices.Contains(in.kind.after, requestOps[i].op) || in.random.IntN(strikeEvery) != 0 {
		return
	}
	off := in.kind.strike(in, s)
	if off < 0 {
		return
	}
	in.struck++
	in.live = &event{half: h, off: off, next: (i + 1) % len(requestOps)}
	for j, x := range rates {
		in.want[j] += in.chance(i+1, unit, off, max(0, x/float64(in.pool.cfg.AuditEvery)))
	}
}

// begins checks all of a block that a request gets: a fault has left something in it,
// or it is clean.
func (in *injector) begins(blk *block) {
	in.agree(blk, in.live != nil, "a request begins")
	if in.live != nil && !in.live.reached {
		in.live.reached = true
		in.reached++
	}
}

// look counts an operation that could see the fault, and checks that what was found is wiped.
func (in *injector) look(a *Arena) {
	if e := in.live; e == nil || e.half != a.half || allZeros(a.mem()[a.high():]) {
		return
	}
	if in.pool.tripped.Load() {
		require.Failf(in.t, "found, but not wiped", "%s: %+v", in.kind.name, *in.live)
	}
	in.live.looks++
}

// ends compares a request that found nothing with what was predicted for it. What it
// left in the block is for the next one to see: begins compares that.
func (in *injector) ends(unit int) {
	left := false
	if e := in.live; e != nil {
		n, covered := looks(e.next, unit, e.off)
		if e.looks != n {
			require.Failf(in.t, "not as predicted", "%s: %+v could be seen by %d operations of this request, want %d", in.kind.name, *e, e.looks, n)
		}
		left = !covered && in.pool.mode == Watermark
		e.next, e.looks = 0, 0
	}
	if !left {
		in.live = nil
	}
}

// agree checks that blk is dirty, or that all of it is zero.
func (in *injector) agree(blk *block, dirty bool, when string) {
	if dirty == (allZeros(blk.half(Client)) && allZeros(blk.half(Backend))) {
		require.Failf(in.t, "not as predicted", "%s in %s, %s: want a dirty block: %v", in.kind.name, in.pool.mode, when, dirty)
	}
}

// wasFound ends a request that has found the fault, in blk.
func (in *injector) wasFound(blk *block) {
	require.NotNil(in.t, in.live, "a violation without a fault")
	in.found++
	var v *Violation
	select {
	case v = <-in.reports:
	case <-time.After(waitLimit):
		require.Fail(in.t, "not reported")
	}
	if in.onFound != nil {
		in.onFound(*in.live, v, blk)
	}
	in.live = nil
	require.True(in.t, in.pool.Rearm("the next fault"))
}

// looks returns how many operations of a request, from requestOps[next] on, can see
// the byte at off, and whether one reaches over it. From that one on it is below the
// mark: no audit reads it, the request has written over it, and the wipe clears it.
func looks(next, unit, off int) (n int, covered bool) {
	for _, o := range requestOps[next:] {
		if o.reach*unit > off {
			return n, true
		}
		n++
	}
	return n, false
}

// chance returns the probability that an audit finds a fault at off that struck before
// requestOps[next] of a request, or after the request if there is none such. Each
// operation is audited with probability r, whatever was before, so a fault that n of
// them can see is missed with probability (1-r)^n.
func (in *injector) chance(next, unit, off int, r float64) float64 {
	n, covered := looks(next, unit, off)
	missed := allMiss(n, r)
	if !covered && (next == len(requestOps) || in.pool.mode == Watermark) {
		missed *= 1 - in.later(off, r)
	}
	return 1 - missed
}

// later is chance for what is in the block when a request begins. The request finds
// it, or misses it and ends it, or misses it and leaves it to the next one as it was:
// F = (1-missed) + left F. In Shadow each request ends it; in Watermark those that
// reach over it do, as all the tall ones.
func (in *injector) later(off int, r float64) float64 {
	missed, left := 0.0, 0.0
	for _, request := range []struct {
		unit  int
		share float64
	}{{shortUnit, 1 - tallShare}, {tallUnit, tallShare}} {
		n, covered := looks(0, request.unit, off)
		m := request.share * allMiss(n, r)
		missed += m
		if !covered && in.pool.mode == Watermark {
			left += m
		}
	}
	return (1 - missed) / (1 - left)
}

// allMiss returns the probability that none of n operations is audited.
func allMiss(n int, r float64) float64 { return math.Exp(float64(n) * math.Log1p(-r)) }

// binomialInterval returns the limits between which the successes in n trials lie with
// at least 99.99 %, with at most half of the rest on either side, when each has the
// chance p. They hold also when the chances differ and p is their mean: Hoeffding, On
// the Distribution of the Number of Successes in Independent Trials, Annals of
// Mathematical Statistics 27 (1956).
func binomialInterval(n int, p float64) (lo, hi int) {
	const tail = 0.5e-4
	first := func(limit float64) int {
		return sort.Search(n, func(k int) bool { return binomialCDF(float64(n), int64(k), p) > limit })
	}
	return first(tail), first(1 - tail)
}

// The chances by hand, for r = 1/10, of what strikes in or after a tall request: q is
// the probability that one operation misses it.
func TestFaultInjectionChances(t *testing.T) {
	const q, s = 0.9, tallShare
	q2, q5, q9, q13 := q*q, math.Pow(q, 5), math.Pow(q, 9), math.Pow(q, 13)
	afterwards := (1 - (1-s)*q13 - s*q2) / (1 - (1-s)*q13) // over all requests that follow
	for _, c := range []struct {
		name string
		mode Mode
		next int // operation before which it strikes
		want float64
	}{
		{"Rewind", Shadow, 8, 1 - q5},
		{"Rewind", Watermark, 8, 1 - q5*(1-afterwards)},
		{"Commit", Shadow, 4, 1 - q9},
		{"Commit", Watermark, 4, 1 - q9*(1-afterwards)},
		{"idle", Shadow, 13, 1 - (1-s)*q13 - s*q2},
		{"idle", Watermark, 13, afterwards},
	} {
		in := &injector{pool: &Pool{mode: c.mode}}
		require.InDelta(t, c.want, in.chance(c.next, tallUnit, MinHalfSize-1, 1-q), 1e-12, "%s in %s", c.name, c.mode)
	}
	lo, hi := binomialInterval(1000, 0.5) // 500 plus and minus 3.89 standard deviations
	require.Equal(t, []int{439, 561}, []int{lo, hi})
}

// auditEvery is the rate for the tests below: so high that of each kind some are found
// and some are not.
var auditEvery = map[Mode]int{Shadow: 10, Watermark: 30}

// Sampled audits find each kind of fault as often as the statistics say, and neither
// half nor twice the rate would pass for the right one. With -v it prints the table.
func TestFaultInjectionRates(t *testing.T) {
	events := scaled(3000, 2500)
	table := fmt.Sprintf("%d faults each", events)
	for i, kind := range faultKinds {
		for _, mode := range []Mode{Shadow, Watermark} {
			in := newInjector(t, kind, mode, auditEvery[mode], uint64(i)).run(events)
			share := func(n float64) float64 { return n / float64(events) }
			lo, hi := binomialInterval(events, share(in.want[0]))
			table += fmt.Sprintf("\n%-45s %-9s  1 in %d audited  predicted %.3f (%.3f to %.3f), found %.3f",
				kind.name, mode, auditEvery[mode], share(in.want[0]), share(float64(lo)), share(float64(hi)), share(float64(in.found)))
			require.True(t, lo <= in.found && in.found <= hi, table)

			_, half := binomialInterval(events, share(in.want[1]))
			double, _ := binomialInterval(events, share(in.want[2]))
			require.True(t, half < lo && hi < double, "the test would not notice a wrong rate: half of it ends at %d, twice of it begins at %d\n%s", half, double, table)
			require.True(t, share(in.want[0]) > 0.1 && share(in.want[0]) < 0.9, table)
		}
	}
	t.Log(table)
}

// In Shadow no fault of the accounting, found or not, reaches the next request: each
// begins with both halves zero, to the last byte. In Watermark the same faults do.
//
// Shadow does not promise that where the wipe itself leaves a byte (it wipes in two
// pieces, which meet at the mark), nor of a write by a bare slice that was kept by a
// goroutine of which the library knows nothing. One acquire in AuditEvery is audited,
// and finds such a byte in time. Else the request gets it, and its own release ends it.
func TestFaultInjectionShadowKeepsItsPromise(t *testing.T) {
	events := scaled(1000, 300)
	for i, kind := range faultKinds {
		for _, every := range []int{-1, auditEvery[Shadow]} {
			in := newInjector(t, kind, Shadow, every, uint64(i)).run(events)
			s := in.pool.Stats()
			require.Greater(t, s.Acquired, int64(events), kind.name)
			require.LessOrEqual(t, s.Created, int64(in.found+1), "%s: blocks are reused, or nothing is tested", kind.name)
			if every < 0 {
				require.Zero(t, in.found, kind.name)
			}
			if i < accountingKinds {
				require.Zero(t, in.reached, kind.name)
				continue
			}
			require.Equal(t, events-in.early, in.reached, kind.name)
			if every > 0 {
				lo, hi := binomialInterval(events, 1/float64(every))
				require.True(t, lo <= in.early && in.early <= hi, "%s: %d of %d found at acquire, want %d to %d", kind.name, in.early, events, lo, hi)
			}
		}
		in := newInjector(t, kind, Watermark, -1, uint64(i)).run(events)
		require.Greater(t, in.reached, events/10, "%s: in Watermark it must reach the next request, or nothing is tested", kind.name)
	}
}

// Each finding is counted and reported as what it is and opens the breaker. Its block is
// all zero afterwards and is not used again.
func TestFaultInjectionReaction(t *testing.T) {
	for i, kind := range faultKinds {
		for _, mode := range []Mode{Shadow, Watermark} {
			in := newInjector(t, kind, mode, auditEvery[mode], uint64(i))
			forced, halves := int64(0), [2]int64{}
			in.onFound = func(e event, v *Violation, b *block) {
				require.Equal(t, []any{DirtyTail, e.half, mode, e.off, true}, []any{v.Kind, v.Half, v.Mode, v.Last, v.Guard}, v.Error())
				n, s := int64(in.found), in.pool.Stats()
				require.Equal(t, []int64{n, n, n, n}, []int64{s.Violations, s.BreakerTrips, s.Abandoned, s.Doubts.Violation})
				halves[e.half]++
				require.Equal(t, halves, [2]int64{s.Modes[mode].Client.Violations, s.Modes[mode].Backend.Violations})
				require.True(t, s.BreakerOpen)
				require.Equal(t, Shadow, s.Effective)
				require.Greater(t, s.Totals().ForcedAudits, forced, "the open breaker audits each release")
				forced = s.Totals().ForcedAudits
				in.agree(b, false, "found")
				require.True(t, guardIntact(b.guard(Client)) && guardIntact(b.guard(Backend)))
				require.False(t, slices.Contains(in.pool.idle, b), "reused")
			}
			in.run(scaled(200, 100))
			require.Positive(t, halves[Client], kind.name)
			require.Positive(t, halves[Backend], kind.name)
		}
	}
}
