package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/go-workspace/workspace"
)

// Headers that tell the handler what to do. The body and the answer are the tag, again
// and again.
const (
	tagHeader     = "X-Tag"
	troubleHeader = "X-Trouble"
	bodyHeader    = "X-Body"   // size in bytes
	answerHeader  = "X-Answer" // size in bytes
)

// A visit is one request as the handler sees it.
type visit struct {
	s       *server
	tag     tag
	route   route
	trouble trouble
	answer  int
	rng     *rand.Rand
	ws      *workspace.Workspace // set by serve
	halves  [2]*half
	over    bool // the workspace has ended for certain; read on the handler's own goroutine only
}

func (s *server) newVisit(r *http.Request, on route) (*visit, error) {
	v := &visit{s: s, route: on}
	t, err1 := parseTag(r.Header.Get(tagHeader))
	n, err2 := strconv.Atoi(r.Header.Get(troubleHeader))
	size, err3 := strconv.Atoi(r.Header.Get(answerHeader))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	v.tag, v.trouble, v.answer = t, trouble(n), size
	digits, _ := strconv.ParseUint(t.String(), 16, tagBits)
	v.rng = rand.New(rand.NewPCG(s.opt.seed, digits))
	return v, nil
}

// fault notes what must not happen in a visit.
func (v *visit) fault(format string, args ...any) {
	v.s.log.fault("request %s, %s, trouble %q: %s", v.tag, v.route, v.trouble, fmt.Sprintf(format, args...))
}

// wantZero checks that each byte is zero, wantOwn that none is foreign, and wantWritten that all
// is as it was written.
func (v *visit) wantZero(what, where string, b []byte) {
	v.s.log.checked.Add(int64(len(b)))
	if allZero(b) {
		return
	}
	if v.foreign(what, where, b) == 0 {
		v.s.log.stale.Add(1)
		v.fault("%s on the %s half: bytes of this request where there should be zeros, in %d bytes", what, where, len(b))
	}
}

func (v *visit) wantOwn(what, where string, b []byte) {
	v.s.log.checked.Add(int64(len(b)))
	if !allZero(b) {
		v.foreign(what, where, b)
	}
}

func (v *visit) wantWritten(what, where string, b []byte) {
	v.s.log.checked.Add(int64(len(b)))
	if v.tag.fills(b) {
		return
	}
	if v.foreign(what, where, b) == 0 {
		v.s.log.stale.Add(1)
		v.fault("%s on the %s half: %d bytes are no more as they were written", what, where, len(b))
	}
}

func (v *visit) foreign(what, where string, b []byte) int {
	n, first := v.tag.foreign(b)
	if n > 0 {
		v.s.log.foreign.Add(int64(n))
		owner := v.tag.owner(b)
		if owner == "" {
			owner = "of nobody known"
		}
		v.fault("%s on the %s half: %d foreign bytes in %d, the first at %d; the tag there is %s", what, where, n, len(b), first, owner)
	}
	return n
}

// mayBeDead passes an error of the library on to serve, which knows whether the workspace may
// have died.
func (v *visit) mayBeDead(err error) { panic(err) }

// errPlanned is the value of a panic that is part of the plan.
var errPlanned = errors.New("soak: a planned panic")

// serve is the handler on all routes. take gets the workspace.
func (v *visit) serve(w http.ResponseWriter, r *http.Request, take func() *workspace.Workspace) {
	v.s.active.Add(1) // the wrapper's own count ends when it returns
	defer v.s.active.Add(-1)
	defer func() {
		e := recover()
		err, _ := e.(error)
		switch {
		case e == nil:
			return // or Goexit
		case v.route == timeoutInside && errors.Is(err, workspace.ErrReleased):
			// The middleware has ended the request while this went on.
			v.s.cutOff.Add(1)
			v.checkPieces()
			return
		case e != http.ErrAbortHandler && !errors.Is(err, errPlanned):
			v.fault("unexpected panic: %v", e)
		}
		panic(e)
	}()

	ws := take()
	v.s.ledger.took(v.route, ws)
	v.ws = ws
	v.halves = [2]*half{{v: v, name: "client", a: ws.Client()}, {v: v, name: "backend", a: ws.Backend()}}
	if v.rng.IntN(8) == 0 {
		v.halves[v.rng.IntN(2)].probeFresh()
	}
	if err := v.readBody(r); err != nil {
		http.Error(w, fmt.Sprintf("no body: %v", err), http.StatusBadRequest)
		v.check()
		return
	}
	v.work()
	if v.trouble != noTrouble || v.rng.IntN(8) > 0 {
		v.pause()
	} else {
		v.reset()
	}
	v.check()
	v.end(w, r)
}

