package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Memory that is used after the request it belonged to has ended: by handlers
// that outlive their answer, by goroutines that they leave behind, by the
// standard library. Whatever such a latecomer does, no other request may see it,
// and it may see no other request.

const lateHalf = 8 << 10 // size of each half here

// visit is another request. It must find zero memory in both halves; it fills
// them with tag n, lets meanwhile run, and must still find its own bytes only.
// It returns what is wrong, since it also runs on servers' goroutines.
func visit(ws *Workspace, n int, meanwhile func()) error {
	halves := [][]byte{ws.Client().Alloc(ws.Client().Size()), ws.Backend().Alloc(ws.Backend().Size())}
	for i, mem := range halves {
		if at := firstNonZero(mem); at >= 0 {
			return fmt.Errorf("request %d, %s half: a foreign byte at %d, near %q", n, Half(i), at, mem[max(0, at-8):min(at+24, len(mem))])
		}
		stain(mem, n)
	}
	if meanwhile != nil {
		meanwhile()
	}
	for i, mem := range halves {
		if err := onlyTag(mem, n); err != nil {
			return fmt.Errorf("request %d, %s half: %w", n, Half(i), err)
		}
	}
	return nil
}

// onlyTag returns an error unless b is what stain made of it for request n.
func onlyTag(b []byte, n int) error {
	t := tag(n)
	for off := 0; off < len(b); off += len(t) {
		if piece := b[off:min(off+len(t), len(b))]; !bytes.HasPrefix(t, piece) {
			return fmt.Errorf("bytes %d to %d of %d are not of tag %d: %q", off, off+len(piece), len(b), n, piece)
		}
	}
	return nil
}

// visitors sends requests n, n+1, ... one after another.
func visitors(t testing.TB, p *Pool, n, count int) {
	t.Helper()
	for i := range count {
		ws := p.Acquire()
		err := visit(ws, n+i, runtime.Gosched)
		ws.Release()
		require.NoError(t, err)
	}
}

// panicError runs f and returns the error it panics with, or nil.
func panicError(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = r
		default:
			err = fmt.Errorf("panic with %v (%T), want an error", r, r)
		}
	}()
	f()
	return nil
}

// requireQuiet waits until no workspace is in use. What Stats says must agree
// with the pool's other count of blocks that are out.
func requireQuiet(t testing.TB, p *Pool) Stats {
	t.Helper()
	require.Eventually(t, func() bool { return p.Stats().InUse == 0 }, waitLimit, pollEvery, "all workspaces have ended")
	p.mu.Lock()
	out := p.out
	p.mu.Unlock()
	require.Zero(t, out, "blocks out")
	return p.Stats()
}

// A cutOff makes handlers whose answer is sent before they have returned, as
// soon as cut is closed. That needs no clock, so nothing depends on the speed of
// the machine.
type cutOff struct {
	name string
	wrap func(h http.Handler, cut <-chan struct{}) http.Handler
}

// detached runs h on a goroutine of its own, with the request that derive returns.
func detached(h http.Handler, cut <-chan struct{}, derive func(r *http.Request) (*http.Request, func())) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r2, cancel := derive(r)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(httptest.NewRecorder(), r2)
		}()
		select {
		case <-done:
		case <-cut:
			http.Error(w, "too slow", http.StatusServiceUnavailable)
		}
	})
}

var cutOffs = []cutOff{
	{"http.TimeoutHandler", func(h http.Handler, cut <-chan struct{}) http.Handler {
		inner := http.TimeoutHandler(h, time.Hour, "too slow")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				select {
				case <-cut:
					cancel()
				case <-stop:
				}
			}()
			inner.ServeHTTP(w, r.WithContext(ctx))
		})
	}},
	{"a goroutine with the same request", func(h http.Handler, cut <-chan struct{}) http.Handler {
		return detached(h, cut, func(r *http.Request) (*http.Request, func()) { return r, func() {} })
	}},
	{"a goroutine with context.WithCancel", func(h http.Handler, cut <-chan struct{}) http.Handler {
		return detached(h, cut, func(r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancel(r.Context())
			return r.WithContext(ctx), cancel
		})
	}},
	{"a goroutine with context.WithoutCancel", func(h http.Handler, cut <-chan struct{}) http.Handler {
		return detached(h, cut, func(r *http.Request) (*http.Request, func()) {
			return r.WithContext(context.WithoutCancel(r.Context())), func() {}
		})
	}},
}

