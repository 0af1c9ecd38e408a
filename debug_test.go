package workspace

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// debugRequest asks the handler as the net/http server would.
func debugRequest(t *testing.T, h http.Handler, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"), "counters must not be cached, whatever the answer")
	return w
}

func TestDebugHandlerMethods(t *testing.T) {
	h := DebugHandler(newTestPool(t, Config{}).Pool)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get"} {
		w := debugRequest(t, h, method, "/")
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
		require.Contains(t, w.Body.String(), method, "the message names the method")
	}
	for _, target := range []string{"/", "/?format=json"} {
		get, head := debugRequest(t, h, "GET", target), debugRequest(t, h, "HEAD", target)
		require.Equal(t, http.StatusOK, get.Code)
		require.Equal(t, http.StatusOK, head.Code)
		require.NotZero(t, get.Body.Len())
		require.Zero(t, head.Body.Len(), "HEAD has no body")
		require.Equal(t, get.Header().Get("Content-Type"), head.Header().Get("Content-Type"))
		require.NotEmpty(t, head.Header().Get("Content-Length"))
	}
}

func TestDebugHandlerFormats(t *testing.T) {
	h := DebugHandler(newTestPool(t, Config{}).Pool)
	for target, contentType := range map[string]string{
		"/":             "text/html; charset=utf-8",
		"/?format=":     "text/html; charset=utf-8",
		"/?format=html": "text/html; charset=utf-8",
		"/?format=json": "application/json",
	} {
		w := debugRequest(t, h, "GET", target)
		require.Equal(t, http.StatusOK, w.Code, target)
		require.Equal(t, contentType, w.Header().Get("Content-Type"), target)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"), target)
	}
	for _, format := range []string{"xml", "JSON", "<script>alert(1)</script>"} {
		w := debugRequest(t, h, "GET", "/?format="+format)
		require.Equal(t, http.StatusBadRequest, w.Code, format)
		require.Contains(t, w.Body.String(), format, "the message names the value")
		require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"), "no browser may take the value for HTML")
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
}

// A pool's name comes from configuration, and so from anywhere.
func TestDebugHandlerEscapesTheName(t *testing.T) {
	const name = `"><script>alert('&amp;')</script>`
	h := DebugHandler(newTestPool(t, Config{Name: name}).Pool)

	page := debugRequest(t, h, "GET", "/").Body.String()
	require.NotContains(t, page, "<script", "the page runs no scripts, and none from a name")
	require.Contains(t, page, "&lt;script&gt;alert(&#39;&amp;amp;&#39;)&lt;/script&gt;")

	var answer debugAnswer
	require.NoError(t, json.Unmarshal(debugRequest(t, h, "GET", "/?format=json").Body.Bytes(), &answer))
	require.Equal(t, name, answer.Pools[0].Name)
}

// The page must work on a host that reaches nothing else, under a strict
// Content-Security-Policy.
func TestDebugHandlerNeedsNothingFromOutside(t *testing.T) {
	h := DebugHandler(newTestPool(t, Config{}).Pool, newTestPool(t, Config{Name: "second"}).Pool)
	w := debugRequest(t, h, "GET", "/")
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	page := w.Body.String()
	require.NotRegexp(t, regexp.MustCompile(`(?i)src=|https?:|<link|<iframe| on[a-z]+=`), page)
	require.Contains(t, page, "<h2>default</h2>")
	require.Contains(t, page, "<h2>second</h2>")
	for _, element := range []string{"table", "tr", "td", "th", "h2", "p", "style", "body", "html"} {
		require.Equal(t, strings.Count(page, "<"+element+">")+strings.Count(page, "<"+element+" "), strings.Count(page, "</"+element+">"), "each <%s> is closed", element)
	}
}

// debugAnswer is what a program outside of this package would decode into.
type debugAnswer struct {
	Time  time.Time `json:"time"`
	Pools []struct {
		Name      string  `json:"pool"`
		Mode      Mode    `json:"mode"`
		Effective Mode    `json:"effective_mode"`
		Canary    float64 `json:"canary"`
		Open      bool    `json:"breaker_open"`
		Acquired  int64   `json:"acquired"`
		Released  int64   `json:"released"`
		Abandoned int64   `json:"abandoned"`
		InUse     int64   `json:"in_use"`
		Doubts    DoubtStats
		Modes     []struct {
			Mode            Mode
			Released        int64
			Client, Backend HalfStats
		}
		Bound95     float64 `json:"bound_95"`
		Bound999999 float64 `json:"bound_999999"`
		Wiped       float64 `json:"wiped_bytes_per_request"`
		Saved       float64 `json:"saved_bytes_per_request"`
	} `json:"pools"`
}

func TestDebugHandlerAgreesWithStats(t *testing.T) {
	p := newTestPool(t, Config{Name: "api", Mode: Watermark, Canary: 0.25})
	for i := range 10 {
		ws := p.Acquire()
		stain(ws.Client().Alloc(1000), i)
		stain(ws.Backend().Alloc(200), i)
		if i == 0 {
			ws.Abandon()
		} else {
			ws.Release()
		}
	}
	live := p.Acquire()
	defer live.Release()
	empty := newTestPool(t, Config{})

	w := debugRequest(t, DebugHandler(p.Pool, empty.Pool), "GET", "/?format=json")
	var got debugAnswer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.WithinDuration(t, time.Now(), got.Time, time.Minute)
	require.Len(t, got.Pools, 2)

	s, a := p.Stats(), got.Pools[0]
	require.Equal(t, "api", a.Name)
	require.Equal(t, []any{Watermark, Watermark, 0.25, false}, []any{a.Mode, a.Effective, a.Canary, a.Open})
	require.Equal(t, []int64{11, 9, 1, 1}, []int64{a.Acquired, a.Released, a.Abandoned, a.InUse})
	require.Equal(t, DoubtStats{Abandon: 1}, a.Doubts)
	require.Len(t, a.Modes, len(allModes))
	for i, m := range s.Modes {
		require.Equal(t, []any{m.Mode, m.Released, m.Client, m.Backend}, []any{a.Modes[i].Mode, a.Modes[i].Released, a.Modes[i].Client, a.Modes[i].Backend})
	}
	require.Equal(t, s.ViolationBound(0.95), a.Bound95)
	require.Equal(t, s.ViolationBound(0.999999), a.Bound999999)
	require.Less(t, a.Bound95, a.Bound999999)
	// Nine requests wiped to their marks; the abandoned one was not wiped.
	require.Equal(t, float64(1000+200), a.Wiped)
	require.Equal(t, float64(2*DefaultHalfSize-1000-200), a.Saved)

	require.Equal(t, "default", got.Pools[1].Name, "pools stand in the order given")
	require.Equal(t, []float64{1, 1, 0, 0}, []float64{got.Pools[1].Bound95, got.Pools[1].Bound999999, got.Pools[1].Wiped, got.Pools[1].Saved}, "no requests: nothing is divided by zero")

	// Whoever decodes into Stats gets all of it back.
	var back struct{ Pools []Stats }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &back))
	require.Equal(t, s, back.Pools[0])
}

