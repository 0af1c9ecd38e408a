package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/go-workspace/workspace"
)

// A report is the result of a demo.
type report struct {
	Seconds    float64   `json:"seconds_per_mode"`
	Clients    int       `json:"clients"`
	AuditEvery int       `json:"audit_every"`
	Modes      []*result `json:"modes"`
}

// print writes the report as a table or as one JSON object.
func (r report) print(w io.Writer, asJSON bool) error {
	var b bytes.Buffer
	if asJSON {
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return err
		}
	} else {
		r.table(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r report) table(w io.Writer) {
	audits := fmt.Sprintf("1 operation in %d is audited, so that a short run has audits (a server's default is 1 in %d)", r.AuditEvery, workspace.DefaultAuditEvery)
	switch {
	case r.AuditEvery == 1:
		audits = "every operation is audited"
	case r.AuditEvery < 0:
		audits = "audits are off"
	}
	fmt.Fprintf(w, "%d clients, %g s in each mode after the warm-up; %s.\n", r.Clients, r.Seconds, audits)
	fmt.Fprint(w, "The clients work and check every answer on the same machine: the figures compare the modes, they are no benchmark.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "mode\trequests\trequests/s\tp50 us\tp99 us\twiped B/request\tsaved B/request\taudits\tviolations\tforeign tags\twrong answers\t")
	for _, m := range r.Modes {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\t%d\t%d\t\n",
			m.Name, m.Requests, m.Rate, m.P50, m.P99, m.Wiped, m.Saved, m.Audits, m.Violations, m.ForeignTags, m.Wrong)
	}
	t.Flush()
	fmt.Fprintln(w)
	for _, m := range r.Modes {
		fmt.Fprintf(w, "%s: %d answers checked (warm-up included), %d of them over HTTP/2, %d requests aborted by the client, %d halves overflowed to the heap, %d idle blocks audited at the end.\n",
			m.Name, m.Checked, m.HTTP2, m.Aborted, m.Overflows, m.IdleBlocks)
	}
	for _, m := range r.Modes {
		if bad := m.bad(); bad != "" {
			fmt.Fprintf(w, "FAILED in %s: %s.\n", m.Name, bad)
			return
		}
	}
	fmt.Fprintln(w, "Every answer was right, byte for byte; no tag of another request; no violation.")
}

// A progress shows on stderr how far the demo is: a bar on a terminal, else one
// line for each mode.
type progress struct {
	mu  sync.Mutex
	w   io.Writer
	bar bool
}

func newProgress(w io.Writer) *progress { return &progress{w: w, bar: isTerminal(w)} }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// clearLine takes the cursor to the start of an empty line.
const clearLine = "\r\x1b[K"

// start shows the progress of one mode until stop is called.
func (p *progress) start(name string, warm, end time.Time, answered *atomic.Int64) (stop func()) {
	if !p.bar {
		return func() {}
	}
	begin, quit, done := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				p.print(clearLine)
				return
			case now := <-tick.C:
				const width = 40
				full := int(min(width, width*now.Sub(begin)/max(end.Sub(begin), 1)))
				state := ""
				if now.Before(warm) {
					state = ", warming up"
				}
				p.print(fmt.Sprintf("%s%-9s [%s%s] %d requests%s", clearLine, name, strings.Repeat("=", full), strings.Repeat(" ", width-full), answered.Load(), state))
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// done tells that a mode is over, where there is no bar.
func (p *progress) done(r *result) {
	if !p.bar {
		p.println(fmt.Sprintf("%s: %d answers checked", r.Name, r.Checked))
	}
}

// println prints a line above the bar.
func (p *progress) println(line string) { fmt.Fprintln(p, line) }

// Write prints whole lines above the bar, for a log.
func (p *progress) Write(lines []byte) (int, error) {
	s := string(lines)
	if p.bar {
		s = clearLine + s
	}
	p.print(s)
	return len(lines), nil
}

func (p *progress) print(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	io.WriteString(p.w, s)
}