type workspaceHandler func(w http.ResponseWriter, r *http.Request, ws *Workspace)

// fromContext makes a handler that looks its workspace up.
func (h workspaceHandler) fromContext() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(w, r, FromContext(r.Context())) })
}

// lookedUp looks the workspace up before h does, on the goroutine it is called on.
func lookedUp(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		FromContext(r.Context()).Client().Alloc(64)
		h.ServeHTTP(w, r)
	})
}

// A handler that goes on after its answer was sent: it writes through a slice
// that it took in time, in the midst of other requests, and then asks for more.
// Echo, chi and gin users all met it with the middleware outside the timeout
// (labstack/echo#2754, go-chi/chi#993, gin-gonic/gin#3319).
func TestHandlerThatOutlivesItsAnswer(t *testing.T) {
	type wrapper = func(http.Handler) http.Handler
	orders := []struct {
		name   string
		chain  func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler
		reused bool
	}{
		{"middleware outside", func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler {
			return p.Middleware(wrap(h.fromContext()))
		}, false},
		{"middleware outside, looked up there as well", func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler {
			return p.Middleware(lookedUp(wrap(h.fromContext())))
		}, false},
		{"middleware inside", func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler {
			return wrap(p.Middleware(h.fromContext()))
		}, true},
		{"middleware on both sides", func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler {
			return p.Middleware(wrap(p.Middleware(h.fromContext())))
		}, true},
		{"HandlerFunc", func(p *Pool, wrap wrapper, h workspaceHandler) http.Handler {
			return wrap(p.HandlerFunc(h))
		}, true},
	}
	for _, order := range orders {
		for _, c := range cutOffs {
			t.Run(order.name+"/"+c.name, func(t *testing.T) {
				pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, Mode: Watermark, MaxIdle: 4})
				var (
					started = make(chan struct{})
					cut     = make(chan struct{})
					write   = make(chan struct{}) // the late handler is to write
					written = make(chan struct{})
					goOn    = make(chan struct{})
					outcome = make(chan error, 1)
				)
				slow := func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
					mine := ws.Client().Alloc(lateHalf / 2)
					stain(mine, 1)
					close(started)
					for range write {
						clear(mine)
						stain(mine, 1)
						written <- struct{}{}
					}
					<-goOn
					outcome <- func() error {
						if err := onlyTag(mine, 1); err != nil {
							return fmt.Errorf("the late handler's own memory: %w", err)
						}
						if order.reused { // it has not ended, so everything still works
							if b := ws.Client().Alloc(16); firstNonZero(b) >= 0 {
								return errors.New("memory that is not zero")
							}
							return nil
						}
						if err := panicError(func() { ws.Client().Alloc(16) }); !errors.Is(err, ErrReleased) {
							return fmt.Errorf("late Client: %v", err)
						}
						late := FromContext(r.Context())
						if late != ws {
							return fmt.Errorf("late FromContext returned another workspace: %v", late)
						}
						if err := panicError(func() { late.Hold() }); !errors.Is(err, ErrReleased) {
							return fmt.Errorf("late Hold: %v", err)
						}
						return nil
					}()
				}
				wrap := func(h http.Handler) http.Handler { return c.wrap(h, cut) }
				mux := http.NewServeMux()
				mux.Handle("/slow", order.chain(pool.Pool, wrap, slow))
				mux.Handle("/next", pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
					err := visit(ws, 2, func() {
						write <- struct{}{}
						<-written
					})
					if err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
					}
				}))
				srv := httptest.NewServer(mux)
				defer srv.Close()

				answered := make(chan int)
				go func() {
					status, _ := fetch(srv.Client(), srv.URL+"/slow")
					answered <- status
				}()
				<-started
				close(cut)
				require.Equal(t, http.StatusServiceUnavailable, <-answered)

				s := pool.Stats()
				if order.reused {
					require.EqualValues(t, 1, s.InUse, "the handler still runs, so its workspace has not ended")
					require.Zero(t, s.Abandoned)
				} else {
					require.EqualValues(t, 1, s.Abandoned, "the handler may still run, so the block must not be reused")
					require.EqualValues(t, 1, s.Doubts.Running)
					require.Zero(t, s.InUse)
				}
				for range 5 {
					status, body := fetch(srv.Client(), srv.URL+"/next")
					require.Equal(t, http.StatusOK, status, body)
				}
				close(write)
				close(goOn)
				require.NoError(t, <-outcome)

				s = requireQuiet(t, pool.Pool)
				if order.reused {
					require.Zero(t, s.Abandoned)
					require.Equal(t, 2, s.Idle, "both blocks are there to be reused")
				} else {
					require.EqualValues(t, 1, s.Abandoned)
				}
				visitors(t, pool.Pool, 10, 3)
			})
		}
	}
}

