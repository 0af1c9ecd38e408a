package workspace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pcg is a source of random numbers that is the same in each run.
func pcg(seed uint64) func() uint64 { return rand.New(rand.NewPCG(seed, 0x5eed)).Uint64 }

// allZero and allOnes are what broken generators return.
func allZero() uint64 { return 0 }
func allOnes() uint64 { return math.MaxUint64 }

// fixedGap is a source of numbers from which a sampler for every draws the gap
// n each time: the counter that our sampler must not be. It is the negative
// control of the tests below.
func fixedGap(t testing.TB, every, n int) func() uint64 {
	probe := newSampler(every, allZero)
	digits := len(probe.digits)
	require.Less(t, n-1, 1<<digits)
	i := -1
	draw := func() uint64 {
		i = (i + 1) % digits
		if (n-1)>>i&1 == 1 {
			return 0
		}
		return math.MaxUint64
	}
	s := newSampler(every, draw)
	require.Equal(t, n, s.gap())
	require.Equal(t, n, s.gap())
	return draw
}

// chiSquareLimit is the value that chi-square with df degrees of freedom exceeds
// by chance as rarely as a normal variable exceeds 4 sigma (Wilson and Hilferty).
func chiSquareLimit(df int) float64 {
	v := 2 / (9 * float64(df))
	return float64(df) * math.Pow(1-v+4*math.Sqrt(v), 3)
}

// chiSquare compares counts with what was expected.
func chiSquare(got []int64, want func(i int) float64) float64 {
	sum := 0.0
	for i, g := range got {
		w := want(i)
		sum += (float64(g) - w) * (float64(g) - w) / w
	}
	return sum
}

// scaled returns full, or short in a short run and under the race detector,
// where all is ten times as slow.
func scaled(full, short int) int {
	if testing.Short() || raceEnabled {
		return short
	}
	return full
}

// clientAudits returns the audits of client halves in a pool that only the caller uses.
func clientAudits(p *Pool) (n int64) {
	for m := range p.n.Modes {
		n += p.n.Modes[m].Client.Audits
	}
	return n
}

func TestSamplerDigitsMatchTheExactProbabilities(t *testing.T) {
	// Known answers for the default: floor(2^64 q / (1+q)) for q = p^(2^j), p = 1-1/20000.
	known := map[int]uint64{0: 9223141446789102796, 1: 9222910856723718037, 19: 76009141}
	s := newSampler(20_000, allZero)
	require.Len(t, s.digits, 20)
	for j, want := range known {
		require.Equal(t, want, exactDigit(20_000, j), "digit %d: the reference below", j)
	}
	for _, every := range []int{2, 3, 10, 1000, 20_000, 1 << 20, maxAuditEvery} {
		digits := newSampler(every, allZero).digits
		for j, d := range digits {
			// The rounding of 1/every and of each square adds up, to some 2^-43 at the most.
			require.InDelta(t, 0, int64(d-exactDigit(every, j)), 16+float64(every)/8, "every %d digit %d", every, j)
		}
		require.Zero(t, exactDigit(every, len(digits)), "every %d: one more digit would never be set", every)
	}
	require.Empty(t, newSampler(1, allZero).digits)
	require.Equal(t, s.digits, newSampler(0, allZero).digits, "0 means the default")
}

func TestSamplerIsOffBelowZeroOnly(t *testing.T) {
	require.False(t, newSampler(0, allZero).off)
	require.False(t, newSampler(1, allZero).off)
	off := newSampler(-1, allZero)
	require.True(t, off.off)
	require.Equal(t, math.MaxInt, off.gap())
}

// A digit is set for the t random numbers below t, and for no more.
func TestSamplerDigitsAtTheirLimits(t *testing.T) {
	s := newSampler(2, nil)
	s.draw = func() uint64 { return s.digits[0] }
	require.Equal(t, 1, s.gap())
	s.draw = func() uint64 { return s.digits[0] - 1 }
	require.Equal(t, 2, s.gap())
}

