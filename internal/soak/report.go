package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-workspace/workspace"
)

// maxListed is how many faults are told in words. All are counted.
const maxListed = 20

// findings collect what must not be. The first one ends the soak.
type findings struct {
	stderr io.Writer
	stop   func()
	start  time.Time

	checked atomic.Int64 // bytes that were looked at
	foreign atomic.Int64 // bytes of another request among them
	stale   atomic.Int64 // pieces in which own bytes were where they should not be

	mu     sync.Mutex // guards the rest, and stderr
	count  int
	listed []string
}

// fault notes one.
func (f *findings) fault(format string, args ...any) {
	s := fmt.Sprintf("after %v: ", time.Since(f.start).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if len(f.listed) < maxListed {
		f.listed = append(f.listed, s)
		fmt.Fprintln(f.stderr, "FAULT", s)
	}
	f.stop()
}

func (f *findings) faults() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// say prints a line of progress.
func (f *findings) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(f.stderr, format+"\n", args...)
}

// A summary is the outcome of a soak.
type summary struct {
	Seconds  float64          `json:"seconds"`
	Seed     uint64           `json:"seed"`
	Mode     string           `json:"mode"`
	Clients  int              `json:"clients"`
	HTTP1    int64            `json:"http1_requests"`
	HTTP2    int64            `json:"http2_requests"`
	Answers1 int64            `json:"http1_answers_right"`
	Answers2 int64            `json:"http2_answers_right"`
	Routes   map[string]int64 `json:"requests_by_route"`
	Troubles map[string]int64 `json:"requests_by_trouble"`
	Modes    map[string]int64 `json:"released_by_mode"`
	Events   map[string]int64 `json:"events"`

	Checked    int64 `json:"bytes_checked"`
	Foreign    int64 `json:"foreign_bytes"`
	Stale      int64 `json:"stale_pieces"`
	Wrong      int64 `json:"wrong_answers"`
	Lost       int64 `json:"requests_without_an_answer"`
	Audits     int64 `json:"audits"`
	Forced     int64 `json:"forced_audits"`
	AuditBytes int64 `json:"audit_bytes"`
	Violations int64 `json:"violations"`
	Expected   int64 `json:"violations_expected"`

	Acquired  int64                `json:"acquired"`
	Released  int64                `json:"released"`
	Abandoned int64                `json:"abandoned"`
	InUse     int64                `json:"in_use"`
	Blockless int64                `json:"blockless"`
	Doubts    workspace.DoubtStats `json:"abandoned_because"`

	GoroutinesBefore int `json:"goroutines_before"`
	GoroutinesAfter  int `json:"goroutines_after"`

	Fuzzed []string `json:"fuzzed,omitempty"`
	Faults int      `json:"faults"`
	Listed []string `json:"first_faults"`
	Passed bool     `json:"passed"`
}

func (k *soak) summary(st workspace.Stats) *summary {
	s, l, t := k.server, k.load, st.Totals()
	modes := map[string]int64{}
	for _, m := range st.Modes {
		modes[m.Mode.String()] = m.Released
	}
	return &summary{
		Seconds: time.Since(k.log.start).Seconds(), Seed: k.opt.seed, Mode: k.opt.mode.String(), Clients: k.opt.clients,
		HTTP1: l.requests[0].Load(), HTTP2: l.requests[1].Load(), Answers1: l.answers[0].Load(), Answers2: l.answers[1].Load(),
		Routes:   l.routes.named(func(i int) string { return route(i).String() }),
		Troubles: l.troubles.named(func(i int) string { return trouble(i).String() }),
		Modes:    modes,
		Events: map[string]int64{
			"answers of TimeoutHandler":          l.timedOut.Load(),
			"handlers cut off by the middleware": s.cutOff.Load(),
			"late uses refused":                  s.lateUses.Load(),
			"Reset":                              s.resets.Load(),
			"mode switches":                      s.switches.Load(),
			"Trim":                               s.trims.Load(),
			"AuditIdle":                          s.audits.Load(),
			"idle blocks audited":                s.idleAudited.Load(),
			"garbage collections asked for":      s.collections.Load(),
			"breaker trips":                      st.BreakerTrips,
			"second releases":                    st.DoubleReleases,
			"overflows":                          t.Overflows,
			"planted faults":                     s.planted.Load(),
		},
		Checked: k.log.checked.Load(), Foreign: k.log.foreign.Load(), Stale: k.log.stale.Load(), Wrong: l.wrong.Load(), Lost: l.lost.Load(),
		Audits: t.Audits, Forced: t.ForcedAudits, AuditBytes: t.AuditBytes, Violations: st.Violations, Expected: s.ledger.openHalves.Load(),
		Acquired: st.Acquired, Released: st.Released, Abandoned: st.Abandoned, InUse: st.InUse, Blockless: st.Blockless, Doubts: st.Doubts,
		GoroutinesBefore: k.goroutines,
	}
}

