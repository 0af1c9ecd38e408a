package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/go-workspace/workspace"
)

// A checker that can't fail proves nothing. These tests plant each kind of damage
// and require that the demo finds it.

func TestForeignTags(t *testing.T) {
	own, other := newTag(7), newTag(8)
	require.Len(t, own, 16)
	for text, want := range map[string]int{
		"":                                 0,
		own:                                0,
		own + own:                          0,
		other:                              1,
		own + other + own + other:          2,
		"x" + other[:15] + "\"":            0, // the text ended here
		other[:5] + own:                    0,
		own[:10] + other:                   1,
		strings.ToUpper(other):             0,
		"#tag" + "ffffffffffff":            1,
		own + strings.Repeat("0", 9) + "x": 0,
	} {
		require.Equal(t, want, foreignTags([]byte(text), own), "%q", text)
	}
}

func TestCheckFindsEachDifference(t *testing.T) {
	c := &call{method: "POST", path: "/echo", tag: newTag(1), body: "hello " + newTag(1)}
	want, exact := c.want()
	require.True(t, exact)
	good := answer{status: 200, contentType: "application/json", body: []byte(want)}
	require.Equal(t, verdict{}, c.check(good))

	for i := range want {
		a := good
		a.body = []byte(want)
		a.body[i] ^= 1
		require.Contains(t, c.check(a).wrong, "it differs at byte ", "byte %d", i)
	}
	for name, a := range map[string]answer{
		"short":        {status: 200, contentType: "application/json", body: []byte(want[:len(want)-1])},
		"long":         {status: 200, contentType: "application/json", body: []byte(want + "\x00")},
		"empty":        {status: 200, contentType: "application/json"},
		"status":       {status: 500, contentType: "application/json", body: []byte(want)},
		"Content-Type": {status: 200, contentType: "text/plain", body: []byte(want)},
		"cut":          {status: 200, contentType: "application/json", body: []byte("{x"), cut: true},
	} {
		require.NotEmpty(t, c.check(a).wrong, name)
	}
	require.Equal(t, verdict{}, c.check(answer{status: 200, contentType: "application/json", body: []byte(want[:20]), cut: true}))

	// It tells where, and never what.
	leaked := strings.Replace(want, "hello ", newTag(2), 1)
	v := c.check(answer{status: 200, contentType: "application/json", body: []byte(leaked)})
	require.Equal(t, 1, v.foreign)
	require.NotContains(t, v.wrong, "#tag")

	half := &call{method: "POST", path: "/stats", tag: newTag(1), body: "hello", abort: abortBody}
	require.NotEmpty(t, half.check(good).wrong, "half a body was taken for a whole one")
	require.Empty(t, half.check(answer{status: 400}).wrong)

	debug := &call{method: "GET", path: "/debug/workspace?format=json", tag: newTag(1)}
	require.Empty(t, debug.check(answer{status: 200, contentType: "application/json", body: []byte("{}")}).wrong)
	require.NotEmpty(t, debug.check(answer{status: 200, contentType: "application/json"}).wrong)
	require.NotEmpty(t, debug.check(answer{status: 200, contentType: "application/json", body: []byte(newTag(1))}).wrong, "the debug page shows no memory")
}

// The generator must make what the checks are for.
func TestGeneratorVariety(t *testing.T) {
	var tags atomic.Int64
	g := newGenerator(0, &tags)
	seen, large, empty := map[string]int{}, 0, 0
	for range 2000 {
		c := g.call()
		seen[c.path]++
		if c.method == "POST" && len(c.body) > 100<<10 {
			large++
		}
		if c.method == "POST" && c.body == "" {
			empty++
		}
		if c.abort > noAbort {
			seen[[]string{"", "abort body", "abort answer", "abort wait"}[c.abort]]++
		}
		if len(c.body) > 10000 {
			require.Zero(t, foreignTags([]byte(c.body), c.tag))
			require.Contains(t, c.body, c.tag)
		}
	}
	require.Len(t, seen, 6+3, "each route and each way to abort: %v", seen)
	require.NotZero(t, large)
	require.NotZero(t, empty)
	require.EqualValues(t, 2000, tags.Load(), "each request has a tag of its own")
}

