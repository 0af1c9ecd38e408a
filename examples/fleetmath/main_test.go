package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program runs the program. In what it prints a run of spaces is one space, and none
// at the ends of lines.
func program(f formulas, args string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(strings.Fields(args), &out, &errs, f)
	text := regexp.MustCompile(` +`).ReplaceAllString(out.String(), " ")
	return status, regexp.MustCompile(` ?\n ?`).ReplaceAllString(text, "\n"), errs.String()
}

func TestFleets(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"-hosts 1", []string{
			"5 audits/s, 5 on each host",
			"\n1 h 1.8e+04 0.00017 0.00077\n1 d 4.32e+05 6.9e-06 3.2e-05\n30 d 1.3e+07 2.3e-07 1.1e-06\n",
			"\n1e-06 3e+06 6.9 d\n", "\n1e-09 3e+09 19 y\n", "\n1e-12 3e+12 18986 y\n",
			"\n10 % all all 6.9e-05\n",
		}},
		{"-hosts 1000", []string{
			"5000 audits/s, 5 on each host",
			"\n1 h 1.8e+07 1.7e-07 7.7e-07\n1 d 4.32e+08 6.9e-09 3.2e-08\n30 d 1.3e+10 2.3e-10 1.1e-09\n",
			"\n1e-06 3e+06 10 min\n", "\n1e-09 3e+09 6.9 d\n",
		}},
		{"", []string{ // 5000 hosts
			"5000 hosts with 100000 operations/s each, 1 in 20000 audited: 25000 audits/s, 5 on each host.",
			"With 0 violations found",
			"\n1 h 9e+07 3.3e-08 1.5e-07\n1 d 2.16e+09 1.4e-09 6.4e-09\n30 d 6.48e+10 4.6e-11 2.1e-10\n",
			"at most 59913 operations left one at 95 %, and 276303 at 99.9999 %",
			"\n1e-06 3e+06 2 min\n", "\n1e-09 3e+09 33 h\n",
			"\n10 % 29 66 1.4e-08\n5 % 59 135 2.8e-08\n1 % 299 688 1.4e-07\n0.1 % 2995 all 1.4e-06\n",
			"\noperations 1 10 100 1000 10000 100000\nchance 5e-05 0.0005 0.005 0.049 0.39 0.99\n",
			"\ncleared 1 0.1 0.01 0.001 0.0001\nfound first 0.001 0.0099 0.091 0.5 0.91\n",
		}},
		{"-hosts 5000 -ops 4e6 -every 20000", []string{
			"1000000 audits/s, 200 on each host",
			"\n1 h 3.6e+09 8.3e-10 3.8e-09\n1 d 8.64e+10 3.5e-11 1.6e-10\n30 d 2.59e+12 1.2e-12 5.3e-12\n",
			"\n1e-06 3e+06 3 s\n", "\n1e-09 3e+09 50 min\n",
		}},
		{"-hosts 50", []string{"\n1e-09 3e+09 139 d\n"}},
		{"-hosts 50 -every 500", []string{"10000 audits/s, 200 on each host", "\n1e-09 3e+09 3.5 d\n"}},
		{"-hosts 10000", []string{"\n0.1 % 2995 6905 "}},
		{"-request 100", []string{"requests of 100 operations", "\nfound first 0.005 0.048 0.33 "}},
		{"-violations 2", []string{ // 6.29579 and 19.12917, from tables
			"With 2 violations found", "\n1 h 9e+07 7e-08 2.1e-07\n", "at most 125916 operations left one at 95 %, and 382583 at 99.9999 %",
		}},
		{"-violations 9000000000000000000", []string{"\n30 d 6.48e+10 1 1\n"}},
		{"-every 1", []string{"at most 0 operations left one at 95 %, and 0 at", "\nchance 1 1 1 1 1 1\n"}},
		{"-hosts 1 -ops 1e-9", []string{"5e-14 audits/s", "\n1 h 0 1 1\n"}},
	} {
		status, out, errs := program(library, c.args)
		require.Equal(t, exitOK, status, errs)
		require.Empty(t, errs)
		for _, want := range c.want {
			require.Contains(t, out, want, c.args)
		}
		require.NotContains(t, out, "Simulated")
	}
}

// What the README shows is what comes out.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(readme), "`go run ./examples/fleetmath ")
	require.True(t, ok)
	args, section, _ := strings.Cut(section, "`")
	var out bytes.Buffer
	require.Equal(t, exitOK, run(strings.Fields(args), &out, io.Discard, library))
	shown := 0
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "##") {
			break
		}
		if line, indented := strings.CutPrefix(line, "    "); indented {
			require.Contains(t, out.String(), strings.TrimSpace(line))
			shown++
		}
	}
	require.Equal(t, 5, shown)
}