// print writes the summary as text, or as JSON.
func (r *summary) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-28s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("soak", "%.0f s, %d clients, mode %s, seed %d", r.Seconds, r.Clients, r.Mode, r.Seed)
	line("requests", "%d: HTTP/1.1 %d, HTTP/2 %d", r.HTTP1+r.HTTP2, r.HTTP1, r.HTTP2)
	line("answers right to the byte", "%d: HTTP/1.1 %d, HTTP/2 %d", r.Answers1+r.Answers2, r.Answers1, r.Answers2)
	for _, group := range []struct {
		name string
		m    map[string]int64
	}{{"by route", r.Routes}, {"by trouble", r.Troubles}, {"released by mode", r.Modes}, {"besides", r.Events}} {
		b.WriteString(group.name + "\n")
		var names []string
		for name := range group.m {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Fprintf(&b, "  %-34s %10d\n", name, group.m[name])
		}
	}
	line("bytes checked", "%d", r.Checked)
	line("audits", "%d sampled, %d forced, %d bytes", r.Audits, r.Forced, r.AuditBytes)
	line("violations", "%d, of which %d were planned", r.Violations, r.Expected)
	line("balance", "%d acquired = %d released + %d abandoned + %d in use", r.Acquired, r.Released, r.Abandoned, r.InUse)
	line("abandoned because", "running %d, violation %d, reservation %d, panic %d, upgrade %d, Abandon %d",
		r.Doubts.Running, r.Doubts.Violation, r.Doubts.Reservation, r.Doubts.Panic, r.Doubts.Upgrade, r.Doubts.Abandon)
	line("without a block", "%d", r.Blockless)
	line("goroutines", "%d before, %d after", r.GoroutinesBefore, r.GoroutinesAfter)
	line("foreign bytes", "%d", r.Foreign)
	line("stale or changed pieces", "%d", r.Stale)
	line("wrong answers", "%d", r.Wrong)
	line("without an answer", "%d", r.Lost)
	for _, f := range r.Fuzzed {
		line("fuzzed", "%s", f)
	}
	if r.Passed {
		b.WriteString("PASSED\n")
	} else {
		fmt.Fprintf(&b, "FAILED: %d faults\n", r.Faults)
		for _, f := range r.Listed {
			b.WriteString("  " + f + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// progress prints a line.
func (k *soak) progress() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	st, l := k.server.pool.Stats(), k.load
	if st.Acquired != st.Released+st.Abandoned+st.InUse || st.InUse < 0 {
		k.log.fault("the balance does not hold: %d acquired, %d released, %d abandoned, %d in use", st.Acquired, st.Released, st.Abandoned, st.InUse)
	}
	h1, h2 := l.requests[0].Load(), l.requests[1].Load()
	k.log.say("%6.0f s  %d requests (HTTP/1.1 %d, HTTP/2 %d)  foreign bytes %d  audits %d  violations %d, planned %d  in use %d  goroutines %d  heap %d MB",
		time.Since(k.log.start).Seconds(), h1+h2, h1, h2, k.log.foreign.Load(), st.Totals().Audits, st.Violations, k.server.expected.Load(),
		st.InUse, runtime.NumGoroutine(), m.HeapAlloc>>20)
}
