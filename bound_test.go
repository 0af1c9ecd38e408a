package workspace

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// Confidences, and what is left to one.
const (
	sure95     = 0.95
	sure999999 = 0.999999
)

// The numbers were computed with 40 digits.
func TestBoundVectors(t *testing.T) {
	bound := func(n, k int64, confidence float64) float64 {
		var s Stats
		s.Modes[Shadow].Client = HalfStats{Audits: n, ForcedAudits: 1000}
		s.Modes[Watermark].Backend.Violations = k
		got := ViolationBound(n, k, confidence)
		require.Equal(t, got, s.ViolationBound(confidence), "only sampled audits count, but all violations")
		return got
	}
	for _, c := range []struct {
		name      string
		want, got float64
	}{
		{"zero-hit bound, n=10", 0.25886555089305228, bound(10, 0, sure95)},
		{"zero-hit bound, n=1000", 0.0029912495450952962, bound(1000, 0, sure95)},
		{"zero-hit bound, n=432000", 6.9345414039982476e-6, bound(432_000, 0, sure95)},
		{"zero-hit bound, n=432000, 1e-6", 3.1979837147911892e-5, bound(432_000, 0, sure999999)},
		{"zero-hit bound, n=8.64e10", 3.4672827239607127e-11, bound(864e8, 0, sure95)}, // 1-alpha^(1/n) in plain floats is off by 1e-7
		{"zero-hit bound, n=8.64e10, 1e-6", 1.5990174255624667e-10, bound(864e8, 0, sure999999)},
		{"zero-hit bound, n=1", 0.95, bound(1, 0, sure95)},
		{"zero-hit bound, n=1, even odds", 0.5, bound(1, 0, 0.5)},
		{"Clopper-Pearson, low confidence", bound(9, 3, 0.001), bound(9, 3, 1e-300)},
		{"zero-hit bound, low confidence", 1e-21, bound(1000, 0, 1e-18)}, // 1-1e-18 is 1 in floats
		{"Clopper-Pearson, k=1, n=1000", 0.004734993575499778, bound(1000, 1, sure95)},
		{"Clopper-Pearson, k=3, n=1000", 0.00773524471847946, bound(1000, 3, sure95)},
		{"Clopper-Pearson, k=1, n=1e6, 1e-6", 1.668828988402931e-5, bound(1e6, 1, sure999999)},
		{"Clopper-Pearson, 1-p^2 = 1/4", 0.8660254037844386, bound(2, 1, 0.75)},
		{"Clopper-Pearson, no audits", 1, bound(0, 0, sure95)},
		{"Clopper-Pearson, k=1, n=0", 1, bound(0, 1, sure95)},
		{"Clopper-Pearson, k=n", 1, bound(5, 5, sure95)},
		{"Clopper-Pearson, k>n", 1, bound(5, 6, sure95)},
		{"Clopper-Pearson, all but one of 1e18", 1, bound(1e18, 1e18-1, sure95)},
		{"Poisson, k=1, n=1e6, 1e-6", 1.668842079085992e-5, PoissonBound(1, sure999999) / 1e6},
		{"Poisson, k=0", 2.995732273553991, PoissonBound(0, sure95)},
		{"Poisson, k=0, 1e-6", 13.815510557964274, PoissonBound(0, sure999999)},
		{"audits needed, p=1e-9", 2995732273, float64(AuditsNeeded(1e-9, sure95))},
		{"audits needed, p=1e-9, 1e-6", 13815510552, float64(AuditsNeeded(1e-9, sure999999))},
		{"audits needed, p=1", 1, float64(AuditsNeeded(1, sure95))},
		{"audits needed, more than an int64", math.MaxInt64, float64(AuditsNeeded(1e-300, sure95))},
		{"audits needed, little confidence", 1, float64(AuditsNeeded(0.5, 1e-300))},
		{"detect, n=432000, p=1e-6", 0.3507907635441563, DetectProbability(1e-6, 432_000)},
		{"detect, n=1", 1e-17, DetectProbability(1e-17, 1)},
		{"detect, p=1", 1, DetectProbability(1, 1)},
		{"detect, p=1, n=0", 0, DetectProbability(1, 0)},
		{"detect, p=0", 0, DetectProbability(0, math.MaxInt64)},
		{"V_U, N=20000", 59913.14759246051, needed(1./20000, sure95)},
		{"V_U, N=20000, 1e-6", 276303.3033464404, needed(1./20000, sure999999)},
		{"V_U, N=20000, rounded", 59914, float64(AuditsNeeded(1./20000, sure95))},
		{"D(L), L=1000", 0.04877176457495947, DetectProbability(1./20000, 1000)},
		{"D(L), L=20000", 0.6321297560061956, DetectProbability(1./20000, 20000)},
		{"D(K,s), K=20, s=.01", 0.09095249318027705, DetectStale(20000, 20, 0.01)},
		{"D(K,s), K=100, s=.01", 0.3338949260842637, DetectStale(20000, 100, 0.01)},
		{"D(K,s), K=1000, s=.01", 0.8367944084973415, DetectStale(20000, 1000, 0.01)},
		{"D(K,s), s=1", DetectProbability(1./20000, 20), DetectStale(20000, 20, 1)},
		{"D(K,s), s=0", 1, DetectStale(20000, 20, 0)},
		{"D(K,s), N=1", 1, DetectStale(1, 1, 1)},
	} {
		require.InDelta(t, c.want, c.got, 1e-9*c.want, c.name)
	}
	// From tables, at 95 % and at 1-1e-6.
	for k, want := range [][2]float64{{2.99573, 13.81551}, {4.74386, 16.68842}, {6.29579, 19.12917}, {7.75366, 21.35046}, {9.15352, 23.43152}, {10.51303, 25.41263}} {
		require.InDelta(t, want[0], PoissonBound(int64(k), sure95), 0.5e-5, "Poisson, k=%d", k)
		require.InDelta(t, want[1], PoissonBound(int64(k), sure999999), 0.5e-5, "Poisson, k=%d", k)
	}
}

