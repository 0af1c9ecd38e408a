package workspace

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a Workspace promises from acquire to release, and that a handle which has
// no right to the memory any more is refused everywhere.

const wsHalf = 8 << 10 // size of each half here

func wsPool(t testing.TB, cfg Config) *testPool {
	cfg.ClientSize, cfg.BackendSize = wsHalf, wsHalf
	return newTestPool(t, cfg)
}

// The end of a request leaves nothing of it in the block, in any mode.
func TestReleaseWipesWhatWasUsed(t *testing.T) {
	uses := map[string]func(a *Arena){
		"nothing":           func(*Arena) {},
		"one byte":          func(a *Arena) { stain(a.Alloc(1), 1) },
		"some":              func(a *Arena) { stain(a.Alloc(1000), 1); stain(a.AllocAligned(77, 64), 1) },
		"all":               func(a *Arena) { stain(a.Alloc(wsHalf), 1) },
		"more than all":     func(a *Arena) { stain(a.Alloc(wsHalf-8), 1); stain(a.Alloc(wsHalf), 1) },
		"aborted":           func(a *Arena) { stain(a.Reserve(wsHalf), 1); a.Abort() },
		"rewound":           func(a *Arena) { s := a.Snapshot(); stain(a.Alloc(5000), 1); a.Rewind(s); a.Alloc(1) },
		"buffer":            func(a *Arena) { stain(a.Buffer().AvailableBuffer(), 1) },
		"reset in between":  func(a *Arena) { stain(a.Alloc(7000), 1); a.ws.Reset(); stain(a.Alloc(10), 1) },
		"through the block": func(a *Arena) { a.Alloc(3000); stain(a.mem()[:3000:3000], 1) },
	}
	for name, use := range uses {
		for _, mode := range allModes {
			t.Run(name+"/"+mode.String(), func(t *testing.T) {
				pool := wsPool(t, Config{Mode: mode})
				ws := pool.Acquire()
				blk := ws.blk
				use(ws.Client())
				use(ws.Backend())
				ws.Release()
				for _, h := range []Half{Client, Backend} {
					require.Equal(t, -1, firstNonZero(blk.half(h)), "first byte that is not zero in the %s half", h)
				}
				require.Nil(t, ws.blk, "a dead handle must not keep the memory alive")
				require.Nil(t, ws.client.mem())
				next := pool.Acquire()
				require.True(t, next.blk == blk, "the next request must get the same block, or this test proves nothing")
				require.NoError(t, visit(next, 2, nil))
				next.Release()
			})
		}
	}
}

// Whatever a violation found, what is written after it is wiped, too, though the
// mode is Watermark and the breaker closed again.
func TestDoubtWipesAll(t *testing.T) {
	pool := newTestPool(t, Config{Mode: Watermark, AuditEvery: -1})
	ws := pool.Acquire()
	blk := ws.blk
	blk.guard(Backend)[0]++
	require.Error(t, ws.Audit())
	pool.violations(1)
	require.True(t, pool.Rearm("test"))
	for _, h := range []Half{Client, Backend} {
		mem := blk.half(h)
		mem[0], mem[len(mem)-1] = 1, 1
	}
	ws.Release()
	for _, h := range []Half{Client, Backend} {
		require.Equal(t, -1, firstNonZero(blk.half(h)), "%s half", h)
	}
}

// Each reason for doubt alone makes the block be abandoned, and counted under
// its own name; without one it is reused.
func TestDoubtsAbandonTheBlock(t *testing.T) {
	request := func(p *Pool, method string, h workspaceHandler) {
		wayOut(func() {
			p.HandlerFunc(h).ServeHTTP(newSpyWriter(), httptest.NewRequest(method, "http://example.com/", nil))
		})
	}
	for _, tc := range []struct {
		name  string
		do    func(p *Pool)
		count func(d DoubtStats) int64
	}{
		{"none", func(p *Pool) { p.Acquire().Release() }, nil},
		{"running", func(p *Pool) {
			serve(p.Middleware(detached(workspaceHandler(func(_ http.ResponseWriter, _ *http.Request, ws *Workspace) { ws.Client() }).fromContext(),
				nil, func(r *http.Request) (*http.Request, func()) { return r, func() {} })), "/")
		}, func(d DoubtStats) int64 { return d.Running }},
		{"violation: dirty tail", func(p *Pool) {
			ws := p.Acquire()
			ws.client.mem()[wsHalf-1] = 1
			ws.Release()
		}, func(d DoubtStats) int64 { return d.Violation }},
		{"violation: guard", func(p *Pool) {
			ws := p.Acquire()
			ws.blk.guard(Backend)[guardSize-1] ^= 1
			ws.Release()
		}, func(d DoubtStats) int64 { return d.Violation }},
		{"violation: accounting", func(p *Pool) {
			ws := p.Acquire()
			ws.client.mark = wsHalf + 1
			ws.Release()
		}, func(d DoubtStats) int64 { return d.Violation }},
		{"reservation", func(p *Pool) {
			ws := p.Acquire()
			ws.Backend().Reserve(10)
			ws.Release()
		}, func(d DoubtStats) int64 { return d.Reservation }},
		{"panic", func(p *Pool) {
			request(p, "GET", func(http.ResponseWriter, *http.Request, *Workspace) { panic(errBackend) })
		}, func(d DoubtStats) int64 { return d.Panic }},
		{"connect", func(p *Pool) {
			request(p, "CONNECT", func(http.ResponseWriter, *http.Request, *Workspace) {})
		}, func(d DoubtStats) int64 { return d.Upgrade }},
		{"abandon", func(p *Pool) { p.Acquire().Abandon() }, func(d DoubtStats) int64 { return d.Abandon }},
		{"abandon under a hold", func(p *Pool) {
			ws := p.Acquire()
			done := ws.Hold()
			ws.Abandon()
			done()
		}, func(d DoubtStats) int64 { return d.Abandon }},
		{"abandon after Release, under a hold", func(p *Pool) {
			ws := p.Acquire()
			done := ws.Hold()
			ws.Release()
			ws.Abandon()
			done()
		}, func(d DoubtStats) int64 { return d.Abandon }},
	} {
		for _, mode := range allModes {
			t.Run(tc.name+"/"+mode.String(), func(t *testing.T) {
				pool := wsPool(t, Config{Mode: mode})
				pool.expectViolations()
				tc.do(pool.Pool)
				s := pool.Stats()
				require.EqualValues(t, 1, s.Acquired)
				require.Zero(t, s.InUse)
				if tc.count == nil {
					require.Zero(t, s.Abandoned)
					require.Equal(t, 1, s.Idle)
					return
				}
				require.EqualValues(t, 1, s.Abandoned)
				require.EqualValues(t, 1, tc.count(s.Doubts), "%+v", s.Doubts)
				require.Zero(t, s.Released)
				require.Zero(t, s.Idle)
				next := pool.Acquire()
				require.EqualValues(t, 2, pool.Stats().Created, "the next request gets another block")
				require.NoError(t, visit(next, 2, nil))
				next.Release()
			})
		}
	}
}

