package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// How the middleware behaves on every way out of a handler, on connections that
// are handed on, and towards the ResponseWriter.

const httpHalf = 8 << 10 // size of each half here

func httpPool(t testing.TB, cfg Config) *testPool {
	cfg.ClientSize, cfg.BackendSize = httpHalf, httpHalf
	return newTestPool(t, cfg)
}

// entries are the two ways in which a handler gets its workspace.
var entries = []struct {
	name string
	wrap func(p *Pool, h workspaceHandler) http.Handler
}{
	{"Middleware", func(p *Pool, h workspaceHandler) http.Handler { return p.Middleware(h.fromContext()) }},
	{"HandlerFunc", func(p *Pool, h workspaceHandler) http.Handler { return p.HandlerFunc(h) }},
	{"nested", func(p *Pool, h workspaceHandler) http.Handler { return p.Middleware(p.Middleware(h.fromContext())) }},
}

// wayOut runs f on a new goroutine and tells how f ended: "return", "panic" with
// its value, or "goexit".
func wayOut(f func()) (how string, value any) {
	done := make(chan struct{})
	how = "goexit"
	go func() {
		defer close(done)
		defer func() {
			if how == "goexit" {
				if value = recover(); value != nil {
					how = "panic"
				}
			}
		}()
		f()
		how = "return"
	}()
	<-done
	return how, value
}

// A spyWriter notes every call that would change the answer.
type spyWriter struct {
	header http.Header
	calls  []string
}

func newSpyWriter() *spyWriter           { return &spyWriter{header: http.Header{}} }
func (w *spyWriter) Header() http.Header { return w.header }
func (w *spyWriter) WriteHeader(code int) {
	w.calls = append(w.calls, fmt.Sprint("WriteHeader ", code))
}
func (w *spyWriter) Flush() { w.calls = append(w.calls, "Flush") }
func (w *spyWriter) Write(p []byte) (n int, e error) {
	w.calls = append(w.calls, fmt.Sprintf("Write %q", p))
	return len(p), nil
}

var (
	errBackend  = errors.New("the backend is gone")
	somePointer = &http.MaxBytesError{Limit: 7}
	nilMap      map[string]int
)

// ways are ways in which a handler may end. Each makes its panic value once, so
// that it can be compared.
var ways = []struct {
	name string
	out  func()
}{
	{"an error", func() { panic(errBackend) }},
	{"a string", func() { panic("no such user") }},
	{"a pointer", func() { panic(somePointer) }},
	{"nil", func() { panic(nil) }}, // becomes a runtime.PanicNilError
	{"a runtime error", func() { nilMap["x"] = 1 }},
	{"an index out of range", func() { var b []byte; b[len(b)] = 1 }},
	{"http.ErrAbortHandler", func() { panic(http.ErrAbortHandler) }},
	{"runtime.Goexit", runtime.Goexit},
}

// steps are the moments at which it ends. A nil workspace means: without us.
var steps = []struct {
	name  string
	taken bool // the handler has taken memory by then
	h     func(w http.ResponseWriter, workspace func() *Workspace, out func())
}{
	{"before the first allocation", false, func(w http.ResponseWriter, _ func() *Workspace, out func()) { out() }},
	{"between two allocations", true, func(w http.ResponseWriter, workspace func() *Workspace, out func()) {
		if ws := workspace(); ws != nil {
			stain(ws.Client().Alloc(1000), 1)
		}
		out()
	}},
	{"after 10 bytes and a flush", true, func(w http.ResponseWriter, workspace func() *Workspace, out func()) {
		body := []byte("ten bytes.")
		if ws := workspace(); ws != nil {
			body = ws.Client().Copy(body)
		}
		w.Write(body)
		w.(http.Flusher).Flush()
		out()
	}},
	{"with a reservation open", true, func(w http.ResponseWriter, workspace func() *Workspace, out func()) {
		if ws := workspace(); ws != nil {
			stain(ws.Backend().Reserve(1000), 1)
		}
		out()
	}},
	{"in a deferred call", true, func(w http.ResponseWriter, workspace func() *Workspace, out func()) {
		if ws := workspace(); ws != nil {
			defer ws.Client().Alloc(8)
		}
		defer out()
		w.WriteHeader(http.StatusTeapot)
	}},
	{"under a hold that ends later", true, func(w http.ResponseWriter, workspace func() *Workspace, out func()) {
		if ws := workspace(); ws != nil {
			defer ws.Hold()()
		}
		out()
	}},
}

// Whatever ends a handler passes through unchanged, nothing is written to the
// response, and the block is abandoned, once (labstack/echo#20, go-chi/chi#588,
// stacklok/toolhive#4065).
func TestPanicsPassThrough(t *testing.T) {
	for _, way := range ways {
		for _, step := range steps {
			bare := newSpyWriter()
			how, value := wayOut(func() { step.h(bare, func() *Workspace { return nil }, way.out) })
			for _, entry := range entries {
				t.Run(way.name+"/"+step.name+"/"+entry.name, func(t *testing.T) {
					pool := httpPool(t, Config{})
					var h http.Handler
					if entry.name == "HandlerFunc" {
						h = pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
							step.h(w, func() *Workspace { return ws }, way.out)
						})
					} else {
						h = pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							step.h(w, func() *Workspace { return FromContext(r.Context()) }, way.out)
						}))
						if entry.name == "nested" {
							h = pool.Middleware(h)
						}
					}
					w := newSpyWriter()
					gotHow, gotValue := wayOut(func() { h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)) })
					require.Equal(t, how, gotHow)
					if _, runtimeMade := value.(runtime.Error); runtimeMade {
						require.Equal(t, value, gotValue) // a new one each time
					} else {
						require.True(t, value == gotValue, "the panic value: got %v, want %v", gotValue, value)
					}
					require.Equal(t, bare.calls, w.calls, "calls of the ResponseWriter")
					require.Equal(t, bare.header, w.header)

					want := int64(0)
					if step.taken || entry.name == "HandlerFunc" {
						want = 1
					}
					s := requireQuiet(t, pool.Pool)
					require.Equal(t, want, s.Acquired)
					require.Equal(t, want, s.Abandoned)
					require.Zero(t, s.DoubleReleases)
					// Also with a reservation open: the panic explains that, and must
					// not open the breaker.
					require.Equal(t, want, s.Doubts.Panic)
					visitors(t, pool.Pool, 2, 2)
				})
			}
		}
	}
}