// fetch returns the status and body of a GET, or 0 and the error's text.
func fetch(c *http.Client, url string) (int, string) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// The same with a deadline that really passes: synctest's clock moves on only
// once the handler is stuck.
func TestTimeoutHandlerDeadline(t *testing.T) {
	for name, reused := range map[string]bool{"outside": false, "inside": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf})
				var late error
				h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ws := FromContext(r.Context())
					mine := ws.Client().Alloc(4096)
					stain(mine, 1)
					time.Sleep(150 * time.Millisecond)
					stain(mine, 1)
					_, err := ws.client.TryAlloc(4096)
					late = err
				}))
				if reused {
					h = http.TimeoutHandler(pool.Middleware(h), 50*time.Millisecond, "")
				} else {
					h = pool.Middleware(http.TimeoutHandler(h, 50*time.Millisecond, ""))
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				require.Equal(t, http.StatusServiceUnavailable, w.Code)
				visitors(t, pool.Pool, 2, 3)
				time.Sleep(time.Second)
				synctest.Wait()
				visitors(t, pool.Pool, 5, 3)
				s := pool.Stats()
				if reused {
					require.NoError(t, late)
					require.Zero(t, s.Abandoned)
				} else {
					require.ErrorIs(t, late, ErrReleased)
					require.EqualValues(t, 1, s.Doubts.Running)
				}
			})
		})
	}
}

// busy does every kind of operation on ws at random until one says that the
// workspace is gone. It returns nil then, else what went wrong.
func busy(ws *Workspace, rng *rand.Rand) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if err, _ = r.(error); errors.Is(err, ErrReleased) {
				err = nil
			} else {
				err = fmt.Errorf("late operation: panic with %v", r)
			}
		}
	}()
	for {
		a := ws.Client()
		if rng.IntN(2) == 0 {
			a = ws.Backend()
		}
		start := a.Snapshot()
		n := 1 + rng.IntN(lateHalf/4)
		switch rng.IntN(10) {
		case 0:
			stain(a.Alloc(n), 1)
		case 1:
			stain(a.AllocAligned(n, 64), 1)
		case 2:
			b, err := a.TryAlloc(n)
			if errors.Is(err, ErrReleased) {
				return nil
			}
			stain(b, 1)
		case 3:
			stain(a.Reserve(n), 1)
			a.Commit(n / 2)
		case 4:
			stain(a.Reserve(n), 1)
			a.Abort()
		case 5:
			buf := a.Buffer()
			for range 10 {
				if _, err := buf.WriteString("written late"); err != nil {
					if errors.Is(err, ErrReleased) {
						return nil
					}
					return err
				}
			}
		case 6:
			clear(MakeSlice[uint64](a, n/8))
		case 7:
			a.Copy(tag(1))
			a.Rewind(start)
		case 8:
			ws.Reset()
		case 9:
			if err := ws.Audit(); err != nil {
				return err
			}
		}
		if a.Room() < lateHalf/4 {
			a.Rewind(start)
			ws.Reset()
		}
	}
}

// The middleware gives up on a handler that is inside the arenas at that very
// moment. Whatever it reads or writes there would be a data race, so this test
// says most under the race detector.
func TestAbandonedHandlerInsideItsArenas(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, AuditEvery: 3})
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		started, outcome := make(chan struct{}), make(chan error, 1)
		h := detached(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws := FromContext(r.Context())
			close(started)
			outcome <- busy(ws, rand.New(rand.NewPCG(1, uint64(round))))
		}), started, func(r *http.Request) (*http.Request, func()) { return r, func() {} })
		pool.Middleware(h).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		visitors(t, pool.Pool, 2, 2)
		require.NoError(t, <-outcome)
	}
	s := requireQuiet(t, pool.Pool)
	require.EqualValues(t, rounds, s.Doubts.Running)
	require.EqualValues(t, rounds, s.Abandoned)
}