// exactDigit computes the probability of digit j with 2,000 bits, in units of 2^-64.
func exactDigit(every, j int) uint64 {
	num := func(x int64) *big.Float { return new(big.Float).SetPrec(2000).SetInt64(x) }
	q := num(int64(every) - 1)
	q.Quo(q, num(int64(every)))
	for range j {
		q.Mul(q, q)
	}
	t := num(0).Add(num(1), q)
	t.Quo(q, t)
	t.SetMantExp(t, 64)
	u, _ := t.Uint64()
	return u
}

// From the same random numbers each platform must draw the same gaps.
func TestSamplerGapsAreTheSameOnEachPlatform(t *testing.T) {
	s := newSampler(20_000, pcg(1))
	var got []int
	for range 6 {
		got = append(got, s.gap())
	}
	require.Equal(t, []int{5644, 2844, 3706, 9471, 29595, 16398}, got)
}

func TestSamplerGapsAreGeometric(t *testing.T) {
	n := scaled(200_000, 50_000)
	for _, every := range []int{1, 2, 10, 20_000} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			s := newSampler(every, pcg(uint64(every)))
			gaps := make([]int, n)
			for i := range gaps {
				gaps[i] = s.gap()
				require.GreaterOrEqual(t, gaps[i], 1)
			}
			if every == 1 {
				require.Equal(t, 1, slices.Max(gaps))
				return
			}
			q := 1 - 1/float64(every)
			mean, square := 0.0, 0.0
			for _, g := range gaps {
				mean += float64(g) / float64(n)
			}
			for _, g := range gaps {
				square += (float64(g) - mean) * (float64(g) - mean) / float64(n-1)
			}
			sd := math.Sqrt(q) * float64(every)
			require.InDelta(t, every, mean, 4*sd/math.Sqrt(float64(n)), "mean")
			// The kurtosis of a geometric variable is 9 + (1-q)^2/q, at most 9.5 here.
			require.InDelta(t, sd, math.Sqrt(square), 4*sd*math.Sqrt(8.5/4/float64(n)), "standard deviation")

			// Ranges of about equal probability, for the shape as a whole.
			var ends []int
			for i := 1; i < 40; i++ {
				if end := int(math.Ceil(math.Log1p(-float64(i)/40) / math.Log(q))); len(ends) == 0 || end > ends[len(ends)-1] {
					ends = append(ends, end)
				}
			}
			counts := make([]int64, len(ends)+1)
			for _, g := range gaps {
				i, _ := slices.BinarySearch(ends, g) // the first end at or above g
				counts[i]++
			}
			tail := func(i int) float64 { // P(gap > ends[i-1])
				switch {
				case i == 0:
					return 1
				case i > len(ends):
					return 0
				}
				return math.Pow(q, float64(ends[i-1]))
			}
			require.Less(t, chiSquare(counts, func(i int) float64 { return (tail(i) - tail(i+1)) * float64(n) }), chiSquareLimit(len(counts)-1), "ranges")

			// The lowest digits, which the ranges would not show.
			low := make([]int64, 4)
			for _, g := range gaps {
				low[(g-1)%4]++
			}
			require.Less(t, chiSquare(low, func(i int) float64 {
				return math.Pow(q, float64(i)) * (1 - q) / (1 - math.Pow(q, 4)) * float64(n)
			}), chiSquareLimit(3), "gap modulo 4")
		})
	}
}

// auditPositions runs requests of perRequest operations on the client half and
// returns how often each of their operations was audited.
func auditPositions(t *testing.T, every, perRequest, requests int, draw func() uint64) []int64 {
	p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: every, draw: draw}).Pool
	hits := make([]int64, perRequest)
	for range requests {
		before := clientAudits(p)
		note := func(i int) {
			now := clientAudits(p)
			hits[i] += now - before
			before = now
		}
		ws := p.Acquire()
		note(0)
		for i := 1; i < perRequest-1; i++ {
			ws.Client().Alloc(8)
			note(i)
		}
		ws.Release()
		note(perRequest - 1)
	}
	return hits
}