func TestDebugHandlerShowsTheOpenBreaker(t *testing.T) {
	p := newTestPool(t, Config{Mode: Watermark})
	h := DebugHandler(p.Pool)
	require.NotContains(t, debugRequest(t, h, "GET", "/").Body.String(), "OPEN")

	ws := p.Acquire()
	stain(blockOf(ws)[1000:1016:1016], 7) // past the mark
	require.Error(t, ws.Audit())
	ws.Release()
	p.violations(1)

	page := debugRequest(t, h, "GET", "/").Body.String()
	require.Contains(t, page, "OPEN")
	require.NotContains(t, page, string(tag(7)), "contents of memory are never shown")
	var got debugAnswer
	require.NoError(t, json.Unmarshal(debugRequest(t, h, "GET", "/?format=json").Body.Bytes(), &got))
	require.True(t, got.Pools[0].Open)
	require.Equal(t, []Mode{Watermark, Shadow}, []Mode{got.Pools[0].Mode, got.Pools[0].Effective})
	require.Equal(t, DoubtStats{Violation: 1}, got.Pools[0].Doubts)
}

func TestDebugHandlerShowsWhatBarsWatermark(t *testing.T) {
	p := newTestPool(t, Config{Mode: Watermark})
	h := DebugHandler(p.Pool)
	page := debugRequest(t, h, "GET", "/").Body.String()
	for _, bar := range []string{"excluded", "LOST"} {
		require.NotContains(t, page, bar)
	}
	require.Contains(t, page, "<td>never</td>")
	require.Contains(t, page, "<td>-</td>", "no request, no mean mark")

	require.NoError(t, p.SetHostCanary(&HostCanary{}))
	p.change("test", func() { p.lost, p.n.LastViolation = true, 1_000_000_000 })
	ws := p.Acquire()
	ws.Client().Alloc(3000)
	ws.Release()
	p.Acquire().Release()
	page = debugRequest(t, h, "GET", "/").Body.String()
	for _, want := range []string{"excluded by the host canary", "LOST", "2001-09-09T01:46:40Z", "<td>1500.0</td>"} {
		require.Contains(t, page, want)
	}
}

func TestDebugHandlerPools(t *testing.T) {
	requirePanicIs(t, ErrMisuse, func() { DebugHandler(newTestPool(t, Config{}).Pool, nil) })

	var none struct{ Pools []any }
	require.NoError(t, json.Unmarshal(debugRequest(t, DebugHandler(), "GET", "/?format=json").Body.Bytes(), &none))
	require.Equal(t, []any{}, none.Pools, "a list, not null")

	pools := []*Pool{newTestPool(t, Config{Name: "first"}).Pool}
	h := DebugHandler(pools...)
	pools[0] = nil // the caller's slice is the caller's
	require.Contains(t, debugRequest(t, h, "GET", "/").Body.String(), "<h2>first</h2>")
}