// A goroutine that the panicking handler left behind may still use its slices.
// The block is given up for its sake, so its bytes must stay as they are: a wipe
// would be a data race with it.
func TestLeftBehindGoroutineKeepsItsBytes(t *testing.T) {
	for name, end := range map[string]func(ws *Workspace, r *http.Request){
		"panic":   func(*Workspace, *http.Request) { panic(http.ErrAbortHandler) },
		"Abandon": func(ws *Workspace, _ *http.Request) { ws.Abandon() },
		"Upgrade": func(*Workspace, *http.Request) {},
	} {
		for _, entry := range entries {
			for _, mode := range allModes {
				t.Run(name+"/"+entry.name+"/"+mode.String(), func(t *testing.T) {
					pool := httpPool(t, Config{Mode: mode})
					stop, outcome := make(chan struct{}), make(chan error, 1)
					h := entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
						mine := ws.Client().Alloc(4096)
						stain(mine, 1)
						running := make(chan struct{})
						go func() {
							close(running)
							for {
								err := onlyTag(mine, 1)
								select {
								case <-stop:
									outcome <- err
									return
								default:
								}
								if err != nil {
									<-stop
									outcome <- err
									return
								}
							}
						}()
						<-running
						end(ws, r)
					})
					r := httptest.NewRequest("GET", "/", nil)
					if name == "Upgrade" {
						r.Header.Set("Upgrade", "websocket")
					}
					wayOut(func() { h.ServeHTTP(newSpyWriter(), r) })
					visitors(t, pool.Pool, 2, 3)
					close(stop)
					require.NoError(t, <-outcome)
					require.EqualValues(t, 1, pool.Stats().Abandoned)
				})
			}
		}
	}
}

// On a real server the abort sentinel must reach net/http, which then logs
// nothing, and any other panic must be logged by net/http and by nobody else.
func TestReverseProxyWhoseClientDisconnects(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat(tag(1), 100)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)

	pool := httpPool(t, Config{})
	var logged lockedBuffer
	front := httptest.NewUnstartedServer(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stain(FromContext(r.Context()).Client().Alloc(4096), 3)
		proxy.ServeHTTP(w, r)
	})))
	front.Config.ErrorLog = log.New(&logged, "", 0)
	front.Start()
	defer front.Close()

	const clients = 10
	for range clients {
		ctx, cancel := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, "GET", front.URL, nil)
		require.NoError(t, err)
		resp, err := front.Client().Do(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		got := make([]byte, 1600)
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.NoError(t, onlyTag(got, 1))
		cancel()
		resp.Body.Close()
	}
	s := requireQuiet(t, pool.Pool)
	require.EqualValues(t, clients, s.Acquired)
	require.EqualValues(t, clients, s.Doubts.Panic, "the proxy ends by the abort sentinel")
	front.Close()
	require.Empty(t, logged.String(), "the server's log")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A journey is one random request: the layers it passes from the outside in,
// what the innermost handler does, and how it ends.
type journey struct {
	layers  []string // middleware, other pool, goroutine, recovery, user
	takes   bool     // the handler takes its workspace and
	holds   bool     // holds it until after the request
	leaves  bool     // leaves a reservation open
	gives   string   // gives it back early: "", "Release", "Release twice", "Abandon"
	writes  string   // what it writes: "", "refusal", "early hints", "flush", "cancel"
	out     int      // index in ways, or -1 to return
	upgrade bool
}

var layerNames = []string{"middleware", "middleware", "other pool", "goroutine", "recovery", "user"}

func newJourney(rng *rand.Rand) journey {
	j := journey{
		takes: rng.IntN(5) > 0, holds: rng.IntN(5) == 0, leaves: rng.IntN(8) == 0,
		gives:  []string{"", "", "", "", "Release", "Release twice", "Abandon"}[rng.IntN(7)],
		writes: []string{"", "refusal", "early hints", "flush", "cancel"}[rng.IntN(5)],
		out:    rng.IntN(2*len(ways)) - len(ways), upgrade: rng.IntN(10) == 0,
	}
	j.out = max(j.out, -1)
	for range 1 + rng.IntN(5) {
		j.layers = append(j.layers, layerNames[rng.IntN(len(layerNames))])
	}
	return j
}

// A fate is what must come of one workspace.
type fate struct {
	pool      int // 0, or 1 for the other pool
	at        int // index of the layer that gives it
	goroutine int
	taken     bool
	foreign   bool // looked up on another goroutine
}

func (f *fate) take(goroutine int) {
	f.taken = true
	f.foreign = f.foreign || goroutine != f.goroutine
}

// fates works out, without the library, which workspaces a journey takes. The
// last one is the one that the handler sees.
func (j journey) fates() []*fate {
	var all []*fate
	top := func() *fate {
		if len(all) == 0 {
			return &fate{pool: -1}
		}
		return all[len(all)-1]
	}
	goroutine, started := 0, 0
	for i, l := range j.layers {
		pool := 0
		switch l {
		case "goroutine":
			started++
			goroutine = started
		case "user":
			top().take(goroutine)
		case "other pool":
			pool = 1
			fallthrough
		case "middleware":
			if top().pool != pool || top().goroutine != goroutine {
				all = append(all, &fate{pool: pool, at: i, goroutine: goroutine})
			}
		}
	}
	if j.takes {
		top().take(goroutine)
	}
	return all
}

// expect works out how many workspaces of each pool are acquired and abandoned,
// and how many are held at the end of the request.
func (j *journey) expect() (acquired, abandoned, held [2]int64) {
	fates := j.fates()
	if last := len(fates) - 1; last < 0 || !j.takes {
		j.takes, j.holds, j.leaves, j.gives = false, false, false, ""
	} else if fates[last].foreign && j.gives != "Abandon" {
		j.gives = "" // TestEarlyReleaseWhileAnotherGoroutineRuns is about that
	}
	for i, f := range fates {
		if !f.taken {
			continue
		}
		mine := i == len(fates)-1 && j.takes
		holds := mine && j.holds
		acquired[f.pool]++
		if holds {
			held[f.pool]++
		}
		stopped := slices.Contains(j.layers[f.at:], "recovery")
		panicked := j.out >= 0 && (ways[j.out].name == "runtime.Goexit" || !stopped)
		atEnd := f.foreign || panicked || j.upgrade // what the middleware adds
		switch {
		case mine && j.gives == "Abandon", mine && j.leaves:
			abandoned[f.pool]++
		case mine && j.gives != "" && !holds: // it had ended before
		case atEnd:
			abandoned[f.pool]++
		}
	}
	return acquired, abandoned, held
}

