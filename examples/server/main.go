// Server is a small JSON API with its working memory in workspaces: text
// statistics, an echo, a proxying route, a health check and a debug page.
//
//	go run ./examples/server               # serves on 127.0.0.1:8080 until interrupted
//	go run ./examples/server -demo         # sends itself requests in each mode and checks every answer
//
//	curl -d 'to be or not to be' http://127.0.0.1:8080/stats
//	curl -H 'X-Tag: me' -d hello http://127.0.0.1:8080/echo
//	curl -H 'X-Tag: me' -d hello http://127.0.0.1:8080/proxy
//	curl http://127.0.0.1:8080/debug/workspace?format=json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
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
		fmt.Fprintln(os.Stderr, "server: quitting at once")
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

// run is the program; it returns the exit status. It ends early when ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "server:", err)
		return exitUsage
	case o.demo:
		err = newDemo(o, stderr).run(ctx, stdout)
	default:
		err = serve(ctx, o, stderr)
	}
	switch {
	case errors.Is(err, workspace.ErrConfig): // a flag that only the library can judge
		fmt.Fprintln(stderr, "server:", err)
		return exitUsage
	case err != nil:
		fmt.Fprintln(stderr, "server:", err)
		return exitFailed
	}
	return exitOK
}

// options are the flags.
type options struct {
	addr       string
	upstream   string
	maxBody    int64
	mode       workspace.Mode
	canary     float64
	auditEvery int

	demo    bool
	json    bool
	seconds float64
	clients int
}

const (
	demoAuditEvery = 200 // so that a demo of seconds has some audits
	highestMaxBody = 16 << 20
)

// parse reads the flags and refuses what makes no sense.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("server", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.StringVar(&o.addr, "addr", "127.0.0.1:8080", "`address` to listen on")
	fs.StringVar(&o.upstream, "upstream", "", "`URL` that /proxy forwards to (default: /echo of this server)")
	fs.Int64Var(&o.maxBody, "max-body", 1<<20, "largest request body in `bytes`")
	fs.TextVar(&o.mode, "mode", workspace.Shadow, "what to wipe after a request: shadow, watermark or fullclear")
	fs.Float64Var(&o.canary, "canary", 0, "`share` of requests, 0 to 1, that run in watermark while the mode is shadow")
	fs.IntVar(&o.auditEvery, "audit-every", 0, fmt.Sprintf("audit one in `n` operations; negative: none (default %d, with -demo %d)", workspace.DefaultAuditEvery, demoAuditEvery))
	fs.BoolVar(&o.demo, "demo", false, "send requests to itself in each mode, check the answers, and end")
	fs.BoolVar(&o.json, "json", false, "with -demo: print the result as JSON")
	fs.Float64Var(&o.seconds, "seconds", 3, "with -demo: seconds for each mode")
	fs.IntVar(&o.clients, "clients", 8, "with -demo: how many clients send requests at the same time")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "usage: server [flags]")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	if err := o.check(fs); err != nil {
		return o, err
	}
	if o.demo && o.auditEvery == 0 {
		o.auditEvery = demoAuditEvery
	}
	return o, nil
}

// check refuses values out of range, and flags of the demo without -demo and the
// other way round.
func (o options) check(fs *flag.FlagSet) error {
	var err error
	fs.Visit(func(f *flag.Flag) {
		switch {
		case !o.demo && slices.Contains([]string{"json", "seconds", "clients"}, f.Name):
			err = fmt.Errorf("the flag -%s needs -demo", f.Name)
		case o.demo && slices.Contains([]string{"addr", "upstream", "max-body", "mode", "canary"}, f.Name):
			err = fmt.Errorf("the flag -%s does not go with -demo, which chooses by itself", f.Name)
		}
	})
	if err != nil {
		return err
	}
	switch {
	case o.maxBody < 1 || o.maxBody > highestMaxBody:
		return fmt.Errorf("-max-body is %d, want 1 to %d", o.maxBody, highestMaxBody)
	case !(o.seconds > 0 && o.seconds <= 3600):
		return fmt.Errorf("-seconds is %v, want more than 0 and at most 3600", o.seconds)
	case o.clients < 1 || o.clients > 1000:
		return fmt.Errorf("-clients is %d, want 1 to 1000", o.clients)
	}
	return checkUpstream(o.upstream)
}

// shutdownTimeout is how long requests under way may take after a signal.
const shutdownTimeout = 10 * time.Second

// serve serves until ctx is done, then shuts down.
func serve(ctx context.Context, o options, stderr io.Writer) error {
	pool, err := workspace.NewPool(workspace.Config{Name: "api", Mode: o.mode, Canary: o.canary, AuditEvery: o.auditEvery})
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := log.New(stderr, "", log.LstdFlags)
	s := newService(pool, o.maxBody, o.upstream, logger)
	srv, err := start(o.addr, s, s.routes())
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "serving http://%s in mode %s; interrupt to stop\n", srv.addr, o.mode)

	select {
	case err := <-srv.ended:
		return fmt.Errorf("serving ended: %w", err)
	case <-ctx.Done():
	}
	fmt.Fprintf(stderr, "stopping: requests under way have %v; a second signal quits at once\n", shutdownTimeout)
	err = srv.stop(shutdownTimeout)
	st := pool.Stats()
	fmt.Fprintf(stderr, "stopped: %d workspaces, %d audits, %d violations\n", st.Acquired, st.Totals().Audits, st.Violations)
	return err
}
