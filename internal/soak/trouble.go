package main

import (
	"math/rand/v2"
	"sync/atomic"
)

// A trouble is what goes wrong in a request, on purpose. The client draws it and
// tells the handler, so it knows what answer to expect.
type trouble int

const (
	noTrouble     trouble = iota
	cancelWait            // the client has no patience
	cancelUpload          // the client gives up in the middle of the body
	cancelRead            // the client gives up in the middle of the answer
	panicAbort            // the handler panics with http.ErrAbortHandler
	panicOther            // the handler panics with something else
	goexit                // the handler ends its goroutine
	slow                  // the handler takes longer than http.TimeoutHandler allows
	hold                  // a goroutine with a Hold outlives the handler
	goHold                // so does one that Workspace.Go started
	hijack                // the connection is taken over, with a Hold
	upgrade               // the connection is taken over by an Upgrade, without a Hold
	openReserve           // a reservation is left open at the end
	doubleRelease         // the handler releases twice
	lateUse               // the handler releases, then uses its handles
	abandon               // the handler abandons the workspace and keeps slices of it
	numTroubles
)

var troubleNames = [numTroubles]string{"none", "cancel while waiting", "cancel in the body", "cancel in the answer", "panic ErrAbortHandler", "panic, other", "Goexit",
	"too slow", "Hold", "Go", "hijack with Hold", "upgrade", "open reservation", "double Release", "late use", "Abandon"}

func (t trouble) String() string { return troubleNames[t] }

// A route is a way to hang a handler into a server.
type route int

const (
	handlerFunc   route = iota // Pool.HandlerFunc
	middleware                 // Pool.Middleware
	nested                     // Pool.Middleware twice
	timeoutFunc                // http.TimeoutHandler around Pool.HandlerFunc
	timeoutAround              // http.TimeoutHandler around Pool.Middleware
	timeoutInside              // Pool.Middleware around http.TimeoutHandler: the blocks are abandoned
	numRoutes
)

var routeNames = [numRoutes]string{"HandlerFunc", "Middleware", "Middleware twice", "TimeoutHandler(HandlerFunc)", "TimeoutHandler(Middleware)", "Middleware(TimeoutHandler)"}

func (r route) String() string { return routeNames[r] }

// limited reports whether the answer may be that of http.TimeoutHandler.
func (r route) limited() bool { return r >= timeoutFunc }

// drawTrouble draws what happens in the next request, and where.
func drawTrouble(rng *rand.Rand, http2 bool) (trouble, route) {
	t, r := noTrouble, route(rng.IntN(int(numRoutes)))
	if rng.IntN(3) == 0 {
		t = trouble(rng.IntN(int(numTroubles)))
	}
	switch t {
	case hijack, upgrade:
		if http2 {
			return noTrouble, r // one can't hijack there
		}
		r = route(rng.IntN(int(timeoutFunc)))
	case slow:
		r = timeoutFunc + route(rng.IntN(int(numRoutes-timeoutFunc)))
	case hold, goHold, openReserve, doubleRelease, lateUse, abandon, panicAbort, panicOther, goexit:
		r = route(rng.IntN(int(timeoutInside))) // there a handle may die at any time
	}
	return t, r
}

// counters has one for each of several kinds.
type counters []atomic.Int64

// named returns those that are not zero.
func (c counters) named(name func(int) string) map[string]int64 {
	m := map[string]int64{}
	for i := range c {
		if n := c[i].Load(); n > 0 {
			m[name(i)] = n
		}
	}
	return m
}
