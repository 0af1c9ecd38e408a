package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	bodyMost   = 300 << 10 // more than a half holds
	answerMost = 300 << 10
)

// A load is all the clients, and what they count.
type load struct {
	s         *server
	transport [2]*http.Transport // for HTTP/1.1 and HTTP/2
	next      atomic.Uint64      // numbers the requests

	requests, answers [2]atomic.Int64 // by protocol; an answer is one that was checked whole
	troubles          counters
	routes            counters
	timedOut          atomic.Int64 // answered by http.TimeoutHandler
	wrong, lost       atomic.Int64
}

func newLoad(s *server) *load {
	l := &load{s: s, troubles: make(counters, numTroubles), routes: make(counters, numRoutes)}
	for i := range l.transport {
		p := new(http.Protocols)
		p.SetHTTP1(i == 0)
		p.SetUnencryptedHTTP2(i == 1)
		l.transport[i] = &http.Transport{Protocols: p, DisableCompression: true, MaxIdleConnsPerHost: s.opt.clients}
	}
	return l
}

// client sends one request after the other until ctx is done. The last one is not
// cut off.
func (l *load) client(ctx context.Context, number int) {
	rng := rand.New(rand.NewPCG(l.s.opt.seed, uint64(number)))
	for ctx.Err() == nil {
		c := l.draw(rng, number%2)
		l.requests[c.http2].Add(1)
		l.routes[c.route].Add(1)
		l.troubles[c.trouble].Add(1)
		got := c.do(l.transport[c.http2], l.s.addr)
		l.judge(c, got)
	}
}

// A call is one request of a client.
type call struct {
	tag          tag
	http2        int
	route        route
	trouble      trouble
	body, answer int // sizes
	chunked      bool
	patience     time.Duration // of cancelWait
	part         float64       // of the body or the answer, before the client gives up
}

func (l *load) draw(rng *rand.Rand, http2 int) *call {
	c := &call{tag: newTag(l.next.Add(1)), http2: http2, chunked: rng.IntN(8) == 0, part: rng.Float64()}
	c.trouble, c.route = drawTrouble(rng, http2 == 1)
	c.body, c.answer = bodySize(rng), bodySize(rng)
	c.patience = time.Duration(rng.IntN(3000)) * time.Microsecond
	if c.trouble == cancelUpload || c.trouble == cancelRead { // of which a part must be something
		c.body, c.answer = max(c.body, 100), max(c.answer, 100)
	}
	return c
}

func bodySize(rng *rand.Rand) int {
	if rng.IntN(100) == 0 {
		return 200<<10 + rng.IntN(bodyMost-200<<10+1)
	}
	return heavyTail(rng.Float64(), 100, 200<<10)
}

// A reply is what came back.
type reply struct {
	status int
	body   []byte
	err    error
}

// do sends the request and reads the answer, or gives up as planned.
func (c *call) do(t *http.Transport, addr string) reply {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	if c.trouble == cancelWait {
		time.AfterFunc(c.patience, cancel)
	}
	var body io.Reader = bytes.NewReader(c.tag.make(0, c.body))
	if c.trouble == cancelUpload {
		body = &brokenBody{body, int(float64(c.body) * c.part), cancel}
	}
	if c.chunked || c.trouble == cancelUpload {
		body = struct{ io.Reader }{body} // hides the size
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+c.route.path(), body)
	if err != nil {
		return reply{err: err}
	}
	if c.trouble == cancelUpload && !c.chunked {
		req.ContentLength = int64(c.body)
	}
	req.Header.Set(tagHeader, c.tag.String())
	req.Header.Set(troubleHeader, strconv.Itoa(int(c.trouble)))
	req.Header.Set(bodyHeader, strconv.Itoa(c.body))
	req.Header.Set(answerHeader, strconv.Itoa(c.answer))
	if c.trouble == upgrade {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "soak")
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	if got := resp.ProtoMajor - 1; got != c.http2 {
		return reply{err: fmt.Errorf("an answer over %s", resp.Proto)}
	}
	from := io.Reader(resp.Body)
	if c.trouble == cancelRead {
		from = io.LimitReader(from, int64(float64(c.answer)*c.part))
	}
	b, err := io.ReadAll(from)
	return reply{resp.StatusCode, b, err}
}

