package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/go-workspace/workspace"
)

// formulas are what the report is made of and the simulation tests.
type formulas struct {
	bound   func(audits, violations int64, confidence float64) float64
	poisson func(events int64, confidence float64) float64
	needed  func(share, confidence float64) int64
	detect  func(p float64, n int64) float64
	stale   func(auditEvery int, operations int64, clear float64) float64
}

var library = formulas{workspace.ViolationBound, workspace.PoissonBound, workspace.AuditsNeeded, workspace.DetectProbability, workspace.DetectStale}

// The times, in seconds, and confidences of the report.
const (
	hour = 3600.0
	day  = 24 * hour

	sure95     = 0.95
	sure999    = 0.999
	sure999999 = 0.999999
)

// A report is what is printed. Times are in seconds.
type report struct {
	options
	Audits  float64     `json:"audits_per_second"`
	PerHost float64     `json:"audits_per_second_per_host"`
	Bounds  []bound     `json:"bounds"`
	Left    perOp       `json:"violating_operations_at_most"` // found or not, in that time
	Detect  []detection `json:"time_to_detect"`
	Canary  []stratum   `json:"canary"`
	Lasting []lasting   `json:"detect_by_operations"`
	Cleared []cleared   `json:"detect_by_clear_share"`

	Simulation *simulation `json:"simulation,omitempty"`
}

// A perOp holds a limit at each of the two confidences.
type perOp struct {
	Sure95     float64 `json:"confidence_0.95"`
	Sure999999 float64 `json:"confidence_0.999999"`
}

// A bound is the upper limit for the share of operations that leave a violation.
type bound struct {
	name   string
	After  float64 `json:"after"`
	Audits int64   `json:"audits"`
	perOp
}

// A detection says when a fault in one of so many operations is found, at 95 %.
type detection struct {
	Share  float64 `json:"share"`
	Audits int64   `json:"audits"`
	Time   float64 `json:"time"`
}

// A stratum is a kind of hosts that is a share of all, such as a processor model.
type stratum struct {
	Share     float64 `json:"share"`
	Hosts95   int64   `json:"hosts_0.95"`  // so many, drawn at random, hold one of the kind
	Hosts999  int64   `json:"hosts_0.999"` //
	DayBound  float64 `json:"bound_there_after_a_day"`
	DayAudits int64   `json:"audits_there_in_a_day"`
}

// A lasting is the chance that a stale byte is found which so many operations can see.
type lasting struct {
	Operations int64   `json:"operations"`
	Chance     float64 `json:"chance"`
}

// A cleared is the chance that a stale byte is found before it goes, when each
// request clears it with that chance.
type cleared struct {
	Clear  float64 `json:"clear"`
	Chance float64 `json:"chance"`
}

// calculate fills in a report, but for the simulation.
func calculate(o options, f formulas) report {
	r := report{options: o, Audits: o.perSecond(), PerHost: o.Ops / float64(o.Every)}
	for _, x := range []bound{{name: "1 h", After: hour}, {name: "1 d", After: day}, {name: "30 d", After: 30 * day}} {
		x.Audits = int64(r.Audits * x.After)
		x.perOp = perOp{f.bound(x.Audits, o.Violations, sure95), f.bound(x.Audits, o.Violations, sure999999)}
		r.Bounds = append(r.Bounds, x)
	}
	if o.Violations == 0 { // exact: one more would have been found
		rate := 1 / float64(o.Every)
		r.Left = perOp{float64(f.needed(rate, sure95) - 1), float64(f.needed(rate, sure999999) - 1)}
	} else {
		every := float64(o.Every)
		r.Left = perOp{every * f.poisson(o.Violations, sure95), every * f.poisson(o.Violations, sure999999)}
	}
	for _, share := range []float64{1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12} {
		r.Detect = append(r.Detect, detection{share, f.needed(share, sure95), f.poisson(0, sure95) / (r.Audits * share)})
	}
	for _, share := range []float64{0.1, 0.05, 0.01, 0.001} {
		n := int64(r.Audits * day * share)
		r.Canary = append(r.Canary, stratum{share, f.needed(share, sure95), f.needed(share, sure999), f.bound(n, 0, sure95), n})
	}
	for _, n := range []int64{1, 10, 100, 1000, 10_000, 100_000} {
		r.Lasting = append(r.Lasting, lasting{n, f.detect(1/float64(o.Every), n)})
	}
	for _, clear := range []float64{1, 0.1, 0.01, 0.001, 0.0001} {
		r.Cleared = append(r.Cleared, cleared{clear, f.stale(o.Every, o.Request, clear)})
	}
	return r
}

