package workspace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// One workspace, two owners: whatever is released twice, late, by two at once,
// through a copy or by a middleware inside a middleware, no two live handles may
// ever stand on one block. The classic is a buffer that is put into a pool twice
// (go-resty/resty#745, CVE-2023-45286): one request's body went to a server of
// another.

const ownHalf = MinHalfSize // size of each half here

func ownPool(t testing.TB, cfg Config) *testPool {
	cfg.ClientSize, cfg.BackendSize = ownHalf, ownHalf
	return newTestPool(t, cfg)
}

// requireApart checks that the pool's idle list holds no block twice, and none of live.
func requireApart(t testing.TB, p *Pool, live ...*Workspace) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := map[*block]bool{}
	for _, ws := range live {
		require.False(t, seen[ws.blk], "two live handles on one block")
		seen[ws.blk] = true
	}
	for _, blk := range p.idle {
		require.False(t, seen[blk], "a block is idle twice, or idle and in use")
		seen[blk] = true
	}
}

func TestReleaseTwiceInARow(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4})
	ws := pool.Acquire()
	ws.Release()
	ws.Release()
	ws.Release()
	s := pool.Stats()
	require.EqualValues(t, 1, s.Released)
	require.EqualValues(t, 2, s.DoubleReleases)
	require.Equal(t, 1, s.Idle)

	a, b := pool.Acquire(), pool.Acquire()
	requireApart(t, pool.Pool, a, b)
	a.Release()
	b.Release()
}

// Release after the handle's block has gone to another request.
func TestReleaseAfterTheBlockWentOn(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4})
	a := pool.Acquire()
	block := blockAddr(a)
	hold := a.Hold()
	a.Release()
	hold()

	b := pool.Acquire()
	require.Equal(t, block, blockAddr(b), "B must have A's block, or this test proves nothing")
	err := visit(b, 2, func() {
		before := pool.Stats()
		a.Release()
		hold() // a second time
		requirePanicIs(t, ErrReleased, a.Abandon)
		requirePanicIs(t, ErrReleased, a.Reset)
		requirePanicIs(t, ErrReleased, func() { a.Hold() })
		before.DoubleReleases++
		require.Equal(t, before, pool.Stats(), "nothing but the count")
		c := pool.Acquire()
		requireApart(t, pool.Pool, b, c)
		c.Release()
	})
	require.NoError(t, err)
	require.NotPanics(t, func() { b.Client() }, "B still owns it")
	b.Release()
}

// race runs f on two goroutines at once, for many rounds; before and after run
// in between, on the caller's goroutine.
func race(rounds int, before func(round int), f func(who int), after func(round int)) {
	var turn [2]atomic.Int64
	var done sync.WaitGroup
	var round atomic.Int64
	done.Add(2)
	for who := range 2 {
		go func() {
			defer done.Done()
			for i := range int64(rounds) {
				for round.Load() <= i { // spin: both must be let go at the same moment
					runtime.Gosched()
				}
				f(who)
				turn[who].Store(i + 1)
			}
		}()
	}
	for i := range int64(rounds) {
		before(int(i))
		round.Store(i + 1)
		for turn[0].Load() <= i || turn[1].Load() <= i {
			runtime.Gosched()
		}
		after(int(i))
	}
	done.Wait()
}

func raceRounds(t *testing.T, n int) int {
	if testing.Short() || raceEnabled {
		n /= 10
	}
	return n
}

func TestReleaseByTwoGoroutinesAtOnce(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4, AuditEvery: -1})
	rounds := raceRounds(t, 50_000)
	var ws *Workspace
	race(rounds,
		func(int) { ws = pool.Acquire() },
		func(int) { ws.Release() },
		func(round int) {
			if round%100 == 0 {
				requireApart(t, pool.Pool)
			}
		})
	s := pool.Stats()
	require.EqualValues(t, rounds, s.Released)
	require.EqualValues(t, rounds, s.DoubleReleases)
	require.Equal(t, 1, s.Idle)
	require.EqualValues(t, 1, s.Created)
}

