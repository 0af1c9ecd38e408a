// Command table reads the output of go test -bench and prints markdown tables of
// medians.
//
//	go test -run '^$' -bench Request -count 10 . | go run ./table -columns bytes
//
// Where a benchmark reports the metric "zeroed", as the comparison of peers
// does, times are followed by their ratio to the fastest peer with zeroed 1, the
// library itself (-ours) left out.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/exp/stats"
	"golang.org/x/perf/benchfmt"
)

func main() {
	log.SetFlags(0)
	columns := flag.String("columns", "", "`key` of the part of the name that becomes columns, such as bytes; only times are shown then")
	ours := flag.String("ours", "workspace", "`prefix` of the peer= names that are the library itself")
	flag.Float64Var(&quantile, "quantile", 0.5, "which `quantile` of the runs to show; a low one sees past the load of a busy machine")
	flag.Parse()
	benches, err := read(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	if *columns != "" {
		matrix(os.Stdout, benches, *columns, *ours)
	} else {
		list(os.Stdout, benches, *ours)
	}
}

// A bench is one benchmark with the values of all its runs.
type bench struct {
	base   string   // BenchmarkX without "Benchmark"
	parts  []string // "bytes=4KB", "peer=make", "-2"
	units  []string // in the order of the output
	values map[string][]float64
}

// read collects the results by name, in the order in which names come first.
func read(r io.Reader) ([]*bench, error) {
	var benches []*bench
	byName := map[string]*bench{}
	in := benchfmt.NewReader(r, "stdin")
	for in.Scan() {
		switch rec := in.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, rec
		case *benchfmt.Result:
			b := byName[string(rec.Name)]
			if b == nil {
				base, parts := rec.Name.Parts()
				b = &bench{base: string(base), values: map[string][]float64{}}
				for _, p := range parts {
					b.parts = append(b.parts, strings.TrimPrefix(string(p), "/"))
				}
				byName[string(rec.Name)] = b
				benches = append(benches, b)
			}
			for _, v := range rec.Values {
				unit, value := v.Unit, v.Value
				if v.OrigUnit != "" { // ns/op was made sec/op
					unit, value = v.OrigUnit, v.OrigValue
				}
				if !slices.Contains(b.units, unit) {
					b.units = append(b.units, unit)
				}
				b.values[unit] = append(b.values[unit], value)
			}
		}
	}
	if in.Err() == nil && len(benches) == 0 {
		return nil, fmt.Errorf("no benchmark results in the input")
	}
	return benches, in.Err()
}

const (
	timeUnit = "ns/op"
	zeroed   = "zeroed"
)

var quantile = 0.5

// typical is the median, or the quantile asked for.
func (b *bench) typical(unit string) float64 {
	if len(b.values[unit]) == 0 {
		return math.NaN()
	}
	q := quantile
	if unit == "MB/s" {
		q = 1 - q // more is better there
	}
	return stats.Quantiles(b.values[unit], q)[0]
}

// spread is half the distance between the quartiles, as a share of the median.
func (b *bench) spread(unit string) float64 {
	q := stats.Quantiles(b.values[unit], 0.25, 0.5, 0.75)
	return (q[2] - q[0]) / 2 / q[1]
}

// without returns the name without the parts that have one of these keys.
func (b *bench) without(keys ...string) string {
	rest := slices.DeleteFunc(slices.Clone(b.parts), func(p string) bool {
		k, _, _ := strings.Cut(p, "=")
		return slices.Contains(keys, k)
	})
	return strings.Join(rest, " ")
}

func (b *bench) part(key string) string {
	for _, p := range b.parts {
		if k, v, _ := strings.Cut(p, "="); k == key {
			return v
		}
	}
	return ""
}

// ratio is the time of b over that of the best peer that keeps the promise of
// zeroed memory at the same work. ok is false where there is none.
func ratio(benches []*bench, b *bench, ours string) (r float64, ok bool) {
	best := math.Inf(1)
	for _, o := range benches {
		if o.base == b.base && o.without("peer") == b.without("peer") &&
			o.typical(zeroed) == 1 && !strings.HasPrefix(o.part("peer"), ours) {
			best = min(best, o.typical(timeUnit))
		}
	}
	return b.typical(timeUnit) / best, !math.IsInf(best, 1)
}

// groups splits benches by base name, in order.
func groups(benches []*bench) [][]*bench {
	var out [][]*bench
	at := map[string]int{}
	for _, b := range benches {
		i, known := at[b.base]
		if !known {
			i = len(out)
			at[b.base] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], b)
	}
	return out
}

// list prints a table for each benchmark with a row for each sub-benchmark.
func list(w io.Writer, benches []*bench, ours string) {
	for _, group := range groups(benches) {
		var units []string
		for _, b := range group {
			for _, u := range b.units {
				if u != timeUnit && !slices.Contains(units, u) {
					units = append(units, u)
				}
			}
		}
		fmt.Fprintf(w, "| %s | %s | ± |", group[0].base, timeUnit)
		hasRatio := slices.Contains(units, zeroed)
		if hasRatio {
			fmt.Fprint(w, " ratio |")
		}
		for _, u := range units {
			fmt.Fprintf(w, " %s |", u)
		}
		fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", 2+len(units)+btoi(hasRatio)))
		for _, b := range group {
			fmt.Fprintf(w, "| %s | %s | %.0f%% |", cmp.Or(b.without(), "-"), number(b.typical(timeUnit)), 100*b.spread(timeUnit))
			if hasRatio {
				r, ok := ratio(benches, b, ours)
				fmt.Fprintf(w, " %s |", times(r, ok))
			}
			for _, u := range units {
				fmt.Fprintf(w, " %s |", number(b.typical(u)))
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w)
	}
}

// matrix prints a table of times for each benchmark, with a column for each
// value that the key has in the names.
func matrix(w io.Writer, benches []*bench, key, ours string) {
	for _, group := range groups(benches) {
		var columns, rows []string
		cell := map[[2]string]*bench{}
		for _, b := range group {
			row, column := b.without(key), b.part(key)
			if !slices.Contains(columns, column) {
				columns = append(columns, column)
			}
			if !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
			cell[[2]string{row, column}] = b
		}
		hasZeroed := slices.Contains(group[0].units, zeroed)
		fmt.Fprintf(w, "| %s |", group[0].base)
		if hasZeroed {
			fmt.Fprint(w, " zeroed |")
		}
		for _, c := range columns {
			fmt.Fprintf(w, " %s, %s |", cmp.Or(c, "-"), timeUnit)
		}
		fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(columns)+btoi(hasZeroed)))
		for _, row := range rows {
			fmt.Fprintf(w, "| %s |", cmp.Or(row, "-"))
			if hasZeroed {
				word := "no"
				for _, c := range columns {
					if b := cell[[2]string{row, c}]; b != nil && b.typical(zeroed) == 1 {
						word = "yes"
					}
				}
				fmt.Fprintf(w, " %s |", word)
			}
			for _, c := range columns {
				b := cell[[2]string{row, c}]
				if b == nil {
					fmt.Fprint(w, " |")
					continue
				}
				fmt.Fprintf(w, " %s ±%.0f%%", number(b.typical(timeUnit)), 100*b.spread(timeUnit))
				if r, ok := ratio(benches, b, ours); ok {
					fmt.Fprintf(w, " (%s)", times(r, ok))
				}
				fmt.Fprint(w, " |")
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w)
	}
}

func times(r float64, ok bool) string {
	if !ok {
		return ""
	}
	return fmt.Sprintf("x%.2f", r)
}

// number prints three significant digits, and no fewer than the integer part has.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case v == math.Trunc(v) || math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