// bigCDF is the probability of k or fewer successes in n trials, with 300 bits.
func bigCDF(n, k int64, p float64) *big.Float {
	num := func(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }
	q := num(1)
	q.Sub(q, num(p))
	term, square := num(1), num(0).Set(q)
	for e := n; e > 0; e >>= 1 { // q^n
		if e&1 == 1 {
			term.Mul(term, square)
		}
		square.Mul(square, square)
	}
	odds := num(p)
	odds.Quo(odds, q)
	sum := num(0).Set(term)
	for i := range k {
		term.Mul(term, odds)
		term.Mul(term, num(float64(n-i)))
		term.Quo(term, num(float64(i+1)))
		sum.Add(sum, term)
	}
	return sum
}

// A p that is lower by 1e-9 of it is too low, one that is higher too high.
func TestViolationBoundAgainstBigNumbers(t *testing.T) {
	check := func(n, k int64, confidence float64) {
		p := ViolationBound(n, k, confidence)
		alpha := new(big.Float).Sub(big.NewFloat(1), new(big.Float).SetPrec(100).SetFloat64(confidence))
		require.Positive(t, bigCDF(n, k, p*(1-1e-9)).Cmp(alpha), "%d of %d at %v: %v is too high", k, n, confidence, p)
		if above := p * (1 + 1e-9); above < 1 {
			require.Negative(t, bigCDF(n, k, above).Cmp(alpha), "%d of %d at %v: %v is too low", k, n, confidence, p)
		}
	}
	for _, confidence := range []float64{0.001, 0.5, sure95, sure999999, 1 - 1e-12} {
		for n := int64(1); n <= 30; n++ {
			for k := range n {
				check(n, k, confidence)
			}
		}
		for _, k := range []int64{1, 2, 31, 32, 33, 999, 1000, 1001, 9999} { // stirling changes at 32
			for _, n := range []int64{10_000, 10_032, 1e6, 1e9, 1e15} {
				check(n, k, confidence)
			}
		}
	}
}

// binomialCDF is the probability of k or fewer successes in n trials: the sum of
// its terms, each from the one before, in logarithms as the first may underflow.
func binomialCDF(n float64, k int64, p float64) float64 {
	q := math.Log1p(-p)
	odds := math.Log(p) - q
	term := n * q
	sum := math.Exp(term)
	for i := range k {
		term += math.Log((n-float64(i))/float64(i+1)) + odds
		sum += math.Exp(term)
	}
	return sum
}

// poissonLimit is the mean at which k or fewer events have the probability
// 1-confidence: the sum of all terms, and a search by halves.
func poissonLimit(k int, confidence float64) float64 {
	lo, hi := 0.0, 2*float64(k)+100
	for range 200 {
		mean := (lo + hi) / 2
		sum := 0.0
		for i := range k + 1 {
			lg, _ := math.Lgamma(float64(i + 1))
			sum += math.Exp(float64(i)*math.Log(mean) - mean - lg)
		}
		if sum > 1-confidence {
			lo = mean
		} else {
			hi = mean
		}
	}
	return hi
}