func TestJSON(t *testing.T) {
	status, out, errs := program(library, "-json -simulate -runs 1000 -seed 7")
	require.Equal(t, exitOK, status, errs)
	type number = float64
	type row = map[string]number
	var r struct {
		Hosts, Ops, Every, Request, Violations number

		Audits  number `json:"audits_per_second"`
		PerHost number `json:"audits_per_second_per_host"`
		Bounds  []row
		Left    row   `json:"violating_operations_at_most"`
		Detect  []row `json:"time_to_detect"`
		Canary  []row
		Lasting []row `json:"detect_by_operations"`
		Cleared []row `json:"detect_by_clear_share"`

		Simulation struct {
			Seed, Contradicted number
			Checks             []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, []number{5000, 1e5, 20000, 20, 0, 25000, 5}, []number{r.Hosts, r.Ops, r.Every, r.Request, r.Violations, r.Audits, r.PerHost})
	require.Equal(t, row{"confidence_0.95": 59913, "confidence_0.999999": 276303}, r.Left)
	for _, c := range []struct{ got, want row }{
		{r.Bounds[1], row{"after": 86400, "audits": 2.16e9, "confidence_0.95": 1.3869131e-9, "confidence_0.999999": 6.3960697e-9}},
		{r.Detect[3], row{"share": 1e-9, "audits": 2995732273, "time": 119829.29}},
		{r.Canary[2], row{"share": 0.01, "hosts_0.95": 299, "hosts_0.999": 688, "audits_there_in_a_day": 2.16e7, "bound_there_after_a_day": 1.3869130e-7}},
		{r.Lasting[3], row{"operations": 1000, "chance": 0.04877176}},
		{r.Cleared[2], row{"clear": 0.01, "chance": 0.09095249}},
	} {
		require.Len(t, c.got, len(c.want))
		for key, want := range c.want {
			require.InEpsilon(t, want, c.got[key], 1e-6, key)
		}
	}
	require.Equal(t, []number{7, 0}, []number{r.Simulation.Seed, r.Simulation.Contradicted})
	require.Len(t, r.Simulation.Checks, 12)
	require.ElementsMatch(t, []string{"name", "formula", "at_most", "runs", "hits", "share", "low", "high", "ok"}, slices.Collect(maps.Keys(r.Simulation.Checks[0])))
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args    string
		status  int
		message string
	}{
		{"-h", exitOK, "-hosts number"},
		{"-nonsense", exitUsage, "-nonsense"},
		{"extra", exitUsage, `unexpected argument "extra"`},
		{"-hosts 0", exitUsage, "-hosts is 0, want 1 to"},
		{"-hosts 10000001", exitUsage, "-hosts is 10000001"},
		{"-hosts many", exitUsage, `"many"`},
		{"-ops 0", exitUsage, "-ops is 0, want more than 0"},
		{"-ops -1", exitUsage, "-ops is -1"},
		{"-ops NaN", exitUsage, "-ops is NaN"},
		{"-ops +Inf", exitUsage, "-ops is +Inf"},
		{"-every 0", exitUsage, "-every is 0"},
		{"-every -1", exitUsage, "-every is -1"},
		{"-every 16777217", exitUsage, "-every is 16777217"},
		{"-request 0", exitUsage, "-request is 0"},
		{"-violations -1", exitUsage, "-violations is -1"},
		{"-simulate -runs 999", exitUsage, "-runs is 999"},
		{"-simulate -seed -1", exitUsage, `"-1"`},
		{"-runs 2000", exitUsage, "-runs needs -simulate"},
		{"-seed 1", exitUsage, "-seed needs -simulate"},
		{"-hosts 10000000 -ops 1e9 -every 1", exitUsage, "-hosts 10000000, -ops 1e+09 and -every 1 are 2.6e+22 audits in 30 days"},
	} {
		status, out, errs := program(library, c.args)
		require.Equal(t, c.status, status, c.args)
		require.Contains(t, errs, c.message, c.args)
		require.Empty(t, out, c.args)
	}
}

func TestSimulationAgrees(t *testing.T) {
	first := ""
	for seed := 1; seed <= 3; seed++ {
		status, out, errs := program(library, fmt.Sprint("-simulate -runs 10000 -seed ", seed))
		require.Equal(t, exitOK, status, out+errs)
		require.Contains(t, out, fmt.Sprintf("Simulated with the seed %d, 10000 runs each", seed))
		require.NotContains(t, out, "CONTRADICTED")
		require.NotEqual(t, first, out)
		first = out
	}
	_, again, _ := program(library, "-simulate -runs 10000 -seed 3")
	require.Equal(t, first, again, "the same seed")
}

// A formula that is three tenths off is contradicted, by the simulations that are about it.
func TestSimulationContradictsWrongFormulas(t *testing.T) {
	for _, factor := range []float64{0.7, 1.3} {
		for _, c := range []struct {
			checks []string
			wrong  func(*formulas)
		}{
			{[]string{"95 % zero-hit bound", "95 % bound false after 2000"}, func(f *formulas) {
				f.bound = func(n, k int64, confidence float64) float64 { return factor * library.bound(n, k, confidence) }
			}},
			{[]string{"95 % Poisson bound"}, func(f *formulas) {
				f.poisson = func(k int64, confidence float64) float64 { return factor * library.poisson(k, confidence) }
			}},
			{[]string{"95 % zero-hit bound"}, func(f *formulas) {
				f.needed = func(share, confidence float64) int64 {
					return int64(factor * float64(library.needed(share, confidence)))
				}
			}},
			{[]string{"100 audits find", "1 in 20000 finds a byte that 1000 ", "1 in 20000 finds a byte that 20000 ", "geometric gaps", "299 random canaries", "a HostCanary"}, func(f *formulas) {
				f.detect = func(p float64, n int64) float64 { return factor * library.detect(p, n) }
			}},
			{[]string{"1 in 20000 finds a byte before"}, func(f *formulas) {
				f.stale = func(every int, k int64, clear float64) float64 { return factor * library.stale(every, k, clear) }
			}},
		} {
			f := library
			c.wrong(&f)
			status, out, errs := program(f, "-simulate -runs 10000")
			require.Equal(t, exitFailed, status, "%s, %v", c.checks, factor)
			require.Contains(t, errs, "the simulation contradicts")
			for _, check := range c.checks {
				require.Regexp(t, `(?m)^`+regexp.QuoteMeta(check)+`.* CONTRADICTED$`, out, "%v", factor)
			}
		}
	}
	f := library
	f.needed = func(share, confidence float64) int64 { return library.needed(share, confidence) + 20 }
	_, out, _ := program(f, "-simulate -runs 20000")
	require.Regexp(t, `(?m)^no fewer of them would do.* CONTRADICTED$`, out)
}