// Two Releases at once while a hold is open: together they may give up only the
// owner's share, or the hold keeps nothing.
func TestReleaseByTwoGoroutinesAtOnceUnderAHold(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4, AuditEvery: -1})
	rounds := raceRounds(t, 50_000)
	var ws *Workspace
	var done func()
	race(rounds,
		func(int) { ws = pool.Acquire(); done = ws.Hold() },
		func(int) { ws.Release() },
		func(int) {
			if n := ws.shares.Load(); n != 1 {
				t.Fatalf("%d shares after two Releases under one hold, want 1", n)
			}
			done()
		})
	s := pool.Stats()
	require.EqualValues(t, rounds, s.Released)
	require.EqualValues(t, rounds, s.DoubleReleases)
}

// The last hold and the owner end at the same moment: the workspace ends once.
func TestReleaseAndDoneAtOnce(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4, AuditEvery: -1})
	rounds := raceRounds(t, 20_000)
	var ws *Workspace
	var done func()
	race(rounds,
		func(int) { ws = pool.Acquire(); done = ws.Hold() },
		func(who int) {
			if who == 0 {
				ws.Release()
			}
			done() // the other one calls it twice
		},
		func(int) {
			if n := ws.shares.Load(); n != 0 {
				t.Fatalf("%d shares left", n)
			}
		})
	s := pool.Stats()
	require.EqualValues(t, rounds, s.Released)
	require.Zero(t, s.DoubleReleases)
	require.Equal(t, 1, s.Idle)
}

// Hold races with the end: either it holds, or it panics; it never brings a
// workspace back to life.
func TestHoldAndReleaseAtOnce(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 4, AuditEvery: -1})
	var ws *Workspace
	var done func()
	var held, refused int
	race(raceRounds(t, 20_000),
		func(int) { ws, done = pool.Acquire(), nil },
		func(who int) {
			if who == 0 {
				ws.Release()
				return
			}
			if err := panicError(func() { done = ws.Hold() }); err != nil && !errors.Is(err, ErrReleased) {
				t.Error(err)
			}
		},
		func(int) {
			inUse := pool.Stats().InUse
			if done == nil {
				refused++
				if inUse != 0 || ws.shares.Load() != 0 {
					t.Fatalf("a refused Hold left %d in use and %d shares", inUse, ws.shares.Load())
				}
				return
			}
			held++
			if inUse != 1 {
				t.Fatalf("a hold, but %d in use", inUse)
			}
			done()
		})
	t.Logf("%d holds, %d refused", held, refused)
	requireApart(t, pool.Pool)
}

// Many goroutines acquire, release, release again later what they kept, hold and
// abandon. A set of the live blocks says whether two had the same one.
func TestLiveHandlesNeverShareABlock(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 3, AuditEvery: -1})
	var mu sync.Mutex
	live := map[*block]int{}
	claim := func(ws *Workspace, who int) {
		mu.Lock()
		defer mu.Unlock()
		if other, taken := live[ws.blk]; taken {
			t.Errorf("worker %d got the block of worker %d", who, other)
		}
		live[ws.blk] = who
	}
	disclaim := func(blk *block) {
		mu.Lock()
		defer mu.Unlock()
		delete(live, blk)
	}
	steps := 4000
	if testing.Short() || raceEnabled {
		steps = 800
	}
	var workers sync.WaitGroup
	for who := range 6 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(745, uint64(who)))
			var old []*Workspace // handles that outlived their use
			var dones []func()
			for i := range steps {
				ws := pool.Acquire()
				claim(ws, who)
				blk := ws.blk
				stain(ws.Client().Alloc(512), who)
				for len(old) > 0 && rng.IntN(2) == 0 {
					k := rng.IntN(len(old))
					old[k].Release()
					old = append(old[:k], old[k+1:]...)
				}
				for len(dones) > 0 && rng.IntN(2) == 0 {
					dones[0]()
					dones = dones[1:]
				}
				if i%5 == 0 {
					runtime.Gosched()
				}
				switch rng.IntN(6) {
				case 0:
					disclaim(blk) // from here on it may be another's
					ws.Abandon()
				case 1:
					done := ws.Hold()
					ws.Release()
					runtime.Gosched()
					if err := onlyTag(ws.Client().mem()[:512], who); err != nil {
						t.Errorf("under a hold: %v", err)
					}
					disclaim(blk)
					done()
					dones = append(dones, done) // to be called once more
				default:
					disclaim(blk)
					ws.Release()
				}
				old = append(old, ws)
			}
		})
	}
	workers.Wait()
	require.NotZero(t, pool.Stats().DoubleReleases)
	requireApart(t, pool.Pool)
}