// serve sends the request on its journey. It returns the done function of the
// open hold, if there is one.
func (j journey) serve(t *testing.T, pools [2]*Pool) (done func(), how string, value any) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if j.takes {
			ws := FromContext(r.Context())
			stain(ws.Client().Alloc(100), 1)
			if j.holds {
				done = ws.Hold()
			}
			if j.leaves {
				stain(ws.Client().Reserve(50), 1)
			}
			switch j.gives {
			case "Release twice":
				ws.Release()
				fallthrough
			case "Release":
				ws.Release()
			case "Abandon":
				ws.Abandon()
			}
		}
		switch j.writes {
		case "refusal":
			w.WriteHeader(http.StatusForbidden)
		case "early hints":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
		case "flush":
			io.WriteString(w, "so far")
			http.NewResponseController(w).Flush()
		case "cancel":
			cancel()
		}
		if j.out >= 0 {
			ways[j.out].out()
		}
	})
	for _, l := range slices.Backward(j.layers) {
		next := h
		switch l {
		case "middleware":
			h = pools[0].Middleware(next)
		case "other pool":
			h = pools[1].Middleware(next)
		case "goroutine": // like a timeout that is not exceeded
			h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch how, value := wayOut(func() { next.ServeHTTP(w, r) }); how {
				case "panic":
					panic(value)
				case "goexit":
					runtime.Goexit()
				}
			})
		case "recovery":
			h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { recover() }()
				next.ServeHTTP(w, r)
			})
		case "user": // has data of its own, which must be there when next has ended
			h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws := FromContext(r.Context())
				if ws == nil {
					next.ServeHTTP(w, r)
					return
				}
				mine := ws.Backend().Alloc(32)
				stain(mine, 7)
				defer func() {
					if ws.shares.Load() > 0 {
						if err := onlyTag(mine, 7); err != nil {
							t.Errorf("%+v: %v", j, err)
						}
					}
				}()
				next.ServeHTTP(w, r)
			})
		}
	}
	r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	if j.upgrade {
		r.Header.Set("Upgrade", "h2c")
	}
	how, value = wayOut(func() { h.ServeHTTP(newSpyWriter(), r) })
	return done, how, value
}

// Clean-up that is spelled out at each exit forgets one (gofiber/fiber#4233).
// Random ways through nested middlewares and out again are compared with a model
// that knows nothing of the library. The numbers must be exact after each.
func TestRandomWaysOut(t *testing.T) {
	journeys := 20_000
	if testing.Short() || raceEnabled {
		journeys = 3000
	}
	rng := rand.New(rand.NewPCG(4233, 15))
	cfg := Config{
		ClientSize: MinHalfSize, BackendSize: MinHalfSize, MaxIdle: 2, Mode: Watermark,
		OnViolation: func(v *Violation) {
			if v.Kind != OpenReservation {
				t.Errorf("a real violation: %v", v)
			}
		},
	}
	one, two := newTestPool(t, cfg), newTestPool(t, cfg)
	one.expectViolations()
	two.expectViolations()
	pools := [2]*Pool{one.Pool, two.Pool}
	var acquired, abandoned [2]int64
	for n := range journeys {
		j := newJourney(rng)
		a, b, held := j.expect()
		done, how, value := j.serve(t, pools)

		wantHow := "return"
		if j.out >= 0 {
			if ways[j.out].name == "runtime.Goexit" {
				wantHow = "goexit"
			} else if !slices.Contains(j.layers, "recovery") {
				wantHow = "panic"
			}
		}
		if how != wantHow {
			t.Fatalf("journey %d %+v: ended by %s (%v), want %s", n, j, how, value, wantHow)
		}
		for i, p := range pools {
			if inUse := p.Stats().InUse; inUse != held[i] {
				t.Fatalf("journey %d %+v, pool %d: %d in use after the request, want %d", n, j, i, inUse, held[i])
			}
			acquired[i] += a[i]
			abandoned[i] += b[i]
		}
		if done != nil {
			done()
		}
		for i, p := range pools {
			s := p.Stats()
			if s.Acquired != acquired[i] || s.Abandoned != abandoned[i] || s.Released != acquired[i]-abandoned[i] {
				t.Fatalf("journey %d %+v, pool %d: acquired %d, abandoned %d, released %d; want %d, %d, %d",
					n, j, i, s.Acquired, s.Abandoned, s.Released, acquired[i], abandoned[i], acquired[i]-abandoned[i])
			}
			d := s.Doubts
			if sum := d.Running + d.Violation + d.Reservation + d.Panic + d.Upgrade + d.Abandon; sum != s.Abandoned {
				t.Fatalf("journey %d %+v, pool %d: %d abandoned, but %d reasons", n, j, i, s.Abandoned, sum)
			}
		}
		if n%3 == 0 {
			one.Rearm("the next journey")
			two.Rearm("the next journey")
		}
	}
	for i, p := range pools {
		s := requireQuiet(t, p)
		t.Logf("pool %d: %d acquired, %d released, %+v", i, s.Acquired, s.Released, s.Doubts)
		require.NotZero(t, s.Released)
		require.NotZero(t, s.Doubts.Running)
		require.NotZero(t, s.Doubts.Panic)
	}
}

// On an error someone else may still be about to fill the buffer, so that is
// exactly when it must not go back to the pool (VictoriaMetrics/VictoriaMetrics#11419).
func TestLateReadAfterAnError(t *testing.T) {
	const size = httpHalf
	for name, abandon := range map[string]bool{"hold": false, "abandon": true} {
		t.Run(name, func(t *testing.T) {
			pool := httpPool(t, Config{MaxIdle: 2})
			upstream, upstreamEnd := io.Pipe()
			outcome := make(chan error, 1)
			srv := httptest.NewServer(pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
				p := ws.Backend().Alloc(size)
				stain(p[:size/2], 1) // arrived in time
				done := func() {}
				if !abandon {
					done = ws.Hold()
				}
				go func() {
					defer done()
					_, err := io.ReadFull(upstream, p[size/2:])
					if err == nil {
						err = onlyTag(p, 1)
					}
					outcome <- err
				}()
				if abandon {
					ws.Abandon()
				}
				http.Error(w, "the upstream is too slow", http.StatusBadGateway)
			}))
			defer srv.Close()
			status, _ := fetch(srv.Client(), srv.URL)
			require.Equal(t, http.StatusBadGateway, status)
			late := make([]byte, size/2)
			stain(late, 1)
			for i := range 4 { // the rest arrives while others are at work
				ws := pool.Acquire()
				err := visit(ws, 2, func() {
					upstreamEnd.Write(late[i*size/8 : (i+1)*size/8])
				})
				ws.Release()
				require.NoError(t, err)
			}
			require.NoError(t, <-outcome)
			s := requireQuiet(t, pool.Pool)
			if abandon {
				require.EqualValues(t, 1, s.Doubts.Abandon)
				require.Equal(t, 1, s.Idle)
			} else {
				require.Zero(t, s.Abandoned)
				require.Equal(t, 2, s.Idle, "reused once the hold has ended")
			}
			visitors(t, pool.Pool, 10, 3)
		})
	}
}