// readBody reads the body of the request into a Buffer, or to a reservation, and checks
// its size. What is in it is checked with all the rest.
func (v *visit) readBody(r *http.Request) error {
	h := v.halves[0]
	size := 0
	if v.rng.IntN(2) == 0 {
		buf := h.a.Buffer()
		n, err := buf.ReadFrom(r.Body)
		size = int(n)
		h.notes = append(h.notes, &note{buf: buf, written: size})
		if errors.Is(err, workspace.ErrReleased) {
			v.mayBeDead(err)
		}
		if err != nil {
			return err
		}
	} else {
		room := int(r.ContentLength)
		if room < 0 {
			room = bodyMost
		}
		b := h.a.Reserve(room + 1)
		v.wantOwn("Reserve", h.name, b)
		var err error
		for err == nil && size < len(b) {
			var n int
			n, err = r.Body.Read(b[size:])
			size += n
		}
		h.keep(piece{"Commit", h.a.Commit(size), size})
		if err != io.EOF {
			return cmp.Or(err, errors.New("the body is too long"))
		}
	}
	if want := r.Header.Get(bodyHeader); strconv.Itoa(size) != want {
		v.fault("the body has %d bytes, %s were sent", size, want)
	}
	return nil
}

// work takes a number of steps on both halves.
func (v *visit) work() {
	for range heavyTail(v.rng.Float64(), 3, 200) {
		v.halves[v.rng.IntN(2)].step()
	}
	if v.rng.IntN(20) == 0 {
		if err := v.ws.Audit(); err != nil {
			v.fault("Audit: %v", err)
		}
	}
}

func (v *visit) check() {
	for _, h := range v.halves {
		h.check()
	}
}

// checkPieces is check for memory whose handle may be dead.
func (v *visit) checkPieces() {
	for _, h := range v.halves {
		if h != nil {
			h.checkPieces()
		}
	}
}

// reset begins a second message in the same request.
func (v *visit) reset() {
	if v.route == timeoutInside {
		return // Reset is for the owner alone, who may end at any time
	}
	v.ws.Reset()
	v.s.resets.Add(1)
	for _, h := range v.halves {
		h.forget()
		if v.rng.IntN(4) == 0 {
			h.probeFresh()
		}
	}
	v.work()
}

// pause waits, now and then, so that requests overlap.
func (v *visit) pause() {
	if v.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(v.rng.IntN(2000)) * time.Microsecond)
	}
}

// end answers, and makes the trouble that is due.
func (v *visit) end(w http.ResponseWriter, r *http.Request) {
	h := v.halves[v.rng.IntN(2)]
	ledger := &v.s.ledger
	switch v.trouble {
	case slow:
		time.Sleep(timeoutAfter + time.Duration(v.rng.IntN(10))*time.Millisecond)
	case panicAbort, panicOther, goexit:
		if v.rng.IntN(2) == 0 {
			w.Write(h.answer(v.answer + 1)[:v.answer/2]) // never the whole of it
			http.NewResponseController(w).Flush()
		}
		v.keepSlices() // a panic leaves the block as it is
		ledger.panicked.Add(1)
		v.over = true
		switch v.trouble {
		case panicAbort:
			panic(http.ErrAbortHandler)
		case panicOther:
			panic(errPlanned)
		}
		runtime.Goexit()
	case hijack, upgrade:
		v.takeOver(w, h.answer(v.answer))
		return
	}

	b := h.answer(v.answer)
	v.send(w, v.s.spoil(v, b))
	v.check()

	switch v.trouble {
	case hold:
		done := v.ws.Hold()
		v.s.background(func() {
			defer done()
			defer v.s.catch(v)
			v.outlive()
		})
	case goHold:
		v.s.active.Add(1)
		v.ws.Go(func() {
			defer v.s.active.Add(-1)
			defer v.s.catch(v)
			v.outlive()
		})
	case openReserve:
		open := 0
		for _, h := range v.halves[:1+v.rng.IntN(2)] {
			b := h.a.Reserve(h.size())
			v.wantOwn("Reserve", h.name, b)
			v.tag.fill(b)
			if h.a.Size() > 0 { // nobody looks at a workspace without a block
				open++
			}
		}
		ledger.openHalves.Add(int64(open))
		ledger.opened.Add(int64(min(open, 1)))
		v.over = true
	case doubleRelease:
		v.ws.Release()
		v.ws.Release()
		ledger.doubles.Add(1)
		v.over = true
	case lateUse:
		v.ws.Release()
		v.useLate()
		v.over = true
	case abandon:
		v.keepSlices()
		v.ws.Abandon()
		ledger.abandoned.Add(1)
		v.useLate()
		v.over = true
	default:
		v.over = true
		v.s.lendSlice(v)
	}
}

