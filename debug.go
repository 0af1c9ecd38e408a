package workspace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// DebugHandler returns a page that shows the statistics of the pools, in the
// order given: for people as HTML, and with ?format=json for programs as
//
//	{"time": …, "pools": [{ the fields of Stats …, "bound_95": …, "bound_999999": …,
//	  "wiped_bytes_per_request": …, "saved_bytes_per_request": …}]}
//
// where the bounds are [Stats.ViolationBound] at the confidence 95 % and
// 99.9999 %. It answers GET and HEAD and changes nothing. It never shows
// contents of memory, but tells how much traffic there is: mount it where only
// operators can reach it. It panics with [ErrMisuse] when a pool is nil.
func DebugHandler(pools ...*Pool) http.Handler {
	if slices.Contains(pools, nil) {
		panic(fmt.Errorf("%w: DebugHandler: a pool is nil", ErrMisuse))
	}
	pools = slices.Clone(pools)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, fmt.Sprintf("method %q is not allowed here: want GET or HEAD", r.Method), http.StatusMethodNotAllowed)
			return
		}
		page := debugPage{Time: time.Now(), Pools: []debugPool{}}
		for _, p := range pools {
			page.Pools = append(page.Pools, newDebugPool(p.Stats()))
		}
		var body []byte
		switch format := r.URL.Query().Get("format"); format {
		case "", "html":
			h.Set("Content-Type", "text/html; charset=utf-8")
			h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
			body = page.html()
		case "json":
			h.Set("Content-Type", "application/json")
			body, _ = json.MarshalIndent(page, "", "  ") // numbers and names: it can't fail
		default:
			http.Error(w, fmt.Sprintf("format %q is unknown: want html or json", format), http.StatusBadRequest)
			return
		}
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		if r.Method == http.MethodGet {
			w.Write(body)
		}
	})
}

type debugPage struct {
	Time  time.Time   `json:"time"`
	Pools []debugPool `json:"pools"`
}

// A debugPool is the Stats of one pool and what follows from them.
type debugPool struct {
	Stats
	Bound95     float64 `json:"bound_95"`
	Bound999999 float64 `json:"bound_999999"`
	Wiped       float64 `json:"wiped_bytes_per_request"`
	Saved       float64 `json:"saved_bytes_per_request"`
}

func newDebugPool(s Stats) debugPool {
	d := debugPool{Stats: s, Bound95: s.ViolationBound(0.95), Bound999999: s.ViolationBound(0.999999)}
	// The other abandoned ones were not wiped.
	if n := s.Released + s.Doubts.Violation + s.Doubts.Reservation; n > 0 {
		t := s.Totals()
		d.Wiped, d.Saved = float64(t.WipedBytes)/float64(n), float64(t.SavedBytes)/float64(n)
	}
	return d
}

const debugHead = `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>workspace pools</title>
<style>
body { font: 15px/1.4 sans-serif; margin: 2em; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { border: 1px solid #ccc; padding: .2em .6em; text-align: left; }
</style></head>
<body>
<h1>workspace pools</h1>
`

// html returns the page. Every value on it is escaped.
func (p debugPage) html() []byte {
	var b bytes.Buffer
	b.WriteString(debugHead)
	fmt.Fprintf(&b, "<p>%s, <a href=\"?format=json\">as JSON</a></p>\n", p.Time.Format(time.RFC3339))
	for _, d := range p.Pools {
		d.html(&b)
	}
	b.WriteString("</body></html>\n")
	return b.Bytes()
}

