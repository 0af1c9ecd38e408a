package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-workspace/workspace"
)

const (
	tagHeader       = "X-Tag"        // names a request; it comes back in the answer
	overflowHeader  = "X-Overflowed" // set when a half was too small and the heap helped out
	userAgent       = "workspace-example"
	upstreamTimeout = 10 * time.Second
	maxAnswer       = 16 << 20 // bytes of an upstream's answer
)

// A service is the API. What a handler needs while it works lies in the two
// halves of the request's workspace: the client half has what comes from the
// client and goes to it, the backend half what goes to the upstream and comes
// from it. All of it is gone when the handler has returned.
type service struct {
	pool      *workspace.Pool
	maxBody   int64
	upstream  string // where /proxy forwards to
	transport *http.Transport
	seed      maphash.Seed // so that no client can choose words that collide
	log       *log.Logger
}

// newService returns a service. Without an upstream, start sets one.
func newService(pool *workspace.Pool, maxBody int64, upstream string, logger *log.Logger) *service {
	return &service{
		pool:      pool,
		maxBody:   maxBody,
		upstream:  upstream,
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second},
		seed:      maphash.MakeSeed(),
		log:       logger,
	}
}

// checkUpstream refuses a URL that /proxy could not use. Empty is fine.
func checkUpstream(upstream string) error {
	if upstream == "" {
		return nil
	}
	u, err := url.Parse(upstream)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("-upstream is %q, want a URL as http://host/path", upstream)
	}
	return nil
}

// routes returns the handler of the API. HandlerFunc gives a route a workspace
// outright. Middleware gives one to any handler that asks for it, however deep.
func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /stats", s.pool.HandlerFunc(s.stats))
	mux.Handle("POST /proxy", s.pool.HandlerFunc(s.proxy))
	echo := s.pool.Middleware(http.HandlerFunc(s.echo))
	mux.Handle("GET /echo", echo)
	mux.Handle("POST /echo", echo)
	mux.Handle("/debug/workspace", workspace.DebugHandler(s.pool)) // for operators: on the internet, put it elsewhere
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		send(w, http.StatusOK, []byte(`{"status":"ok"}`+"\n"))
	})
	for path, allowed := range map[string]string{"/stats": "POST", "/proxy": "POST", "/echo": "GET, HEAD, POST", "/healthz": "GET, HEAD"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, "method %q is not allowed here: want %s", r.Method, allowed)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "there is nothing at %q", r.URL.Path)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Nothing here is upgraded, and for an Upgrade the library would give up
		// the block. So don't let clients ask for one.
		r.Header.Del("Upgrade")
		mux.ServeHTTP(w, r)
	})
}

// statsAnswer is the answer of /stats.
type statsAnswer struct {
	Tag      string      `json:"tag"`
	Bytes    int         `json:"bytes"`
	Lines    int         `json:"lines"`
	Words    int         `json:"words"`
	Distinct int         `json:"distinct"`
	Top      []wordCount `json:"top"`
}

// stats counts the words of the body.
func (s *service) stats(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
	text, ok := s.readBody(w, r, ws.Client())
	if !ok {
		return
	}
	t := countWords(ws.Client(), s.seed, text)
	reply(w, ws, statsAnswer{
		Tag: r.Header.Get(tagHeader), Bytes: len(text), Lines: countLines(text),
		Words: t.words, Distinct: t.used, Top: t.top(),
	})
}

// echoAnswer is the answer of /echo.
type echoAnswer struct {
	Method  string      `json:"method"`
	Tag     string      `json:"tag"`
	Headers http.Header `json:"headers"`
	Body    string      `json:"body"`
	Base64  []byte      `json:"body_base64,omitempty"` // in place of a body that is no UTF-8
}