// A counter that looks at each 20,000th operation sees one single step of a
// request that makes 8, 10, 16, 20, 25, 32, 40 or 100 of them, for ever. The
// same numbers here in small: 800 is a multiple of all.
// golang/go#12620, trentas/ptop#110.
func TestSamplerIsInStepWithNoRequest(t *testing.T) {
	const every = 800
	hitsEach := scaled(20, 8)
	for _, k := range []int{8, 10, 16, 20, 25, 32, 40, 100} {
		even := func(int) float64 { return float64(hitsEach) }
		hits := auditPositions(t, every, k, hitsEach*every, pcg(uint64(k)))
		require.Less(t, chiSquare(hits, even), chiSquareLimit(k), "%d operations a request: %v", k, hits)

		hits = auditPositions(t, every, k, hitsEach*every, fixedGap(t, every, every))
		require.Greater(t, chiSquare(hits, even), chiSquareLimit(k), "%d operations a request: the test would not notice a counter: %v", k, hits)
	}
}

// Blocks that live fewer operations than the gap get their share of audits.
func TestSamplerCoversShortLives(t *testing.T) {
	const every, life = 1000, 50
	lives := scaled(20_000, 8_000)
	rate := func(draw func() uint64) float64 {
		p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, MaxIdle: -1, AuditEvery: every, draw: draw}).Pool
		for range lives {
			ws := p.Acquire()
			for range life - 2 {
				ws.Client().Alloc(8)
			}
			ws.Release()
		}
		require.Equal(t, int64(lives), p.Stats().Created, "each block must live once")
		require.Equal(t, int64(lives*life), p.Stats().Modes[Shadow].Client.Ops)
		return float64(clientAudits(p)) / (float64(lives) * life / every)
	}
	slack := 4 / math.Sqrt(float64(lives)*life/every)
	require.InDelta(t, 1, rate(pcg(1)), slack)
	require.Zero(t, rate(fixedGap(t, every, every)), "a counter that starts with each block never fires; the test must notice")
}

// detections plants a stray byte past the mark in every k-th request and returns
// how many of these the audit at release caught, and how many there were.
func detections(t *testing.T, k, requests int, draw func() uint64) (caught, planted int) {
	p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: 64, draw: draw, OnViolation: func(*Violation) {}})
	p.expectViolations()
	for i := 1; i <= requests; i++ {
		ws := p.Acquire()
		if i%k == 0 {
			planted++
			ws.client.mem()[100] = 1
		}
		ws.Release()
		if p.tripped.Load() {
			caught++
			p.Rearm("next round")
		}
	}
	return caught, planted
}

func TestSamplerCatchesPeriodicFaultsAtTheConfiguredRate(t *testing.T) {
	const rate = 1.0 / 64
	requests := scaled(100_000, 20_000)
	allCaught, allPlanted := 0, 0
	for _, k := range []int{2, 3, 4, 7, 8, 10, 16, 31, 32, 33, 63, 64, 65, 100, 128, 255, 256, 500, 512, 1000, 1023, 1024} {
		caught, planted := detections(t, k, requests, pcg(uint64(k)))
		allCaught, allPlanted = allCaught+caught, allPlanted+planted
		want := rate * float64(planted)
		// 3 more, as few faults are no normal distribution.
		require.InDelta(t, want, caught, 3+4*math.Sqrt(want), "every %dth request of %d", k, requests)
	}
	want := rate * float64(allPlanted)
	require.InDelta(t, want, allCaught, 4*math.Sqrt(want), "all together")

	// A request here has two operations, so a counter is in step with k = 32 and
	// catches none of the faults or all.
	caught, planted := detections(t, 32, requests, fixedGap(t, 64, 64))
	want = rate * float64(planted)
	require.Greater(t, math.Abs(float64(caught)-want), 3+4*math.Sqrt(want), "the test would not notice a counter")
}