// The mode of a workspace is that of the pool at acquire. The dirt past the mark
// tells at release, with audits off, what was wiped.
func TestModeIsFixedAtAcquire(t *testing.T) {
	for _, from := range allModes {
		for _, to := range allModes {
			for name, change := range map[string]func(p *testPool) error{
				"SetMode":   func(p *testPool) error { return p.SetMode(to) },
				"SetCanary": func(p *testPool) error { return p.SetCanary(1) },
			} {
				t.Run(fmt.Sprintf("%v to %v/%s", from, to, name), func(t *testing.T) {
					pool := wsPool(t, Config{Mode: from, AuditEvery: -1})
					ws := pool.Acquire()
					require.Equal(t, from, ws.Mode())
					ws.Client().Alloc(100)
					require.NoError(t, change(pool))
					require.Equal(t, from, ws.Mode())
					mem := ws.client.mem()
					mem[200] = 0xee // past the mark
					before := pool.Stats()
					ws.Release()
					if from == Watermark {
						require.NotZero(t, mem[200], "Watermark wipes up to the mark")
					} else {
						require.Zero(t, mem[200], "%v wipes all", from)
					}
					s := pool.Stats()
					for m := range s.Modes {
						want := before.Modes[m].Released
						if Mode(m) == from {
							want++
						}
						require.Equal(t, want, s.Modes[m].Released, "counted in mode %v", Mode(m))
					}
					mem[200] = 0
				})
			}
		}
	}
}

// Modes that are changed at any moment, under load, never let anything through
// (thanos-io/thanos#8745).
func TestModeChangesUnderLoad(t *testing.T) {
	requests := 3000
	if testing.Short() || raceEnabled {
		requests = 600
	}
	pool := wsPool(t, Config{MaxIdle: 4, AuditEvery: 10})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		rng := rand.New(rand.NewPCG(8745, 1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			pool.SetMode(allModes[rng.IntN(len(allModes))])
			pool.SetCanary(float64(rng.IntN(3)) / 2)
			runtime.Gosched()
		}
	}()
	var workers sync.WaitGroup
	for who := range 3 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(8745, uint64(10+who)))
			for i := range requests / 3 {
				ws := pool.Acquire()
				mode := ws.Mode()
				if i%3 == 0 {
					if err := visit(ws, who, runtime.Gosched); err != nil {
						t.Error(err)
					}
				} else {
					for _, a := range []*Arena{ws.Client(), ws.Backend()} {
						b := a.Alloc(1 + rng.IntN(wsHalf))
						if at := firstNonZero(b); at >= 0 {
							t.Errorf("a foreign byte at %d in mode %v", at, mode)
						}
						stain(b, who)
					}
				}
				if ws.Mode() != mode {
					t.Errorf("the mode has changed from %v to %v", mode, ws.Mode())
				}
				ws.Release()
			}
		})
	}
	workers.Wait()
	close(stop)
	<-stopped
	require.EqualValues(t, requests, pool.Stats().Released)
}

// The two halves are used by two goroutines at once, each with everything an
// arena can do. This test says most under the race detector.
func TestTwoHalvesTwoGoroutines(t *testing.T) {
	for _, every := range []int{1, 7, -1} {
		t.Run(fmt.Sprint("AuditEvery ", every), func(t *testing.T) {
			pool := wsPool(t, Config{AuditEvery: every, Mode: Watermark})
			rounds := 20
			if testing.Short() {
				rounds = 5
			}
			for range rounds {
				ws := pool.Acquire()
				var halves sync.WaitGroup
				for n, a := range []*Arena{ws.Client(), ws.Backend()} {
					halves.Go(func() {
						if err := panicError(func() { everyArenaOperation(a, n, 50) }); err != nil {
							t.Errorf("%s half: %v", Half(n), err)
						}
					})
				}
				halves.Wait()
				ws.Release()
			}
			s := pool.Stats()
			require.EqualValues(t, rounds, s.Released)
			require.EqualValues(t, rounds, s.Modes[Watermark].Client.Overflows)
			require.EqualValues(t, rounds, s.Modes[Watermark].Backend.Overflows)
		})
	}
}

