package workspace

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A hold keeps the workspace alive after the handler has returned. A goroutine
// that only has the context must not get at it then: when the hold ends, the
// block goes on to the next request under its hands.
func TestLateLookupWhileHeld(t *testing.T) {
	pool := newTestPool(t, Config{})
	var ctx context.Context
	var done func()
	var held *Workspace
	pool.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx = r.Context()
		held = FromContext(ctx)
		done = held.Hold()
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))

	late := FromContext(ctx)
	requirePanicIs(t, ErrReleased, func() { late.Client() })
	require.True(t, late == FromContext(ctx), "the same dead handle each time")
	held.Client().Alloc(8) // who has the hold may go on
	done()
	requirePanicIs(t, ErrReleased, func() { held.Client() })
	require.EqualValues(t, 1, pool.Stats().Released)
}

// The handler may look at all values of the header, so the first one, which the
// client may leave empty, does not decide.
func TestUpgradeInASecondHeader(t *testing.T) {
	for name, values := range map[string][]string{"empty first": {"", "websocket"}, "empty": {""}, "plain": {"websocket"}} {
		t.Run(name, func(t *testing.T) {
			pool := newTestPool(t, Config{})
			r := httptest.NewRequest("GET", "/", nil)
			r.Header["Upgrade"] = values
			pool.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request, ws *Workspace) { ws.Client().Alloc(8) }).ServeHTTP(httptest.NewRecorder(), r)
			require.EqualValues(t, 1, pool.Stats().Doubts.Upgrade)
		})
	}
}

// What a handler leaves on its request is passed on only when the handler has
// ended for certain: reading it then would be a data race. The log says once
// what to do about it.
func TestForeignGoroutineIsToldOfOnce(t *testing.T) {
	var log lockedBuffer
	pool := newTestPool(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		r := httptest.NewRequest("GET", "/", nil)
		pool.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				FromContext(r.Context())
				r.Pattern = "/late"
			}()
			<-done
		})).ServeHTTP(httptest.NewRecorder(), r)
		require.Empty(t, r.Pattern)
	}
	require.EqualValues(t, 3, pool.Stats().Doubts.Running)
	require.Eventually(t, func() bool { return len(pool.reports) == 0 }, waitLimit, pollEvery)
	require.Equal(t, 1, strings.Count(log.String(), "another goroutine"), log.String())
}

func TestNilHandlersAreRefused(t *testing.T) {
	pool := newTestPool(t, Config{})
	requirePanicIs(t, ErrMisuse, func() { pool.Middleware(nil) })
	requirePanicIs(t, ErrMisuse, func() { pool.HandlerFunc(nil) })
}
