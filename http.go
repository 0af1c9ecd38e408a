package workspace

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Middleware gives each request that asks for it a workspace: a handler below
// gets it from [FromContext], and it is given back when the handler has
// returned. A request that never asks costs no block. The ResponseWriter is
// passed on as it is.
//
// The workspace is reused only when that is safe for certain. It is abandoned
// when the handler panicked (the panic passes on unchanged), when the request
// asked for an Upgrade or is a CONNECT, so that the connection may have been
// handed on, and when FromContext was called on another goroutine than the one
// that Middleware runs on, with no proof that it has ended. The last is what
// happens inside http.TimeoutHandler: put Middleware inside of it, or use
// [Pool.HandlerFunc], to have the block reused.
//
// Middleware may stand more than once in a chain. On the same goroutine the
// inner one leaves the workspace of the outer one in place; on another, it gives
// its own.
//
// A handler that hijacks the connection without an Upgrade header, or starts a
// goroutine that outlives it, must call [Workspace.Hold] or [Workspace.Go].
//
// It panics with [ErrMisuse] when next is nil.
func (p *Pool) Middleware(next http.Handler) http.Handler {
	if next == nil {
		panic(fmt.Errorf("%w: Pool.Middleware: the handler is nil", ErrMisuse))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer := fromContext(r.Context()); outer != nil && outer.pool == p && outer.here() && outer.open() {
			next.ServeHTTP(w, r)
			return
		}
		rc := &requestContext{Context: r.Context(), pool: p, goroutine: goroutine()}
		inner := r.WithContext(rc)
		upgrade, returned := mayUpgrade(r), false
		defer func() {
			if !rc.end(upgrade, returned) {
				// What a handler leaves on its request is for those outside: the
				// server removes the files of the form, loggers read the pattern.
				r.Pattern, r.MultipartForm = inner.Pattern, inner.MultipartForm
			}
		}()
		next.ServeHTTP(w, inner)
		returned = true
	})
}

// HandlerFunc returns a handler that calls f with a workspace, which is given
// back when f has returned, whatever stands around it. It is the surest and the
// cheapest way to use a workspace. A panic in f abandons the block and passes on
// unchanged; an Upgrade or CONNECT request abandons it, too. It panics with
// [ErrMisuse] when f is nil.
func (p *Pool) HandlerFunc(f func(w http.ResponseWriter, r *http.Request, ws *Workspace)) http.Handler {
	if f == nil {
		panic(fmt.Errorf("%w: Pool.HandlerFunc: the function is nil", ErrMisuse))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws := p.Acquire()
		upgrade, returned := mayUpgrade(r), false
		defer func() { ws.endRequest(upgrade, returned) }()
		f(w, r, ws)
		returned = true
	})
}

// mayUpgrade reports whether the request asks for its connection to be handed on.
// It must be asked before the handler runs: the handler may change the header,
// even after the middleware has ended.
func mayUpgrade(r *http.Request) bool {
	// Get would see only the first value, which the client may leave empty.
	return r.Method == http.MethodConnect || len(r.Header["Upgrade"]) > 0
}

// endRequest is the one deferred path on which a handler's workspace ends. It
// never writes to the response and never recovers.
func (ws *Workspace) endRequest(upgrade, returned bool) {
	if !returned {
		ws.doubt(doubtPanic)
	}
	if upgrade {
		ws.doubt(doubtUpgrade)
	}
	ws.release() // the handler may have done so already
}

// FromContext returns the workspace of the request that ctx belongs to: the
// same one on each call. It returns nil when ctx comes from no [Pool.Middleware].
// After the handler has returned it returns a dead workspace, never a live one,
// even if a hold is open: a function given to [Workspace.Go] must use the
// workspace that started it. Behind the middlewares of several pools it
// returns the workspace of the innermost.
//
// Call it on the handler's own goroutine and pass the workspace on from there; a
// call on another goroutine makes the block be abandoned at the end.
func FromContext(ctx context.Context) *Workspace {
	rc := fromContext(ctx)
	if rc == nil {
		return nil
	}
	return rc.workspace()
}

type contextKey struct{}

func fromContext(ctx context.Context) *requestContext {
	rc, _ := ctx.Value(contextKey{}).(*requestContext)
	return rc
}

