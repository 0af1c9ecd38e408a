package main

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-workspace/workspace"
)

// timeoutAfter is when http.TimeoutHandler gives up.
const timeoutAfter = 50 * time.Millisecond

const lateAnswer = "too late"

// A server serves visits on all routes, over HTTP/1.1 and HTTP/2.
type server struct {
	opt    options
	log    *findings
	pool   *workspace.Pool
	http   *http.Server
	addr   string
	ledger ledger
	active atomic.Int64 // handlers and goroutines that outlive them

	expected, reported       atomic.Int64 // reports of open reservations; all reports
	lateUses, resets, cutOff atomic.Int64
	switches, trims, audits  atomic.Int64
	idleAudited, collections atomic.Int64
	planted                  atomic.Int64
}

// A ledger knows what the counters of the pool must be.
type ledger struct {
	taken      atomic.Int64 // workspaces
	unsure     atomic.Int64 // workspaces that were dead when the handler got them, or had just died
	running    atomic.Int64 // abandoned, as the handler may still run
	panicked   atomic.Int64 // abandoned after a panic or Goexit
	upgraded   atomic.Int64 // abandoned after an Upgrade
	abandoned  atomic.Int64 // abandoned by Abandon
	opened     atomic.Int64 // abandoned with a reservation open
	openHalves atomic.Int64 // reservations that were left open
	doubles    atomic.Int64 // second releases
}

func (l *ledger) took(on route, ws *workspace.Workspace) {
	switch {
	case on != timeoutInside:
		l.taken.Add(1)
	case caught(func() { ws.Mode() }) == nil:
		l.taken.Add(1)
		l.running.Add(1)
	default:
		l.unsure.Add(1)
	}
}

func newServer(o options, log *findings) (*server, error) {
	s := &server{opt: o, log: log}
	var err error
	s.pool, err = workspace.NewPool(workspace.Config{
		Name: "soak", Mode: o.mode.start(), AuditEvery: o.audit,
		MaxIdle:     max(2, o.clients/2), // so that some blocks are let go
		MaxLive:     2 * o.clients,       // so that some requests get no block
		OnViolation: s.violated,
		Logger:      slog.New(slog.DiscardHandler),
	})
	return s, err
}

// violated is told of each violation. An open reservation is part of the plan: whoever saw
// one in production would look into it, and rearm the breaker.
func (s *server) violated(v *workspace.Violation) {
	if v.Kind == workspace.OpenReservation {
		s.expected.Add(1)
		s.pool.Rearm("a planned violation")
	} else {
		s.log.fault("%v", v)
	}
	s.reported.Add(1)
}

// start listens on a free port.
func (s *server) start() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr = ln.Addr().String()
	s.http = &http.Server{Handler: s.routes(), ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)} // it logs each panic
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	s.background(func() {
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.fault("the server ended: %v", err)
		}
	})
	return nil
}

type visitKey struct{}

// visitOf returns the visit of a request.
func visitOf(r *http.Request) *visit { return r.Context().Value(visitKey{}).(*visit) }

// path returns where a route is mounted.
func (r route) path() string { return "/" + string('a'+rune(r)) }

func (s *server) routes() http.Handler {
	direct := s.pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
		visitOf(r).serve(w, r, func() *workspace.Workspace { return ws })
	})
	looking := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r)
		v.serve(w, r, func() *workspace.Workspace { return v.fromContext(r.Context()) })
	})
	limited := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, timeoutAfter, lateAnswer) }
	mux := http.NewServeMux()
	for on, h := range map[route]http.Handler{
		handlerFunc:   direct,
		middleware:    s.pool.Middleware(looking),
		nested:        s.pool.Middleware(s.pool.Middleware(looking)),
		timeoutFunc:   limited(direct),
		timeoutAround: limited(s.pool.Middleware(looking)),
		timeoutInside: s.pool.Middleware(limited(looking)),
	} {
		mux.Handle(on.path(), s.visited(on, h))
	}
	return mux
}

// fromContext looks the workspace up. Twice is as good as once.
func (v *visit) fromContext(ctx context.Context) *workspace.Workspace {
	ws := workspace.FromContext(ctx)
	if v.route != timeoutInside && workspace.FromContext(ctx) != ws {
		v.fault("FromContext returned another workspace the second time")
	}
	return ws
}