// everyArenaOperation panics with an error when something is wrong.
func everyArenaOperation(a *Arena, n, rounds int) {
	own := a.Alloc(512)
	stain(own, n)
	start := a.Snapshot()
	for range rounds {
		b := a.Alloc(100)
		if firstNonZero(b) >= 0 {
			panic(errors.New("memory that is not zero"))
		}
		stain(b, n)
		stain(a.AllocAligned(33, 64), n)
		a.TryAlloc(wsHalf)
		stain(a.Reserve(500), n)
		a.Commit(20)
		stain(a.Reserve(600), n)
		a.Abort()
		buf := a.Buffer()
		buf.Write(tag(n))
		buf.ReadFrom(bytes.NewReader(tag(n)))
		clear(MakeSlice[uint32](a, 10))
		*Alloc[uint64](a) = 1
		CopyOf(a, []uint16{1, 2, 3})
		a.Copy(tag(n))
		a.CopyString("text")
		_, _, _, _ = a.Position(), a.Mark(), a.Room(), a.Overflowed()
		a.Rewind(start)
	}
	if err := onlyTag(own, n); err != nil {
		panic(err)
	}
}

func TestHoldKeepsTheBlock(t *testing.T) {
	pool := wsPool(t, Config{MaxIdle: 4})
	ws := pool.Acquire()
	first, second := ws.Hold(), ws.Hold()
	mine := ws.Client().Alloc(100)
	stain(mine, 1)
	ws.Release()
	visitors(t, pool.Pool, 2, 3)
	require.EqualValues(t, 1, pool.Stats().InUse)
	require.NoError(t, onlyTag(mine, 1))

	first()
	first() // counts once
	require.EqualValues(t, 1, pool.Stats().InUse, "the second hold is open")
	require.NoError(t, onlyTag(mine, 1))
	stain(ws.Client().Alloc(100), 1) // whoever holds it may go on
	third := ws.Hold()
	second()
	visitors(t, pool.Pool, 5, 3)
	require.EqualValues(t, 1, pool.Stats().InUse)
	third()
	s := pool.Stats()
	require.Zero(t, s.InUse)
	require.Equal(t, 2, s.Idle)
	requirePanicIs(t, ErrReleased, func() { ws.Hold() })
	visitors(t, pool.Pool, 8, 3)
}

// A hold that ends before the owner releases changes nothing.
func TestHoldThatEndsFirst(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	ws.Hold()()
	require.EqualValues(t, 1, pool.Stats().InUse)
	ws.Client().Alloc(1)
	ws.Release()
	require.EqualValues(t, 1, pool.Stats().Released)
}

func TestGoHoldsUntilItsFunctionIsDone(t *testing.T) {
	for name, end := range map[string]func(){"returns": func() {}, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			pool := wsPool(t, Config{MaxIdle: 4})
			goOn, outcome := make(chan struct{}), make(chan error, 1)
			ws := pool.Acquire()
			mine := ws.Client().Alloc(100)
			stain(mine, 1)
			ws.Go(func() {
				<-goOn
				outcome <- onlyTag(mine, 1)
				end()
			})
			ws.Release()
			visitors(t, pool.Pool, 2, 3)
			require.EqualValues(t, 1, pool.Stats().InUse)
			close(goOn)
			require.NoError(t, <-outcome)
			require.Equal(t, 2, requireQuiet(t, pool.Pool).Idle)
		})
	}
}

// The handles are dead before the wipe begins: whoever comes while it runs must
// not get a piece that was wiped already. The source of random numbers, which the
// sampler asks in the midst of the release, plays the one who comes.
func TestHandlesAreDeadBeforeTheWipe(t *testing.T) {
	var ws *Workspace
	var client, backend *Arena
	var asked int
	ending := false
	pool := wsPool(t, Config{AuditEvery: 2, draw: func() uint64 {
		if ending {
			ending = false // ask once a half
			asked++
			for _, a := range []*Arena{client, backend} {
				if _, err := a.TryAlloc(8); !errors.Is(err, ErrReleased) {
					t.Errorf("TryAlloc during the release: %v", err)
				}
			}
			if err := panicError(func() { ws.Client() }); !errors.Is(err, ErrReleased) {
				t.Errorf("Client during the release: %v", err)
			}
		}
		return allSet
	}})
	ws = pool.Acquire()
	client, backend = ws.Client(), ws.Backend()
	client.Alloc(100)
	ending = true
	ws.Release()
	require.Equal(t, 1, asked)
	visitors(t, pool.Pool, 2, 1)
}

// allSet makes each gap of the sampler 1.
const allSet = ^uint64(0)

// A deferred Release after Abandon is no double release.
func TestAbandonAndDeferredRelease(t *testing.T) {
	pool := wsPool(t, Config{})
	func() {
		ws := pool.Acquire()
		defer ws.Release()
		ws.Abandon()
		requirePanicIs(t, ErrReleased, ws.Abandon)
	}()
	s := pool.Stats()
	require.EqualValues(t, 1, s.Abandoned)
	require.Zero(t, s.DoubleReleases)
}

// Outside the middleware a panic unwinds whoever used the workspace, so a
// deferred Release wipes the block and it is reused.
func TestDeferredReleaseDuringAPanic(t *testing.T) {
	pool := wsPool(t, Config{})
	err := panicError(func() {
		ws := pool.Acquire()
		defer ws.Release()
		stain(ws.Client().Alloc(100), 1)
		panic(errBackend)
	})
	require.Equal(t, errBackend, err)
	s := pool.Stats()
	require.EqualValues(t, 1, s.Released)
	require.Equal(t, 1, s.Idle)
	visitors(t, pool.Pool, 2, 1)
}

