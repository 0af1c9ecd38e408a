package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"

	"github.com/go-workspace/workspace"
)

// A simulation is what came out beside what the formulas say.
type simulation struct {
	Seed         uint64  `json:"seed"`
	Checks       []check `json:"checks"`
	Contradicted int     `json:"contradicted"`
}

// A check compares a formula with the share of runs in which something happened.
type check struct {
	Name    string  `json:"name"`
	Formula float64 `json:"formula"`
	AtMost  bool    `json:"at_most"` // the formula is an upper limit
	Runs    int     `json:"runs"`
	Hits    int     `json:"hits"`
	Share   float64 `json:"share"`
	Low     float64 `json:"low"`  // the true share lies between low
	High    float64 `json:"high"` // and high, in 99.99 % of cases
	OK      bool    `json:"ok"`
}

// Parameters of the simulations: each event is frequent enough to count.
const (
	truth       = 0.01 // share of operations that leave a violation
	every       = 20_000
	request     = 20 // operations of a request
	clearChance = 0.01
	fleet       = 5000 // hosts
	special     = 5    // of one kind
)

// simulate tries each formula out.
func simulate(f formulas, runs int, seed uint64) *simulation {
	s := &simulation{Seed: seed}
	try := func(name string, formula float64, atMost bool, happens func(*rand.Rand) bool) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(s.Checks))))
		c := check{Name: name, Formula: formula, AtMost: atMost, Runs: runs}
		for range runs {
			if happens(rng) {
				c.Hits++
			}
		}
		c.Share = float64(c.Hits) / float64(runs)
		c.Low, c.High = wilson(float64(c.Hits), float64(runs))
		c.OK = c.Low <= formula && (atMost || formula <= c.High)
		if !c.OK {
			s.Contradicted++
		}
		s.Checks = append(s.Checks, c)
	}

	// Audits go on until one finds something; after each clean one somebody reads the
	// bound. It is false when it is below the truth.
	var bounds [1000]float64
	for n := range bounds {
		bounds[n] = f.bound(int64(n), 0, sure95)
	}
	try("95 % zero-hit bound ever false, read after each audit", 1-f.detect(truth, f.needed(truth, sure95)), false, func(rng *rand.Rand) bool {
		for n := 1; n < len(bounds); n++ {
			if rng.Float64() < truth {
				return false
			}
			if bounds[n] < truth {
				return true
			}
		}
		return false
	})

	// A limit at one moment is below the truth for the numbers that are so low that
	// all of them together, by the sum of their chances, have no more than 5 %.
	const audits = 2000
	const mean = audits * truth
	var limits, means [audits + 1]float64
	for k := range limits {
		limits[k], means[k] = f.bound(audits, int64(k), sure95), f.poisson(int64(k), sure95)
	}
	odds := truth / (1 - truth)
	atMost5 := lowTail(math.Pow(1-truth, audits), func(k float64) float64 { return (audits - k + 1) / k * odds })
	try("95 % bound false after 2000 audits, any number found", atMost5, false, func(rng *rand.Rand) bool {
		k := 0
		for at := gap(rng, truth); at <= audits; at += gap(rng, truth) {
			k++
		}
		return limits[k] < truth
	})
	atMost5 = lowTail(math.Exp(-mean), func(k float64) float64 { return mean / k })
	try("95 % Poisson bound false, 20 events expected", atMost5, false, func(rng *rand.Rand) bool {
		k := 0
		for at := rng.ExpFloat64(); at <= mean; at += rng.ExpFloat64() {
			k++
		}
		return means[k] < mean
	})

	try("100 audits find a fault in 1 % of operations", f.detect(truth, 100), false, func(rng *rand.Rand) bool {
		for range 100 {
			if rng.Float64() < truth {
				return true
			}
		}
		return false
	})
	for _, lasts := range []int{1000, every} {
		try(fmt.Sprintf("1 in 20000 finds a byte that %d operations can see", lasts), f.detect(1./every, int64(lasts)), false, func(rng *rand.Rand) bool {
			at := 0
			for at <= 3*every { // audits were running long before
				at += gap(rng, 1./every)
			}
			return at <= 3*every+lasts
		})
	}
	try("1 in 20000 finds a byte before 1 % of requests clear it", f.stale(every, request, clearChance), false, func(rng *rand.Rand) bool {
		for at := gap(rng, 1./every); ; at -= request {
			if at <= request {
				return true
			}
			if rng.Float64() < clearChance {
				return false
			}
		}
	})

	// A fault shows at one of the 20 operations of each request, for 20,000 requests. A
	// counter comes back to the same operation of a request each time.
	meets := func(next func(*rand.Rand) int) func(*rand.Rand) bool {
		return func(rng *rand.Rand) bool {
			fault := rng.IntN(request)
			for at := next(rng); at <= every*request; at += next(rng) {
				if at%request == fault {
					return true
				}
			}
			return false
		}
	}
	try("geometric gaps find a fault at 1 operation of 20", f.detect(1./every, every), false, meets(func(rng *rand.Rand) int { return gap(rng, 1./every) }))
	try("each 20000th finds it, from a random start: 1 in 20", 1./request, false, func(rng *rand.Rand) bool {
		step := 0
		return meets(func(rng *rand.Rand) int {
			if step == 0 {
				step = every
				return 1 + rng.IntN(every)
			}
			return step
		})(rng)
	})

	canaries := f.needed(0.01, sure95)
	try(fmt.Sprintf("%d random canaries hold a kind that is 1 %% of hosts", canaries), f.detect(0.01, canaries), false, func(rng *rand.Rand) bool {
		for range canaries {
			if rng.Float64() < 0.01 {
				return true
			}
		}
		return false
	})
	try("no fewer of them would do, at most", sure95, true, func(rng *rand.Rand) bool {
		for range canaries - 1 {
			if rng.Float64() < 0.01 {
				return true
			}
		}
		return false
	})
	try("a HostCanary of 1 % holds one of 5 hosts", f.detect(0.01, special), false, func(rng *rand.Rand) bool {
		c := workspace.HostCanary{BasisPoints: 100, Salt: fmt.Sprint(rng.Uint64())}
		for i := range special {
			c.HostID = fmt.Sprint("host ", i)
			if c.Includes("api") {
				return true
			}
		}
		return false
	})
	return s
}