// visited puts a visit around each request of a route. After the route has returned, it
// uses the handles that must be dead by now.
func (s *server) visited(on route, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Add(-1)
		v, err := s.newVisit(r, on)
		if err != nil {
			s.log.fault("a request that nobody sent: %v", err)
			return
		}
		defer func() {
			if !on.limited() && v.over { // else the handler may still run
				v.useLate()
			}
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// background runs f in a goroutine that the end of the soak waits for.
func (s *server) background(f func()) {
	s.active.Add(1)
	go func() {
		defer s.active.Add(-1)
		f()
	}()
}

// catch is deferred where a panic would end the process.
func (s *server) catch(v *visit) {
	if e := recover(); e != nil {
		v.fault("unexpected panic in a goroutine that outlives the handler: %v", e)
	}
}

// disturb changes settings and cleans up while requests are under way, until ctx is done.
func (s *server) disturb(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+rng.IntN(20)) * time.Millisecond):
		}
		switch n := rng.IntN(20); {
		case n < 8 && s.opt.mode.mixed():
			s.pool.SetMode(allModes[rng.IntN(len(allModes))])
			s.pool.SetCanary([]float64{0, 0.5, 1}[rng.IntN(3)])
			s.switches.Add(1)
		case n < 11:
			s.pool.Trim(rng.IntN(4))
			s.trims.Add(1)
		case n < 14:
			s.auditIdle()
		case n == 14:
			s.collect()
		}
		if s.log.faults() == 0 {
			s.pool.Rearm("a planned violation whose report was dropped")
		}
	}
}

// stop ends the server and waits until nobody uses a workspace any more.
func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.log.fault("the server did not stop within %v: %v", drainLimit, err)
		s.http.Close()
	}
	if !await(func() bool { return s.active.Load() == 0 && s.pool.Stats().InUse == 0 }) {
		s.log.fault("after %v handlers or goroutines still run, %d, or workspaces are in use, %d", drainLimit, s.active.Load(), s.pool.Stats().InUse)
	}
	s.auditIdle()
	s.pool.Close()
	await(func() bool {
		st := s.pool.Stats()
		return s.reported.Load() >= st.Violations-st.ReportsDropped
	})
}

// settle compares the pool's counters with the ledger.
func (s *server) settle() workspace.Stats {
	st, l := s.pool.Stats(), &s.ledger
	unsure := l.unsure.Load()
	for _, c := range []struct {
		name      string
		got, want int64
		unsure    int64 // how many more there may be
	}{
		{"workspaces acquired", st.Acquired, l.taken.Load(), unsure},
		{"workspaces in use", st.InUse, 0, 0},
		{"workspaces abandoned", st.Abandoned, l.running.Load() + l.panicked.Load() + l.upgraded.Load() + l.abandoned.Load() + l.opened.Load(), unsure},
		{"workspaces abandoned with a handler that may run", st.Doubts.Running, l.running.Load(), unsure},
		{"workspaces abandoned after a panic", st.Doubts.Panic, l.panicked.Load(), 0},
		{"workspaces abandoned after an upgrade", st.Doubts.Upgrade, l.upgraded.Load(), 0},
		{"workspaces abandoned by Abandon", st.Doubts.Abandon, l.abandoned.Load(), 0},
		{"workspaces abandoned with an open reservation", st.Doubts.Reservation, l.opened.Load(), 0},
		{"workspaces abandoned after a violation", st.Doubts.Violation, 0, 0},
		{"violations", st.Violations, l.openHalves.Load(), 0},
		{"second releases", st.DoubleReleases, l.doubles.Load(), 0},
		{"panics of OnViolation", st.ReporterPanics, 0, 0},
	} {
		if c.got < c.want || c.got > c.want+c.unsure {
			s.log.fault("%s: the pool counted %d, the soak %d (and %d that may be)", c.name, c.got, c.want, c.unsure)
		}
	}
	if st.Acquired != st.Released+st.Abandoned+st.InUse {
		s.log.fault("the balance does not hold: %d acquired, %d released, %d abandoned, %d in use", st.Acquired, st.Released, st.Abandoned, st.InUse)
	}
	return st
}