func TestResetStartsAnew(t *testing.T) {
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			pool := wsPool(t, Config{Mode: mode, MaxSpill: wsHalf})
			ws := pool.Acquire()
			for message := range 3 {
				for _, a := range []*Arena{ws.Client(), ws.Backend()} {
					require.Zero(t, a.Position())
					require.Zero(t, a.Mark())
					require.False(t, a.Overflowed())
					require.Equal(t, wsHalf, a.Room())
				}
				require.NoError(t, visit(ws, message, nil), "each message finds zero memory")
				ws.Client().Alloc(wsHalf) // the heap, and the whole budget for it
				requirePanicIs(t, ErrFull, func() { ws.Client().Alloc(1) })
				require.True(t, ws.Client().Overflowed())
				ws.Reset()
			}
			ws.Release()
			s := pool.Stats()
			require.EqualValues(t, 1, s.Acquired)
			require.EqualValues(t, 1, s.Released)
			require.EqualValues(t, 3, s.Totals().Overflows)
		})
	}
}

// Reset refuses while anyone else may use the memory, and then nothing has moved.
func TestResetRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		want    error
		prepare func(ws *Workspace) (undo func())
	}{
		"a hold is open": {ErrMisuse, func(ws *Workspace) func() { return ws.Hold() }},
		"a body is open": {ErrMisuse, func(ws *Workspace) func() {
			body := ws.Backend().Body(ws.Backend().Copy(tag(1)))
			return func() { body.Close() }
		}},
		"released, a hold is open": {ErrReleased, func(ws *Workspace) func() {
			done := ws.Hold()
			ws.Release()
			return done
		}},
		"a reservation in the client half": {ErrReserved, func(ws *Workspace) func() { ws.Client().Reserve(10); return ws.Client().Abort }},
		"a reservation in the backend half": {ErrReserved, func(ws *Workspace) func() {
			ws.Backend().Reserve(10)
			return ws.Backend().Abort
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pool := wsPool(t, Config{})
			ws := pool.Acquire()
			mine := ws.Client().Alloc(100)
			stain(mine, 1)
			undo := tc.prepare(ws)
			before, mark := ws.client.pos, ws.backend.high()
			requirePanicIs(t, tc.want, ws.Reset)
			require.NoError(t, onlyTag(mine, 1))
			require.Equal(t, before, ws.client.pos)
			require.Equal(t, mark, ws.backend.high())
			undo()
			if ws.ended.Load() {
				return
			}
			ws.Reset()
			require.Equal(t, -1, firstNonZero(mine))
			ws.Release()
		})
	}
}

// plausible makes an argument for a method of a handle. A method with an
// argument of another type makes the test fail until it is taught here.
func plausible(t *testing.T, method string, typ reflect.Type, snapshot Snapshot) reflect.Value {
	switch typ {
	case reflect.TypeFor[int]():
		return reflect.ValueOf(8)
	case reflect.TypeFor[byte]():
		return reflect.ValueOf(byte('x'))
	case reflect.TypeFor[rune]():
		return reflect.ValueOf('v')
	case reflect.TypeFor[string]():
		return reflect.ValueOf("some text")
	case reflect.TypeFor[[]byte]():
		return reflect.ValueOf([]byte("some bytes"))
	case reflect.TypeFor[func()]():
		return reflect.ValueOf(func() { t.Errorf("%s has called its argument", method) })
	case reflect.TypeFor[Snapshot]():
		return reflect.ValueOf(snapshot)
	case reflect.TypeFor[io.Reader]():
		return reflect.ValueOf(strings.NewReader("some input"))
	case reflect.TypeFor[fmt.State]():
		return reflect.ValueOf(&formatState{})
	case reflect.TypeFor[context.Context]():
		return reflect.ValueOf(context.Background())
	}
	t.Fatalf("%s takes a %v: teach plausible to make one", method, typ)
	return reflect.Value{}
}

type formatState struct{ bytes.Buffer }

func (*formatState) Width() (int, bool)     { return 0, false }
func (*formatState) Precision() (int, bool) { return 0, false }
func (*formatState) Flag(int) bool          { return false }

// mayBeCalledLate are the only methods that do not refuse a handle that has no
// right to the memory, and why.
var mayBeCalledLate = map[string]string{
	"Workspace.Release": "a second release is counted and does nothing else",
	"Workspace.Format":  "prints what kind of handle it is, so that a log line can't panic",
	"Arena.Format":      "likewise",
	"body.Format":       "likewise",
	"body.Close":        "closing twice is fine, as io.Closers go",
}

// refusal calls a method with plausible arguments. It returns the error that it
// panics with or returns as its last result, or nil when it did not refuse.
func refusal(t *testing.T, v reflect.Value, m reflect.Method, snapshot Snapshot) error {
	name := v.Type().Elem().Name() + "." + m.Name
	f := v.Method(m.Index)
	var args []reflect.Value
	for i := range f.Type().NumIn() {
		typ := f.Type().In(i)
		if f.Type().IsVariadic() && i == f.Type().NumIn()-1 {
			typ = typ.Elem()
		}
		args = append(args, plausible(t, name, typ, snapshot))
	}
	var results []reflect.Value
	if err := panicError(func() { results = f.Call(args) }); err != nil {
		return err
	}
	if n := len(results); n > 0 {
		if err, ok := results[n-1].Interface().(error); ok {
			for _, r := range results[:n-1] {
				require.True(t, r.IsZero(), "%s returned %v beside its error", name, r)
			}
			return err
		}
	}
	return nil
}

// world is all that a late call might move: the block, the pool, and the request
// that has the block now.
type world struct {
	pool *Pool
	mem  []byte
	next *Workspace
}

func (w world) picture() map[string]any {
	p := map[string]any{"stats": w.pool.Stats(), "block": bytes.Clone(w.mem)}
	if next := w.next; next != nil {
		p["shares"], p["doubts"], p["ended"] = next.shares.Load(), next.doubts.Load(), next.ended.Load()
		for _, a := range []*Arena{&next.client, &next.backend} {
			p[a.half.String()] = fmt.Sprint(a.pos, a.mark, a.limit, a.skip, a.res == nil, a.resEnd, a.seq, a.oldest, a.cuts, a.over, a.spilled, a.tally)
			p[a.half.String()+" self"] = a.self.Load() == a
		}
	}
	return p
}

