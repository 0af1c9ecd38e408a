// Fleet walks a fleet of real server processes from Shadow to Watermark and back:
// with a real Prometheus, the rules of deploy/prometheus, and a build that has a
// fault.
//
//	go run ./examples/fleet
//
// It starts the hosts in Shadow, waits for the gate, lets a quarter of the hosts
// run in Watermark, waits for the gate, then all. Then one host gets a build that
// forgets to raise the mark. The violation must be found, the alert must fire, the
// breaker of that host must open, the gate of its build must be -1, and the fleet
// goes back to Shadow. It ends with a report, and with status 1 if anything did
// not happen. It takes about a minute, and installs Prometheus where there is
// none (Debian and its kin, as root).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The demonstration's gate asks for less than the rules of deploy/prometheus do:
// what some processes prove within a minute.
const (
	strictBound = "1e-9"
	demoBound   = "1e-3"
)

// job is the label of the hosts.
const job = "edge"

func main() {
	hosts := flag.Int("hosts", 12, "how many `servers`, 4 to 64")
	rate := flag.Int("rate", 40, "`requests` a second to each host, 1 to 1000")
	every := flag.Int("every", 16, "mean `operations` between audits of a half")
	limit := flag.Duration("limit", 4*time.Minute, "give up after this `time`")
	out := flag.String("out", "", "`directory` for the report; default: a new one for temporary files")
	flag.Parse()
	err := check(*hosts, *rate, *every, flag.Args())
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("not done after %v (-limit)", *limit))
		defer cancel()
		err = demonstrate(ctx, *hosts, *rate, *every, *out)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func check(hosts, rate, every int, rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case hosts < 4 || hosts > 64:
		return fmt.Errorf("-hosts is %d, want 4 to 64", hosts)
	case rate < 1 || rate > 1000:
		return fmt.Errorf("-rate is %d, want 1 to 1000", rate)
	case every < 1 || every > 1<<24:
		return fmt.Errorf("-every is %d, want 1 to %d", every, 1<<24)
	}
	return nil
}

// A demo is one run.
type demo struct {
	module string // the directory of the library
	fleet  *fleet
	prom   *server
	load   load
	good   build
	bad    build
	began  time.Time
	steps  []step // for the report
}

// A step is something that happened, and when.
type step struct {
	at   time.Time
	what string
}

func (d *demo) say(format string, args ...any) {
	s := step{time.Now(), fmt.Sprintf(format, args...)}
	d.steps = append(d.steps, s)
	fmt.Printf("%5.1f s  %s\n", s.at.Sub(d.began).Seconds(), s.what)
}

func demonstrate(ctx context.Context, hosts, rate, every int, out string) (err error) {
	if err := install(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "workspace-fleet-")
	if err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join(dir, "report")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	d := &demo{fleet: &fleet{dir: dir, every: every}, began: time.Now()}
	defer func() {
		if err != nil {
			fmt.Fprintf(os.Stderr, "fleet: logs and files of the run are in %s\n", dir)
			return
		}
		for _, name := range []string{"src", "tsdb", "host-good", "host-bad"} {
			os.RemoveAll(filepath.Join(dir, name))
		}
	}()

	if d.module, err = moduleRoot(ctx); err != nil {
		return err
	}
	d.say("building the host at two revisions, one of them with a fault")
	if d.good, d.bad, err = buildBoth(ctx, d.module, dir); err != nil {
		return err
	}
	if err := errors.Join(d.fleet.set("mode", "shadow"), d.fleet.set("canary", "0")); err != nil {
		return err
	}
	defer d.fleet.stop()
	if err := d.fleet.start(ctx, hosts, d.good); err != nil {
		return err
	}
	if d.prom, err = startPrometheus(ctx, dir, filepath.Join(d.module, "deploy", "prometheus", "rules.yml"), d.fleet.hosts); err != nil {
		return err
	}
	defer d.prom.stop()
	loadCtx, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	for _, h := range d.fleet.hosts {
		go d.load.run(loadCtx, h.addr, rate)
	}
	d.say("%d hosts, %d requests a second, Prometheus at %s", hosts, hosts*rate, d.prom.url)

	if err := d.rollOut(ctx); err != nil {
		return err
	}
	if err := d.injectAndRollBack(ctx); err != nil {
		return err
	}
	if n := d.load.wrong.Load(); n > 0 {
		return fmt.Errorf("%d wrong answers, the first: %s", n, d.load.first)
	}
	d.say("%d answers, each right to the byte; %d requests without an answer while a host restarted", d.load.answers.Load(), d.load.failed.Load())
	name, err := d.report(ctx, out)
	if err != nil {
		return err
	}
	fmt.Println("report:", name)
	return nil
}

// gate is the query for the gate of a build.
func gate(b build) string {
	return fmt.Sprintf("job_revision:workspace_gate{job=%q,revision=%q}", job, b.revision)
}

// inMode counts the hosts whose requests get a mode.
func inMode(mode string) string {
	return fmt.Sprintf("sum(workspace_mode{job=%q,mode=%q})", job, mode)
}

