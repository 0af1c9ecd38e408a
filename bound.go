package workspace

import (
	"fmt"
	"math"
)

// ViolationBound returns the exact (Clopper-Pearson) upper confidence limit for
// the probability that an operation leaves a violation, when sampled audits of
// that many operations found that many. Violations found by forced audits may
// be counted too; that only raises the limit. No audits bound nothing, nor do
// audits that all found something: 1.
//
// While there are no violations the limit may be read at any moment, as often as
// one likes: the chance that it is ever below the truth stays 1-confidence. Once
// there is one, that holds only for a moment that was chosen before.
//
// The limit is about operations like those that were audited: where a bug needs
// some processor or route that makes up the share s of them, divide by s. Zero
// violations never mean zero leaks: see [AuditsNeeded].
//
// It panics unless 0 < confidence < 1 and neither count is negative.
func ViolationBound(audits, violations int64, confidence float64) float64 {
	if !(confidence > 0 && confidence < 1) || audits < 0 || violations < 0 {
		panic(fmt.Errorf("%w: ViolationBound(%d, %d, %v)", ErrMisuse, audits, violations, confidence))
	}
	if violations >= audits {
		return 1
	}
	return upperLimit(float64(violations), float64(audits-violations), confidence)
}

// PoissonBound returns the exact (Garwood) upper confidence limit for the mean of
// a Poisson variable that came out as events. Divided by any exposure (seconds,
// bytes, audits) it limits the rate of what was counted there. Times AuditEvery it
// limits, on the safe side, how many operations left a violation, found or not,
// when sampled audits found that many.
//
// PoissonBound(0, confidence)/rate is the time within which something that happens
// at that rate happens with that confidence.
//
// It panics unless 0 < confidence < 1 and events is not negative.
func PoissonBound(events int64, confidence float64) float64 {
	if !(confidence > 0 && confidence < 1) || events < 0 {
		panic(fmt.Errorf("%w: PoissonBound(%d, %v)", ErrMisuse, events, confidence))
	}
	const trials = 1e40 // so many that floats can't tell the binomial from the Poisson distribution
	return trials * upperLimit(float64(events), trials, confidence)
}

// AuditsNeeded returns the number of audits that, if all are clean, show at that
// confidence that at most the share of all operations leave a violation; it is
// also the number within which a fault in that share is found. More than an int64
// holds come out as math.MaxInt64.
//
// With share = 1/AuditEvery it is a number of operations: if so many, of all that
// there were, had left a violation, sampled audits would have found one, no matter
// how many others there were and how these were spread. With one in 20,000
// audited, zero violations exclude 59,914 at 95 %, not fewer.
//
// It panics unless 0 < share <= 1 and 0 < confidence < 1.
func AuditsNeeded(share, confidence float64) int64 {
	if !(share > 0 && share <= 1) || !(confidence > 0 && confidence < 1) {
		panic(fmt.Errorf("%w: AuditsNeeded(%v, %v)", ErrMisuse, share, confidence))
	}
	n := math.Ceil(needed(share, confidence))
	if n >= math.MaxInt64 {
		return math.MaxInt64
	}
	return max(1, int64(n))
}

// needed is the n, not rounded, at which (1-share)^n is 1-confidence.
func needed(share, confidence float64) float64 {
	return math.Log1p(-confidence) / math.Log1p(-share)
}

// DetectProbability returns the chance that at least one of n independent trials
// succeeds, each of which does with probability p. It is the chance that n audits
// find a fault in the share p of operations; and with p = 1/AuditEvery, that audits
// find a violation that n operations can see.
//
// It panics unless 0 <= p <= 1 and n is not negative.
func DetectProbability(p float64, n int64) float64 {
	if !(p >= 0 && p <= 1) || n < 0 {
		panic(fmt.Errorf("%w: DetectProbability(%v, %d)", ErrMisuse, p, n))
	}
	if n == 0 {
		return 0
	}
	return -math.Expm1(float64(n) * math.Log1p(-p))
}