// requireRefused calls every exported method of v, which is a pointer, by
// reflection: a method that is added later is tried as well.
func requireRefused(t *testing.T, w world, v any, snapshot Snapshot, want ...error) {
	t.Helper()
	typ := reflect.TypeOf(v)
	require.NotZero(t, typ.NumMethod())
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		name := typ.Elem().Name() + "." + m.Name
		before := w.picture()
		err := refusal(t, reflect.ValueOf(v), m, snapshot)
		after := w.picture()
		if mayBeCalledLate[name] != "" {
			if err != nil {
				require.True(t, isAny(err, want), "%s: %v", name, err)
			}
			b, a := before["stats"].(Stats), after["stats"].(Stats)
			require.Contains(t, []int64{b.DoubleReleases, b.DoubleReleases + 1}, a.DoubleReleases)
			b.DoubleReleases = a.DoubleReleases
			before["stats"] = b
		} else {
			require.Error(t, err, "%s works on a handle that must be refused", name)
			require.True(t, isAny(err, want), "%s: want one of %v, got: %v", name, want, err)
		}
		for what := range before {
			require.Equal(t, before[what], after[what], "%s has moved the %s", name, what)
		}
	}
}

func isAny(err error, want []error) bool {
	return slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) })
}

// A handleSet is one of each kind of handle, on one workspace.
type handleSet struct {
	ws              *Workspace
	client, backend *Arena
	empty, written  *Buffer // in the half
	heap            *Buffer
	snapshot        Snapshot
}

func newHandleSet(ws *Workspace) handleSet {
	h := handleSet{ws: ws, client: ws.Client(), backend: ws.Backend()}
	stain(h.client.Alloc(200), 1)
	h.empty = h.client.Buffer()
	h.heap = h.backend.Buffer()
	h.heap.Write(make([]byte, wsHalf+1)) // fits no half: straight to the heap
	h.heap.Grow(100)
	h.written = h.client.Buffer()
	h.written.Write(tag(1))
	h.written.Grow(100)
	h.snapshot = h.client.Snapshot()
	return h
}

func (h handleSet) buffers() map[string]*Buffer {
	return map[string]*Buffer{"empty": h.empty, "written": h.written, "on the heap": h.heap}
}

// Every method of every handle, called after the workspace has ended in any of
// its ways, refuses and moves nothing: not the block, not the pool, and not the
// request that has the block by then.
func TestLateHandlesAreRefused(t *testing.T) {
	ends := map[string]struct {
		cfg    Config
		end    func(ws *Workspace)
		reused bool
	}{
		"released":           {Config{}, (*Workspace).Release, true},
		"released by a hold": {Config{}, func(ws *Workspace) { done := ws.Hold(); ws.Release(); done() }, true},
		"released twice":     {Config{}, func(ws *Workspace) { ws.Release(); ws.Release() }, true},
		"released, watermark": {
			Config{Mode: Watermark}, (*Workspace).Release, true},
		"abandoned":                  {Config{}, (*Workspace).Abandon, false},
		"abandoned to its goroutine": {Config{}, func(ws *Workspace) { ws.doubt(doubtRunning); ws.Release() }, false},
		"abandoned by a panic":       {Config{}, func(ws *Workspace) { ws.endRequestByPanic() }, false},
		"without a block":            {Config{MaxLive: 1}, (*Workspace).Release, false},
	}
	for name, tc := range ends {
		t.Run(name, func(t *testing.T) {
			pool := wsPool(t, tc.cfg)
			var only *Workspace
			if tc.cfg.MaxLive > 0 {
				only = pool.Acquire()
			}
			ws := pool.Acquire()
			h := newHandleSet(ws)
			w := world{pool: pool.Pool}
			if ws.blk != nil {
				w.mem = blockOf(ws)
			}
			tc.end(ws)
			if tc.reused {
				w.next = pool.Acquire()
				require.True(t, &w.mem[0] == &blockOf(w.next)[0], "the next request must get the same block, or this test proves nothing")
				stain(w.next.Client().Alloc(300), 2)
				stain(w.next.Backend().Reserve(300), 2)
			}
			requireRefused(t, w, h.ws, h.snapshot, ErrReleased)
			requireRefused(t, w, h.client, h.snapshot, ErrReleased)
			requireRefused(t, w, h.backend, h.snapshot, ErrReleased)
			for _, b := range h.buffers() {
				requireRefused(t, w, b, h.snapshot, ErrReleased)
			}
			for fn, call := range arenaFunctions {
				before := w.picture()
				require.ErrorIs(t, panicError(func() { call(h.client) }), ErrReleased, fn)
				require.Equal(t, before, w.picture(), fn)
			}
			if w.next != nil {
				w.next.Backend().Abort()
				w.next.Release()
			}
			if only != nil {
				only.Release()
			}
		})
	}
}

// endRequestByPanic ends ws as the middleware does when the handler panics.
func (ws *Workspace) endRequestByPanic() {
	ws.doubt(doubtPanic)
	ws.release()
}

// A handle that FromContext made up, since the request was over, was never alive.
func TestMadeUpHandleIsRefused(t *testing.T) {
	pool := wsPool(t, Config{})
	var kept context.Context
	serve(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { kept = r.Context() })), "/")
	ws := FromContext(kept)
	w := world{pool: pool.Pool}
	requireRefused(t, w, ws, Snapshot{}, ErrReleased)
	requireRefused(t, w, &ws.client, Snapshot{}, ErrReleased, ErrMisuse)
}