// A decision that hangs on a clock, an id or an address comes in bursts.
// open-telemetry/opentelemetry-go#3557.
func TestSamplerKeepsItsRateInEachWindow(t *testing.T) {
	const every, window = 8, 10_000
	p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: every, draw: pcg(7)}).Pool
	for i := range scaled(20, 5) {
		before := clientAudits(p)
		for range window {
			p.Acquire().Release()
		}
		require.InEpsilon(t, 2*window/every, clientAudits(p)-before, 0.1, "window %d", i)
	}
}

const decisionWords = 16

// decisions records which of 1024 operations of a pool with the default source
// of random numbers were audited. Each is with probability 1/2.
func decisions(t testing.TB) (d [decisionWords]uint64) {
	p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: 2}).Pool
	ws := p.Acquire()
	defer ws.Release()
	a := ws.Client()
	for i := range decisionWords * 64 {
		before := clientAudits(p)
		a.Alloc(0)
		if clientAudits(p) > before {
			d[i/64] |= 1 << (i % 64)
		}
	}
	return d
}

// requireUnrelated checks that any two of the sequences agree as often as chance
// says: in 512 of 1024 places, standard deviation 16.
func requireUnrelated(t *testing.T, all [][decisionWords]uint64) {
	for i := range all {
		for j := range i {
			differ := 0
			for w := range decisionWords {
				differ += bits.OnesCount64(all[i][w] ^ all[j][w])
			}
			require.InDelta(t, decisionWords*32, differ, 8*16, "sequences %d and %d", i, j)
		}
	}
}

// printed is what one process prints of itself for the test below.
type printed struct {
	Decisions [decisionWords]uint64
	Guard     []byte
}

// Unseeded generators put all pools of a process, and all processes of a fleet,
// in step. DataDog/dd-trace-go#46, inspektor-gadget/inspektor-gadget#107. The
// guards differ, too, so that no program can write one by habit.
func TestSamplerSequencesDiffer(t *testing.T) {
	t.Run("pools of a process", func(t *testing.T) {
		all := make([][decisionWords]uint64, scaled(200, 50))
		for i := range all {
			all[i] = decisions(t)
		}
		requireUnrelated(t, all)
	})
	t.Run("processes", func(t *testing.T) {
		exe, err := os.Executable()
		require.NoError(t, err)
		all := make([][decisionWords]uint64, scaled(20, 6))
		cmds, outs := make([]*exec.Cmd, len(all)), make([]bytes.Buffer, len(all))
		for i := range cmds {
			cmds[i] = exec.Command(exe, "-test.run=^TestSamplerPrints$", "-test.count=1")
			cmds[i].Env = append(os.Environ(), printEnv+"=1")
			cmds[i].Stdout = &outs[i]
			if err := cmds[i].Start(); err != nil && i == 0 {
				t.Skipf("this system cannot start the test binary: %v", err) // an emulator, wasm
			} else {
				require.NoError(t, err)
			}
		}
		guards := map[string]bool{}
		for i := range cmds {
			require.NoError(t, cmds[i].Wait(), "%s", &outs[i])
			_, text, found := strings.Cut(outs[i].String(), printMark)
			require.True(t, found, "%s", &outs[i])
			var p printed
			require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&p))
			all[i] = p.Decisions
			require.Len(t, p.Guard, guardSize)
			require.NotContains(t, p.Guard, byte(0))
			guards[string(p.Guard)] = true
		}
		requireUnrelated(t, all)
		require.Len(t, guards, len(all), "no two alike")
	})
}

const (
	printEnv  = "WORKSPACE_TEST_PRINT"
	printMark = "printed: "
)