// A request's header map is shared by all copies of the request. A handler that
// outlives its answer may change it while the middleware ends; reading it there
// would be a fatal "concurrent map read and map write", which no recover can stop
// (as in labstack/echo#2241, gin-contrib/timeout#15).
func TestLateHandlerMayChangeItsHeader(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf})
	for range 20 {
		started, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		h := detached(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			FromContext(r.Context()).Client().Alloc(8)
			close(started)
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
					r.Header.Set("X-Step", fmt.Sprint(i))
				}
			}
		}), started, func(r *http.Request) (*http.Request, func()) { return r, func() {} })
		pool.Middleware(h).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		close(ended)
		<-done
	}
	require.EqualValues(t, 20, pool.Stats().Doubts.Running)
}

// Nor does the middleware touch what such a handler may still parse: net/http
// reads nothing of the form but its files once a handler has returned.
func TestLateHandlerMayParseItsForm(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf})
	for range 50 {
		started, done := make(chan struct{}), make(chan struct{})
		h := detached(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			close(started)
			if r.ParseForm() != nil || r.FormValue("user") != "7" {
				t.Error("the form is not what it was")
			}
		}), started, func(r *http.Request) (*http.Request, func()) { return r, func() {} })
		serve(pool.Middleware(h), "/?user=7")
		<-done
	}
	require.Zero(t, pool.Stats().Acquired)
}

// The handler gives its workspace back early while another goroutine that took
// it from the context still uses it. That other goroutine is as good a reason
// for doubt then as at the end.
func TestEarlyReleaseWhileAnotherGoroutineRuns(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf})
	taken, goOn, outcome := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go func() {
			mine := FromContext(r.Context()).Backend().Alloc(4096)
			stain(mine, 1)
			close(taken)
			<-goOn
			outcome <- onlyTag(mine, 1)
		}()
		<-taken
		FromContext(r.Context()).Release()
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	visitors(t, pool.Pool, 2, 3)
	close(goOn)
	require.NoError(t, <-outcome, "what the goroutine finds in its own slice")
	require.EqualValues(t, 1, pool.Stats().Doubts.Running)
}

// A look-up gets either a dead handle, or a live one whose block is abandoned for
// it. So between the end of the context and that of its workspace there must be
// no moment at which a look-up could find the workspace alive: it has to wait. The
// source of random numbers, asked in the midst of the release, tells if it would.
func TestLookupsWaitForTheEnd(t *testing.T) {
	var rc *requestContext
	ending, asked := false, 0
	pool := newTestPool(t, Config{AuditEvery: 2, draw: func() uint64 {
		if ending {
			asked++
			if rc.mu.TryLock() {
				rc.mu.Unlock()
				t.Error("a look-up would not wait")
			}
		}
		return allSet
	}})
	serve(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc = fromContext(r.Context())
		FromContext(r.Context()).Client().Alloc(64)
		ending = true
	})), "/")
	ending = false
	require.NotZero(t, asked)
}

// A goroutine that outlives the handler goes on with its handle, with a slice
// that a hold keeps, and with a copy (go-chi/chi#993, gin-gonic/gin#3319).
func TestGoroutineThatOutlivesTheHandler(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf})
	step, outcome := make(chan struct{}), make(chan error, 2)

	t.Run("by its handle", func(t *testing.T) {
		pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			a := ws.Client()
			text := a.Buffer()
			text.Write(tag(1))
			kept := text.String() // a copy
			go func() {
				for range step {
					err := panicError(func() { a.Position() })
					if err2 := panicError(func() { _ = text.Bytes() }); !errors.Is(err2, ErrReleased) {
						err = err2
					}
					if kept != string(tag(1)) {
						err = fmt.Errorf("the copy has changed to %q", kept)
					}
					outcome <- err
				}
			}()
		}).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		for i := range 10 {
			ws := pool.Acquire()
			err := visit(ws, 2+i, func() {
				step <- struct{}{}
				require.ErrorIs(t, <-outcome, ErrReleased)
			})
			ws.Release()
			require.NoError(t, err)
		}
		close(step)
	})

	t.Run("by a hold", func(t *testing.T) {
		step, done := make(chan struct{}), make(chan struct{})
		pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			mine := ws.Client().Alloc(4096)
			stain(mine, 1)
			ws.Go(func() {
				defer close(done)
				for range step {
					outcome <- onlyTag(mine, 1)
				}
			})
		}).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		require.EqualValues(t, 1, pool.Stats().InUse, "the hold")
		for i := range 10 {
			visitors(t, pool.Pool, 20+i, 1)
			step <- struct{}{}
			require.NoError(t, <-outcome)
		}
		close(step)
		<-done
		requireQuiet(t, pool.Pool)
		visitors(t, pool.Pool, 40, 2)
	})
	require.Zero(t, pool.Stats().Abandoned)
}