func TestPoissonBound(t *testing.T) {
	for _, confidence := range []float64{0.5, sure95, sure999999} {
		for _, k := range []int{0, 1, 2, 5, 20, 31, 32, 33, 100, 1000} {
			require.InEpsilon(t, poissonLimit(k, confidence), PoissonBound(int64(k), confidence), 1e-9, "%d at %v", k, confidence)
		}
		// With so many audits the two limits are one.
		for _, k := range []int64{1, 1000, 1e6, maxSummed, maxSummed + 1} {
			require.InEpsilon(t, PoissonBound(k, confidence), 1e18*ViolationBound(1e18, k, confidence), 1e-9, "%d at %v", k, confidence)
		}
		require.InEpsilon(t, float64(math.MaxInt64), PoissonBound(math.MaxInt64, confidence), 1e-8)
	}
}

// Where the sum ends and the closed form begins, they agree: for few violations
// among the audits, for as many as not, and for few that are clean.
func TestLargeCounts(t *testing.T) {
	for _, confidence := range []float64{0.001, 0.5, sure95, sure999999, 1 - 1e-12} {
		for _, c := range [][2]float64{{maxSummed, 1e40}, {maxSummed, 1e9}, {maxSummed, 2e7}, {maxSummed, maxSummed}, {2e7, maxSummed}, {1e9, maxSummed}, {1e15, maxSummed}} {
			require.InEpsilon(t, upperLimit(c[0], c[1], confidence), normalLimit(c[0], c[1], confidence), 1e-9, "%v at %v", c, confidence)
		}
	}
	for _, confidence := range []float64{5e-324, 1e-17, 1 - 1.0/(1<<53)} {
		require.InEpsilon(t, 0.5, ViolationBound(1e18, 5e17, confidence), 1e-7)
	}
}

// What an upper confidence limit is: whatever the truth, the limit lies at or
// above it with at least that probability. Summed exactly, over all outcomes.
func TestViolationBoundCoversTheTruth(t *testing.T) {
	for _, n := range []int64{1, 2, 10, 60} {
		for _, confidence := range []float64{0.5, 0.95, 0.999} {
			bounds := make([]float64, n+1)
			for k := range bounds {
				bounds[k] = ViolationBound(n, int64(k), confidence)
			}
			for p := 0.005; p < 1; p += 0.005 {
				covered := 0.0
				for k, bound := range bounds {
					if bound >= p {
						ways, _ := new(big.Float).SetInt(new(big.Int).Binomial(n, int64(k))).Float64()
						covered += ways * math.Pow(p, float64(k)) * math.Pow(1-p, float64(n)-float64(k))
					}
				}
				require.GreaterOrEqual(t, covered, confidence-1e-12, "n %d, truth %v", n, p)
			}
		}
	}
}

func TestViolationBoundIsMonotone(t *testing.T) {
	const n = 1_000_000
	last := 0.0
	for _, k := range []int64{0, 1, 2, 3, 10, 100, 500, 999, 1000, 1001, 1002, 5000, 100_000, 900_000, n - 1, n} {
		got := ViolationBound(n, k, 0.95)
		require.Greater(t, got, last, "violations %d", k)
		require.Greater(t, got, float64(k-1)/n)
		require.LessOrEqual(t, got, 1.0)
		last = got
	}
	for _, k := range []int64{0, 1, 1000, 1001} {
		require.Greater(t, ViolationBound(n, k, 0.95), ViolationBound(2*n, k, 0.95), "more audits, same findings")
		require.Greater(t, ViolationBound(n, k, 0.99), ViolationBound(n, k, 0.95), "more confidence")
		require.Greater(t, PoissonBound(k, 0.95), n*ViolationBound(n, k, 0.95), "as if there were no end of operations")
	}
}

// After that many clean audits the bound is the share; one audit fewer does not do.
func TestAuditsNeeded(t *testing.T) {
	for _, share := range []float64{1e-15, 1e-9, 1e-6, 0.01, 0.3, 0.9, 1} {
		for _, confidence := range []float64{1e-9, 0.5, sure95, sure999999} {
			n := AuditsNeeded(share, confidence)
			require.LessOrEqual(t, ViolationBound(n, 0, confidence), share*(1+1e-14), "%v at %v: %d", share, confidence, n)
			require.GreaterOrEqual(t, DetectProbability(share, n), confidence*(1-1e-14))
			if n > 1 {
				require.GreaterOrEqual(t, ViolationBound(n-1, 0, confidence), share*(1-1e-14), "%v at %v: %d", share, confidence, n)
			}
		}
	}
}

// The chances, request by request.
func TestDetectStale(t *testing.T) {
	for _, clear := range []float64{0.05, 0.5, 1} {
		alive, found := 1.0, 0.0
		for range 1000 {
			m := 1 - math.Pow(1-1./30, 13)
			found += alive * m
			alive *= (1 - m) * (1 - clear)
		}
		require.InEpsilon(t, found, DetectStale(30, 13, clear), 1e-9)
	}
}