// echo answers with what it got.
func (s *service) echo(w http.ResponseWriter, r *http.Request) {
	ws := workspace.FromContext(r.Context())
	body, ok := s.readBody(w, r, ws.Client())
	if !ok {
		return
	}
	answer := echoAnswer{Method: r.Method, Tag: r.Header.Get(tagHeader), Headers: r.Header}
	if utf8.Valid(body) {
		answer.Body = string(body)
	} else {
		answer.Base64 = body
	}
	reply(w, ws, answer)
}

// proxyAnswer is the answer of /proxy.
type proxyAnswer struct {
	Tag      string          `json:"tag"`
	Status   int             `json:"status"`
	Upstream json.RawMessage `json:"upstream"` // what the upstream answered
}

// proxy forwards the body to the upstream and answers with what that answered.
func (s *service) proxy(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
	out, ok := s.readBody(w, r, ws.Backend()) // the half it leaves from: no copy
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), upstreamTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.upstream, nil)
	if err != nil {
		s.log.Printf("proxy: %v", err)
		fail(w, http.StatusInternalServerError, "the upstream is not configured well")
		return
	}
	req.Header.Set("User-Agent", userAgent)
	for _, name := range []string{tagHeader, "Content-Type"} {
		if v := r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	if len(out) > 0 {
		// The transport may read a body after RoundTrip has returned. Body keeps
		// the block until the transport has closed it. GetBody allows a second
		// try when an idle connection turns out to be closed.
		req.Body = ws.Backend().Body(out)
		req.GetBody = func() (io.ReadCloser, error) { return ws.Backend().Body(out), nil }
		req.ContentLength = int64(len(out))
	}
	// Not http.Client.Do: a proxy passes redirects on, and when Do is told not to
	// follow one it drops a body from GetBody without closing it.
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		s.failUpstream(w, r, err)
		return
	}
	defer resp.Body.Close()
	in := ws.Backend().Buffer()
	n, err := in.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		s.failUpstream(w, r, err)
	case n > maxAnswer:
		fail(w, http.StatusBadGateway, "the upstream's answer is larger than %d bytes", maxAnswer)
	case !json.Valid(in.Bytes()):
		fail(w, http.StatusBadGateway, "the upstream's answer, with status %d, is no JSON", resp.StatusCode)
	default:
		reply(w, ws, proxyAnswer{Tag: r.Header.Get(tagHeader), Status: resp.StatusCode, Upstream: in.Bytes()})
	}
}

// failUpstream answers that there is no answer. What exactly went wrong goes to
// the log only, and not even there when it was the client that left.
func (s *service) failUpstream(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.log.Printf("proxy: %v", err)
	}
	fail(w, http.StatusBadGateway, "the upstream did not answer")
}

// readBody reads the body into the arena. When it can't it answers why, and
// returns false.
func (s *service) readBody(w http.ResponseWriter, r *http.Request, a *workspace.Arena) ([]byte, bool) {
	body := a.Buffer()
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, s.maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return body.Bytes(), true
	case errors.As(err, &tooLarge):
		fail(w, http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, workspace.ErrFull):
		fail(w, http.StatusInsufficientStorage, "there is not enough memory for this request")
	default:
		fail(w, http.StatusBadRequest, "the body could not be read")
	}
	return nil, false
}

// reply builds the answer in the client half and sends it. What fits no more
// goes to the heap, so the answer is whole in any case.
func reply(w http.ResponseWriter, ws *workspace.Workspace, v any) {
	answer := ws.Client().Buffer()
	if err := json.NewEncoder(answer).Encode(v); err != nil { // nothing was sent yet
		fail(w, http.StatusInsufficientStorage, "the answer could not be built")
		return
	}
	if ws.Client().Overflowed() || ws.Backend().Overflowed() {
		w.Header().Set(overflowHeader, "true")
	}
	send(w, http.StatusOK, answer.Bytes())
}

// fail answers with an error as JSON.
func fail(w http.ResponseWriter, status int, format string, args ...any) {
	b, _ := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...)}) // strings can't fail
	send(w, status, append(b, '\n'))
}

// send writes a whole answer. Write does not keep the slice.
func send(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(body) // an error means that the client has left
}
