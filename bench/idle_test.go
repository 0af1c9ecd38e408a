package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Which list should idle blocks wait in? The pool of the library uses a stack
// under a mutex. These are the alternatives, with the same blocks. Run with
//
//	go test -run '^$' -bench Idle -cpu 1,2 .

// A holder stands for a block.
type holder struct {
	mem   []byte
	owned atomic.Bool // in use; for the tests
}

const (
	holderSize = 512 * kb
	dirtySize  = 20 * kb // what a request dirties, and the give-back wipes
	maxIdle    = 64      // where a list has a limit
)

// An idleList keeps wiped holders. get returns nil when it has none; put may
// drop what is too much.
type idleList interface {
	get() *holder
	put(*holder)
}

var idleLists = []struct {
	name string
	make func() idleList
	// what the list promises
	keeps bool // holds what it got across collections, up to its limit
	lifo  bool // what came last goes first, whatever the processor
}{
	{"sync.Pool", func() idleList { return new(poolList) }, false, false},
	{"mutex", func() idleList { return new(mutexStack) }, true, true},
	{"sharded", func() idleList { return newShardedStack() }, true, false},
	{"channel", func() idleList { return make(channelList, maxIdle) }, true, false},
	{"lockfree", func() idleList { return new(lockFreeStack) }, true, true},
}

// poolList is sync.Pool: a cache for each processor, without a limit, emptied by
// every second collection.
type poolList struct{ p sync.Pool }

func (l *poolList) get() *holder {
	h, _ := l.p.Get().(*holder)
	return h
}

func (l *poolList) put(h *holder) { l.p.Put(h) }

// mutexStack is what the library uses.
type mutexStack struct {
	mu   sync.Mutex
	idle []*holder
}

func (l *mutexStack) get() *holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return nil
	}
	h := l.idle[last]
	l.idle[last] = nil
	l.idle = l.idle[:last]
	return h
}

func (l *mutexStack) put(h *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdle {
		l.idle = append(l.idle, h)
	}
}

// shardedStack spreads holders over as many mutex stacks as there are
// processors. Go has no cheap way to ask for the present one, so the shard is
// drawn. get tries the others before it gives up.
type shardedStack struct{ shards []shard }

type shard struct {
	mutexStack
	_ [64]byte // a cache line, so that two shards do not share one
}

func newShardedStack() *shardedStack {
	return &shardedStack{shards: make([]shard, runtime.GOMAXPROCS(0))}
}

func (l *shardedStack) get() *holder {
	n := len(l.shards)
	start := int(rand.Uint32N(uint32(n)))
	for i := range n {
		if h := l.shards[(start+i)%n].get(); h != nil {
			return h
		}
	}
	return nil
}

func (l *shardedStack) put(h *holder) {
	l.shards[rand.Uint32N(uint32(len(l.shards)))].put(h)
}

// channelList is first in, first out: it hands out the coldest memory.
type channelList chan *holder

func (l channelList) get() *holder {
	select {
	case h := <-l:
		return h
	default:
		return nil
	}
}

func (l channelList) put(h *holder) {
	select {
	case l <- h:
	default:
	}
}

// lockFreeStack is Treiber's stack. Each put makes a new node: with nodes that
// are used again a get could take an old node for the present one (the ABA
// problem); the garbage collector rules that out. It has no limit.
type lockFreeStack struct{ top atomic.Pointer[node] }

type node struct {
	h    *holder
	next *node
}

func (l *lockFreeStack) get() *holder {
	for {
		n := l.top.Load()
		if n == nil {
			return nil
		}
		if l.top.CompareAndSwap(n, n.next) {
			return n.h
		}
	}
}

func (l *lockFreeStack) put(h *holder) {
	n := &node{h: h}
	for {
		n.next = l.top.Load()
		if l.top.CompareAndSwap(n.next, n) {
			return
		}
	}
}

// BenchmarkIdle hands holders out and takes them back on all processors, with
// nothing between or with a request's worth of writing and wiping; without
// forced collections, with ten a second, and with one after the other.
//
// created/op and created/GC say how often the list had none, and 512 KB had to
// be allocated.
func BenchmarkIdle(b *testing.B) {
	collect := []struct {
		name  string
		every time.Duration
	}{{"none", 0}, {"10persecond", 100 * time.Millisecond}, {"continuous", time.Nanosecond}}
	for _, work := range []string{"bare", "wipe20KB"} {
		for _, gc := range collect {
			for _, l := range idleLists {
				b.Run(fmt.Sprintf("work=%s/gc=%s/list=%s", work, gc.name, l.name), func(b *testing.B) {
					benchIdle(b, l.make(), work != "bare", gc.every)
				})
			}
		}
	}
}

