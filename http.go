package workspace

import (
	"context"
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
func (p *Pool) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer := fromContext(r.Context()); outer != nil && outer.pool == p && outer.here() && outer.open() {
			next.ServeHTTP(w, r)
			return
		}
		rc := &requestContext{Context: r.Context(), pool: p, goroutine: goroutine()}
		returned := false
		defer func() { rc.end(r, returned) }()
		next.ServeHTTP(w, r.WithContext(rc))
		returned = true
	})
}

// HandlerFunc returns a handler that calls f with a workspace, which is given
// back when f has returned, whatever stands around it. It is the surest and the
// cheapest way to use a workspace. A panic in f abandons the block and passes on
// unchanged; an Upgrade or CONNECT request abandons it, too.
func (p *Pool) HandlerFunc(f func(w http.ResponseWriter, r *http.Request, ws *Workspace)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws := p.Acquire()
		returned := false
		defer func() { ws.endRequest(r, returned) }()
		f(w, r, ws)
		returned = true
	})
}

// endRequest is the one deferred path on which a handler's workspace ends. It
// never writes to the response and never recovers.
func (ws *Workspace) endRequest(r *http.Request, returned bool) {
	if !returned {
		ws.doubt(DoubtPanic)
	}
	if r.Method == http.MethodConnect || r.Header.Get("Upgrade") != "" {
		ws.doubt(DoubtUpgrade)
	}
	ws.release() // the handler may have done so already
}

// FromContext returns the workspace of the request that ctx belongs to: the
// same one on each call. It returns nil when ctx comes from no [Pool.Middleware].
// After the handler has returned it returns a dead workspace, never a live one.
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
		if rc.ws == nil {
			rc.ws = deadWorkspace(rc.pool)
		}
		return rc.ws
	}
	if !here {
		rc.foreign = true
	}
	if rc.ws == nil {
		rc.ws = rc.pool.Acquire()
	}
	return rc.ws
}

// end runs in Middleware's deferred call.
func (rc *requestContext) end(r *http.Request, returned bool) {
	rc.mu.Lock()
	rc.ended = true
	ws, foreign := rc.ws, rc.foreign
	rc.mu.Unlock()
	if ws == nil {
		return
	}
	if foreign {
		ws.doubt(DoubtRunning)
		if rc.pool.warned.CompareAndSwap(false, true) {
			rc.pool.logger().Warn("workspace: a block was abandoned because FromContext was called on another goroutine than Middleware runs on, "+
				"which may still run (put Middleware inside http.TimeoutHandler, or use HandlerFunc); further ones are only counted", "pool", rc.pool.cfg.Name)
		}
	}
	ws.endRequest(r, returned)
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
// so the block is held until the client closes the body, which it always does.
// Set the request's ContentLength to len(p) to avoid chunked encoding.
func (a *Arena) Body(p []byte) io.ReadCloser {
	a.mustBeUsable("Body")
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

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		b.done()
		b.done, b.rest = nil, nil
	}
	return nil
}