// A body after Close: net/http expects its own error.
func TestClosedBodyIsRefused(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	body := ws.Backend().Body(ws.Backend().Copy(tag(1)))
	mem := blockOf(ws)
	ws.Release()
	require.NoError(t, body.Close())
	next := pool.Acquire()
	require.True(t, &mem[0] == &blockOf(next)[0], "the same block")
	stain(next.Backend().Alloc(300), 2)
	requireRefused(t, world{pool.Pool, mem, next}, body, Snapshot{}, http.ErrBodyReadAfterClose)
	got := make([]byte, 100)
	body.Read(got)
	require.Equal(t, make([]byte, 100), got, "what a late Read has written")
	next.Release()
}

// Handles that no pool made are refused as misuse: zero values and nil.
func TestZeroAndNilHandlesAreRefused(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	snapshot := ws.Client().Snapshot()
	stain(ws.Client().Alloc(100), 1)
	w := world{pool.Pool, blockOf(ws), ws}
	for name, v := range map[string]any{
		"zero Workspace": new(Workspace), "zero Arena": new(Arena), "zero Buffer": new(Buffer),
		"nil Workspace": (*Workspace)(nil), "nil Arena": (*Arena)(nil), "nil Buffer": (*Buffer)(nil),
	} {
		t.Run(name, func(t *testing.T) { requireRefused(t, w, v, snapshot, ErrMisuse) })
	}
	for fn, call := range arenaFunctions {
		require.ErrorIs(t, panicError(func() { call(nil) }), ErrMisuse, fn)
		require.ErrorIs(t, panicError(func() { call(new(Arena)) }), ErrMisuse, fn)
	}
	requirePanicIs(t, ErrMisuse, new(Workspace).Release)
	requirePanicIs(t, ErrMisuse, (*Workspace)(nil).Release)
	ws.Release()
}

// Copies of live handles are refused as misuse, and copies of dead ones still are.
func TestCopiedHandlesAreRefused(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	h := newHandleSet(ws)
	w := world{pool.Pool, blockOf(ws), ws}
	copies := []any{cloneOf(ws), cloneOf(h.client), cloneOf(h.backend), cloneOf(h.written), cloneOf(h.empty), cloneOf(h.heap)}
	for _, c := range copies {
		t.Run(fmt.Sprintf("of a live %T", c), func(t *testing.T) { requireRefused(t, w, c, h.snapshot, ErrMisuse) })
	}
	arenaCopy := cloneOf(h.client)
	for fn, call := range arenaFunctions {
		require.ErrorIs(t, panicError(func() { call(arenaCopy) }), ErrMisuse, fn)
	}
	require.NotPanics(t, func() { h.written.WriteString("the original goes on") })
	ws.Release()
	next := pool.Acquire()
	w.next = next
	copies = append(copies, cloneOf(ws), cloneOf(h.client), cloneOf(h.written))
	for _, c := range copies {
		t.Run(fmt.Sprintf("of a dead %T", c), func(t *testing.T) { requireRefused(t, w, c, h.snapshot, ErrMisuse, ErrReleased) })
	}
	next.Release()
}

// What belongs to an earlier message is stale after Reset; the arena goes on.
func TestHandlesFromBeforeAResetAreStale(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	h := newHandleSet(ws)
	backendSnapshot := ws.Backend().Snapshot()
	ws.Reset()
	stain(ws.Client().Alloc(300), 2)
	stain(ws.Backend().Alloc(300), 2)
	w := world{pool.Pool, blockOf(ws), ws}
	for name, b := range h.buffers() {
		t.Run("Buffer, "+name, func(t *testing.T) { requireRefused(t, w, b, h.snapshot, ErrStale) })
	}
	t.Run("Snapshot", func(t *testing.T) {
		before := w.picture()
		requirePanicIs(t, ErrStale, func() { h.client.Rewind(h.snapshot) })
		requirePanicIs(t, ErrStale, func() { h.backend.Rewind(backendSnapshot) })
		require.Equal(t, before, w.picture())
	})
	ws.Release()
}

// The same for a buffer after which nothing else was noted: no snapshot, no other
// buffer. A message's bytes must not turn up in the next message's buffer.
func TestOnlyBufferFromBeforeAResetIsStale(t *testing.T) {
	for name, write := range map[string]func(b *Buffer){
		"empty":       func(*Buffer) {},
		"written":     func(b *Buffer) { b.Write(tag(1)) },
		"on the heap": func(b *Buffer) { b.Write(bytes.Repeat(tag(1), wsHalf/len(tag(1))+1)) },
		"moved":       func(b *Buffer) { b.Write(tag(1)); b.Write(make([]byte, wsHalf)) },
	} {
		t.Run(name, func(t *testing.T) {
			pool := wsPool(t, Config{})
			ws := pool.Acquire()
			b := ws.Client().Buffer()
			write(b)
			ws.Reset()
			requireRefused(t, world{pool.Pool, blockOf(ws), ws}, b, Snapshot{}, ErrStale)
			ws.Release()
		})
	}
}

// A buffer whose memory a Rewind has given up is stale.
func TestBuffersAreStaleAfterARewind(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	a := ws.Client()
	start := a.Snapshot()
	b := a.Buffer()
	b.Write(tag(1))
	a.Rewind(start)
	stain(a.Alloc(300), 2) // where the buffer was
	requireRefused(t, world{pool.Pool, blockOf(ws), ws}, b, start, ErrStale)
	ws.Release()
}