// TestSamplerPrints is the process that TestSamplerSequencesDiffer starts.
func TestSamplerPrints(t *testing.T) {
	guard := guardPattern()
	p := printed{decisions(t), guard[:]}
	require.NotZero(t, p.Decisions)
	if os.Getenv(printEnv) != "" {
		text, err := json.Marshal(p)
		require.NoError(t, err)
		fmt.Printf("%s%s\n", printMark, text)
	}
}

// A generator that is stuck makes the sampler as wrong as it must be and no
// worse: no hang, no panic, no gap below 1, none without end.
// cvc5/cvc5#1459, php/php-src#9249.
func TestSamplerSurvivesStuckGenerators(t *testing.T) {
	count := uint64(0)
	flip := uint64(0)
	for _, g := range []struct {
		name string
		draw func() uint64
	}{
		{"zero", allZero},
		{"all ones", allOnes},
		{"one", func() uint64 { return 1 }},
		{"small numbers", func() uint64 { count++; return count % 100 }},
		{"a constant upper half", func() uint64 { count++; return 0x5a5a5a5a<<32 | count }},
		{"alternating", func() uint64 { flip = ^flip; return flip }},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, every := range []int{1, 2, 3, 64, 20_000, maxAuditEvery} {
				s := newSampler(every, g.draw)
				most := uint64(1) << len(s.digits)
				require.LessOrEqual(t, most, uint64(every)*64, "every %d: the longest gap there is", every)
				for range 1000 {
					gap := s.gap()
					require.GreaterOrEqual(t, gap, 1, "every %d", every)
					require.LessOrEqual(t, uint64(gap), most, "every %d", every)
				}
			}
			p := newTestPool(t, Config{ClientSize: MinHalfSize, BackendSize: MinHalfSize, AuditEvery: 64, draw: g.draw}).Pool
			for range 1 << len(p.sampler.Load().digits) {
				p.Acquire().Release()
			}
			require.Positive(t, clientAudits(p))
		})
	}
}

func TestAuditEveryOneAuditsEachOperation(t *testing.T) {
	for _, mode := range allModes {
		p := newTestPool(t, Config{Mode: mode, AuditEvery: 1, ClientSize: MinHalfSize, BackendSize: MinHalfSize}).Pool
		for range 10 {
			exercise(p)
		}
		m := p.Stats().Modes[mode]
		require.Equal(t, m.Client.Ops, m.Client.Audits, mode)
		require.Equal(t, m.Backend.Ops, m.Backend.Audits, mode)
		require.Equal(t, int64(10*exerciseOps), m.Client.Ops, mode)
		require.Zero(t, m.Totals().ForcedAudits, mode)
	}
}

func TestAuditEveryNegativeAuditsNothing(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: -1, ClientSize: MinHalfSize, BackendSize: MinHalfSize, draw: func() uint64 { panic("drew a number") }}).Pool
	for range 100 {
		exercise(p)
	}
	total := p.Stats().Totals()
	require.Zero(t, total.Audits)
	require.Zero(t, total.AuditBytes)
	require.Equal(t, int64(100*(exerciseOps+backendOps)), total.Ops, "operations are counted all the same")
}

const (
	exerciseOps = 17 // what exercise does on the client half
	backendOps  = 3  // and on the other
)

// exercise runs one request of which each operation was counted by hand.
func exercise(p *Pool) {
	ws := p.Acquire() // 1, and 1 on the backend half
	a := ws.Client()
	a.Alloc(100)                            // 2
	a.Alloc(0)                              // 3
	a.Copy([]byte("copy"))                  // 4
	a.CopyString("copy")                    // 5
	a.AllocAligned(10, 64)                  // 6
	_, _ = a.TryAlloc(10)                   // 7
	_, _ = a.TryAlloc(len(a.mem()) + 1)     // refused: nothing happened
	_, _ = a.TryAlloc(-1)                   // refused
	s := a.Snapshot()                       // 8
	a.Reserve(50)                           // 9
	a.Commit(20)                            // 10
	a.Reserve(50)                           // 11
	a.Abort()                               // 12
	a.Abort()                               // nothing to abort
	a.Rewind(s)                             // 13
	a.Alloc(len(a.mem()))                   // 14, from the heap
	b := a.Buffer()                         // takes nothing yet
	_, _ = b.Write([]byte("grows"))         // 15
	_ = b.WriteByte('s')                    // 16: grows by one byte
	a.Position()                            // looks only
	a.Mark()                                //
	a.Room()                                //
	_ = b.Len()                             //
	_ = ws.Mode()                           //
	_ = MakeSlice[struct{}](a, 5)           // takes no memory: no operation
	ws.Backend().Alloc(ws.Backend().Room()) // 2 there
	ws.Release()                            // 17; 3 there
}

