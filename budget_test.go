package workspace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// spendFor plays operations at a rate, in operations a second, for some minutes,
// and returns the audits in each of them.
func spendFor(b *budget, now *time.Time, rng *rand.Rand, opsPerSecond float64, minutes int) (audits []float64) {
	for range minutes {
		n, end := 0.0, now.Add(time.Minute)
		for {
			gap := time.Duration(rng.ExpFloat64() * float64(b.every) / opsPerSecond * float64(time.Second))
			if now.Add(gap).After(end) {
				*now = end // what is left of an exponential gap is distributed as a new one
				break
			}
			*now = now.Add(gap)
			b.spend(*now)
			n++
		}
		audits = append(audits, n)
	}
	return audits
}

func TestBudgetIsKept(t *testing.T) {
	for _, c := range []struct {
		budget, start int
		ops           float64
		want          []int // intervals that keep the budget
	}{
		{200, DefaultAuditEvery, 100_000, []int{512, 1024}}, // 500 operations for each audit
		{200, 1, 100_000, []int{512, 1024}},
		{200, maxAuditEvery, 10_000_000, []int{65_536, 131_072}},
		{200, DefaultAuditEvery, 4_000_000, []int{32_768}},
		{200, DefaultAuditEvery, 100, []int{1}}, // each operation, and that is less than allowed
		{1, DefaultAuditEvery, 1000, []int{1024, 2048}},
		{200, DefaultAuditEvery, 4e9, []int{maxAuditEvery}}, // the highest there is
	} {
		t.Run(fmt.Sprint(c.budget, " ", c.start, " ", c.ops), func(t *testing.T) {
			now := time.Unix(0, 0)
			b := &budget{perSecond: c.budget, every: c.start, since: now}
			rng := rand.New(rand.NewPCG(1, 2))
			spendFor(b, &now, rng, c.ops, 40)
			for _, n := range spendFor(b, &now, rng, c.ops, 20) {
				allowed := 60 * float64(c.budget)
				noise := 5*math.Sqrt(allowed) + 1
				if c.ops < 1e9 {
					require.Less(t, n, 1.05*allowed+noise)
				}
				require.Greater(t, n, min(allowed/2.1, 60*c.ops)-noise)
			}
			require.Contains(t, c.want, b.every)
		})
	}
}

// After a quiet night each operation is audited. When the load comes, three
// minutes' audits are the most that it costs before the interval fits.
func TestBudgetBoundsABurst(t *testing.T) {
	now := time.Unix(0, 0)
	b := &budget{perSecond: 200, every: DefaultAuditEvery, since: now}
	rng := rand.New(rand.NewPCG(3, 4))
	spendFor(b, &now, rng, 10, 300)
	require.Equal(t, 1, b.every)
	burst := spendFor(b, &now, rng, 4_000_000, 3)
	require.Less(t, burst[0], 3.2*60*200.0)
	require.Less(t, burst[1], 1.05*60*200)
	require.Equal(t, 32_768, b.every)

	// And one that lasts a moment leaves no trace after a while.
	burst = spendFor(b, &now, rng, 10_000, 15)
	require.Equal(t, 64, b.every)
	require.Greater(t, burst[14], 60*200/2.2)
}

func TestBudgetChangesAtMostOnceAMinute(t *testing.T) {
	now := time.Unix(0, 0)
	b := &budget{perSecond: 1, every: 1024, since: now}
	now = now.Add(59 * time.Second)
	require.False(t, b.spend(now))
	now = now.Add(time.Second)
	require.True(t, b.spend(now), "few audits: half the interval, not less")
	require.Equal(t, 512, b.every)
	for i := range 59 {
		require.False(t, b.spend(now.Add(time.Second)), i)
	}
	require.True(t, b.spend(now.Add(2*time.Second)), "the 60th within two seconds")
	require.Equal(t, 16_384, b.every, "60 audits of 512 operations in 2 seconds")

	fixed := &budget{every: 1024}
	for range 1000 {
		require.False(t, fixed.spend(now.Add(time.Hour)))
	}
	require.Equal(t, 1024, fixed.every)

	back := &budget{perSecond: 1, every: 64, since: now}
	for range 60 {
		back.spend(now.Add(-time.Hour))
	}
	require.Equal(t, 1<<22, back.every, "a clock that goes back counts as a millisecond: fewer audits, but no division by 0")
}