// Exceptions that no method needs any more must go from the list.
func TestExceptionsAreMethods(t *testing.T) {
	known := map[string]bool{"body.Format": true} // once there is one
	for _, typ := range []reflect.Type{reflect.TypeFor[*Workspace](), reflect.TypeFor[*Arena](), reflect.TypeFor[*Buffer](), reflect.TypeFor[*body]()} {
		for i := range typ.NumMethod() {
			known[typ.Elem().Name()+"."+typ.Method(i).Name] = true
		}
	}
	for name := range mayBeCalledLate {
		require.True(t, known[name], "%s is no method", name)
	}
	require.LessOrEqual(t, len(mayBeCalledLate), 5)
}

// arenaFunctions are the exported functions that take an Arena. Reflection does
// not list functions; the test below does.
var arenaFunctions = map[string]func(a *Arena){
	"MakeSlice": func(a *Arena) { MakeSlice[uint64](a, 3) },
	"Alloc":     func(a *Arena) { Alloc[uint64](a) },
	"CopyOf":    func(a *Arena) { CopyOf(a, []uint64{1, 2}) },
}

func TestArenaFunctionsAreAllTested(t *testing.T) {
	var found []string
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() {
				continue
			}
			for _, param := range f.Type.Params.List {
				star, ok := param.Type.(*ast.StarExpr)
				if !ok {
					continue
				}
				if id, ok := star.X.(*ast.Ident); ok && (id.Name == "Arena" || id.Name == "Workspace" || id.Name == "Buffer") {
					found = append(found, f.Name.Name)
				}
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(arenaFunctions)), found, "functions to call with a late handle")
}

// secret is what must never be printed. Each process has another.
var secret = fmt.Appendf(nil, "s3cr3t-%016x-t3rc3s", rand.Uint64())

// disclosures returns in which encodings text shows a piece of the secret.
func disclosures(text string) (how []string) {
	piece := secret[:8]
	list := func(format, sep string) string {
		var b []string
		for _, c := range piece {
			b = append(b, fmt.Sprintf(format, c))
		}
		return strings.Join(b, sep)
	}
	lower := strings.ToLower(text)
	for name, s := range map[string]string{
		"raw": string(piece), "hex": hex.EncodeToString(piece), "spaced hex": list("%02x", " "),
		"hex list": list("0x%02x", ", "), "hex list, narrow": list("0x%x", ","), "escapes": list(`\x%02x`, ""),
		"decimal list": list("%d", " "), "decimal list, commas": list("%d", ", "), "decimal list, narrow": list("%d", ","),
		"octal list": list("%o", " "), "binary list": list("%b", " "), "unicode list": strings.ToLower(list("U+%04X", " ")),
	} {
		if strings.Contains(lower, s) {
			how = append(how, name)
		}
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 { // the secret may begin anywhere in a group of three
			s := enc.EncodeToString(append(make([]byte, shift), secret[:12]...))
			s = s[4 : len(s)-4] // the ends depend on the neighbours
			if strings.Contains(text, s) {
				how = append(how, fmt.Sprint("base64, shift ", shift))
			}
		}
	}
	return how
}