func (d debugPool) html(b *bytes.Buffer) {
	t := d.Totals()
	breaker := "closed"
	if d.BreakerOpen {
		breaker = "OPEN: Watermark has the effect of Shadow until Rearm"
	}
	host := "may run in Watermark"
	if d.HostExcluded {
		host = "excluded by the host canary: no Watermark"
	}
	source := "no trouble"
	if d.SourceLost {
		source = "LOST: no Watermark until it works again or SetMode"
	}
	last := "never"
	if d.LastViolation != 0 {
		last = time.Unix(d.LastViolation, 0).UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(b, "<h2>%s</h2>\n", html.EscapeString(d.Pool))
	table(b, "mode", d.Mode, "in effect", d.Effective, "canary share", d.Canary, "host", host, "mode source", source, "breaker", breaker, "trips", d.BreakerTrips)
	table(b, "acquired", d.Acquired, "released", d.Released, "abandoned", d.Abandoned, "in use", d.InUse,
		"without a block", d.Blockless, "double releases", d.DoubleReleases)
	table(b, "blocks created", d.Created, "idle", d.Idle, "idle at most", d.MaxIdle, "let go", d.Discarded,
		"abandoned, still referred to", d.AbandonedLive, "client half (bytes)", d.ClientSize, "backend half (bytes)", d.BackendSize)
	table(b, "bytes wiped", t.WipedBytes, "a request", fixed(d.Wiped), "bytes past the mark (saved in watermark)", t.SavedBytes, "a request", fixed(d.Saved),
		"halves overflowed", t.Overflows, "heap bytes instead", d.SpilledBytes)
	table(b, "operations", t.Ops, "mean between audits", d.AuditEvery, "audits a second at most", d.AuditBudget, "audits", t.Audits, "forced audits", t.ForcedAudits, "kernel", d.Kernel,
		"violations", d.Violations, "last violation", last, "reports dropped", d.ReportsDropped, "reporter panics", d.ReporterPanics)
	table(b, "memory", d.Memory, "debug", d.Debug, "fence one in", d.FenceEvery, "fenced", d.Fenced, "not fenced though drawn", d.FenceSkipped,
		"in quarantine", d.Quarantined, "late touches", d.LateTouches, "mapping failures", d.MapFailures)
	table(b, "confidence", "share of operations with a violation", "95 %", "at most "+general(d.Bound95), "99.9999 %", "at most "+general(d.Bound999999))
	table(b, "abandoned because", "requests", "running", d.Doubts.Running, "violation", d.Doubts.Violation, "reservation", d.Doubts.Reservation,
		"panic", d.Doubts.Panic, "upgrade", d.Doubts.Upgrade, "abandon", d.Doubts.Abandon)
	b.WriteString("<table>\n")
	row(b, "th", "mode", "half", "released", "operations", "audits", "forced", "bytes audited", "seconds for that", "violations", "mean mark", "bytes wiped", "bytes past the mark", "overflows")
	for _, m := range d.Modes {
		for i, h := range []HalfStats{m.Client, m.Backend} {
			row(b, "td", m.Mode, Half(i), m.Released, h.Ops, h.Audits, h.ForcedAudits, h.AuditBytes, fixed(float64(h.AuditNanos)/1e9), h.Violations, h.meanMark(), h.WipedBytes, h.SavedBytes, h.Overflows)
		}
	}
	b.WriteString("</table>\n")
}

// meanMark is the mean of the marks of requests, in bytes.
func (h HalfStats) meanMark() string {
	n := int64(0)
	for _, m := range h.Marks {
		n += m
	}
	if n == 0 {
		return "-"
	}
	return fixed(float64(h.MarkBytes) / float64(n))
}

func fixed(f float64) string   { return strconv.FormatFloat(f, 'f', 1, 64) }
func general(f float64) string { return strconv.FormatFloat(f, 'g', 3, 64) }

// table writes a table of one column for each pair of a heading and a value.
func table(b *bytes.Buffer, pairs ...any) {
	var heads, values []any
	for i := 0; i < len(pairs); i += 2 {
		heads, values = append(heads, pairs[i]), append(values, pairs[i+1])
	}
	b.WriteString("<table>\n")
	row(b, "th", heads...)
	row(b, "td", values...)
	b.WriteString("</table>\n")
}

// row writes one row. It escapes every cell, whatever it holds.
func row(b *bytes.Buffer, element string, cells ...any) {
	b.WriteString("<tr>")
	for _, c := range cells {
		fmt.Fprintf(b, "<%s>%s</%[1]s>", element, html.EscapeString(fmt.Sprint(c)))
	}
	b.WriteString("</tr>\n")
}