// DetectStale returns the chance that audits of one operation in auditEvery find a
// stale byte before it is gone, when each request makes that many operations which
// can see it, and at the end of each it is wiped with the chance clear: the share of
// requests whose mark reaches so far. Such a request would also have been
// handed the byte, so this is the chance that an audit comes first.
//
// It panics unless auditEvery and operations are 1 or more and 0 <= clear <= 1.
func DetectStale(auditEvery int, operations int64, clear float64) float64 {
	if auditEvery < 1 || operations < 1 || !(clear >= 0 && clear <= 1) {
		panic(fmt.Errorf("%w: DetectStale(%d, %d, %v)", ErrMisuse, auditEvery, operations, clear))
	}
	m := DetectProbability(1/float64(auditEvery), operations) // within one request
	return m / (m + (1-m)*clear)                              // the sum of m ((1-m)(1-clear))^i
}

// upperLimit returns the p at which k or fewer successes in k+rest trials have the
// probability 1-confidence, with a relative error of less than 1e-9. When k > 0, a
// confidence below 0.1 % counts as 0.1 %: too high a limit, but log F is too near 0
// to tell.
//
// The probability F falls with p, and log F is concave: 1-F is the distribution
// function of a Beta variable, whose density has a concave logarithm. So Newton's
// steps on log F, of which the first may go too far to the right, never do so to
// the left, from any start. F and its slope come from one sum: F is
// f(k) + f(k-1) + ... = f(k) S, where f(k-i) is f(k-i+1) times
// (k-i+1)/(rest+i) (1-p)/p, and dF/dp is -f(k) rest/(1-p).
func upperLimit(k, rest, confidence float64) float64 {
	n := k + rest
	if k == 0 {
		return -math.Expm1(math.Log1p(-confidence) / n) // (1-p)^n is 1-confidence
	}
	confidence = max(confidence, 0.001)
	switch {
	case rest < 1e-10*n:
		return 1 // the limit is no lower than k/n
	case min(k, rest) > maxSummed:
		return normalLimit(k, rest, confidence)
	}
	// f(k) at its highest, where p is k/n, by Stirling's formula.
	peak := stirling(n) - stirling(k) - stirling(rest) - math.Log(2*math.Pi*k*(rest/n))/2
	p := (k + 1) / (n + 1)
	for range 100 {
		s, term := 1.0, 1.0
		for i := 1.0; i <= k && term > 1e-17*s; i++ {
			term *= (k - i + 1) / (rest + i) * (1 - p) / p
			s += term
		}
		d := n*p - k
		logF := peak + k*math.Log1p(d/k) + rest*math.Log1p(-d/rest) + math.Log(s)
		next := min(p+(logF-math.Log1p(-confidence))*s*(1-p)/rest, (1+p)/2)
		if math.Abs(next-p) <= 1e-15*p {
			return next
		}
		p = next
	}
	return p
}

// maxSummed keeps upperLimit below some 10 ms; from here on, normalLimit is as good.
const maxSummed = 1e7

// stirling returns how much log x! is above Stirling's formula
// (x + 1/2) log x - x + log(2 pi)/2, for x > 0.
func stirling(x float64) float64 {
	if x < 32 {
		lg, _ := math.Lgamma(x + 1)
		return lg - (x+0.5)*math.Log(x) + x - math.Log(2*math.Pi)/2
	}
	return (1 - (1-2/(7*x*x))/(30*x*x)) / (12 * x)
}

// normalLimit is upperLimit where k and rest are so large that the Beta
// distribution of k+1 and rest is nearly normal; what is left of its skewness is
// allowed for (Cornish and Fisher).
func normalLimit(k, rest, confidence float64) float64 {
	a, b := k+1, rest
	z := math.Sqrt2 * math.Erfinv(2*confidence-1)
	sd := math.Sqrt(a / (a + b) * (b / (a + b)) / (a + b + 1))
	skew := 2 * (b - a) / (a + b + 2) * math.Sqrt((a+b+1)/a/b)
	return a/(a+b) + sd*(z+skew*(z*z-1)/6)
}