// cloneOf returns a shallow copy of *p, made behind the back of vet.
func cloneOf[T any](p *T) *T {
	c := reflect.New(reflect.TypeFor[T]())
	c.Elem().Set(reflect.ValueOf(p).Elem())
	return c.Interface().(*T)
}

// A copy has a position of its own over the same memory, and would be a second
// owner. It is refused, and the original is none the worse.
func TestCopiesAreRefused(t *testing.T) {
	pool := ownPool(t, Config{})
	ws := pool.Acquire()
	client := ws.Client()
	stain(client.Alloc(100), 1)
	snapshot := client.Snapshot()
	before := pool.Stats()

	wsCopy := cloneOf(ws)
	requirePanicIs(t, ErrMisuse, wsCopy.Release)
	requirePanicIs(t, ErrMisuse, func() { wsCopy.Client() })
	requirePanicIs(t, ErrMisuse, func() { wsCopy.Hold() })
	arenaCopy := cloneOf(client)
	requirePanicIs(t, ErrMisuse, func() { arenaCopy.Alloc(1) })
	requirePanicIs(t, ErrMisuse, func() { arenaCopy.Rewind(snapshot) })

	require.Equal(t, before, pool.Stats())
	require.Equal(t, 100, client.Position())
	ws.Release()
	requirePanicIs(t, ErrMisuse, wsCopy.Release)
	requirePanicIs(t, ErrMisuse, func() { arenaCopy.Alloc(1) })
	require.Zero(t, pool.Stats().DoubleReleases)
}

// serve runs one request through h without sockets.
func serve(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

// The middleware stands twice in the chain: the inner pass must not end the
// workspace that the outer one still uses (gin-gonic/gin#1230).
func TestMiddlewareTwiceInOneChain(t *testing.T) {
	pool := ownPool(t, Config{})
	var outer *Workspace
	h := pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer = FromContext(r.Context())
		mine := outer.Client().Alloc(64)
		stain(mine, 1)
		pool.Middleware(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner := FromContext(r.Context())
			if inner != outer {
				t.Error("the inner handler got another workspace")
			}
			stain(inner.Client().Alloc(64), 2)
		}))).ServeHTTP(w, r)
		if err := onlyTag(mine, 1); err != nil {
			t.Errorf("after the inner pass: %v", err)
		}
		outer.Client().Alloc(1) // still alive
	}))
	for n := range 3 {
		serve(h, "/")
		s := pool.Stats()
		require.EqualValues(t, n+1, s.Acquired)
		require.EqualValues(t, n+1, s.Released)
	}
}

// A panic that something recovers between the two leaves the outer one alive.
func TestMiddlewareTwiceAndAPanicBetween(t *testing.T) {
	pool := ownPool(t, Config{})
	serve(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws := FromContext(r.Context())
		mine := ws.Client().Alloc(64)
		stain(mine, 1)
		err := panicError(func() {
			pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				panic(errNotFound)
			})).ServeHTTP(w, r)
		})
		if err != errNotFound {
			t.Errorf("recovered %v", err)
		}
		if err := onlyTag(mine, 1); err != nil {
			t.Error(err)
		}
		ws.Client().Alloc(64)
	})), "/")
	require.EqualValues(t, 1, pool.Stats().Released)
}

var errNotFound = errors.New("not found")

// A handler dispatches the same request again, as an internal redirect does; many
// clients at once, on a real server.
func TestInternalRedirect(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 8, AuditEvery: 50})
	mux := http.NewServeMux()
	h := pool.Middleware(mux)
	mux.HandleFunc("/{hops}/{client}", func(w http.ResponseWriter, r *http.Request) {
		hops, _ := strconv.Atoi(r.PathValue("hops"))
		client, _ := strconv.Atoi(r.PathValue("client"))
		ws := FromContext(r.Context())
		mine := ws.Client().Alloc(128)
		if firstNonZero(mine) >= 0 {
			t.Error("foreign bytes")
		}
		stain(mine, client)
		if hops > 0 {
			r2 := r.Clone(r.Context())
			r2.URL.Path = fmt.Sprintf("/%d/%d", hops-1, client)
			h.ServeHTTP(w, r2)
			if FromContext(r.Context()) != ws {
				t.Error("another workspace after the inner pass")
			}
		} else {
			fmt.Fprintf(w, "%s", ws.Client().mem()[:128])
		}
		if err := onlyTag(mine, client); err != nil {
			t.Error(err)
		}
	})
	srv := httptest.NewServer(h)
	defer srv.Close()

	const clients, each = 16, 10
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				status, body := fetch(srv.Client(), fmt.Sprintf("%s/%d/%d", srv.URL, i%4, c))
				if status != http.StatusOK {
					t.Errorf("%d %s", status, body)
				} else if err := onlyTag([]byte(body), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s := requireQuiet(t, pool.Pool)
	require.EqualValues(t, clients*each, s.Acquired, "one workspace a request, however often it passed")
	require.EqualValues(t, clients*each, s.Released)
	requireApart(t, pool.Pool)
}