// A gap that is cut is as good as one that is not, also when the rate changes.
func TestCountdownsInPiecesKeepTheRate(t *testing.T) {
	run := func(chunk int, everies []int, ops int) (audits int64, first [20]int64) {
		var samplers []sampler
		for i, every := range everies {
			s := newSampler(every, pcg(uint64(i)))
			s.chunk = chunk
			samplers = append(samplers, s)
		}
		sinceAudit := 0
		for done := 0; done < ops; {
			c := samplers[done*len(samplers)/ops].next()
			require.GreaterOrEqual(t, c.ops, 1)
			require.LessOrEqual(t, c.ops, chunk)
			done += c.ops
			sinceAudit += c.ops
			if c.audit {
				audits++
				first[min(sinceAudit/10_000, 19)]++
				sinceAudit = 0
			}
		}
		return audits, first
	}
	const ops = 300_000_000
	n, gaps := run(maxChunk, []int{20_000}, ops)
	require.InDelta(t, ops/20_000, n, 5*math.Sqrt(ops/20_000))
	q := math.Exp(-0.5)
	require.Less(t, chiSquare(gaps[:], func(i int) float64 {
		if i == 19 {
			return float64(n) * math.Pow(q, 19)
		}
		return float64(n) * math.Pow(q, float64(i)) * (1 - q)
	}), chiSquareLimit(19))

	n, _ = run(maxChunk, []int{1024, 65_536}, ops)
	want := ops/2/1024.0 + ops/2/65_536.0
	require.InDelta(t, want, n, 5*math.Sqrt(want))

	n, _ = run(maxChunk, []int{1}, 1000)
	require.EqualValues(t, 1000, n)
	off := newSampler(-1, nil)
	require.Equal(t, countdown{math.MaxInt, false}, off.next())
}

func TestAuditBudget(t *testing.T) {
	p := newTestPool(t, Config{Mode: Watermark, AuditBudget: 1, AuditEvery: 4, ClientSize: MinHalfSize, BackendSize: MinHalfSize, draw: pcg(1)})
	require.Equal(t, maxChunk, p.sampler.Load().chunk)
	for p.Stats().AuditEvery == 4 {
		ws := p.Acquire()
		for range 20 {
			ws.Client().Alloc(1)
		}
		ws.Release()
	}
	s := p.Stats()
	require.InDelta(t, 62, s.Totals().Audits, 2, "a minute's audits are spent at once; those already drawn are made")
	require.Equal(t, 1, s.AuditBudget)
	require.Greater(t, s.AuditEvery, 1000)
	require.Equal(t, newSampler(s.AuditEvery, nil).digits, p.sampler.Load().digits)

	plain := newTestPool(t, Config{AuditEvery: 4})
	require.Equal(t, math.MaxInt, plain.sampler.Load().chunk)

	// A half whose countdown was cut asks again, and audits nothing then.
	q := newTestPool(t, Config{AuditBudget: 1, AuditEvery: maxAuditEvery, draw: allZero})
	for range maxChunk * 3 {
		q.Acquire().Release()
	}
	require.Zero(t, q.Stats().Totals().Audits)
}

// Whether an operation is audited was drawn with the countdown that ends there.
func TestCountdownsThatEndWithoutAnAudit(t *testing.T) {
	cut := newSampler(20_000, fixedGap(t, 20_000, maxChunk+1))
	whole := newSampler(20_000, fixedGap(t, 20_000, maxChunk))
	cut.chunk, whole.chunk = maxChunk, maxChunk
	require.Equal(t, countdown{maxChunk, false}, cut.next())
	require.Equal(t, countdown{maxChunk, true}, whole.next())

	p := newTestPool(t, Config{})
	ws := p.Acquire()
	a := ws.Client()
	alloc := func(next *sampler) int64 {
		before := p.Stats().Totals().Audits
		p.sampler.Store(next)
		a.skip, a.from, a.lead = 1, 1, 0
		a.Alloc(1)
		return p.Stats().Totals().Audits - before
	}
	require.True(t, a.sampled)
	require.EqualValues(t, 1, alloc(&cut))
	require.Equal(t, maxChunk, a.skip)
	require.EqualValues(t, 0, alloc(&whole))
	require.EqualValues(t, 1, alloc(&cut))
	ws.Release() // 1 operation of a countdown without an audit
	p.sampler.Store(&whole)
	ws = p.Acquire()
	require.False(t, ws.Client().sampled, "it runs on in the next request")
	require.Equal(t, maxChunk-2, ws.Client().skip)
	ws.Release()
}

func TestAuditBudgetRefusesBadValues(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{AuditBudget: -1}, "AuditBudget is -1, want 0 to 1000000"},
		{Config{AuditBudget: 1_000_001}, "AuditBudget is 1000001, want 0 to 1000000"},
		{Config{AuditBudget: 5, AuditEvery: -1}, "AuditBudget is 5, but AuditEvery is -1, which turns audits off"},
	} {
		_, err := NewPool(c.cfg)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, c.want)
	}
}
