package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// outputs collects texts under names.
type outputs struct {
	mu    sync.Mutex
	texts map[string]string
}

func (o *outputs) add(name, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.texts == nil {
		o.texts = map[string]string{}
	}
	o.texts[name] += text + "\n"
}

// print adds a value in all ways in which somebody might print it.
func (o *outputs) print(name string, v any) {
	for how, text := range renderings(v) {
		o.add(name+" as "+how, text)
	}
}

// panicOf adds what a misuse panics with.
func (o *outputs) panicOf(name string, f func()) {
	defer func() { o.print("panic of "+name, recover()) }()
	f()
}

// No output shows what stands in memory: not the log, nor a report, nor a panic, nor
// any way to print what the library hands out.
func TestNoOutputShowsContents(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	breakers := t.TempDir()
	configs := append(mappedConfigs(), Config{}, Config{Debug: Poison})
	for i, cfg := range configs {
		for _, mode := range allModes {
			t.Run(fmt.Sprint(i, " ", mode), func(t *testing.T) {
				var out outputs
				var lines safeBuffer
				cfg.Name, cfg.Mode, cfg.AuditEvery, cfg.BreakerFile = "edge", mode, 1, filepath.Join(breakers, fmt.Sprint("breaker", i, mode))
				cfg.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
				cfg.OnEvent = func(e Event) { out.print("event", e) }
				p, err := NewPool(cfg)
				require.NoError(t, err)
				q := cfg
				q.OnViolation, q.Logger = func(v *Violation) { out.print("violation", v); out.print("violation's value", *v) }, slog.New(slog.NewJSONHandler(&lines, nil))
				told, err := NewPool(q)
				require.NoError(t, err)
				for _, p := range []*Pool{p, told} {
					leakAllWays(t, p, &out)
				}
				for _, p := range []*Pool{p, told} {
					whileQuiet(p, func() {})
				}
				out.add("log", lines.String())
				p.fileMu.Lock()
				text, err := os.ReadFile(cfg.BreakerFile)
				p.fileMu.Unlock()
				if err == nil {
					out.add("breaker file", string(text))
				}
				require.Contains(t, out.texts["log"], "violation")
				require.Contains(t, out.texts["violation as json"], "run_list")
				for name, text := range out.texts {
					require.Empty(t, disclosures(text), "%s: %.500q", name, text)
				}
			})
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// whileQuiet calls f when all reports that are under way have been made.
func whileQuiet(p *Pool, f func()) {
	for range maxReports {
		p.reports <- struct{}{}
	}
	f()
	for range maxReports {
		<-p.reports
	}
}

// leakAllWays makes each kind of trouble with a secret in memory, and collects
// what is said about it.
func leakAllWays(t *testing.T, p *Pool, out *outputs) {
	put := func(ws *Workspace, h Half, off int) { copy(ws.blk.half(h)[off:], secret) }
	everything := func(name string, ws *Workspace) {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			out.add(name+" pool", fmt.Sprintf(verb+verb, p, []any{p}))
		}
		out.print(name+" workspace", ws)
		out.print(name+" stats", p.Stats())
	}

	ws := p.Acquire()
	a, b := ws.Client(), ws.Backend()
	a.Copy(secret)
	buf := b.Buffer()
	buf.Write(secret)
	snap := a.Snapshot()
	put(ws, Client, 9000) // past the mark
	everything("live", ws)
	for name, v := range map[string]any{"client": a, "backend": b, "snapshot": snap, "body": b.Body(secret)} {
		out.print(name, v)
		if c, ok := v.(interface{ Close() error }); ok {
			c.Close()
		}
	}
	out.print("audit", ws.Audit())
	out.panicOf("Alloc", func() { a.Alloc(-1) })
	out.panicOf("AllocAligned", func() { a.AllocAligned(1, 3) })
	out.panicOf("Commit", func() { a.Commit(5) })
	out.panicOf("Rewind", func() { a.Rewind(b.Snapshot()) })
	_, err := a.TryAlloc(1 << 30)
	out.print("TryAlloc", err)
	out.panicOf("typed", func() { MakeSlice[int](a, -1) })
	a.Reserve(100)
	out.panicOf("Alloc while reserved", func() { a.Alloc(1) })
	ws.Release() // with a reservation open
	everything("dead", ws)
	out.panicOf("late Alloc", func() { a.Alloc(1) })
	out.panicOf("late Client", func() { ws.Client() })
	_, err = buf.Write(secret)
	out.print("late Buffer", err)

	ws = p.Acquire()
	put(ws, Backend, 5000)
	if g := ws.blk.guard(Client); len(g) > 0 {
		copy(g, secret)
	}
	ws.client.pos = -5 // bad accounting
	ws.Client().Snapshot()
	ws.Abandon()

	ws = p.Acquire()
	blk := ws.blk
	ws.Release()
	if blk.tenure == nil {
		copy(blk.half(Backend)[7000:], secret) // while idle
		p.AuditIdle()
		ws = p.Acquire()
		blk = ws.blk
		ws.Release()
		if blk.tenure == nil {
			copy(blk.half(Client)[3000:], secret)
		}
	}
	p.Acquire().Release()
	p.Rearm("again")

	// Through net/http: a panic with a secret in memory, and a late look-up.
	var late context.Context
	h := p.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws := FromContext(r.Context())
		ws.Client().Buffer().ReadFrom(r.Body)
		out.add("context", fmt.Sprintf("%v %+v %s", r.Context(), r.Context(), r.Context()))
		late = r.Context()
		if strings.HasSuffix(r.URL.Path, "panic") {
			panic(errors.New("the handler's own"))
		}
	}))
	for _, path := range []string{"/", "/panic"} {
		out.panicOf("handler", func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, bytes.NewReader(secret)))
		})
	}
	out.print("late look-up", FromContext(late))
	for _, query := range []string{"/", "/?format=json"} {
		w := httptest.NewRecorder()
		DebugHandler(p).ServeHTTP(w, httptest.NewRequest(http.MethodGet, query, nil))
		out.add("debug page", w.Body.String())
	}
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 2))
	out.add("goroutines", profile.String())
	out.print("self-test", p.SelfTest())
}

