package main

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const (
	demoAgent       = "workspace-demo"
	demoContentType = "text/plain"
	demoMaxBody     = 320 << 10
	largestBody     = 300 << 10
)

// An abort is a way for a client to give up.
type abort int

const (
	noAbort     abort = iota
	abortBody         // the connection breaks in the middle of the body
	abortAnswer       // the client reads a part of the answer
	abortWait         // the client has no patience
	numAborts
)

// A generator makes the requests of one client: the same ones in each mode, but
// for the tags.
type generator struct {
	rng  *rand.Rand
	tags *atomic.Int64
}

func newGenerator(client int, tags *atomic.Int64) *generator {
	return &generator{rng: rand.New(rand.NewPCG(1, uint64(client))), tags: tags}
}

// call makes the next request.
func (g *generator) call() *call {
	c := &call{method: "POST", tag: newTag(g.tags.Add(1))}
	switch n := g.rng.IntN(100); {
	case n < 35:
		c.path = "/stats"
	case n < 65:
		c.path = "/echo"
	case n < 85:
		c.path = "/proxy"
	case n < 93:
		c.method, c.path = "GET", "/echo"
	case n < 98:
		c.method, c.path = "GET", "/healthz"
	case n < 99:
		c.method, c.path = "GET", "/debug/workspace"
	default:
		c.method, c.path = "GET", "/debug/workspace?format=json"
	}
	if g.rng.IntN(8) == 0 {
		c.filler = strings.Repeat(c.tag, 1+g.rng.IntN(100))
	}
	if c.method == "POST" {
		c.body = g.text(c.tag, g.size())
		c.chunked = len(c.body) > 0 && g.rng.IntN(8) == 0
	}
	if g.rng.IntN(40) == 0 {
		c.abort = 1 + abort(g.rng.IntN(int(numAborts)-1))
		if c.abort == abortBody && len(c.body) < 2 {
			c.abort = abortWait
		}
	}
	return c
}

// size draws the size of a body: mostly small, with a heavy tail. One in 64 is
// so large that it or the answer does not fit into half a workspace.
func (g *generator) size() int {
	switch g.rng.IntN(64) {
	case 0:
		return 100<<10 + g.rng.IntN(largestBody-100<<10+1)
	case 1:
		return 0
	}
	return int(math.Min(100/math.Pow(1-g.rng.Float64(), 1.2), largestBody))
}

// pieces are what the texts are made of: words, all that JSON must escape, and
// what is no UTF-8.
var pieces = strings.Split("the of and to a in is it that was he for on are as with his they at be this from I have or by one had not but what all were when we there can an your which "+
	`"quoted" back\slash <b>&amp; naïve 日本語 🙂 `+"\x00\x01\x1f \x7f \u2028\u2029 \t\t \r\n \n", " ")

// text makes a text of n bytes with the tag all over it.
func (g *generator) text(tag string, n int) string {
	var b strings.Builder
	b.Grow(n + 32)
	binary := g.rng.IntN(16) == 0
	for b.Len() < n {
		switch k := g.rng.IntN(8); {
		case k == 0:
			b.WriteString(tag)
		case k == 1 && binary:
			b.WriteByte(0x80 | byte(g.rng.IntN(128)))
		default:
			b.WriteString(pieces[g.rng.IntN(len(pieces))])
		}
		b.WriteByte(" \n"[g.rng.IntN(10)/9])
	}
	return b.String()[:n]
}

// A client sends requests over its own connections.
type client struct {
	base string
	http *http.Client
}

// newClient returns a client that speaks HTTP/2 or HTTP/1.1 with keep-alive.
func newClient(base string, http2 bool) *client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	return &client{base: base, http: &http.Client{Transport: &http.Transport{Protocols: p, DisableCompression: true}}}
}

var errCut = errors.New("the demo breaks off here")

// brokenBody is a body that ends in an error.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = errCut
	}
	return n, err
}

// do sends c and reads the answer, or breaks off as c says.
func (cl *client) do(ctx context.Context, c *call) (answer, error) {
	if c.abort == abortWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(1+len(c.body)%512)*time.Microsecond)
		defer cancel()
	}
	var body io.Reader
	switch {
	case c.abort == abortBody:
		body = brokenBody{strings.NewReader(c.body[:len(c.body)/2])}
	case c.chunked:
		body = struct{ io.Reader }{strings.NewReader(c.body)} // hides the size
	case c.method == "POST":
		body = strings.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, cl.base+c.path, body)
	if err != nil {
		return answer{}, err
	}
	if c.abort == abortBody && !c.chunked {
		req.ContentLength = int64(len(c.body))
	}
	req.Header.Set("User-Agent", demoAgent)
	req.Header.Set("X-Tag", c.tag)
	if c.method == "POST" {
		req.Header.Set("Content-Type", demoContentType)
	}
	if c.filler != "" {
		req.Header.Set("X-Filler", c.filler)
	}
	resp, err := cl.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{proto: resp.ProtoMajor, status: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
	from := io.Reader(resp.Body)
	if c.abort == abortAnswer {
		a.cut = true
		from = io.LimitReader(from, max(1, resp.ContentLength/3))
	}
	a.body, err = io.ReadAll(from)
	return a, err
}
