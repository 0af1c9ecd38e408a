package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A load sends requests to all hosts at a fixed rate and reads each answer to
// the last byte.
type load struct {
	client  http.Client
	answers atomic.Int64
	failed  atomic.Int64 // no answer: the host was restarting
	wrong   atomic.Int64
	mu      sync.Mutex
	first   string // what was wrong first
}

// run sends rate requests a second to a host until ctx is done.
func (l *load) run(ctx context.Context, addr string, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.one(ctx, addr)
		}
	}
}

func (l *load) one(ctx context.Context, addr string) {
	text, want := request()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/work", strings.NewReader(text))
	if err != nil {
		l.judge("", "", err)
		return
	}
	resp, err := l.client.Do(req)
	if err != nil {
		l.failed.Add(1)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		l.failed.Add(1)
		return
	}
	l.answers.Add(1)
	l.judge(string(got), want, nil)
}

func (l *load) judge(got, want string, err error) {
	if err == nil && got == want {
		return
	}
	l.wrong.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == "" {
		l.first = fmt.Sprintf("%v: got %.100q, want %.100q", err, got, want)
	}
}

// request makes words that nobody else sends, and the answer to them.
func request() (text, want string) {
	var t, w strings.Builder
	for range 5 + rand.IntN(40) {
		word := make([]byte, 1+min(int(rand.ExpFloat64()*20), 500))
		for i := range word {
			word[i] = 'a' + byte(rand.IntN(26))
		}
		t.Write(word)
		t.WriteByte(' ')
		fmt.Fprintf(&w, "%s:%08x ", word, crc32.ChecksumIEEE(bytes.ToUpper(word)))
	}
	return t.String(), w.String()
}