// lowTail sums the chances of 0, 1, 2 ... while the sum is at most 5 %; that of k is
// ratio(k) times the one before.
func lowTail(term float64, ratio func(k float64) float64) (sum float64) {
	for k := 1.0; sum+term <= 1-sure95; k++ {
		sum += term
		term *= ratio(k)
	}
	return sum
}

// gap draws how many trials there are to the next success, that one included.
func gap(rng *rand.Rand, p float64) int {
	return 1 + int(math.Log(1-rng.Float64())/math.Log1p(-p))
}

// wilson returns the limits between which the chance of a hit lies in 99.99 % of
// cases. It uses none of the formulas that are tried out.
func wilson(hits, runs float64) (low, high float64) {
	const z = 3.8906
	share := hits / runs
	middle := share + z*z/(2*runs)
	half := z * math.Sqrt(share*(1-share)/runs+z*z/(4*runs*runs))
	return (middle - half) / (1 + z*z/runs), (middle + half) / (1 + z*z/runs)
}

func (s *simulation) text(b *strings.Builder) {
	fmt.Fprintf(b, "\nSimulated with the seed %d, %d runs each; the last column holds the true share in 99.99 %% of cases.\n", s.Seed, s.Checks[0].Runs)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tformula\tsimulated\tinterval\t")
	for _, c := range s.Checks {
		verdict := ""
		if !c.OK {
			verdict = "CONTRADICTED"
		}
		fmt.Fprintf(t, "%s\t%.4f\t%.4f\t%.4f to %.4f\t%s\n", c.Name, c.Formula, c.Share, c.Low, c.High, verdict)
	}
	t.Flush()
}