// recovery answers 500 for a handler that panicked before it wrote anything.
func recovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil && len(w.(*spyWriter).calls) == 0 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// Deferred clean-up once committed a 200 before the recovery layer could write
// its 500 (nytimes/gziphandler#15). Ours must not, even if at that moment an audit
// finds a violation and the reporter panics or never returns.
func TestViolationDuringAPanic(t *testing.T) {
	plain := func(h http.Handler) http.Handler { return h }
	for reporter, onViolation := range map[string]func(stop <-chan struct{}){
		"panics": func(<-chan struct{}) { panic("the reporter is broken") },
		"blocks": func(stop <-chan struct{}) { <-stop },
		"exits":  func(<-chan struct{}) { runtime.Goexit() },
	} {
		for written, before := range map[string]string{"nothing written": "", "ten bytes written": "ten bytes."} {
			for _, entry := range entries {
				for place, wrap := range map[string]func(ours func(http.Handler) http.Handler, h http.Handler) http.Handler{
					"recovery outside": func(ours func(http.Handler) http.Handler, h http.Handler) http.Handler { return recovery(ours(h)) },
					"recovery inside":  func(ours func(http.Handler) http.Handler, h http.Handler) http.Handler { return ours(recovery(h)) },
					"no recovery":      func(ours func(http.Handler) http.Handler, h http.Handler) http.Handler { return ours(h) },
				} {
					t.Run(strings.Join([]string{reporter, written, entry.name, place}, "/"), func(t *testing.T) {
						stop := make(chan struct{})
						defer close(stop)
						pool := httpPool(t, Config{OnViolation: func(*Violation) { onViolation(stop) }})
						pool.expectViolations()
						run := func(ours func(http.Handler) http.Handler, dirty func()) (*spyWriter, string, any) {
							w := newSpyWriter()
							h := wrap(ours, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
								dirty()
								if before != "" {
									io.WriteString(w, before)
								}
								panic(errBackend)
							}))
							how, value := wayOut(func() { h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)) })
							return w, how, value
						}
						var seen *Workspace
						ours := func(next http.Handler) http.Handler {
							return entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
								seen = ws
								next.ServeHTTP(w, r)
							})
						}
						var mem []byte
						w, how, value := run(ours, func() {
							mem = seen.blk.half(Backend)
							mem[httpHalf-1] = 0xee // past the mark
						})
						wantW, wantHow, wantValue := run(plain, func() {})
						require.Equal(t, wantHow, how)
						require.True(t, value == wantValue, "the panic value: %v", value)
						require.Equal(t, wantW.calls, w.calls, "calls of the ResponseWriter")

						s := requireQuiet(t, pool.Pool)
						require.EqualValues(t, 1, s.Abandoned)
						require.EqualValues(t, 1, s.Violations)
						require.Zero(t, mem[httpHalf-1], "wiped")
						visitors(t, pool.Pool, 2, 2)
					})
				}
			}
		}
	}
}

// dialRequest sends text on a new connection.
func dialRequest(t testing.TB, srv *httptest.Server, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitLimit)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

const (
	rawUpgrade = "GET /chat HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	rawConnect = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"
	rawGet     = "GET /stream HTTP/1.1\r\nHost: example.com\r\n\r\n"
)

// A connection that was handed on lives longer than the handler, and with it
// whoever serves it from the handler's memory (valyala/fasthttp#2184).
func TestHijackedConnection(t *testing.T) {
	for _, tc := range []struct {
		name, request string
		hold          bool
	}{
		{"Upgrade", rawUpgrade, false},
		{"CONNECT", rawConnect, false},
		{"hold", rawGet, true},
		{"Upgrade and hold", rawUpgrade, true},
	} {
		for _, entry := range entries {
			t.Run(tc.name+"/"+entry.name, func(t *testing.T) {
				pool := httpPool(t, Config{Mode: Watermark, MaxIdle: 2})
				step := make(chan struct{})
				defer func() {
					if step != nil {
						close(step)
					}
				}()
				srv := httptest.NewServer(entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
					mine := ws.Client().Alloc(4096)
					stain(mine, 1)
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						go func() { // so that the test does not wait for ever
							for range step {
							}
						}()
						return
					}
					serve := func() {
						defer conn.Close()
						for range step {
							if _, err := conn.Write(mine[:1024]); err != nil {
								t.Error(err)
								return
							}
							mine = mine[1024:]
						}
					}
					if tc.hold {
						ws.Go(serve)
					} else {
						go serve()
					}
				}))
				defer srv.Close()
				conn := dialRequest(t, srv, tc.request)
				var got []byte
				for range 4 {
					step <- struct{}{} // by now the handler has hijacked
					if tc.hold {
						require.EqualValues(t, 1, pool.Stats().InUse, "the hold")
					} else {
						requireQuiet(t, pool.Pool)
					}
					visitors(t, pool.Pool, 2, 3)
					piece := make([]byte, 1024)
					_, err := io.ReadFull(conn, piece)
					require.NoError(t, err)
					got = append(got, piece...)
				}
				close(step)
				step = nil
				rest, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.Empty(t, rest)
				require.NoError(t, onlyTag(got, 1), "what came out of the connection")

				s := requireQuiet(t, pool.Pool)
				if tc.request == rawGet {
					require.Zero(t, s.Abandoned)
					require.Equal(t, 2, s.Idle, "reused once the connection is done")
				} else {
					require.EqualValues(t, 1, s.Doubts.Upgrade)
				}
				visitors(t, pool.Pool, 10, 3)
			})
		}
	}
}