// Below a goroutine of its own the inner middleware gives its own workspace: the
// outer one may end first.
func TestMiddlewareTwiceOnTwoGoroutines(t *testing.T) {
	pool := ownPool(t, Config{MaxIdle: 2})
	var outer *Workspace
	serve(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer = FromContext(r.Context())
		mine := outer.Client().Alloc(64)
		stain(mine, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner := FromContext(r.Context())
				if inner == outer || inner.blk == outer.blk {
					t.Error("the inner handler got the outer one's memory")
				}
				if err := visit(inner, 2, nil); err != nil {
					t.Error(err)
				}
			})).ServeHTTP(w, r)
		}()
		<-done
		if err := onlyTag(mine, 1); err != nil {
			t.Error(err)
		}
	})), "/")
	s := pool.Stats()
	require.EqualValues(t, 2, s.Released)
	require.Zero(t, s.Abandoned)
	requireApart(t, pool.Pool)
}

// Middlewares of two pools each give their own; the inner one shadows.
func TestMiddlewaresOfTwoPools(t *testing.T) {
	one, two := ownPool(t, Config{Name: "one"}), ownPool(t, Config{Name: "two"})
	serve(one.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws1 := FromContext(r.Context())
		two.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws2 := FromContext(r.Context())
			if ws1 == ws2 || ws1.pool != one.Pool || ws2.pool != two.Pool {
				t.Error("the wrong pool")
			}
		})).ServeHTTP(w, r)
		if FromContext(r.Context()) != ws1 {
			t.Error("another workspace after the inner pass")
		}
		ws1.Client().Alloc(1)
	})), "/")
	require.EqualValues(t, 1, one.Stats().Released)
	require.EqualValues(t, 1, two.Stats().Released)
}

// A handle that a handler keeps beyond its request is used by the next request
// on the same connection, so on the same goroutine and the same block. A flag
// for "in use" would be set again by then (uber-go/zap#842, uber-go/zap#380).
func TestHandleKeptOnAKeepAliveConnection(t *testing.T) {
	for name, wrap := range map[string]func(p *Pool, h workspaceHandler) http.Handler{
		"Middleware":  func(p *Pool, h workspaceHandler) http.Handler { return p.Middleware(h.fromContext()) },
		"HandlerFunc": func(p *Pool, h workspaceHandler) http.Handler { return p.HandlerFunc(h) },
	} {
		t.Run(name, func(t *testing.T) {
			pool := ownPool(t, Config{})
			var kept *Workspace
			var keptArena *Arena
			var conn string
			reused := 0
			srv := httptest.NewServer(wrap(pool.Pool, func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
				if kept != nil {
					if r.RemoteAddr == conn {
						reused++
					}
					err := visit(ws, 2, func() {
						for what, f := range map[string]func(){
							"Client": func() { kept.Client() },
							"Alloc":  func() { keptArena.Alloc(8) },
							"Reset":  kept.Reset,
						} {
							if err := panicError(f); !errors.Is(err, ErrReleased) {
								t.Errorf("%s of the kept handle: %v", what, err)
							}
						}
						kept.Release()
					})
					if err != nil {
						t.Error(err)
					}
				}
				kept, keptArena, conn = ws, &ws.client, r.RemoteAddr
			}))
			defer srv.Close()
			const requests = 20
			for range requests {
				status, _ := fetch(srv.Client(), srv.URL)
				require.Equal(t, http.StatusOK, status)
			}
			requireQuiet(t, pool.Pool)
			require.Equal(t, requests-1, reused, "requests on the same connection")
			require.EqualValues(t, 1, pool.Stats().Created, "all on the same block")
			require.EqualValues(t, requests-1, pool.Stats().DoubleReleases)
		})
	}
}