// print writes the report as text or as one JSON object.
func (r report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	var b strings.Builder
	r.text(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r report) text(b *strings.Builder) {
	fmt.Fprintf(b, "%d hosts with %s operations/s each, 1 in %d audited: %s audits/s, %s on each host.\n", r.Hosts, number(r.Ops), r.Every, number(r.Audits), number(r.PerHost))

	fmt.Fprintf(b, "\nWith %d violations found, the share of operations that leave one is at most:\n", r.Violations)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "after\taudits\tat 95 %\tat 99.9999 %\t")
	for _, x := range r.Bounds {
		fmt.Fprintf(t, "%s\t%.3g\t%.2g\t%.2g\t\n", x.name, float64(x.Audits), x.Sure95, x.Sure999999)
	}
	t.Flush()
	fmt.Fprintf(b, "Whatever the traffic, at most %.0f operations left one at 95 %%, and %.0f at 99.9999 %%.\n", r.Left.Sure95, r.Left.Sure999999)

	fmt.Fprint(b, "\nA fault in this share of operations is found, at 95 %, within:\n")
	fmt.Fprintln(t, "share\taudits\ttime\t")
	for _, x := range r.Detect {
		fmt.Fprintf(t, "%.0e\t%.3g\t%s\t\n", x.Share, float64(x.Audits), span(x.Time))
	}
	t.Flush()

	fmt.Fprint(b, "\nA kind of hosts that is this share of all is among so many canaries, drawn at random. A bug that only\nthey have is bounded by their own audits: the last column, with none found.\n")
	fmt.Fprintln(t, "share\thosts, 95 %\thosts, 99.9 %\tbound there after 1 d, 95 %\t")
	for _, x := range r.Canary {
		fmt.Fprintf(t, "%g %%\t%s\t%s\t%.2g\t\n", x.Share*100, r.hosts(x.Hosts95), r.hosts(x.Hosts999), x.DayBound)
	}
	t.Flush()

	fmt.Fprint(b, "\nA single stale byte is found with this chance, if it can be seen for\n")
	fmt.Fprint(t, "operations\t")
	for _, x := range r.Lasting {
		fmt.Fprintf(t, "%d\t", x.Operations)
	}
	fmt.Fprint(t, "\nchance\t")
	for _, x := range r.Lasting {
		fmt.Fprintf(t, "%.2g\t", x.Chance)
	}
	fmt.Fprintln(t)
	t.Flush()
	fmt.Fprintf(b, "and with this one, if requests of %d operations clear it with the chance\n", r.Request)
	fmt.Fprint(t, "cleared\t")
	for _, x := range r.Cleared {
		fmt.Fprintf(t, "%g\t", x.Clear)
	}
	fmt.Fprint(t, "\nfound first\t")
	for _, x := range r.Cleared {
		fmt.Fprintf(t, "%.2g\t", x.Chance)
	}
	fmt.Fprintln(t)
	t.Flush()
	if r.Simulation != nil {
		r.Simulation.text(b)
	}
}

// hosts is a number of hosts, unless there are fewer.
func (r report) hosts(n int64) string {
	if n > int64(r.Hosts) {
		return "all"
	}
	return fmt.Sprint(n)
}

// number prints whole numbers as such, others with three digits.
func number(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.3g", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// span prints seconds in the unit in which they are easy to read.
func span(seconds float64) string {
	for _, u := range []struct {
		name          string
		seconds, upTo float64
	}{{"s", 1, 90}, {"min", 60, 90 * 60}, {"h", hour, 48 * hour}, {"d", day, 700 * day}, {"y", 365.25 * day, 1e300}} {
		if x := seconds / u.seconds; seconds < u.upTo {
			if x < 9.95 {
				return fmt.Sprintf("%.2g %s", x, u.name)
			}
			return fmt.Sprintf("%.0f %s", x, u.name)
		}
	}
	return "never"
}