// Which requests may hand on their connection is seen from what the client sent,
// whatever the handler does to the request.
func TestUpgradeIsTakenFromTheClient(t *testing.T) {
	for _, tc := range []struct {
		name, method, upgrade string
		h                     func(r *http.Request)
		abandoned             bool
	}{
		{"plain", "GET", "", func(*http.Request) {}, false},
		{"plain, header removed", "POST", "", func(r *http.Request) { r.Header.Del("Upgrade") }, false},
		{"websocket", "GET", "websocket", func(*http.Request) {}, true},
		{"h2c", "GET", "h2c", func(*http.Request) {}, true},
		{"connect", "CONNECT", "", func(*http.Request) {}, true},
		{"extended connect", "CONNECT", "websocket", func(*http.Request) {}, true},
		{"hop-by-hop headers removed", "GET", "websocket", func(r *http.Request) { r.Header.Del("Upgrade") }, true},
		{"header map replaced", "GET", "websocket", func(r *http.Request) { r.Header = nil }, true},
		{"header map emptied", "GET", "websocket", func(r *http.Request) { clear(r.Header) }, true},
		{"method rewritten", "CONNECT", "", func(r *http.Request) { r.Method = "GET" }, true},
	} {
		for _, entry := range entries {
			t.Run(tc.name+"/"+entry.name, func(t *testing.T) {
				pool := httpPool(t, Config{})
				r := httptest.NewRequest(tc.method, "http://example.com/", nil)
				if tc.upgrade != "" {
					r.Header["Upgrade"] = []string{tc.upgrade}
				}
				entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
					ws.Client().Alloc(1)
					tc.h(r)
				}).ServeHTTP(newSpyWriter(), r)
				s := pool.Stats()
				require.Equal(t, tc.abandoned, s.Doubts.Upgrade == 1, "%+v", s.Doubts)
				require.EqualValues(t, 1, s.Abandoned+s.Released)
			})
		}
	}
}

// Middleware wrappers that hide flushing keep an event stream in the buffer to
// its end (speakeasy-api/gram#4961, foomo/keel#286). Here each event must reach the
// client before the next one is made, on a real server.
func TestEventStream(t *testing.T) {
	flushers := map[string]func(w http.ResponseWriter) error{
		"type test": func(w http.ResponseWriter) error {
			f, ok := w.(http.Flusher)
			if !ok {
				return errors.New("no Flusher")
			}
			f.Flush()
			return nil
		},
		"ResponseController": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	}
	for how, flush := range flushers {
		for _, http2 := range []bool{false, true} {
			for _, entry := range entries {
				t.Run(fmt.Sprintf("%s/http2=%v/%s", how, http2, entry.name), func(t *testing.T) {
					pool := httpPool(t, Config{})
					received := make(chan struct{})
					srv := httptest.NewUnstartedServer(entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
						w.Header().Set("Content-Type", "text/event-stream")
						for i := range 5 {
							event := ws.Client().Buffer()
							fmt.Fprintf(event, "data: %d\n\n", i)
							w.Write(event.Bytes())
							if err := flush(w); err != nil {
								t.Error(err)
								return
							}
							select {
							case <-received:
							case <-r.Context().Done():
								t.Error("the client waits for its event in vain")
								return
							}
						}
					}))
					srv.EnableHTTP2 = http2
					if http2 {
						srv.StartTLS()
					} else {
						srv.Start()
					}
					defer srv.Close()
					ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
					require.NoError(t, err)
					resp, err := srv.Client().Do(req)
					require.NoError(t, err)
					defer resp.Body.Close()
					require.Equal(t, http2, resp.ProtoMajor == 2)
					lines := bufio.NewReader(resp.Body)
					for i := range 5 {
						line, err := lines.ReadString('\n')
						require.NoError(t, err)
						require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
						_, err = lines.ReadString('\n')
						require.NoError(t, err)
						select {
						case received <- struct{}{}:
						case <-ctx.Done():
							t.Fatal("the handler has given up")
						}
					}
					_, err = lines.ReadByte()
					require.Equal(t, io.EOF, err)
					require.EqualValues(t, 1, requireQuiet(t, pool.Pool).Released)
				})
			}
		}
	}
}

// A client that reads slowly gets an answer that was complete, for the handler,
// long before; meanwhile the block has other requests (urbit/urbit#973).
func TestSlowReaderGetsTheAnswer(t *testing.T) {
	const pieces, size = 100, 4 << 10
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			pool := httpPool(t, Config{Mode: Watermark, AuditEvery: -1})
			srv := httptest.NewUnstartedServer(pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
				a := ws.Client()
				start := a.Snapshot()
				for range pieces {
					a.Rewind(start) // each piece in the same place
					b := a.Alloc(size)
					stain(b, 1)
					if _, err := w.Write(b); err != nil {
						t.Error(err)
					}
					if err := http.NewResponseController(w).Flush(); err != nil {
						t.Error(err)
					}
				}
			}))
			srv.EnableHTTP2 = http2
			if http2 {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			resp, err := srv.Client().Get(srv.URL)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, http2, resp.ProtoMajor == 2)
			var got []byte
			piece, visits := make([]byte, 1<<10), 0
			for len(got) < pieces*size {
				_, err := io.ReadFull(resp.Body, piece)
				require.NoError(t, err)
				got = append(got, piece...)
				if pool.Stats().InUse == 0 { // the handler is done
					visitors(t, pool.Pool, 2, 1)
					visits++
				} else {
					time.Sleep(100 * time.Microsecond)
				}
			}
			require.NoError(t, onlyTag(got, 1), "what the client received")
			require.Positive(t, visits, "other requests while the answer was under way")
			require.EqualValues(t, 1, pool.Stats().Created, "all on one block")
		})
	}
}

// A writer that is not from net/http may keep what it was given and send it when
// the handler is gone. Whoever has such a writer holds the workspace until it has.
func TestWriterThatKeepsWhatItGets(t *testing.T) {
	for _, entry := range entries {
		pool := httpPool(t, Config{Mode: Watermark, MaxIdle: 2})
		w := &keepingWriter{ResponseWriter: httptest.NewRecorder()}
		entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			b := ws.Client().Alloc(1000)
			stain(b, 1)
			w.(*keepingWriter).sent = ws.Hold()
			w.Write(b)
		}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		visitors(t, pool.Pool, 2, 5)
		require.EqualValues(t, 1, pool.Stats().InUse, "the hold")
		require.NoError(t, onlyTag(w.kept, 1), "what is sent late")
		w.sent()
		require.Equal(t, 2, requireQuiet(t, pool.Pool).Idle, "reused once it is sent")
		visitors(t, pool.Pool, 10, 2)
	}
}

type keepingWriter struct {
	http.ResponseWriter
	kept []byte
	sent func()
}