// The context of a request lives on in goroutines of the standard library, which
// look at it when they like (gin-gonic/gin#4117, gin-gonic/gin#3929,
// gofiber/fiber#4560). A late look-up must give a dead handle.
func TestContextKeptByWatchers(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, AuditEvery: -1})
	requests := 3000
	if testing.Short() {
		requests = 500
	}
	var looked atomic.Int64
	var watchers sync.WaitGroup
	rng := rand.New(rand.NewPCG(4, 117))
	for i := range requests {
		ctx, clientGone := context.WithCancel(context.Background())
		goneInside, asks := rng.IntN(3) == 0, rng.IntN(4) > 0
		var kept context.Context
		var mine *Workspace
		pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			derived, cancel := context.WithTimeout(context.WithValue(r.Context(), watcherKey{}, i), time.Hour)
			kept = derived
			if asks {
				mine = FromContext(derived)
				stain(mine.Client().Alloc(256), i)
			}
			watchers.Add(2)
			context.AfterFunc(derived, func() { // as database/sql waits for a cancelled query
				defer watchers.Done()
				if ws := FromContext(derived); asks && ws != mine {
					t.Errorf("request %d: a look-up gave another workspace: %v", i, ws)
				}
				looked.Add(1)
			})
			go func() {
				defer watchers.Done()
				<-derived.Done()
				cancel()
				FromContext(derived)
			}()
			if goneInside {
				clientGone()
			}
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))

		next := pool.Acquire() // what a late look-up must not reach
		mark := next.Client().Mark()
		late := FromContext(kept)
		require.NotNil(t, late)
		require.NotSame(t, next, late)
		requirePanicIs(t, ErrReleased, func() { late.Client() })
		requirePanicIs(t, ErrReleased, func() { late.Hold() })
		require.Same(t, late, FromContext(kept))
		require.Equal(t, mark, next.Client().Mark())
		clientGone()
		next.Release()
	}
	watchers.Wait()
	require.EqualValues(t, requests, looked.Load())
	requireQuiet(t, pool.Pool)
}

type watcherKey struct{}

// Look-ups after the end take no workspace from the pool, even when the handler
// itself never took one.
func TestLateLookupTakesNothing(t *testing.T) {
	pool := newTestPool(t, Config{})
	var kept context.Context
	pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { kept = r.Context() })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	requirePanicIs(t, ErrReleased, func() { FromContext(kept).Client() })
	require.Zero(t, pool.Stats().Acquired)
	require.Nil(t, FromContext(context.Background()), "a context without the middleware")
}