// A Pool in a private field is printed field by field.
func TestPoolsShowNoContents(t *testing.T) {
	for _, cfg := range append(mappedConfigs(), Config{}, Config{Debug: Poison}) {
		p := newTestPool(t, cfg)
		ws := p.Acquire()
		ws.Client().Copy(secret)
		blk := ws.blk
		ws.Release()
		if blk.tenure == nil {
			copy(blk.half(Client)[5000:], secret)
		}
		for how, text := range renderings(p.Pool) {
			require.Empty(t, disclosures(text), "%s: %.300s", how, text)
		}
		if blk.tenure == nil {
			p.AuditIdle()
			p.violations(1)
		}
	}
	require.Equal(t, `workspace.Pool("edge")`, fmt.Sprint(newTestPool(t, Config{Name: "edge"}).Pool))
	require.Equal(t, "workspace.Pool(nil)", fmt.Sprint((*Pool)(nil)))
}

// A TestPool tells of violations, and its file of fenced blocks.
func TestTestPoolShowsNoContents(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, configure := range [][]func(*Config){nil, {inPoison}} {
		var out outputs
		out.add("verdict", strings.Join(verdict(func(p *Pool) {
			ws := p.Acquire()
			copy(ws.Client().mem()[5000:], secret)
			ws.Client().Copy(secret)
			ws.Release()
			p.Acquire().Hold()
			names, err := filepath.Glob(filepath.Join(dir, "*.log"))
			require.NoError(t, err)
			for _, name := range names {
				text, err := os.ReadFile(name)
				require.NoError(t, err)
				out.add("file", string(text))
			}
		}, configure...), "\n"))
		require.Contains(t, out.texts["verdict"], "dirty-tail")
		for name, text := range out.texts {
			require.Empty(t, disclosures(text), name)
		}
	}
}
