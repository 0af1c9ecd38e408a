package main

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/go-workspace/workspace"
)

const (
	answerLimit = 30 * time.Second // for one answer
	drainLimit  = 10 * time.Second // for what is under way at the end
)

// A soak is one run: a server, its clients, and what disturbs them.
type soak struct {
	opt        options
	log        *findings
	server     *server
	load       *load
	goroutines int // before anything was started
}

// runSoak runs a soak until its time is up, ctx is done, or a fault was found.
func runSoak(ctx context.Context, o options, stderr io.Writer) (*summary, error) {
	interrupted := ctx
	ctx, cancel := context.WithTimeout(ctx, o.soakTime())
	defer cancel()
	k := &soak{opt: o, goroutines: runtime.NumGoroutine()}
	k.log = &findings{stderr: stderr, stop: cancel, start: time.Now()}
	var err error
	if k.server, err = newServer(o, k.log); err != nil {
		return nil, err
	}
	if err := k.server.start(); err != nil {
		return nil, err
	}
	k.load = newLoad(k.server)

	var clients, others sync.WaitGroup
	for i := range o.clients {
		clients.Go(func() { k.load.client(ctx, i) })
	}
	others.Go(func() { k.server.disturb(ctx, rand.New(rand.NewPCG(o.seed, 1<<32))) })
	others.Go(func() { k.watch(ctx) })
	clients.Wait()
	others.Wait()
	for _, t := range k.load.transport {
		t.CloseIdleConnections()
	}
	k.server.stop()
	await(func() bool { return runtime.NumGoroutine() <= k.goroutines })
	k.progress()

	r := k.summary(k.server.settle())
	r.GoroutinesAfter = runtime.NumGoroutine()
	if r.GoroutinesAfter > k.goroutines {
		k.log.fault("%d goroutines at the end, %d before", r.GoroutinesAfter, k.goroutines)
	}
	if r.HTTP1+r.HTTP2 == 0 || r.Checked == 0 {
		k.log.fault("nothing was checked")
	}
	if o.fuzz && k.log.faults() == 0 {
		r.Fuzzed = k.fuzz(interrupted, goTool)
	}
	r.Seconds = time.Since(k.log.start).Seconds()
	r.Faults, r.Listed = k.log.count, k.log.listed
	r.Passed = r.Faults == 0
	return r, nil
}

// watch prints progress until ctx is done.
func (k *soak) watch(ctx context.Context) {
	every := 10 * time.Second
	if k.opt.soakTime() <= time.Minute {
		every = time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			k.progress()
		}
	}
}

// auditIdle audits the idle blocks. What it finds is reported like any violation.
func (s *server) auditIdle() {
	blocks, _ := s.pool.AuditIdle()
	s.audits.Add(1)
	s.idleAudited.Add(int64(blocks))
}

func (s *server) collect() {
	runtime.GC()
	s.collections.Add(1)
}

// await waits until ok holds, and reports whether it did within drainLimit.
func await(ok func() bool) bool {
	for end := time.Now().Add(drainLimit); !ok(); {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

var allModes = []workspace.Mode{workspace.Shadow, workspace.Watermark, workspace.FullClear}