// send writes the answer in pieces.
func (v *visit) send(w http.ResponseWriter, b []byte) {
	if v.rng.IntN(2) == 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	}
	for len(b) > 0 {
		n := min(len(b), 1+v.rng.IntN(64<<10))
		if v.rng.IntN(4) == 0 {
			n = len(b)
		}
		if _, err := w.Write(b[:n]); err != nil {
			return // the client has gone, or http.TimeoutHandler has answered
		}
		b = b[n:]
		if len(b) > 0 && v.rng.IntN(4) == 0 {
			http.NewResponseController(w).Flush()
			v.pause()
		}
	}
}

// outlive is what a goroutine with a hold does after the handler has returned: it
// uses everything as before.
func (v *visit) outlive() {
	time.Sleep(time.Duration(v.rng.IntN(5000)) * time.Microsecond)
	v.check()
	v.work()
	v.pause()
	v.check()
}

// keepSlices lets a goroutine use slices of a block that will be abandoned. They must stay
// what they are.
func (v *visit) keepSlices() {
	rest := time.Duration(v.rng.IntN(20)) * time.Millisecond
	v.s.background(func() {
		time.Sleep(rest)
		v.checkPieces()
		for _, h := range v.halves {
			for i := range h.pieces {
				p := &h.pieces[i]
				v.tag.fill(p.b)
				p.written = len(p.b)
			}
		}
		v.checkPieces()
	})
}

// takeOver hijacks the connection and answers from a goroutine that outlives the handler.
func (v *visit) takeOver(w http.ResponseWriter, b []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		v.fault("Hijack: %v", err)
		return
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", len(b))
	done := func() {}
	if v.trouble == upgrade {
		head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: soak\r\n\r\n"
		v.s.ledger.upgraded.Add(1)
		v.over = true
	} else {
		done = v.ws.Hold()
	}
	rng := rand.New(rand.NewPCG(v.rng.Uint64(), 0)) // the handler's goroutine goes on with its own
	v.s.background(func() {
		defer done()
		defer conn.Close()
		io.WriteString(conn, head)
		for len(b) > 0 {
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
			n := min(len(b), 1+rng.IntN(64<<10))
			if _, err := conn.Write(b[:n]); err != nil {
				break
			}
			b = b[n:]
		}
		v.checkPieces()
	})
}

// useLate uses handles that are dead. Each method must refuse.
func (v *visit) useLate() {
	ws, a := v.ws, v.halves[v.rng.IntN(2)].a
	uses := []struct {
		name string
		use  func()
	}{
		{"Client", func() { ws.Client() }},
		{"Backend", func() { ws.Backend() }},
		{"Mode", func() { ws.Mode() }},
		{"Hold", func() { ws.Hold() }},
		{"Audit", func() { ws.Audit() }},
		{"Reset", func() { ws.Reset() }},
		{"Abandon", func() { ws.Abandon() }},
		{"Alloc", func() { a.Alloc(100) }},
		{"Alloc of nothing", func() { a.Alloc(0) }},
		{"Copy", func() { a.Copy(v.tag[:]) }},
		{"Reserve", func() { a.Reserve(100) }},
		{"Commit", func() { a.Commit(0) }},
		{"Abort", func() { a.Abort() }},
		{"Snapshot", func() { a.Snapshot() }},
		{"Rewind", func() { a.Rewind(workspace.Snapshot{}) }},
		{"Buffer", func() { a.Buffer() }},
		{"MakeSlice", func() { workspace.MakeSlice[int](a, 3) }},
		{"Mark", func() { a.Mark() }},
		{"TryAlloc", func() {
			if _, err := a.TryAlloc(10); err != nil {
				panic(err)
			}
		}},
	}
	for _, i := range v.rng.Perm(len(uses))[:5] {
		v.s.lateUses.Add(1)
		if err := caught(uses[i].use); !errors.Is(err, workspace.ErrReleased) {
			v.fault("late use of %s ended with %v, want a panic with ErrReleased", uses[i].name, err)
		}
	}
}

// caught returns the error with which f panics, or nil.
func caught(f func()) (err error) {
	defer func() {
		if e := recover(); e != nil {
			var ok bool
			if err, ok = e.(error); !ok {
				err = fmt.Errorf("%v", e)
			}
		}
	}()
	f()
	return nil
}
