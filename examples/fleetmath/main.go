// Fleetmath says what sampled audits on a fleet prove, and after how long.
//
//	go run ./examples/fleetmath -hosts 5000 -ops 4e6 -every 20000
//	go run ./examples/fleetmath -simulate    # also tries the formulas out with random numbers
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/go-workspace/workspace"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, library)) }

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // the simulation contradicts a formula
	exitUsage  = 2
)

// options are the flags.
type options struct {
	Hosts      int     `json:"hosts"`
	Ops        float64 `json:"ops"`
	Every      int     `json:"every"`
	Request    int64   `json:"request"`
	Violations int64   `json:"violations"`

	simulate bool
	runs     int
	seed     uint64
	json     bool
}

// run is the program; it returns the exit status. f is library but in tests.
func run(args []string, stdout, stderr io.Writer, f formulas) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "fleetmath:", err)
		return exitUsage
	}
	r := calculate(o, f)
	if o.simulate {
		r.Simulation = simulate(f, o.runs, o.seed)
	}
	if err := r.print(stdout, o.json); err != nil {
		fmt.Fprintln(stderr, "fleetmath:", err)
		return exitFailed
	}
	if s := r.Simulation; s != nil && s.Contradicted > 0 {
		fmt.Fprintf(stderr, "fleetmath: the simulation contradicts %d of %d formulas\n", s.Contradicted, len(s.Checks))
		return exitFailed
	}
	return exitOK
}

// parse reads the flags and refuses what makes no sense.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("fleetmath", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.IntVar(&o.Hosts, "hosts", 5000, "`number` of hosts")
	fs.Float64Var(&o.Ops, "ops", 1e5, "`operations` per second on each host, as HalfStats.Ops counts them: allocations, rewinds, releases and so on")
	fs.IntVar(&o.Every, "every", workspace.DefaultAuditEvery, "Config.AuditEvery: one in `n` operations is audited")
	fs.Int64Var(&o.Request, "request", 20, "`operations` that a request makes on one half")
	fs.Int64Var(&o.Violations, "violations", 0, "`number` of violations found in the time for which the bound is asked")
	fs.BoolVar(&o.simulate, "simulate", false, "compare the formulas with simulations; exit status 1 if they differ")
	fs.IntVar(&o.runs, "runs", 200_000, "with -simulate: `runs` of each simulation")
	fs.Uint64Var(&o.seed, "seed", 1, "with -simulate: `seed` of the random numbers")
	fs.BoolVar(&o.json, "json", false, "print the result as JSON; times in seconds")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "usage: fleetmath [flags]")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	var err error
	fs.Visit(func(f *flag.Flag) {
		if !o.simulate && (f.Name == "runs" || f.Name == "seed") {
			err = fmt.Errorf("the flag -%s needs -simulate", f.Name)
		}
	})
	switch {
	case err != nil:
		return o, err
	case o.Hosts < 1 || o.Hosts > 1e7:
		return o, fmt.Errorf("-hosts is %d, want 1 to 10000000", o.Hosts)
	case !(o.Ops > 0 && o.Ops <= 1e9):
		return o, fmt.Errorf("-ops is %v, want more than 0 and at most 1e9 a second", o.Ops)
	case o.Every < 1 || o.Every > 1<<24:
		return o, fmt.Errorf("-every is %d, want 1 to %d", o.Every, 1<<24)
	case o.Request < 1 || o.Request > 1e9:
		return o, fmt.Errorf("-request is %d, want 1 to 1000000000", o.Request)
	case o.Violations < 0:
		return o, fmt.Errorf("-violations is %d, want 0 or more", o.Violations)
	case o.runs < 1000 || o.runs > 1e8:
		return o, fmt.Errorf("-runs is %d, want 1000 to 100000000", o.runs)
	case o.perSecond()*30*day >= math.MaxInt64:
		return o, fmt.Errorf("-hosts %d, -ops %v and -every %d are %.2g audits in 30 days, want less than %.2g", o.Hosts, o.Ops, o.Every, o.perSecond()*30*day, math.MaxInt64*1.)
	}
	return o, nil
}

// perSecond is the number of audits per second in the fleet.
func (o options) perSecond() float64 { return float64(o.Hosts) * o.Ops / float64(o.Every) }
