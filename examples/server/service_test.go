package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-workspace/workspace"
)

var allModes = []workspace.Mode{workspace.Shadow, workspace.Watermark, workspace.FullClear}

// newTestService returns a service that audits every operation. At the end of
// the test all memory must be back and clean.
func newTestService(t *testing.T, mode workspace.Mode) (*service, http.Handler) {
	t.Helper()
	pool, err := workspace.NewPool(workspace.Config{Mode: mode, AuditEvery: 1, OnViolation: func(v *workspace.Violation) { t.Error(v) }})
	require.NoError(t, err)
	t.Cleanup(func() {
		await(func() bool { return pool.Stats().InUse == 0 })
		pool.AuditIdle()
		st := pool.Stats()
		require.Zero(t, st.InUse, "workspaces in use")
		require.Zero(t, st.Violations)
		require.Zero(t, st.Abandoned, "no request gives a reason to lose a block")
	})
	s := newService(pool, 320<<10, "", log.New(io.Discard, "", 0))
	t.Cleanup(s.transport.CloseIdleConnections)
	return s, s.routes()
}

// ask sends one request to a handler.
func ask(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// requireJSON checks status, headers and body of a whole answer.
func requireJSON(t *testing.T, w *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	require.Equal(t, body+"\n", w.Body.String())
	require.Equal(t, status, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, strconv.Itoa(w.Body.Len()), w.Header().Get("Content-Length"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
}

func TestStats(t *testing.T) {
	_, h := newTestService(t, workspace.Watermark)
	for _, tt := range []struct{ text, want string }{
		{"", `"bytes":0,"lines":0,"words":0,"distinct":0,"top":[]`},
		{" \t\r\n\v\f", `"bytes":6,"lines":2,"words":0,"distinct":0,"top":[]`},
		{"one", `"bytes":3,"lines":1,"words":1,"distinct":1,"top":[{"word":"one","count":1}]`},
		{"a\n", `"bytes":2,"lines":1,"words":1,"distinct":1,"top":[{"word":"a","count":1}]`},
		{"to be or not to be", `"bytes":18,"lines":1,"words":6,"distinct":4,"top":[{"word":"be","count":2},{"word":"to","count":2},{"word":"not","count":1},{"word":"or","count":1}]`},
		{"f e d c b a", `"bytes":11,"lines":1,"words":6,"distinct":6,"top":[{"word":"a","count":1},{"word":"b","count":1},{"word":"c","count":1},{"word":"d","count":1},{"word":"e","count":1}]`},
		{strings.Repeat("x", 65) + " y", `"bytes":67,"lines":1,"words":2,"distinct":2,"top":[{"word":"y","count":1}]`},
		{`"q" <b>`, `"bytes":7,"lines":1,"words":2,"distinct":2,"top":[{"word":"\"q\"","count":1},{"word":"\u003cb\u003e","count":1}]`},
	} {
		requireJSON(t, ask(h, "POST", "/stats", tt.text, "X-Tag", "t1"), 200, `{"tag":"t1",`+tt.want+`}`)
	}
}

// More words than the table has slots at first, and than fit into the client half.
func TestStatsManyWords(t *testing.T) {
	s, h := newTestService(t, workspace.Watermark)
	for _, n := range []int{firstSlots*3/4 - 1, firstSlots * 3 / 4, firstSlots*3/4 + 1, 5000, 40000} {
		var text strings.Builder
		for i := range n {
			text.WriteString(strconv.Itoa(i*7919%n) + " ")
		}
		text.WriteString("1 1 2")
		w := ask(h, "POST", "/stats", text.String(), "X-Tag", "t")
		require.Equal(t, wantStats("t", text.String()), w.Body.String())
	}
	require.NotZero(t, s.pool.Stats().Totals().Overflows, "the last text is too much for the half")
}

func TestEcho(t *testing.T) {
	_, h := newTestService(t, workspace.Watermark)
	requireJSON(t, ask(h, "GET", "/echo", ""), 200, `{"method":"GET","tag":"","headers":{},"body":""}`)
	requireJSON(t, ask(h, "POST", "/echo", "é<\x00", "X-Tag", "t2", "B", "2", "A", "1"), 200,
		`{"method":"POST","tag":"t2","headers":{"A":["1"],"B":["2"],"X-Tag":["t2"]},"body":"é\u003c\u0000"}`)
	requireJSON(t, ask(h, "POST", "/echo", "\xff\xfe"), 200, `{"method":"POST","tag":"","headers":{},"body":"","body_base64":"//4="}`)
}

func TestHealth(t *testing.T) {
	s, h := newTestService(t, workspace.Watermark)
	requireJSON(t, ask(h, "GET", "/healthz", ""), 200, `{"status":"ok"}`)
	require.Zero(t, s.pool.Stats().Acquired, "it costs no block")
}

func TestDebugPage(t *testing.T) {
	_, h := newTestService(t, workspace.Watermark)
	ask(h, "POST", "/stats", "a b c")
	w := ask(h, "GET", "/debug/workspace?format=json", "")
	var page struct{ Pools []workspace.Stats }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
	require.EqualValues(t, 1, page.Pools[0].Released)
	require.Contains(t, ask(h, "GET", "/debug/workspace", "").Body.String(), "<!DOCTYPE html>")
}

func TestRefusals(t *testing.T) {
	_, h := newTestService(t, workspace.Watermark)
	requireJSON(t, ask(h, "GET", "/nowhere", ""), 404, `{"error":"there is nothing at \"/nowhere\""}`)
	for target, allowed := range map[string]string{"/stats": "POST", "/proxy": "POST", "/echo": "GET, HEAD, POST", "/healthz": "GET, HEAD"} {
		w := ask(h, "DELETE", target, "")
		requireJSON(t, w, 405, `{"error":"method \"DELETE\" is not allowed here: want `+allowed+`"}`)
		require.Equal(t, allowed, w.Header().Get("Allow"))
	}
	for _, target := range []string{"/stats", "/echo", "/proxy"} {
		requireJSON(t, ask(h, "POST", target, strings.Repeat("x", 320<<10+1)), 413, `{"error":"the body is larger than 327680 bytes"}`)
		r := httptest.NewRequest("POST", target, io.MultiReader(strings.NewReader("half a body"), failingReader{}))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		requireJSON(t, w, 400, `{"error":"the body could not be read"}`)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("secret detail") }

// What does not fit is in the answer all the same. A body of 150 KB fits, but no
// answer of that size fits with it; in /proxy that is in the backend half only.
func TestOverflow(t *testing.T) {
	s, h := newTestService(t, workspace.Watermark)
	backend := httptest.NewServer(h)
	defer backend.Close()
	s.upstream = backend.URL + "/echo"
	for _, n := range []int{1000, 150 << 10, workspace.DefaultHalfSize - 64, workspace.DefaultHalfSize, workspace.DefaultHalfSize + 1, 320 << 10} {
		body := strings.Repeat("0123456\n", n/8+1)[:n]
		w := ask(h, "POST", "/echo", body, "X-Tag", "big")
		require.Equal(t, wantEcho("POST", "big", body, map[string]string{"X-Tag": "big"}), w.Body.String())
		require.Equal(t, n > 1000, w.Header().Get(overflowHeader) == "true", "echo of %d bytes", n)
		w = ask(h, "POST", "/proxy", body, "X-Tag", "big")
		require.Contains(t, w.Body.String(), quoted(body))
		require.Equal(t, n > 1000, w.Header().Get(overflowHeader) == "true", "proxy of %d bytes", n)
	}
	require.NotZero(t, s.pool.Stats().SpilledBytes)
}

// When even the heap may not be used there is an error, and no half an answer.
func TestNoMemory(t *testing.T) {
	pool, err := workspace.NewPool(workspace.Config{MaxSpill: -1})
	require.NoError(t, err)
	h := newService(pool, 1<<20, "", log.New(io.Discard, "", 0)).routes()
	requireJSON(t, ask(h, "POST", "/echo", strings.Repeat("x", 300<<10)), 507, `{"error":"there is not enough memory for this request"}`)
	requireJSON(t, ask(h, "POST", "/echo", strings.Repeat("\x00", 100<<10)), 507, `{"error":"the answer could not be built"}`)
}

// An Upgrade header alone must not cost a block (newTestService checks that).
func TestUpgradeIsIgnored(t *testing.T) {
	_, h := newTestService(t, workspace.Watermark)
	for _, target := range []string{"/stats", "/echo"} {
		require.Equal(t, 200, ask(h, "POST", target, "x", "Upgrade", "websocket", "Connection", "Upgrade").Code)
	}
}

func TestProxy(t *testing.T) {
	s, h := newTestService(t, workspace.Watermark)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/sum":
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, `{"got": `+quoted(r.Method+" "+r.Header.Get("X-Tag")+" "+r.Header.Get("Content-Length")+" "+string(body))+`}`)
		case "/text":
			io.WriteString(w, "no JSON")
		case "/redirect":
			http.Redirect(w, r, "/sum", http.StatusTemporaryRedirect)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"cut":`)
		case "/huge":
			piece := strings.Repeat(" ", 1<<20)
			for range maxAnswer>>20 + 1 {
				io.WriteString(w, piece)
			}
		}
	}))
	defer backend.Close()
	const gone = `{"error":"the upstream did not answer"}`
	for _, tt := range []struct {
		upstream, body string
		status         int
		want           string
	}{
		{backend.URL + "/sum", "hello", 200, `{"tag":"t3","status":418,"upstream":{"got":"POST t3 5 hello"}}`},
		{backend.URL + "/sum", "", 200, `{"tag":"t3","status":418,"upstream":{"got":"POST t3 0 "}}`},
		{backend.URL + "/text", "x", 502, `{"error":"the upstream's answer, with status 200, is no JSON"}`},
		{backend.URL + "/redirect", "x", 502, `{"error":"the upstream's answer, with status 307, is no JSON"}`}, // not followed
		{backend.URL + "/cut", "x", 502, gone},
		{backend.URL + "/huge", "x", 502, `{"error":"the upstream's answer is larger than 16777216 bytes"}`},
		{"http://127.0.0.1:1/", "x", 502, gone},
		{"http://bad host/", "x", 500, `{"error":"the upstream is not configured well"}`},
	} {
		s.upstream = tt.upstream
		requireJSON(t, ask(h, "POST", "/proxy", tt.body, "X-Tag", "t3"), tt.status, tt.want)
	}
}

// An idle connection to the upstream may break just when a request goes out on
// it. Nothing of the request was written, so the transport tries again on another
// connection, and needs the body anew.
func TestProxyTriesAgain(t *testing.T) {
	s, h := newTestService(t, workspace.Watermark)
	backend := httptest.NewServer(h)
	defer backend.Close()
	s.upstream = backend.URL + "/echo"
	var broken atomic.Bool
	s.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &breakingConn{conn, &broken}, err
	}
	for _, breaks := range []bool{false, true, false} {
		broken.Store(breaks)
		w := ask(h, "POST", "/proxy", "hello", "X-Tag", "again")
		require.Contains(t, w.Body.String(), `"body":"hello"`)
		require.False(t, broken.Load(), "the connection broke")
	}
}

// A breakingConn fails to write, once, when broken is set.
type breakingConn struct {
	net.Conn
	broken *atomic.Bool
}

func (c *breakingConn) Write(p []byte) (int, error) {
	if c.broken.CompareAndSwap(true, false) {
		return 0, errors.New("broken")
	}
	return c.Conn.Write(p)
}

// The requests of the demo, each operation audited, in each mode, by clients that
// all share one pool.
func TestConcurrentRequests(t *testing.T) {
	calls := 40
	if testing.Short() {
		calls = 15
	}
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			s, h := newTestService(t, mode)
			backend := httptest.NewServer(h)
			defer backend.Close()
			s.upstream = backend.URL + "/echo"
			var tags atomic.Int64
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					g := newGenerator(i, &tags)
					for range calls {
						c := g.call()
						c.abort = noAbort
						header := []string{}
						for name, value := range c.headers() {
							header = append(header, name, value)
						}
						w := ask(h, c.method, c.path, c.body, header...)
						v := c.check(answer{status: w.Code, contentType: w.Header().Get("Content-Type"), body: w.Body.Bytes()})
						if v != (verdict{}) {
							t.Errorf("foreign tags: %d; wrong: %q", v.foreign, v.wrong)
						}
					}
				})
			}
			wg.Wait()
			require.NotZero(t, s.pool.Stats().Totals().Audits)
		})
	}
}