// Older HTTP/2 servers read the slice that was passed to Write even after Write
// had failed, because the client had reset the stream (golang/go#58446,
// golang/go#20704). The guarantee needs a server that does not.
func TestHTTP2WriteAndReset(t *testing.T) {
	rounds := 150
	if testing.Short() || raceEnabled {
		rounds = 50
	}
	pool := newTestPool(t, Config{AuditEvery: -1})
	returned := make(chan string)
	srv := httptest.NewUnstartedServer(pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
		block := blockAddr(ws)
		defer func() { returned <- block }()
		b := ws.Client().Alloc(200_000)
		stain(b, 1)
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()

	for range rounds {
		ctx, cancel := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
		require.NoError(t, err)
		resp, err := srv.Client().Do(req)
		require.NoError(t, err)
		require.Equal(t, 2, resp.ProtoMajor)
		got := make([]byte, 1000+rand.IntN(50_000))
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.NoError(t, onlyTag(got, 1))
		cancel() // resets the stream
		block := <-returned
		// The handler's last steps run after its deferred call above.
		requireQuiet(t, pool.Pool)
		next := pool.Acquire()
		require.Equal(t, block, blockAddr(next), "the next request must get the same block, or this test proves nothing")
		err = visit(next, 2, nil)
		next.Release()
		require.NoError(t, err)
		rest, _ := io.ReadAll(resp.Body) // what was under way
		require.NotContains(t, string(rest), string(tag(2)))
		resp.Body.Close()
	}
	require.Zero(t, pool.Stats().Abandoned)
}

// The HTTP client may read a request's body after Do has returned
// (golang/go#51907, golang/go#81445). Here the upstream answers at once and reads
// the body only when other requests have come and gone.
func TestBodyIsReadAfterDoReturned(t *testing.T) {
	const size = 1 << 20 // more than the sockets' buffers take
	pool := newTestPool(t, Config{BackendSize: size, AuditEvery: -1, MaxIdle: 2})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	type result struct {
		body []byte
		err  error
	}
	read, got := make(chan struct{}), make(chan result, 1)
	go func() {
		var res result
		defer func() { got <- res }()
		conn, err := ln.Accept()
		if err != nil {
			res.err = err
			return
		}
		defer conn.Close()
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			res.err = err
			return
		}
		io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n")
		<-read
		res.body, res.err = io.ReadAll(req.Body)
		io.WriteString(conn, "0\r\n\r\n")
	}()

	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetWriteBuffer(4096)
		}
		return conn, err
	}}
	defer transport.CloseIdleConnections()
	upstream := make(chan *http.Response, 1)
	srv := httptest.NewServer(pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
		p := ws.Backend().Alloc(size)
		stain(p, 1)
		req, err := http.NewRequest("POST", "http://"+ln.Addr().String(), ws.Backend().Body(p))
		if err != nil {
			t.Error(err)
			return
		}
		req.ContentLength = size
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		w.WriteHeader(resp.StatusCode)
		upstream <- resp
	}))
	defer srv.Close()

	status, body := fetch(srv.Client(), srv.URL)
	require.Equal(t, http.StatusBadGateway, status, body)
	require.EqualValues(t, 1, pool.Stats().InUse, "the body is not sent yet")
	visitors(t, pool.Pool, 2, 5)
	close(read)
	res := <-got
	require.NoError(t, res.err)
	require.Len(t, res.body, size)
	require.NoError(t, onlyTag(res.body, 1), "what the upstream received")
	(<-upstream).Body.Close()

	require.Equal(t, 2, requireQuiet(t, pool.Pool).Idle, "the block is reused once the body is closed")
	visitors(t, pool.Pool, 10, 2)
}

// An HTTP/2 upstream that answers without reading makes the client close the
// body on one goroutine while another may be inside Read. The client always
// closes it, so no hold is left.
func TestBodyThatHTTP2Cuts(t *testing.T) {
	pool := newTestPool(t, Config{AuditEvery: -1, MaxIdle: 4})
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "read" {
			got, err := io.ReadAll(r.Body)
			if err == nil {
				err = onlyTag(got, 1)
			}
			if err != nil {
				t.Error(err)
			}
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	front := pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
		p := ws.Backend().Alloc(200_000)
		stain(p, 1)
		req, err := http.NewRequest("POST", up.URL+"?"+r.URL.RawQuery, ws.Backend().Body(p))
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := up.Client().Do(req)
		if err != nil {
			return // a reset may come before the answer
		}
		resp.Body.Close()
	})
	rounds := 100
	if testing.Short() || raceEnabled {
		rounds = 40
	}
	for i := range rounds {
		target := "/?"
		if i%4 == 0 {
			target = "/?read"
		}
		front.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", target, nil))
		visitors(t, pool.Pool, 2, 1)
	}
	require.Zero(t, requireQuiet(t, pool.Pool).Abandoned)
}

// Close of a body waits for a Read on another goroutine: the hold may end only
// when nothing is copied out of the block any more.
func TestBodyCloseDuringRead(t *testing.T) {
	const size = 64 << 10
	pool := newTestPool(t, Config{BackendSize: size, ClientSize: MinHalfSize, AuditEvery: -1})
	rounds := 2000
	if testing.Short() || raceEnabled {
		rounds = 300
	}
	into := make([]byte, size)
	for i := range rounds {
		ws := pool.Acquire()
		p := ws.Backend().Alloc(size)
		stain(p, 1)
		body := ws.Backend().Body(p)
		ws.Release()
		require.EqualValues(t, 1, pool.Stats().InUse)

		inside, n := make(chan struct{}), make(chan int)
		go func() {
			close(inside)
			total := 0
			for {
				m, err := body.Read(into[total:])
				total += m
				if err != nil {
					if err != io.EOF && err != http.ErrBodyReadAfterClose {
						t.Errorf("Read: %v", err)
					}
					n <- total
					return
				}
			}
		}()
		<-inside
		for range i % 64 { // close at different moments
			runtime.Gosched()
		}
		require.NoError(t, body.Close())
		require.NoError(t, body.Close(), "closing twice is fine")
		require.Zero(t, pool.Stats().InUse, "Close ends the hold")
		next := pool.Acquire()
		err := visit(next, 2, nil)
		next.Release()
		require.NoError(t, err)
		total := <-n
		require.NoError(t, onlyTag(into[:total], 1), "what Read gave")
	}
}