// A requestContext is the context of one request behind Middleware. It is small,
// made anew for each request, and never pooled: the standard library keeps
// contexts of ended requests in goroutines of its own.
type requestContext struct {
	context.Context
	pool      *Pool
	goroutine uintptr // that Middleware runs on

	mu      sync.Mutex // guards the rest
	ws      *Workspace // nil until the first FromContext
	ended   bool
	foreign bool // FromContext was called on another goroutine
}

// Value answers for the request context itself, else asks the parent.
func (rc *requestContext) Value(key any) any {
	if key == (contextKey{}) {
		return rc
	}
	return rc.Context.Value(key)
}

// String names the context the way those of package context do. Without it fmt
// would read the fields, while another goroutine may change them.
func (rc *requestContext) String() string { return fmt.Sprint(rc.Context) + ".WithWorkspace" }

// here reports whether the caller runs on the goroutine of the middleware.
func (rc *requestContext) here() bool {
	g := goroutine()
	return g != 0 && g == rc.goroutine
}

func (rc *requestContext) open() bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return !rc.ended
}

func (rc *requestContext) workspace() *Workspace {
	here := rc.here()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.ended {
		// A hold may keep rc.ws alive; a latecomer must not get at it.
		if rc.ws == nil || rc.ws.shares.Load() > 0 {
			rc.ws = deadWorkspace(rc.pool)
		}
		return rc.ws
	}
	if rc.ws == nil {
		rc.ws = rc.pool.Acquire()
	}
	if !here {
		rc.foreign = true
		rc.ws.doubt(doubtRunning)
	}
	return rc.ws
}

// end runs in Middleware's deferred call. It reports whether another goroutine
// took the workspace, so that the handler may still run. The lock is held to the
// end, so that a late look-up finds the workspace dead unless it is held.
func (rc *requestContext) end(upgrade, returned bool) (foreign bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.ended = true
	if rc.ws != nil {
		rc.ws.endRequest(upgrade, returned)
	}
	if rc.foreign && rc.pool.warned.CompareAndSwap(false, true) {
		rc.pool.tell(func() {
			rc.pool.logger().Warn("workspace: a block was abandoned because FromContext was called on another goroutine than Middleware runs on, "+
				"which may still run (put Middleware inside http.TimeoutHandler, or use HandlerFunc); further ones are only counted", "pool", rc.pool.cfg.Name)
		})
	}
	return rc.foreign
}

// deadWorkspace returns a handle that was never alive.
func deadWorkspace(p *Pool) *Workspace {
	ws := &Workspace{pool: p}
	ws.client.ws, ws.backend.ws = ws, ws
	ws.ended.Store(true)
	return ws
}

// Body returns p, memory of this arena, as the body of an outgoing request. The
// HTTP client may go on reading a body after Do has returned (golang/go#51907),
// so the block is held until the client closes the body, which it always does
// with Request.Body. One that Request.GetBody made it may drop without closing,
// when CheckRedirect refuses a 307 or 308; the block then stays held. A proxy
// should call Transport.RoundTrip, which follows no redirects.
//
// The hold keeps the block, not the bytes: a Rewind to before p hands them out
// again. Workspace.Reset panics until the body is closed, which may be later
// than the end of the answer.
//
// Set the request's ContentLength to len(p) to avoid chunked encoding. An empty
// p gives http.NoBody.
func (a *Arena) Body(p []byte) io.ReadCloser {
	a.mustBeUsable("Body")
	if len(p) == 0 {
		return http.NoBody // ContentLength 0 with any other body means unknown
	}
	return &body{rest: p, done: a.ws.Hold()}
}

// A body is read by one goroutine and may be closed by another meanwhile.
type body struct {
	mu   sync.Mutex // held while rest is copied out, so that Close waits for it
	rest []byte
	done func() // nil once closed
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done == nil:
		return 0, http.ErrBodyReadAfterClose
	case len(b.rest) == 0:
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Format prints what it is and nothing of the memory, for every verb.
func (b *body) Format(f fmt.State, _ rune) { io.WriteString(f, "workspace.Body") }

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		b.done()
		b.done, b.rest = nil, nil
	}
	return nil
}