// Ops is derived from the sampler's countdown, so it must come out the same
// whatever the gaps are.
func TestOpsAreExact(t *testing.T) {
	for _, every := range []int{-1, 1, 2, 3, 16, 17, 18, 20_000, maxAuditEvery} {
		for _, draw := range []func() uint64{pcg(3), allZero, allOnes} {
			p := newTestPool(t, Config{AuditEvery: every, draw: draw, ClientSize: MinHalfSize, BackendSize: MinHalfSize}).Pool
			for range 50 {
				exercise(p)
			}
			m := p.Stats().Modes[Shadow]
			require.Equal(t, int64(50*exerciseOps), m.Client.Ops, "every %d", every)
			require.Equal(t, int64(50*backendOps), m.Backend.Ops, "every %d", every)
		}
	}
}

func TestResetIsOneOperationOnEachHalf(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: -1}).Pool
	ws := p.Acquire()
	ws.Reset()
	ws.Reset()
	ws.Client().Alloc(1)
	ws.Release()
	m := p.Stats().Modes[Shadow]
	require.EqualValues(t, 5, m.Client.Ops)
	require.EqualValues(t, 4, m.Backend.Ops)
}

func TestForcedAuditsAreNoOperations(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: -1}).Pool
	ws := p.Acquire()
	require.NoError(t, ws.Audit())
	ws.Release()
	blocks, bad := p.AuditIdle()
	require.Equal(t, 1, blocks)
	require.Zero(t, bad)
	m := p.Stats().Modes[Shadow]
	require.EqualValues(t, 2, m.Client.Ops)
	require.Zero(t, m.Client.Audits, "sampled audits")
	require.EqualValues(t, 2, m.Client.ForcedAudits)
	require.EqualValues(t, 2*DefaultHalfSize, m.Client.AuditBytes)
}

// With a gap of 10 and requests of 3 operations, or messages of 1, audits fall on
// each 10th operation only if what is left of a gap is carried over.
func TestGapIsCarriedFromRequestToRequest(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: 64, ClientSize: MinHalfSize, BackendSize: MinHalfSize, draw: fixedGap(t, 64, 10)}).Pool
	ops := int64(0)
	check := func(n int64) {
		t.Helper()
		ops += n
		require.Equal(t, ops/10, clientAudits(p), "after %d operations", ops)
	}
	for range 100 {
		ws := p.Acquire()
		check(1)
		ws.Client().Alloc(8)
		check(1)
		ws.Reset()
		check(1)
		ws.Release()
		check(1)
	}
}

// Each half has its own gap: the busy one must not use up the other's.
func TestHalvesAreSampledApart(t *testing.T) {
	p := newTestPool(t, Config{AuditEvery: 64, ClientSize: MinHalfSize, BackendSize: MinHalfSize, draw: fixedGap(t, 64, 10)}).Pool
	for range 100 {
		ws := p.Acquire()
		for range 18 {
			ws.Client().Alloc(8)
		}
		ws.Release()
	}
	m := p.Stats().Modes[Shadow]
	require.EqualValues(t, 200, m.Client.Audits)
	require.EqualValues(t, 20, m.Backend.Audits)
	require.EqualValues(t, 20*MinHalfSize, m.Backend.AuditBytes, "an audit reads all past the mark")
}