// While a Read is inside the body, Close does not return and the block is held.
func TestBodyCloseWaitsForRead(t *testing.T) {
	pool := newTestPool(t, Config{AuditEvery: -1})
	ws := pool.Acquire()
	b := ws.Backend().Body(ws.Backend().Copy(tag(1))).(*body)
	ws.Release()
	b.mu.Lock() // as a Read that is copying
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		b.Close()
	}()
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case <-closed:
		t.Error("Close returned during a Read")
	default:
	}
	require.EqualValues(t, 1, pool.Stats().InUse, "the block is held during a Read")
	b.mu.Unlock()
	<-closed
	require.Zero(t, pool.Stats().InUse)
}

// A body reads all of its bytes, in pieces of any size, and then only EOF.
func TestBodyReads(t *testing.T) {
	pool := newTestPool(t, Config{})
	ws := pool.Acquire()
	p := ws.Backend().Copy(bytes.Repeat([]byte("workspace"), 100))
	for _, size := range []int{1, 7, 899, 900, 901} {
		body := ws.Backend().Body(p)
		got, err := io.ReadAll(struct{ io.Reader }{readerOf{body, size}})
		require.NoError(t, err)
		require.Equal(t, p, got)
		n, err := body.Read(make([]byte, 1))
		require.Zero(t, n)
		require.Equal(t, io.EOF, err)
		require.NoError(t, body.Close())
		n, err = body.Read(make([]byte, 1))
		require.Zero(t, n)
		require.Equal(t, http.ErrBodyReadAfterClose, err)
	}
	ws.Release()
}

// An empty body is http.NoBody: with ContentLength 0 any other body means that
// the length is unknown. It holds nothing, so nobody must close it.
func TestEmptyBody(t *testing.T) {
	pool := newTestPool(t, Config{})
	ws := pool.Acquire()
	require.Equal(t, http.NoBody, ws.Backend().Body(nil))
	require.Equal(t, http.NoBody, ws.Backend().Body(ws.Backend().Alloc(0)))
	ws.Release()
	require.Zero(t, pool.Stats().InUse)
	requirePanicIs(t, ErrReleased, func() { ws.backend.Body(nil) })
}

// readerOf reads at most n bytes at a time.
type readerOf struct {
	r io.Reader
	n int
}

func (r readerOf) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), r.n)]) }

// The warning that a block was abandoned must not harm the request: a logger
// that panics or blocks is no reason to keep the client waiting, to change the
// answer, or to lose the workspace.
func TestLoggerCannotHarmARequest(t *testing.T) {
	unblock := make(chan struct{})
	defer close(unblock)
	for name, handle := range map[string]func(){
		"panics": func() { panic("the logger is broken") },
		"blocks": func() { <-unblock },
	} {
		t.Run(name, func(t *testing.T) {
			pool := newTestPool(t, Config{Logger: slog.New(loggerFunc(handle))})
			done := make(chan error, 1)
			go func() {
				done <- panicError(func() {
					pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						taken := make(chan struct{})
						go func() {
							FromContext(r.Context())
							close(taken)
						}()
						<-taken
					})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
				})
			}()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(waitLimit):
				t.Error("the request waits for the logger")
			}
			require.EqualValues(t, 1, pool.Stats().Doubts.Running)
		})
	}
}

// A loggerFunc is called for each record.
type loggerFunc func()

func (f loggerFunc) Enabled(context.Context, slog.Level) bool { return true }
func (f loggerFunc) WithAttrs([]slog.Attr) slog.Handler       { return f }
func (f loggerFunc) WithGroup(string) slog.Handler            { return f }
func (f loggerFunc) Handle(context.Context, slog.Record) error {
	f()
	return nil
}