// renderings prints v in every way that comes to mind.
func renderings(v any) map[string]string {
	out := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "% X", "%d", "%o", "%b", "%U", "%c", "%t", "%p", "%T"} {
		out[verb] = fmt.Sprintf(verb, v)
		if !slices.Contains([]string{"%v", "%+v", "%#v", "%s", "%x"}, verb) {
			continue
		}
		out["in a struct "+verb] = fmt.Sprintf(verb, struct{ Public any }{v})
		if strings.HasSuffix(verb, "v") { // for others see TestWrongVerbsPrintNoMemory
			out["in a private field "+verb] = fmt.Sprintf(verb, struct{ private any }{v})
		}
		out["in a list "+verb] = fmt.Sprintf(verb, []any{v})
		out["in a map "+verb] = fmt.Sprintf(verb, map[string]any{"v": v})
	}
	if b, err := json.Marshal(v); err == nil {
		out["json"] = string(b)
	}
	if b, err := json.Marshal(map[string]any{"v": v}); err == nil {
		out["json in a map"] = string(b)
	}
	for name, handler := range map[string]func(w io.Writer) slog.Handler{
		"slog text": func(w io.Writer) slog.Handler {
			return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
		"slog json": func(w io.Writer) slog.Handler {
			return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Error("message", "v", v, slog.Group("g", "v", v))
		out[name] = b.String()
	}
	if err, ok := v.(error); ok {
		out["Error"] = err.Error()
	}
	return out
}

// The search itself must find the secret in whatever way it is printed.
func TestDisclosuresAreFound(t *testing.T) {
	for name, text := range renderings(secret) {
		if strings.HasSuffix(name, "%p") || strings.HasSuffix(name, "%T") || strings.HasSuffix(name, "%t") ||
			strings.HasSuffix(name, "%c") {
			continue // prints no contents, or none that can be told apart
		}
		require.NotEmpty(t, disclosures(text), "%s: %.300s", name, text)
	}
	for shift := range 3 {
		require.NotEmpty(t, disclosures(base64.StdEncoding.EncodeToString(append(make([]byte, 30+shift), secret...))))
	}
	require.Empty(t, disclosures("an innocent text"))
}

func TestHandlesPrintWhatTheyAre(t *testing.T) {
	ws := newTestPool(t, Config{}).Acquire()
	client, backend := ws.Client(), ws.Backend()
	require.Equal(t, "workspace.Workspace(live)", fmt.Sprint(ws))
	ws.Release()
	for want, v := range map[string]any{
		"workspace.Workspace(released)": ws,
		"workspace.Workspace(nil)":      (*Workspace)(nil),
		"workspace.Arena(client)":       client,
		"workspace.Arena(backend)":      backend,
		"workspace.Arena(nil)":          (*Arena)(nil),
	} {
		require.Equal(t, want, fmt.Sprint(v))
	}
}

// The leak detector must not leak: neither handles nor violations nor statistics
// nor the log ever show memory contents, however they are printed.
func TestNothingPrintsMemoryContents(t *testing.T) {
	var logs lockedBuffer
	log := slog.New(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var violations []*Violation
	var mu sync.Mutex
	for _, reporter := range []func(*Violation){nil, func(v *Violation) {
		mu.Lock()
		defer mu.Unlock()
		violations = append(violations, v)
	}} {
		pool, err := NewPool(Config{ClientSize: wsHalf, BackendSize: wsHalf, AuditEvery: 1, Logger: log, OnViolation: reporter})
		require.NoError(t, err)
		fill := func(b []byte) {
			for n := 0; n < len(b); {
				n += copy(b[n:], secret)
			}
		}
		var shown []any
		for i := range 6 {
			ws := pool.Acquire()
			fill(ws.Client().Alloc(500))
			fill(ws.Backend().Reserve(500))
			body := ws.Client().Body(ws.Client().Copy(secret))
			shown = append(shown, ws, ws.Client(), ws.Backend(), pool.Stats(), ws.Client().Snapshot(), body)
			for what, v := range map[string]any{"live Workspace": ws, "live Arena": ws.Client(), "live Arena with a reservation": ws.Backend(), "Body": body, "Snapshot": ws.Client().Snapshot()} {
				requireNoDisclosure(t, what, v)
			}
			require.NoError(t, body.Close())
			switch i {
			case 0: // past the mark
				fill(ws.backend.mem()[wsHalf-200:])
			case 1:
				fill(ws.blk.guard(Client))
			case 2:
				ws.client.pos = wsHalf + 1
			case 3: // the reservation stays open
				ws.Release()
				continue
			case 4:
				fill(ws.client.mem()[wsHalf-200:])
				var v *Violation
				require.ErrorAs(t, ws.Audit(), &v)
				shown = append(shown, v)
			case 5:
				for _, f := range []func(){
					func() { ws.Backend().Alloc(1) }, func() { ws.Backend().Commit(1 << 20) }, ws.Reset,
					func() { ws.Client().Rewind(ws.Backend().Snapshot()) },
				} {
					shown = append(shown, panicError(f))
				}
			}
			ws.Backend().Abort()
			ws.Release()
			shown = append(shown, panicError(func() { ws.Client() }))
		}
		require.Eventually(t, func() bool {
			s := pool.Stats()
			mu.Lock()
			defer mu.Unlock()
			return s.Violations > 0 && len(pool.reports) == 0
		}, waitLimit, pollEvery)
		require.NoError(t, pool.SetMode(FullClear))
		pool.Rearm("the test is over")
		shown = append(shown, pool.Stats())
		for _, v := range shown {
			requireNoDisclosure(t, fmt.Sprintf("%T", v), v)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, violations)
	kinds := map[Kind]bool{}
	for _, v := range violations {
		kinds[v.Kind] = true
		requireNoDisclosure(t, "Violation", v)
		requireNoDisclosure(t, "Violation by value", *v)
	}
	require.Len(t, kinds, 4, "one of each kind, or this test proves little: %v", kinds)
	require.Contains(t, logs.String(), "dirty-tail")
	require.Empty(t, disclosures(logs.String()), "the log")
}

func requireNoDisclosure(t *testing.T, what string, v any) {
	t.Helper()
	for how, text := range renderings(v) {
		require.Empty(t, disclosures(text), "%s printed as %s: %.300s", what, how, text)
	}
}

// A verb that does not fit a private field makes fmt print what that field points
// to, without asking for its Format method (badVerb in package fmt), as in
// fmt.Errorf("cannot serve %s", handler). So there must be no contents to be seen.
func TestWrongVerbsPrintNoMemory(t *testing.T) {
	pool := wsPool(t, Config{})
	ws := pool.Acquire()
	copy(ws.Client().Alloc(len(secret)), secret)
	copy(ws.Backend().Reserve(len(secret)), secret)
	type handler struct {
		Scratch *Workspace // Format is asked here
		scratch *Workspace // but not here
		n       int
	}
	for what, v := range map[string]any{
		"private Workspace": &handler{scratch: ws},
		"private Arena":     struct{ half *Arena }{ws.Client()},
		"private Snapshot":  struct{ s *Snapshot }{&Snapshot{arena: ws.Client()}},
		"private interface": struct{ v any }{ws},
		"public Workspace":  handler{Scratch: ws, n: 1},
	} {
		for _, verb := range []string{"%s", "%q", "%d", "%x", "%t", "%c", "%U", "%e", "%v", "%+v", "%#v"} {
			text := fmt.Sprintf(verb, v)
			if how := disclosures(text); len(how) > 0 {
				t.Errorf("%s printed with %s shows memory as %v: %.60s... (%d bytes)", what, verb, how, text, len(text))
			}
		}
	}
	ws.Backend().Abort()
	ws.Release()
}

// A request's context is printed by those who debug cancellations, perhaps while
// another goroutine asks it for the workspace. It shows what it is, as those of
// the standard library do, not its fields.
func TestContextMayBePrinted(t *testing.T) {
	pool := wsPool(t, Config{})
	serve(pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			copy(FromContext(r.Context()).Client().Alloc(len(secret)), secret)
		}()
		derived, cancel := context.WithCancel(r.Context())
		defer cancel()
		for _, ctx := range []context.Context{r.Context(), derived} {
			for _, verb := range []string{"%v", "%+v", "%s"} {
				if text := fmt.Sprintf(verb, ctx); strings.Contains(text, "0x") || strings.Contains(text, "{") {
					t.Errorf("%s prints the fields: %.200s", verb, text)
				}
			}
		}
		<-done
		requireNoDisclosure(t, "context", r.Context())
	})), "/")
}
