// Soak sends real HTTP traffic through the library for as long as it is told to,
// makes trouble of all kinds, and looks for bytes of other requests everywhere.
//
//	go run ./internal/soak -for 30m              # with mode switches; interrupt to end early
//	go run ./internal/soak -for 1h -fuzz         # half of the time for the fuzz targets
//	go run ./internal/soak -for 10s -plant       # must fail: a handler's slice is written late
//
// It ends at the first fault. The exit status is 0 when there was none, else 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-workspace/workspace"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "soak: quitting at once")
		os.Exit(exitFailed)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	var r *summary
	if err == nil {
		r, err = runSoak(ctx, o, stderr)
	}
	switch {
	case errors.Is(err, errUsage), errors.Is(err, workspace.ErrConfig):
		fmt.Fprintln(stderr, "soak:", err)
		return exitUsage
	case err == nil:
		err = r.print(stdout, o.json)
	}
	if err != nil {
		fmt.Fprintln(stderr, "soak:", err)
		return exitFailed
	}
	if o.plant != plantNothing && r.Passed {
		fmt.Fprintf(stderr, "soak: %d faults were planted, and none was found\n", r.Events["planted faults"])
	}
	if !r.Passed {
		return exitFailed
	}
	return exitOK
}

var errUsage = errors.New("bad arguments")

// options are the flags.
type options struct {
	duration time.Duration
	clients  int
	seed     uint64
	json     bool
	mode     modeFlag
	audit    int
	plant    plant
	fuzz     bool
}

// soakTime and fuzzTime divide the time.
func (o options) soakTime() time.Duration { return o.duration - o.fuzzTime() }

func (o options) fuzzTime() time.Duration {
	if o.fuzz {
		return o.duration / 2
	}
	return 0
}

const usage = `usage: soak [flags]

Soak sends HTTP/1.1 and HTTP/2 requests, each with a tag of its own, through the
library, makes trouble of all kinds, and looks for bytes of other requests. It
ends at the first fault, with status 1.

  go run ./internal/soak -for 30m
  go run ./internal/soak -for 1h -mode watermark -json
  go run ./internal/soak -for 1h -fuzz
  go run ./internal/soak -for 10s -plant           must fail
  go run ./internal/soak -for 10s -plant=answer    must fail

`

// parse reads the flags and refuses what makes no sense.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.DurationVar(&o.duration, "for", time.Minute, "how long to soak")
	fs.IntVar(&o.clients, "clients", 16, "how many clients send requests at the same time, by turns over HTTP/1.1 and HTTP/2")
	fs.Uint64Var(&o.seed, "seed", 0, "what the random numbers begin with; the order in which requests meet is random all the same (default: drawn)")
	fs.BoolVar(&o.json, "json", false, "print the summary as JSON")
	fs.Var(&o.mode, "mode", "`mode` of the pool: shadow, watermark, fullclear, or mixed, which switches all the time")
	fs.IntVar(&o.audit, "audit", 200, "audit one in `n` operations; negative: none")
	fs.Var(&o.plant, "plant", "plant a `fault`, which the soak must find: late, a slice that is written after the end, or answer, a wrong byte in an answer (-plant alone means late)")
	fs.BoolVar(&o.fuzz, "fuzz", false, "use half of the time to run the fuzz targets of the library, one after the other")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		io.WriteString(stderr, usage)
		fs.SetOutput(stderr)
		fs.PrintDefaults()
		return o, err
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	case o.duration <= 0:
		err = fmt.Errorf("-for is %v, want more than 0", o.duration)
	case o.clients < 1 || o.clients > 1000:
		err = fmt.Errorf("-clients is %d, want 1 to 1000", o.clients)
	}
	if err != nil {
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o, nil
}

// A modeFlag is a mode of the pool, or all of them by turns.
type modeFlag struct{ fixed *workspace.Mode }

func (m *modeFlag) mixed() bool { return m.fixed == nil }

// start is the mode to begin with.
func (m *modeFlag) start() workspace.Mode {
	if m.mixed() {
		return workspace.Watermark
	}
	return *m.fixed
}

func (m *modeFlag) String() string {
	if m.mixed() {
		return "mixed"
	}
	return m.fixed.String()
}

// Set reads the flag.
func (m *modeFlag) Set(s string) error {
	m.fixed = nil
	if s == "mixed" {
		return nil
	}
	m.fixed = new(workspace.Mode)
	return m.fixed.UnmarshalText([]byte(s))
}

// A plant is a fault to make on purpose.
type plant string

const (
	plantNothing plant = ""
	plantLate    plant = "late"
	plantAnswer  plant = "answer"
)

func (p *plant) String() string { return string(*p) }

// IsBoolFlag allows -plant without a value.
func (p *plant) IsBoolFlag() bool { return true }

// Set reads the flag.
func (p *plant) Set(s string) error {
	switch s {
	case "true", string(plantLate):
		*p = plantLate
	case "false":
		*p = plantNothing
	case string(plantAnswer):
		*p = plantAnswer
	default:
		return errors.New("want late or answer")
	}
	return nil
}