func benchIdle(b *testing.B, l idleList, wipe bool, gcEvery time.Duration) {
	src := make([]byte, dirtySize)
	for i := range src {
		src[i] = 0xa5
	}
	for range runtime.GOMAXPROCS(0) {
		l.put(&holder{mem: make([]byte, holderSize)})
	}
	var created atomic.Int64
	collections := collectEvery(gcEvery)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h := l.get()
			if h == nil {
				created.Add(1)
				h = &holder{mem: make([]byte, holderSize)}
			}
			if wipe {
				copy(h.mem, src)
				clear(h.mem[:dirtySize])
			}
			l.put(h)
		}
	})
	b.StopTimer()
	n := collections()
	b.ReportMetric(float64(created.Load())/float64(b.N), "created/op")
	if n > 0 {
		b.ReportMetric(float64(created.Load())/float64(n), "created/GC")
	}
}

// BenchmarkIdleBurst is what a list is for: 16 requests at once after a quiet
// time in which the collector ran twice. burst-ns/op is the time that getting,
// dirtying, wiping and giving back took; ns/op has the collections in it, too.
func BenchmarkIdleBurst(b *testing.B) {
	const burst = 16
	src := make([]byte, dirtySize)
	for _, l := range idleLists {
		b.Run("list="+l.name, func(b *testing.B) {
			list := l.make()
			for range burst {
				list.put(&holder{mem: make([]byte, holderSize)})
			}
			var spent time.Duration
			created := 0
			for b.Loop() {
				runtime.GC()
				runtime.GC()
				start := time.Now()
				var hs [burst]*holder
				for i := range hs {
					if hs[i] = list.get(); hs[i] == nil {
						created++
						hs[i] = &holder{mem: make([]byte, holderSize)}
					}
					copy(hs[i].mem, src)
				}
				for _, h := range hs {
					clear(h.mem[:dirtySize])
					list.put(h)
				}
				spent += time.Since(start)
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "burst-ns/op")
			b.ReportMetric(float64(created)/float64(b.N), "created/op")
		})
	}
}

// collectEvery forces a collection every so often, or never when d is 0, until
// the function that it returns is called. That one returns how many there were.
func collectEvery(d time.Duration) (stop func() int) {
	if d == 0 {
		return func() int { return 0 }
	}
	done, ended := make(chan struct{}), make(chan int)
	go func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		n := 0
		for {
			select {
			case <-done:
				ended <- n
				return
			case <-tick.C:
				runtime.GC()
				n++
			}
		}
	}()
	return func() int {
		close(done)
		return <-ended
	}
}

// No list may hand a holder to two users at once, invent one, or return one that
// was not wiped.
func TestIdleListsHandOutEachHolderOnce(t *testing.T) {
	const workers, rounds, size = 4, 2000, 64
	for _, l := range idleLists {
		t.Run(l.name, func(t *testing.T) {
			list := l.make()
			require.Nil(t, list.get(), "an empty list")
			stop := collectEvery(time.Millisecond)
			var made, shared, dirty atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range rounds {
						h := list.get()
						if h == nil {
							made.Add(1)
							h = &holder{mem: make([]byte, size)}
						}
						if !h.owned.CompareAndSwap(false, true) {
							shared.Add(1)
						}
						for i, c := range h.mem {
							if c != 0 {
								dirty.Add(1)
							}
							h.mem[i] = 0xa5
						}
						clear(h.mem)
						h.owned.Store(false)
						list.put(h)
					}
				})
			}
			wg.Wait()
			stop()
			require.Zero(t, shared.Load(), "holders with two users")
			require.Zero(t, dirty.Load(), "bytes that were not zero")
			if l.lifo {
				// One stack has none only while the others have them all. A
				// look through several shards may miss one that moves.
				require.LessOrEqual(t, made.Load(), int64(workers), "holders made anew")
			}
			seen := map[*holder]bool{}
			for h := list.get(); h != nil; h = list.get() {
				require.False(t, seen[h], "a holder is in the list twice")
				seen[h] = true
			}
			require.LessOrEqual(t, int64(len(seen)), made.Load())
		})
	}
}

func TestIdleListsKeepWhatTheyPromise(t *testing.T) {
	const n = 8
	for _, l := range idleLists {
		t.Run(l.name, func(t *testing.T) {
			list := l.make()
			var in []*holder
			for range n {
				h := new(holder)
				in = append(in, h)
				list.put(h)
			}
			runtime.GC()
			runtime.GC() // sync.Pool forgets after the second
			var out []*holder
			for h := list.get(); h != nil; h = list.get() {
				out = append(out, h)
			}
			if !l.keeps {
				require.Empty(t, out, "promises nothing, but keeps: change its row")
				return
			}
			require.ElementsMatch(t, in, out)
			if l.lifo {
				for i, h := range out {
					require.Same(t, in[n-1-i], h, "number %d that came out", i)
				}
			}
		})
	}
}