// A brokenBody delivers some bytes; then the client gives up.
type brokenBody struct {
	from   io.Reader
	left   int
	cancel func()
}

var errGaveUp = errors.New("soak: the client gives up")

func (b *brokenBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.cancel()
		return 0, errGaveUp
	}
	n, err := b.from.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// judge compares a reply with what it must be.
func (l *load) judge(c *call, got reply) {
	log := l.s.log
	log.checked.Add(int64(len(got.body)))
	late := c.route.limited() && got.err == nil && got.status == http.StatusServiceUnavailable
	if late {
		l.timedOut.Add(1)
		if want := lateAnswer[:min(len(lateAnswer), max(len(got.body), 1))]; string(got.body) != want || len(want) < len(lateAnswer) && c.trouble != cancelRead {
			l.bad(&l.wrong, c, "the answer of http.TimeoutHandler differs")
		}
		return
	}
	if n, first := c.tag.foreign(got.body); n > 0 && got.status != http.StatusBadRequest {
		log.foreign.Add(int64(n))
		l.bad(&l.wrong, c, "%d foreign bytes in an answer of %d, the first at %d; the tag there is %q", n, len(got.body), first, c.tag.owner(got.body))
		return
	}
	whole := got.err == nil && len(got.body) == c.answer && c.tag.fills(got.body)
	switch c.trouble {
	case cancelWait, cancelUpload:
		switch {
		case got.err == nil && got.status == http.StatusBadRequest: // it came after all
		case got.err == nil && (c.trouble == cancelUpload || got.status != http.StatusOK || !whole):
			l.bad(&l.wrong, c, "status %d and %d bytes that are not as they must be", got.status, len(got.body))
		case !c.tag.fills(got.body):
			l.bad(&l.wrong, c, "the part that arrived, %d bytes, differs", len(got.body))
		}
	case cancelRead:
		switch {
		case got.err != nil:
			l.bad(&l.lost, c, "no answer: %v", got.err)
		case got.status != http.StatusOK || len(got.body) != int(float64(c.answer)*c.part) || !c.tag.fills(got.body):
			why := ""
			if got.status != http.StatusOK {
				why = fmt.Sprintf(": %.200q", got.body) // the reason, and nobody's data
			}
			l.bad(&l.wrong, c, "status %d and a part of %d bytes that is not as it must be%s", got.status, len(got.body), why)
		}
	case panicAbort, panicOther, goexit:
		if got.err == nil {
			l.bad(&l.wrong, c, "an answer, status %d, from a handler that panicked", got.status)
		} else if !c.tag.fills(got.body) {
			l.bad(&l.wrong, c, "the part that arrived, %d bytes, differs", len(got.body))
		}
	default:
		want := http.StatusOK
		if c.trouble == upgrade {
			want = http.StatusSwitchingProtocols
		}
		switch {
		case got.err != nil:
			l.bad(&l.lost, c, "no answer: %v", got.err)
		case got.status != want || !whole:
			l.bad(&l.wrong, c, "status %d, want %d; %d bytes, want %d; %s", got.status, want, len(got.body), c.answer, c.difference(got.body))
		default:
			l.answers[c.http2].Add(1)
		}
	}
}

// difference says where an answer differs first.
func (c *call) difference(b []byte) string {
	for i, x := range b {
		if x != c.tag[i%len(c.tag)] {
			return fmt.Sprintf("they differ at byte %d", i)
		}
	}
	return "none differs"
}

func (l *load) bad(count *atomic.Int64, c *call, format string, args ...any) {
	count.Add(1)
	l.s.log.fault("answer to %s, HTTP/%d, %s, trouble %q, a body of %d bytes: %s", c.tag, c.http2+1, c.route, c.trouble, c.body, fmt.Sprintf(format, args...))
}
