package workspace

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoroutineDiffersBetweenLiveGoroutines(t *testing.T) {
	n := scaled(1000, 200)
	ids := make([]uintptr, n)
	var all, left sync.WaitGroup
	end := make(chan struct{})
	for i := range n {
		all.Add(1)
		left.Go(func() {
			ids[i] = goroutine()
			all.Done()
			<-end // stay alive, or the next one may have the same
		})
	}
	all.Wait()
	seen := map[uintptr]bool{goroutine(): true}
	for _, id := range ids {
		require.NotZero(t, id)
		require.False(t, seen[id], "two live goroutines with %#x", id)
		seen[id] = true
	}
	close(end)
	left.Wait()
}

// The stack moves when it grows, and the goroutine changes threads.
func TestGoroutineStaysTheSame(t *testing.T) {
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			id := goroutine()
			if got := deepGoroutine(2000); got != id {
				t.Errorf("%#x deep in the stack, was %#x", got, id)
			}
			for range 100 {
				runtime.Gosched()
				if got := goroutine(); got != id {
					t.Errorf("%#x after another one ran, was %#x", got, id)
				}
			}
			runtime.GC() // shrinks the stack
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if got := goroutine(); got != id {
				t.Errorf("%#x on a locked thread, was %#x", got, id)
			}
			func() {
				defer func() {
					recover()
					if got := goroutine(); got != id {
						t.Errorf("%#x in a deferred call of a panic, was %#x", got, id)
					}
				}()
				panic("unwind")
			}()
		})
	}
	wg.Wait()
}

//go:noinline
func deepGoroutine(n int) uintptr {
	var frame [256]byte
	if n == 0 {
		return goroutine()
	}
	id := deepGoroutine(n - 1)
	frame[n%len(frame)] = 1
	runtime.KeepAlive(&frame)
	return id
}