func (w *keepingWriter) Write(b []byte) (int, error) {
	w.kept = b
	return len(b), nil
}

// A writerPart gives optional methods to a ResponseWriter, and counts their calls.
type writerPart struct{ calls atomic.Int64 }

func (p *writerPart) Header() http.Header         { return http.Header{} }
func (p *writerPart) Write(b []byte) (int, error) { return len(b), nil }
func (p *writerPart) WriteHeader(int)             {}
func (p *writerPart) Flush()                      { p.calls.Add(1) }
func (p *writerPart) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	p.calls.Add(1)
	return nil, nil, http.ErrNotSupported
}
func (p *writerPart) ReadFrom(r io.Reader) (int64, error) {
	p.calls.Add(1)
	return io.Copy(io.Discard, r)
}
func (p *writerPart) Push(string, *http.PushOptions) error { p.calls.Add(1); return nil }
func (p *writerPart) WriteString(s string) (int, error)    { p.calls.Add(1); return len(s), nil }

// writerWith returns a ResponseWriter with just the optional interfaces in set.
func writerWith(p *writerPart, set int) http.ResponseWriter {
	type (
		W = http.ResponseWriter
		F = http.Flusher
		H = http.Hijacker
		R = io.ReaderFrom
		P = http.Pusher
		S = io.StringWriter
	)
	return []http.ResponseWriter{
		struct{ W }{p},
		struct {
			W
			F
		}{p, p},
		struct {
			W
			H
		}{p, p},
		struct {
			W
			F
			H
		}{p, p, p},
		struct {
			W
			R
		}{p, p},
		struct {
			W
			F
			R
		}{p, p, p},
		struct {
			W
			H
			R
		}{p, p, p},
		struct {
			W
			F
			H
			R
		}{p, p, p, p},
		struct {
			W
			P
		}{p, p},
		struct {
			W
			F
			P
		}{p, p, p},
		struct {
			W
			H
			P
		}{p, p, p},
		struct {
			W
			F
			H
			P
		}{p, p, p, p},
		struct {
			W
			R
			P
		}{p, p, p},
		struct {
			W
			F
			R
			P
		}{p, p, p, p},
		struct {
			W
			H
			R
			P
		}{p, p, p, p},
		struct {
			W
			F
			H
			R
			P
		}{p, p, p, p, p},
		struct {
			W
			S
		}{p, p},
		struct {
			W
			F
			S
		}{p, p, p},
		struct {
			W
			H
			S
		}{p, p, p},
		struct {
			W
			F
			H
			S
		}{p, p, p, p},
		struct {
			W
			R
			S
		}{p, p, p},
		struct {
			W
			F
			R
			S
		}{p, p, p, p},
		struct {
			W
			H
			R
			S
		}{p, p, p, p},
		struct {
			W
			F
			H
			R
			S
		}{p, p, p, p, p},
		struct {
			W
			P
			S
		}{p, p, p},
		struct {
			W
			F
			P
			S
		}{p, p, p, p},
		struct {
			W
			H
			P
			S
		}{p, p, p, p},
		struct {
			W
			F
			H
			P
			S
		}{p, p, p, p, p},
		struct {
			W
			R
			P
			S
		}{p, p, p, p},
		struct {
			W
			F
			R
			P
			S
		}{p, p, p, p, p},
		struct {
			W
			H
			R
			P
			S
		}{p, p, p, p, p},
		struct {
			W
			F
			H
			R
			P
			S
		}{p, p, p, p, p, p},
	}[set]
}

// visibleIn returns the set of optional interfaces that w has.
func visibleIn(w http.ResponseWriter) (set int) {
	for bit, has := range []bool{is[http.Flusher](w), is[http.Hijacker](w), is[io.ReaderFrom](w), is[http.Pusher](w), is[io.StringWriter](w)} {
		if has {
			set |= 1 << bit
		}
	}
	return set
}

func is[T any](v any) bool { _, ok := v.(T); return ok }

// Wrappers lose optional interfaces one way or another (go-chi/chi#544). The
// writer is not wrapped, so the handler sees the very same one.
func TestResponseWriterIsPassedOnAsItIs(t *testing.T) {
	pool := httpPool(t, Config{AuditEvery: -1})
	for set := range 32 {
		part := &writerPart{}
		w := writerWith(part, set)
		require.Equal(t, set, visibleIn(w), "the test's own writer")
		for _, entry := range entries {
			called := false
			entry.wrap(pool.Pool, func(got http.ResponseWriter, r *http.Request, ws *Workspace) {
				called = true
				require.True(t, got == w, "set %05b: another writer: %T", set, got)
				require.Equal(t, set, visibleIn(got), "set %05b", set)
				before := part.calls.Load()
				_, err := io.Copy(got, struct{ io.Reader }{strings.NewReader("a file")})
				require.NoError(t, err)
				require.Equal(t, is[io.ReaderFrom](w), part.calls.Load() > before, "set %05b: the fast path of io.Copy", set)
			}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			require.True(t, called)
		}
	}
}

// The server removes the files of a multipart form, but looks for them on the
// request that it made, not on the copy with another context that a middleware
// passed on (golang/go#58809, golang/go#67713, open-telemetry/opentelemetry-go-contrib#9070).
func TestMultipartFilesAreRemoved(t *testing.T) {
	for _, entry := range entries {
		t.Run(entry.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"TMPDIR", "TMP"} {
				t.Setenv(name, dir)
			}
			files := func() int {
				list, err := os.ReadDir(dir)
				require.NoError(t, err)
				return len(list)
			}
			pool := httpPool(t, Config{})
			during := make(chan int, 1)
			srv := httptest.NewServer(entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
				if err := r.ParseMultipartForm(1); err != nil {
					t.Error(err)
				}
				during <- files()
			}))
			var form bytes.Buffer
			mw := multipart.NewWriter(&form)
			file, err := mw.CreateFormFile("upload", "upload.bin")
			require.NoError(t, err)
			_, err = file.Write(make([]byte, 11<<20)) // more than stays in memory
			require.NoError(t, err)
			require.NoError(t, mw.Close())
			resp, err := srv.Client().Post(srv.URL, mw.FormDataContentType(), &form)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, 1, <-during, "a file during the request, or this test proves nothing")
			srv.Close()
			require.Zero(t, files(), "files left behind")
		})
	}
}

