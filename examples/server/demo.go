package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-workspace/workspace"
)

// A demo starts the service on a free port, once in each mode with a pool of its
// own, has clients send it requests over real connections, and checks every
// answer.
type demo struct {
	opt      options
	progress *progress
	tags     atomic.Int64
	wrap     func(*service, http.Handler) http.Handler // tests do damage with it; nil: nothing
}

func newDemo(o options, stderr io.Writer) *demo {
	return &demo{opt: o, progress: newProgress(stderr)}
}

// A result is what the demo found in one mode.
type result struct {
	Name        string  `json:"name"`
	Requests    int64   `json:"requests"` // answered after the warm-up, aborted ones apart
	Rate        float64 `json:"rps"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Wiped       float64 `json:"wiped_bytes_per_request"` // a request that had a workspace
	Saved       float64 `json:"saved_bytes_per_request"` // in Watermark only
	Audits      int64   `json:"audits"`
	Violations  int64   `json:"violations"`
	ForeignTags int64   `json:"foreign_tags"`
	Wrong       int64   `json:"wrong_answers"`

	Failed     int64 `json:"failed_requests"` // no answer, though the client did not give up
	Checked    int64 `json:"checked_answers"` // with the warm-up
	Aborted    int64 `json:"aborted_requests"`
	HTTP2      int64 `json:"http2_answers"`
	Overflows  int64 `json:"overflows"` // halves that were too small
	IdleBlocks int   `json:"idle_blocks_audited"`
	InUse      int64 `json:"in_use_at_end"`
}

// bad says what must not be in a result, or "".
func (r *result) bad() string {
	switch {
	case r.ForeignTags > 0:
		return fmt.Sprintf("LEAK: %d tags of other requests in answers", r.ForeignTags)
	case r.Violations > 0:
		return fmt.Sprintf("%d violations", r.Violations)
	case r.Wrong > 0:
		return fmt.Sprintf("%d wrong answers", r.Wrong)
	case r.Failed > 0:
		return fmt.Sprintf("%d requests without an answer", r.Failed)
	case r.InUse > 0:
		return fmt.Sprintf("%d workspaces still in use at the end", r.InUse)
	case r.Checked == 0:
		return "no answer was checked"
	}
	return ""
}

var errInterrupted = errors.New("interrupted: the demo did not finish")

// run runs the demo and prints what it found. The error says what went wrong.
func (d *demo) run(ctx context.Context, stdout io.Writer) error {
	report := report{AuditEvery: d.opt.auditEvery, Seconds: d.opt.seconds, Clients: d.opt.clients}
	for _, mode := range []workspace.Mode{workspace.FullClear, workspace.Shadow, workspace.Watermark} {
		r, err := d.runMode(ctx, mode)
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err != nil {
			return err
		}
		d.progress.done(r)
		report.Modes = append(report.Modes, r)
	}
	if err := report.print(stdout, d.opt.json); err != nil {
		return err
	}
	for _, r := range report.Modes {
		if bad := r.bad(); bad != "" {
			return fmt.Errorf("%s: %s", r.Name, bad)
		}
	}
	return nil
}

// runMode runs the clients against one server, stops it, and audits what lies idle.
func (d *demo) runMode(ctx context.Context, mode workspace.Mode) (*result, error) {
	var reported atomic.Int64
	pool, err := workspace.NewPool(workspace.Config{
		Name: "demo-" + mode.String(), Mode: mode, AuditEvery: d.opt.auditEvery,
		OnViolation: func(v *workspace.Violation) {
			d.progress.println(v.Error())
			reported.Add(1)
		},
	})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	s := newService(pool, demoMaxBody, "", log.New(d.progress, "", log.LstdFlags))
	h := s.routes()
	if d.wrap != nil {
		h = d.wrap(s, h)
	}
	srv, err := start("127.0.0.1:0", s, h)
	if err != nil {
		return nil, err
	}

	l := &load{demo: d, base: "http://" + srv.addr.String()}
	l.run(ctx, mode.String())
	if err := srv.stop(shutdownTimeout); err != nil && ctx.Err() == nil {
		return nil, err
	}

	r := l.result(mode)
	// A transport may close a body a little later than the request ends.
	await(func() bool { return pool.Stats().InUse == 0 })
	r.IdleBlocks, _ = pool.AuditIdle()
	st := pool.Stats()
	await(func() bool { return reported.Load() >= st.Violations-st.ReportsDropped })
	t := st.Totals()
	r.InUse = st.InUse
	r.Audits, r.Violations, r.Overflows = t.Audits, st.Violations, t.Overflows
	if n := st.Released + st.Doubts.Violation + st.Doubts.Reservation; n > 0 { // those that were wiped
		r.Wiped = float64(t.WipedBytes) / float64(n)
		r.Saved = float64(st.Modes[workspace.Watermark].Totals().SavedBytes) / float64(n)
	}
	return r, nil
}

// await waits until ok returns true, but not for long.
func await(ok func() bool) {
	for range 200 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A load is the clients of one mode and what they saw.
type load struct {
	demo     *demo
	base     string
	answered atomic.Int64 // for the progress
	started  time.Time    // end of the warm-up
	ended    time.Time
	took     time.Duration // from the one to when the last client was done
	seen     []seen        // one for each client
}

// seen is what one client saw.
type seen struct {
	result
	latencies []time.Duration
	problems  int
}

// run has all clients send requests for as long as the options say.
func (l *load) run(ctx context.Context, name string) {
	length := time.Duration(l.demo.opt.seconds * float64(time.Second))
	l.started = time.Now().Add(min(length/5, 500*time.Millisecond))
	l.ended = l.started.Add(length)
	l.seen = make([]seen, l.demo.opt.clients)
	stop := l.demo.progress.start(name, l.started, l.ended, &l.answered)
	defer stop()
	var wg sync.WaitGroup
	for i := range l.seen {
		wg.Go(func() { l.client(ctx, i) })
	}
	wg.Wait()
	l.took = time.Since(l.started)
}

// minCalls is how many requests a client sends after the warm-up at least, on
// however slow a machine: a demo that did nothing must not look like a good one.
const minCalls = 5

// client sends requests until the time is over. One in four speaks HTTP/2.
func (l *load) client(ctx context.Context, i int) {
	s := &l.seen[i]
	cl := newClient(l.base, i%4 == 3)
	defer cl.http.CloseIdleConnections()
	g := newGenerator(i, &l.demo.tags)
	for calls := 0; (calls < minCalls || time.Now().Before(l.ended)) && ctx.Err() == nil; {
		c := g.call()
		begin := time.Now()
		warm := begin.After(l.started)
		if warm {
			calls++
		}
		a, err := cl.do(ctx, c)
		end := time.Now()
		if ctx.Err() != nil {
			return
		}
		l.answered.Add(1)
		if c.abort != noAbort {
			s.Aborted++
		}
		if err != nil {
			if c.abort == noAbort {
				s.Failed++
				l.problem(s, fmt.Sprintf("%s %s, a body of %d bytes: %v", c.method, c.path, len(c.body), err))
			}
			continue
		}
		v := c.check(a)
		s.Checked++
		if a.proto == 2 {
			s.HTTP2++
		}
		if v.foreign > 0 {
			s.ForeignTags += int64(v.foreign)
			l.problem(s, fmt.Sprintf("%s %s: %d tags of other requests", c.method, c.path, v.foreign))
		}
		if v.wrong != "" {
			s.Wrong++
			l.problem(s, v.wrong)
		}
		if c.abort == noAbort && warm {
			s.latencies = append(s.latencies, end.Sub(begin))
		}
	}
}

// problem prints the first problems of each client.
func (l *load) problem(s *seen, text string) {
	if s.problems++; s.problems <= 3 {
		l.demo.progress.println(text)
	}
}

// result sums up what the clients saw.
func (l *load) result(mode workspace.Mode) *result {
	r := &result{Name: mode.String()}
	var all []time.Duration
	for i := range l.seen {
		s := &l.seen[i]
		r.ForeignTags += s.ForeignTags
		r.Wrong += s.Wrong
		r.Failed += s.Failed
		r.Checked += s.Checked
		r.Aborted += s.Aborted
		r.HTTP2 += s.HTTP2
		all = append(all, s.latencies...)
	}
	slices.Sort(all)
	r.Requests = int64(len(all))
	r.Rate = float64(len(all)) / l.took.Seconds()
	r.P50, r.P99 = percentile(all, 50), percentile(all, 99)
	return r
}

// percentile returns the p-th percentile of sorted durations in microseconds, by
// nearest rank.
func percentile(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return float64(sorted[rank-1]) / float64(time.Microsecond)
}