func TestBoundsRefuseNonsense(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, confidence := range []float64{0, 1, -0.1, 1.1, 95, nan, inf, -inf} {
		requirePanicIs(t, ErrMisuse, func() { ViolationBound(10, 0, confidence) })
		requirePanicIs(t, ErrMisuse, func() { ViolationBound(0, 0, confidence) })
		requirePanicIs(t, ErrMisuse, func() { Stats{}.ViolationBound(confidence) })
		requirePanicIs(t, ErrMisuse, func() { PoissonBound(0, confidence) })
		requirePanicIs(t, ErrMisuse, func() { AuditsNeeded(0.5, confidence) })
	}
	requirePanicIs(t, ErrMisuse, func() { ViolationBound(-1, 0, 0.95) })
	requirePanicIs(t, ErrMisuse, func() { ViolationBound(10, -1, 0.95) })
	requirePanicIs(t, ErrMisuse, func() { PoissonBound(-1, 0.95) })
	requirePanicIs(t, ErrMisuse, func() { AuditsNeeded(0, 0.95) })
	requirePanicIs(t, ErrMisuse, func() { DetectProbability(0.5, -1) })
	requirePanicIs(t, ErrMisuse, func() { DetectStale(0, 20, 0.5) })
	requirePanicIs(t, ErrMisuse, func() { DetectStale(-1, 20, 0.5) })
	requirePanicIs(t, ErrMisuse, func() { DetectStale(20000, 0, 0.5) })
	for _, p := range []float64{-1e-300, 1.1, nan, inf, -inf} {
		requirePanicIs(t, ErrMisuse, func() { AuditsNeeded(p, 0.95) })
		requirePanicIs(t, ErrMisuse, func() { DetectProbability(p, 10) })
		requirePanicIs(t, ErrMisuse, func() { DetectStale(20000, 20, p) })
	}
}

// FuzzBounds requires of any valid input a result in range that moves the right way.
func FuzzBounds(f *testing.F) {
	for _, n := range []int64{0, 1, 2, 1000, 1e6, 1e12, 1e18, math.MaxInt64} {
		for _, confidence := range []float64{5e-324, 1e-17, 1e-6, 0.5, sure95, sure999999, 1 - 1.0/(1<<53)} {
			f.Add(n, n/2, confidence, 1e-9)
			f.Add(n, int64(3), confidence, 1.0)
			f.Add(n, n-1, confidence, 5e-324)
		}
	}
	f.Fuzz(func(t *testing.T, n, k int64, confidence, share float64) {
		if n < 0 || k < 0 || !(confidence > 0 && confidence < 1) || !(share > 0 && share <= 1) {
			return
		}
		const noise = 1e-9
		bound := ViolationBound(n, k, confidence)
		require.GreaterOrEqual(t, bound, 0.0)
		require.LessOrEqual(t, bound, 1.0)
		mean := PoissonBound(k, confidence)
		require.GreaterOrEqual(t, mean, 0.0)
		require.Less(t, mean, 2*float64(k)+100) // the mean, and far more than 8 times its root
		if confidence >= 0.001 {
			if k < math.MaxInt64 {
				require.LessOrEqual(t, bound, ViolationBound(n, k+1, confidence)*(1+noise), "one more violation")
				require.LessOrEqual(t, mean, PoissonBound(k+1, confidence)*(1+noise), "one more event")
			}
			if n < math.MaxInt64 {
				require.GreaterOrEqual(t, bound, ViolationBound(n+1, k, confidence)*(1-noise), "one more audit")
			}
			if more := confidence + (1-confidence)/2; more < 1 {
				require.LessOrEqual(t, bound, ViolationBound(n, k, more)*(1+noise), "more confidence")
			}
		}
		if confidence >= 0.5 && n > 0 {
			require.GreaterOrEqual(t, bound*(1+noise), min(1, float64(k)/float64(n)), "below what was seen")
		}
		require.GreaterOrEqual(t, AuditsNeeded(share, confidence), int64(1))
		found := DetectProbability(share, n)
		require.GreaterOrEqual(t, found, 0.0)
		require.LessOrEqual(t, found, 1.0)
		every, operations := int(min(n, 1<<30))+1, k/2+1
		found = DetectStale(every, operations, share)
		require.GreaterOrEqual(t, found, 0.0)
		require.LessOrEqual(t, found, 1.0)
		require.LessOrEqual(t, found, DetectStale(every, operations, share/2)*(1+noise), "lives longer")
	})
}