// A mux notes the pattern that matched on the request it was given. What stands
// around the middleware, to log or to count, wants to know it.
func TestPatternIsSeenOutside(t *testing.T) {
	for _, entry := range entries {
		pool := httpPool(t, Config{})
		mux := http.NewServeMux()
		mux.HandleFunc("GET /users/{id}", func(http.ResponseWriter, *http.Request) {})
		h := entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) { mux.ServeHTTP(w, r) })
		r := httptest.NewRequest("GET", "/users/7", nil)
		h.ServeHTTP(newSpyWriter(), r)
		require.Equal(t, "GET /users/{id}", r.Pattern, entry.name)
	}
}

// The pool can't give a block. The request is served from ordinary memory, which
// is counted, and no handle is ever nil (after caddyserver/caddy#1618).
func TestRequestsWithoutABlock(t *testing.T) {
	const clients, limit = 8, 2
	for name, cfg := range map[string]Config{"limit": {MaxLive: limit}, "closed": {}} {
		for _, entry := range entries {
			t.Run(name+"/"+entry.name, func(t *testing.T) {
				pool := httpPool(t, cfg)
				blocks := limit
				if name == "closed" {
					pool.Close()
					blocks = 0
				}
				var here sync.WaitGroup // all requests are under way at once
				here.Add(clients)
				srv := httptest.NewServer(entry.wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
					var n int
					fmt.Sscanf(r.URL.Path, "/%d", &n)
					mine := ws.Client().Alloc(1000)
					if firstNonZero(mine) >= 0 {
						t.Error("foreign bytes")
					}
					stain(mine, n)
					here.Done()
					here.Wait()
					w.Write(mine)
				}))
				defer srv.Close()
				var answers sync.WaitGroup
				for n := range clients {
					answers.Go(func() {
						status, body := fetch(srv.Client(), fmt.Sprintf("%s/%d", srv.URL, n))
						if err := onlyTag([]byte(body), n); err != nil || status != http.StatusOK || len(body) != 1000 {
							t.Errorf("client %d: status %d, %d bytes, %v", n, status, len(body), err)
						}
					})
				}
				answers.Wait()
				s := requireQuiet(t, pool.Pool)
				require.EqualValues(t, clients, s.Released)
				require.EqualValues(t, clients-blocks, s.Blockless)
				require.EqualValues(t, blocks, s.Created)
				require.EqualValues(t, 1000*(clients-blocks), s.SpilledBytes)
				require.EqualValues(t, clients-blocks, s.Totals().Overflows)

				if name == "limit" {
					ws := pool.Acquire()
					require.NoError(t, visit(ws, 1, nil), "below the limit there are blocks again")
					require.EqualValues(t, clients-blocks, pool.Stats().Blockless)
					ws.Release()
					return
				}
				_, err := pool.AcquireContext(context.Background())
				require.ErrorIs(t, err, ErrClosed)
			})
		}
	}
}

// AcquireContext refuses where Acquire would go to the heap, and counts nothing.
func TestAcquireContextRefuses(t *testing.T) {
	pool := httpPool(t, Config{Name: "small", MaxLive: 1})
	ctx, cancel := context.WithCancelCause(context.Background())
	ws, err := pool.AcquireContext(ctx)
	require.NoError(t, err)
	before := pool.Stats()
	other, err := pool.AcquireContext(ctx)
	require.Nil(t, other)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "small")
	cancel(errBackend)
	other, err = pool.AcquireContext(ctx)
	require.Nil(t, other)
	require.ErrorIs(t, err, errBackend)
	require.Equal(t, before, pool.Stats())
	ws.Release()
}

// A pool that can't be made is an error that says which field is wrong and what
// it held, and no pool.
func TestBadConfigNamesFieldAndValue(t *testing.T) {
	for _, tc := range []struct {
		cfg   Config
		field string
		value string
	}{
		{Config{ClientSize: 4095}, "ClientSize", "4095"},
		{Config{ClientSize: -4096}, "ClientSize", "-4096"},
		{Config{ClientSize: 5000}, "ClientSize", "5000"},
		{Config{BackendSize: 1}, "BackendSize", "1"},
		{Config{BackendSize: MaxHalfSize + HalfSizeStep}, "BackendSize", fmt.Sprint(MaxHalfSize + HalfSizeStep)},
		{Config{Mode: 77}, "Mode", "77"},
		{Config{Canary: -0.5}, "Canary", "-0.5"},
		{Config{Canary: 1.5}, "Canary", "1.5"},
		{Config{AuditEvery: maxAuditEvery + 1}, "AuditEvery", fmt.Sprint(maxAuditEvery + 1)},
		{Config{MaxLive: -3}, "MaxLive", "-3"},
	} {
		t.Run(tc.field+" "+tc.value, func(t *testing.T) {
			pool, err := NewPool(tc.cfg)
			require.Nil(t, pool)
			require.ErrorIs(t, err, ErrConfig)
			require.ErrorContains(t, err, tc.field)
			require.ErrorContains(t, err, tc.value)
		})
	}
}

// A request that never asks for its workspace takes no block, so that long-lived
// idle connections cost none (valyala/fasthttp#2363); and one that has given it
// back early holds none.
func TestBlocksAreTakenAtFirstUse(t *testing.T) {
	pool := httpPool(t, Config{})
	h := pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/early":
			ws := FromContext(r.Context())
			ws.Client().Alloc(100)
			ws.Release()
			if s := pool.Stats(); s.InUse != 0 || s.Idle != 1 {
				t.Errorf("after an early release: %d in use, %d idle", s.InUse, s.Idle)
			}
			if FromContext(r.Context()) != ws {
				t.Error("FromContext took a second workspace")
			}
		}
		io.WriteString(w, "hello")
	}))
	require.Equal(t, "hello", serve(h, "/").Body.String())
	require.Zero(t, pool.Stats().Acquired)
	require.Zero(t, pool.Stats().Created)
	require.Equal(t, "hello", serve(h, "/early").Body.String())
	s := pool.Stats()
	require.EqualValues(t, 1, s.Released)
	require.Zero(t, s.DoubleReleases)
}