func TestClientSpeaksHTTP2(t *testing.T) {
	s, h := newTestService(t, workspace.Shadow)
	srv, err := start("127.0.0.1:0", s, h)
	require.NoError(t, err)
	for _, proto := range []int{1, 2} {
		cl := newClient("http://"+srv.addr.String(), proto == 2)
		c := &call{method: "POST", path: "/proxy", tag: newTag(1), body: "hello"}
		a, err := cl.do(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, proto, a.proto)
		require.Equal(t, verdict{}, c.check(a))
		cl.http.CloseIdleConnections()
	}
	require.NoError(t, srv.stop(waitLimit))
}

// after runs damage on the answers of /echo to the demo's clients before they are sent.
func after(damage func(r *http.Request, answer []byte) []byte) func(*service, http.Handler) http.Handler {
	return func(_ *service, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/echo" || r.UserAgent() != demoAgent {
				next.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			b := damage(r, rec.Body.Bytes())
			w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
			w.WriteHeader(rec.Code)
			w.Write(b)
		})
	}
}

func TestDemoFindsPlantedDamage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wrap   func(*service, http.Handler) http.Handler
		want   string // the error
		stderr string
	}{
		{
			name: "a wrong byte",
			wrap: after(func(_ *http.Request, b []byte) []byte {
				b[len(b)/2] ^= 0x20
				return b
			}),
			want: "wrong answers", stderr: "it differs at byte",
		},
		{
			name: "the tag of another request",
			wrap: after(func(r *http.Request, b []byte) []byte {
				return []byte(strings.Replace(string(b), r.Header.Get("X-Tag"), newTag(1<<40), 1))
			}),
			want: "LEAK", stderr: "1 tags of other requests",
		},
		{
			name: "no answer",
			wrap: after(func(*http.Request, []byte) []byte { panic(http.ErrAbortHandler) }),
			want: "requests without an answer", stderr: " /echo, a body of ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr lockedBuffer
			d := newDemo(demoOptions(t), &stderr)
			d.wrap = tt.wrap
			err := d.run(t.Context(), &stdout)
			require.ErrorContains(t, err, tt.want)
			require.Contains(t, stdout.String(), "FAILED")
			require.NotContains(t, stdout.String(), "Every answer was right")
			require.Contains(t, stderr.String(), tt.stderr)
			require.NotContains(t, stderr.String(), "#tag", "what leaked is not printed")
		})
	}
}

// A byte written past the mark harms no answer. Only audits see it.
func TestDemoFindsBytesPastTheMark(t *testing.T) {
	for name, every := range map[string]string{"by sampled audits": "1", "by the audit of idle blocks at the end": "-1"} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr lockedBuffer
			d := newDemo(demoOptions(t, "-audit-every", every), &stderr)
			d.wrap = func(s *service, next http.Handler) http.Handler {
				var n atomic.Int64
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if n.Add(1)%4 == 0 {
						ws := s.pool.Acquire()
						p := unsafe.Pointer(&ws.Client().Alloc(16)[0])
						*(*byte)(unsafe.Add(p, 200<<10)) = '!' // far beyond those 16 bytes, inside the half
						ws.Release()
					}
					next.ServeHTTP(w, r)
				})
			}
			require.ErrorContains(t, d.run(t.Context(), &stdout), "violations")
			require.Contains(t, stdout.String(), "FAILED")
			require.Contains(t, stderr.String(), "1 bytes not zero between 204800 and 204800")
		})
	}
}

func TestResultBad(t *testing.T) {
	good := result{Checked: 1}
	require.Empty(t, good.bad())
	for want, r := range map[string]result{
		"LEAK":                    {Checked: 1, ForeignTags: 1},
		"violations":              {Checked: 1, Violations: 1},
		"wrong answers":           {Checked: 1, Wrong: 1},
		"without an answer":       {Checked: 1, Failed: 1},
		"still in use at the end": {Checked: 1, InUse: 1},
		"no answer was checked":   {},
	} {
		require.Contains(t, r.bad(), want)
	}
}