// rollOut goes from Shadow to Watermark, a step each time the gate says 1.
func (d *demo) rollOut(ctx context.Context) error {
	all := float64(len(d.fleet.hosts))
	d.say("all hosts in shadow: waiting for the gate")
	if err := d.await(ctx, inMode("shadow"), all); err != nil {
		return err
	}
	if err := d.await(ctx, gate(d.good), 1); err != nil {
		return err
	}
	bound, _, err := d.prom.value(ctx, fmt.Sprintf("job_revision:workspace_violation_ratio:upper999999_1d{job=%q,revision=%q}", job, d.good.revision))
	if err != nil {
		return err
	}
	d.say("the gate is 1: at most %.1e of the operations violate, at 99.9999 %%", bound)

	// The share of hosts is by hash, so of few hosts it may be none at first.
	if err := d.fleet.set("mode", "watermark"); err != nil {
		return err
	}
	canaries := 0.0
	for share := 2500; canaries == 0; share += 1000 {
		if err := d.fleet.set("canary", fmt.Sprint(min(share, 10_000))); err != nil {
			return err
		}
		time.Sleep(3 * time.Second) // the hosts look twice a second, Prometheus once
		if canaries, _, err = d.prom.value(ctx, inMode("watermark")); err != nil {
			return err
		}
	}
	if canaries == all {
		return fmt.Errorf("all %v hosts are canaries", all)
	}
	d.say("%v of %v hosts are canaries in watermark: waiting for their audits, and the gate", canaries, all)
	audits := fmt.Sprintf(`sum(workspace_audits_total{job=%q,mode="watermark",trigger="sampled"}) > bool 5000`, job)
	if err := d.await(ctx, audits, 1); err != nil {
		return err
	}
	if err := d.await(ctx, gate(d.good), 1); err != nil {
		return err
	}
	if err := d.fleet.set("canary", "10000"); err != nil {
		return err
	}
	if err := d.await(ctx, inMode("watermark"), all); err != nil {
		return err
	}
	d.say("the gate is 1 still: all hosts in watermark")
	if err := sleep(ctx, 15*time.Second); err != nil {
		return err
	}
	return d.await(ctx, gate(d.good), 1)
}

// injectAndRollBack gives one host the build with the fault, and sees to it that all
// is noticed.
func (d *demo) injectAndRollBack(ctx context.Context) error {
	h := d.fleet.hosts[0]
	d.say("%s restarts with the build that has the fault", h.id)
	h.stop()
	if err := d.fleet.run(ctx, h, d.bad); err != nil {
		return err
	}
	on := fmt.Sprintf("{job=%q,instance=%q}", job, h.addr)
	if err := d.await(ctx, "sum(workspace_violations_total"+on+") > bool 0", 1); err != nil {
		return err
	}
	d.say("an audit on %s found a violation", h.id)
	if err := d.await(ctx, "workspace_breaker_open"+on, 1); err != nil {
		return err
	}
	if err := d.await(ctx, `workspace_mode{job="`+job+`",instance="`+h.addr+`",mode="shadow"}`, 1); err != nil {
		return err
	}
	d.say("its breaker is open; its requests run in shadow")
	for _, alert := range []string{"WorkspaceViolation", "WorkspaceBreakerOpen"} {
		for {
			if ok, err := d.prom.firing(ctx, alert, h.addr); err != nil {
				return err
			} else if ok {
				break
			}
			if err := sleep(ctx, time.Second/2); err != nil {
				return fmt.Errorf("waiting for the alert %s: %w", alert, err)
			}
		}
		d.say("the alert %s fires", alert)
	}
	if err := d.await(ctx, gate(d.bad), -1); err != nil {
		return err
	}
	d.say("the gate of its build is -1: the whole fleet goes back to shadow")
	if err := d.fleet.set("mode", "shadow"); err != nil {
		return err
	}
	if err := d.await(ctx, inMode("shadow"), float64(len(d.fleet.hosts))); err != nil {
		return err
	}
	d.say("all hosts in shadow")
	queries, err := d.askPanels(ctx, filepath.Join(d.module, "deploy", "grafana", "dashboard.json"))
	if err != nil {
		return err
	}
	d.say("each of the %d queries of the dashboard has data", queries)

	// The same build comes back with an open breaker, another does not.
	h.stop()
	if err := d.fleet.run(ctx, h, d.bad); err != nil {
		return err
	}
	if err := d.await(ctx, "workspace_breaker_open"+on+" and workspace_breaker_trips_total"+on+" == 0", 1); err != nil {
		return err
	}
	d.say("%s restarts with the same build: its breaker is open from the start", h.id)
	h.stop()
	if err := d.fleet.run(ctx, h, d.good); err != nil {
		return err
	}
	if err := d.await(ctx, "workspace_breaker_open"+on, 0); err != nil {
		return err
	}
	d.say("%s is back at the good build, and its breaker is closed", h.id)
	if err := d.await(ctx, gate(d.good), 1); err != nil {
		return err
	}
	return sleep(ctx, 5*time.Second) // for the charts
}

// await waits until a query has a value.
func (d *demo) await(ctx context.Context, query string, want float64) error {
	var last string
	for {
		v, ok, err := d.prom.value(ctx, query)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s = %v; at last it was %s", query, want, last)
		case err != nil:
			return err
		case ok && v == want:
			return nil
		case ok:
			last = fmt.Sprint(v)
		default:
			last = "nothing"
		}
		sleep(ctx, time.Second/2)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// hastenRules makes the rules that operators use fit a run of minutes: what is a day
// there is half a minute here.
func hastenRules(rules string) string {
	return strings.NewReplacer(
		"[1d])) * 30", "[40s])) * 1", // before the one that it begins with
		"[1d]", "[40s]",
		"[1h]", "[20s]",
		"[5m]", "[10s]",
		"interval: 30s", "interval: 1s",
		"interval: 1m", "interval: 1s",
		strictBound, demoBound,
		"keep_firing_for: 1h", "keep_firing_for: 10s",
	).Replace(rules)
}