// A gauge that is lowered after the handler instead of by a deferred call is
// raised for good by each panic (go-kruda/kruda#143). Here come panics, aborts,
// timeouts and hijacks by the thousand, and then quiet.
func TestInUseReturnsToZero(t *testing.T) {
	each := 1000
	if testing.Short() || raceEnabled {
		each = 150
	}
	pool := httpPool(t, Config{AuditEvery: 100, MaxIdle: 8})
	var underWay atomic.Int64 // handlers that run, counted apart from the pool
	stop, scraped := make(chan struct{}), make(chan error, 1)
	go func() {
		last := Stats{}
		for {
			select {
			case <-stop:
				scraped <- nil
				return
			default:
			}
			s := pool.Stats()
			if s.InUse < 0 || s.Acquired != s.Released+s.Abandoned+s.InUse || s.AbandonedLive < 0 || s.AbandonedLive > s.Abandoned ||
				s.Acquired < last.Acquired || s.Released < last.Released || s.Abandoned < last.Abandoned {
				scraped <- fmt.Errorf("a scrape that can't be: %+v after %+v", s, last)
				return
			}
			last = s
			runtime.Gosched()
		}
	}()
	var late sync.WaitGroup // handlers that outlive their answer
	kinds := map[string]http.Handler{
		"panic": pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stain(FromContext(r.Context()).Client().Alloc(64), 1)
			panic(errBackend)
		})),
		"abort": pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			stain(ws.Client().Alloc(64), 1)
			panic(http.ErrAbortHandler)
		}),
		"hijack": pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			stain(ws.Client().Alloc(64), 1)
		}),
		"timeout": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			started := make(chan struct{})
			late.Add(1)
			pool.Middleware(detached(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer late.Done()
				mine := FromContext(r.Context()).Client().Alloc(64)
				close(started)
				stain(mine, 1)
			}), started, func(r *http.Request) (*http.Request, func()) { return r, func() {} })).ServeHTTP(w, r)
		}),
		"return": pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			if err := visit(ws, 2, nil); err != nil {
				t.Error(err)
			}
		}),
	}
	var clients sync.WaitGroup
	for kind, h := range kinds {
		clients.Go(func() {
			for range each {
				r := httptest.NewRequest("GET", "/", nil)
				if kind == "hijack" {
					r.Header.Set("Upgrade", "websocket")
				}
				underWay.Add(1)
				wayOut(func() { h.ServeHTTP(newSpyWriter(), r) })
				underWay.Add(-1)
			}
		})
	}
	clients.Wait()
	late.Wait()
	require.Zero(t, underWay.Load())
	close(stop)
	require.NoError(t, <-scraped)
	s := requireQuiet(t, pool.Pool)
	require.EqualValues(t, 5*each, s.Acquired)
	require.EqualValues(t, 2*each, s.Doubts.Panic)
	require.EqualValues(t, each, s.Doubts.Upgrade)
	require.LessOrEqual(t, s.Doubts.Running, int64(each))
	require.EqualValues(t, s.Acquired, s.Released+s.Doubts.Panic+s.Doubts.Upgrade+s.Doubts.Running)

	// Nothing refers to the abandoned blocks any more (gofiber/fiber#4359).
	require.Eventually(t, func() bool {
		runtime.GC()
		return pool.Stats().AbandonedLive == 0
	}, waitLimit, pollEvery, "the collector takes what was abandoned")
}

// Handlers that never end keep their abandoned blocks alive. MaxLive bounds
// them: beyond it requests get ordinary memory (gofiber/fiber#4359, gofiber/fiber#4347).
func TestAbandonedBlocksAreBounded(t *testing.T) {
	const limit, requests = 5, 50
	pool := httpPool(t, Config{MaxLive: limit})
	stop := make(chan struct{})
	var stuck sync.WaitGroup
	for range requests {
		started := make(chan struct{})
		stuck.Add(1)
		serve(pool.Middleware(detached(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer stuck.Done()
			mine := FromContext(r.Context()).Client().Alloc(64)
			stain(mine, 1)
			close(started)
			<-stop
			if err := onlyTag(mine, 1); err != nil {
				t.Error(err)
			}
		}), started, func(r *http.Request) (*http.Request, func()) { return r, func() {} })), "/")
	}
	runtime.GC()
	runtime.GC()
	s := pool.Stats()
	require.EqualValues(t, limit, s.AbandonedLive)
	require.EqualValues(t, limit, s.Created)
	require.EqualValues(t, requests-limit, s.Blockless)
	require.EqualValues(t, requests, s.Doubts.Running)
	close(stop)
	stuck.Wait()
	require.Eventually(t, func() bool {
		runtime.GC()
		return pool.Stats().AbandonedLive == 0
	}, waitLimit, pollEvery)
	ws := pool.Acquire()
	require.NotNil(t, ws.blk, "there is room again")
	ws.Release()
}

// What the middleware allocates for each request, beside the handle.
func TestMiddlewareAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("only run, not counted: the race detector allocates, too")
	}
	require.LessOrEqual(t, reflect.TypeFor[Workspace]().Size(), uintptr(512), "the handle")
	pool := newTestPool(t, Config{AuditEvery: -1})
	for _, tc := range []struct {
		name string
		h    http.Handler
		max  float64 // with the handle
		took bool
	}{
		{"Middleware", pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).Client().Alloc(64)
		})), 3, true},
		{"Middleware, looked up again", pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).Client().Alloc(64)
			FromContext(r.Context()).Backend().Alloc(64)
		})), 3, true},
		{"Middleware, unused", pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})), 2, false},
		{"Middleware, nested", pool.Middleware(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).Client().Alloc(64)
		}))), 3, true},
		{"HandlerFunc", pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			ws.Client().Alloc(64)
		}), 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, r := noopWriter{}, httptest.NewRequest("GET", "/", nil)
			request := func() { tc.h.ServeHTTP(w, r) }
			before := pool.Stats()
			const runs = 200
			got := testing.AllocsPerRun(runs, request)
			large := largeMallocs(func() {
				for range runs {
					request()
				}
			})
			if !raceEnabled {
				require.LessOrEqual(t, got, tc.max, "allocations a request")
				require.Less(t, large, uint64(runs), "allocations over 512 bytes in %d requests", runs)
			}
			s := pool.Stats()
			require.Equal(t, tc.took, s.Acquired > before.Acquired)
			require.LessOrEqual(t, s.Created, int64(1), "all on one block")
		})
	}
}

type noopWriter struct{}

func (noopWriter) Header() http.Header         { return nil }
func (noopWriter) Write(p []byte) (int, error) { return len(p), nil }
func (noopWriter) WriteHeader(int)             {}

// largeMallocs returns how many objects of more than 512 bytes f allocates.
func largeMallocs(f func()) (n uint64) {
	count := func() (n uint64) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		n = m.Mallocs
		for _, class := range m.BySize {
			if class.Size <= 512 {
				n -= class.Mallocs
			}
		}
		return n
	}
	before := count()
	f()
	return count() - before
}
