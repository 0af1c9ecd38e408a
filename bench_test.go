package workspace

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Benchmarks of the library by itself; the comparison with other libraries is
// the module in bench/. Run them with
//
//	go test -run '^$' -bench . -count 10 .
//
// and compare medians, best with go run ./table in bench/.

const kb = 1 << 10

// benchPool makes a pool as a user would have it: unlike newTestPool it samples
// at the default rate. A benchmark that broke an invariant measured nothing.
func benchPool(b *testing.B, cfg Config) *Pool {
	b.Helper()
	p, err := NewPool(cfg)
	require.NoError(b, err)
	b.Cleanup(func() {
		s := p.Stats()
		require.Zero(b, s.Violations, "violations")
		require.Zero(b, s.InUse, "workspaces still in use")
	})
	return p
}

func benchArena(b *testing.B, cfg Config) *Arena {
	b.Helper()
	ws := benchPool(b, cfg).Acquire()
	b.Cleanup(ws.Release)
	return ws.Client()
}

// startOver empties an arena that nothing was written to. A Rewind would make
// each later Alloc zero its memory, and a Reset wipe the half: both cost more
// than the Alloc that is to be measured. Since every byte of the half is still
// zero, P may be taken down by hand; only a benchmark may do that.
func startOver(a *Arena) { a.pos = 0 }

var benchModes = []Mode{Watermark, Shadow, FullClear}

func byteName(n int) string {
	if n < kb {
		return fmt.Sprintf("%dB", n)
	}
	return fmt.Sprintf("%dKB", n/kb)
}

func BenchmarkAlloc(b *testing.B) {
	for _, n := range []int{16, 64, 1 * kb} {
		b.Run("bytes="+byteName(n), func(b *testing.B) {
			a := benchArena(b, Config{})
			b.ReportAllocs()
			for b.Loop() {
				if a.limit-a.pos < n {
					startOver(a)
				}
				a.Alloc(n)
			}
		})
	}
}

// After a Rewind the memory that is handed out again is zeroed by Alloc itself.
func BenchmarkAllocRewound(b *testing.B) {
	for _, n := range []int{16, 64, 1 * kb} {
		b.Run("bytes="+byteName(n), func(b *testing.B) {
			a := benchArena(b, Config{})
			a.mark = len(a.mem())
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if a.limit-a.pos < n {
					startOver(a)
				}
				a.Alloc(n)
			}
		})
	}
}

// bareArena is Arena.Alloc without what safety costs after each operation: the
// integrity check and the sampler. It keeps the check that the arena is alive,
// the zeroing after a Rewind and the slow path. It is the bar for
// BenchmarkSampler and has to follow changes of Alloc.
type bareArena struct {
	self  atomic.Pointer[bareArena]
	base  *byte
	size  int
	pos   int
	limit int
	mark  int
}

func (a *bareArena) mem() []byte { return unsafe.Slice(a.base, a.size) }

func (a *bareArena) Alloc(n int) []byte {
	if a == nil || a.self.Load() != a {
		return a.allocSlow(n)
	}
	off := (a.pos + minAlign - 1) &^ (minAlign - 1)
	if n <= 0 || n > a.limit-off {
		return a.allocSlow(n)
	}
	end := off + n
	if off < a.mark {
		zero(a.mem()[off:min(end, a.mark)])
	}
	a.pos = end
	return a.mem()[off:end:end]
}

//go:noinline
func (a *bareArena) allocSlow(n int) []byte { return make([]byte, n) }

// The sampler and the integrity check may cost an Alloc 3 ns at the most: "on"
// against "bare".
func BenchmarkSampler(b *testing.B) {
	const n = 64
	for _, sampling := range []struct {
		name  string
		every int
	}{{"on", 0}, {"off", -1}} {
		b.Run("sampling="+sampling.name, func(b *testing.B) {
			a := benchArena(b, Config{AuditEvery: sampling.every})
			b.ReportAllocs()
			for b.Loop() {
				if a.limit-a.pos < n {
					startOver(a)
				}
				a.Alloc(n)
			}
		})
	}
	b.Run("sampling=bare", func(b *testing.B) {
		a := &bareArena{base: unsafe.SliceData(make([]byte, DefaultHalfSize)), size: DefaultHalfSize, limit: DefaultHalfSize}
		a.self.Store(a)
		b.ReportAllocs()
		for b.Loop() {
			if a.limit-a.pos < n {
				a.pos = 0
			}
			a.Alloc(n)
		}
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	for _, m := range benchModes {
		b.Run("mode="+m.String(), func(b *testing.B) {
			p := benchPool(b, Config{Mode: m})
			b.ReportAllocs()
			for b.Loop() {
				p.Acquire().Release()
			}
		})
	}
}

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	for _, m := range benchModes {
		b.Run("mode="+m.String(), func(b *testing.B) {
			p := benchPool(b, Config{Mode: m})
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p.Acquire().Release()
				}
			})
		})
	}
}

// One request: a workspace, 40 allocations of which every byte is written, and
// the release with its wipe.
func BenchmarkRequest(b *testing.B) {
	const pieces = 40
	for _, total := range []int{4 * kb, 20 * kb, 100 * kb} {
		for _, m := range benchModes {
			b.Run("bytes="+byteName(total)+"/mode="+m.String(), func(b *testing.B) {
				p := benchPool(b, Config{Mode: m})
				src := bytes.Repeat([]byte{0xa5}, total/pieces)
				b.SetBytes(int64(total / pieces * pieces))
				b.ReportAllocs()
				for b.Loop() {
					ws := p.Acquire()
					a := ws.Client()
					for range pieces {
						copy(a.Alloc(len(src)), src)
					}
					ws.Release()
				}
			})
		}
	}
}

// What the wipe costs by how far the request got. The memory is in the cache, as
// that of a request that has just ended is. Reset checks and wipes as Release
// does, so the row of mark 0 is the part that is no wipe.
func BenchmarkWipe(b *testing.B) {
	wipe := func(b *testing.B, m Mode, mark int) {
		a := benchArena(b, Config{Mode: m})
		ws := a.ws
		for b.Loop() {
			a.pos = mark // as if that much had been allocated
			ws.Reset()
		}
		b.ReportMetric(float64(mark)/kb, "KB-marked")
	}
	for _, n := range []int{0, 1, 4, 16, 20, 64, 128, 256} {
		b.Run(fmt.Sprintf("mark=%dKB", n), func(b *testing.B) {
			b.SetBytes(int64(n) * kb)
			wipe(b, Watermark, n*kb)
		})
	}
	b.Run("everything", func(b *testing.B) {
		b.SetBytes(2 * DefaultHalfSize)
		wipe(b, FullClear, 20*kb)
	})
}

// An audit reads from the mark to the end of the half. Here it is in the cache;
// on a busy host it is not, and the same audit takes several times as long.
func BenchmarkAudit(b *testing.B) {
	blk := newBlock(DefaultHalfSize, DefaultHalfSize, noGap)
	for _, tail := range []int{256 * kb, 200 * kb} {
		b.Run("tail="+byteName(tail), func(b *testing.B) {
			half, guard := blk.half(Client), blk.guard(Client)
			b.SetBytes(int64(tail))
			b.ReportAllocs()
			for b.Loop() {
				if v := inspect(half, guard, len(half)-tail); v != nil {
					b.Fatal(v)
				}
			}
		})
	}
}

func BenchmarkSnapshotRewind(b *testing.B) {
	b.Run("empty", func(b *testing.B) {
		a := benchArena(b, Config{})
		b.ReportAllocs()
		for b.Loop() {
			a.Rewind(a.Snapshot())
		}
	})
	b.Run("alloc=64B", func(b *testing.B) {
		a := benchArena(b, Config{})
		b.ReportAllocs()
		for b.Loop() {
			s := a.Snapshot()
			a.Alloc(64)
			a.Rewind(s)
		}
	})
}

// 40 writes of 512 bytes into one growing buffer.
func BenchmarkBuffer(b *testing.B) {
	const pieces = 40
	src := bytes.Repeat([]byte{0xa5}, 512)
	b.Run("buffer=workspace", func(b *testing.B) {
		a := benchArena(b, Config{})
		b.SetBytes(pieces * int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			s := a.Snapshot()
			buf := a.Buffer()
			for range pieces {
				buf.Write(src)
			}
			a.Rewind(s)
		}
	})
	b.Run("buffer=bytes.Buffer,new", func(b *testing.B) {
		b.SetBytes(pieces * int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			var buf bytes.Buffer
			for range pieces {
				buf.Write(src)
			}
		}
	})
	b.Run("buffer=bytes.Buffer,reused", func(b *testing.B) {
		var buf bytes.Buffer
		b.SetBytes(pieces * int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			buf.Reset()
			for range pieces {
				buf.Write(src)
			}
		}
	})
}

func BenchmarkMakeSlice(b *testing.B) {
	a := benchArena(b, Config{})
	b.ReportAllocs()
	for b.Loop() {
		if a.limit-a.pos < 16*8 {
			startOver(a)
		}
		MakeSlice[uint64](a, 16)
	}
}

// discardResponse is a ResponseWriter that costs nothing.
type discardResponse struct{ header http.Header }

func (w discardResponse) Header() http.Header         { return w.header }
func (w discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w discardResponse) WriteHeader(int)             {}

// What the middleware adds to a handler: nothing asked for, a workspace asked
// for, and a workspace by HandlerFunc. An Acquire and a Release are in the
// latter two; compare with BenchmarkAcquireRelease.
func BenchmarkMiddleware(b *testing.B) {
	p := benchPool(b, Config{Mode: Watermark})
	ok := []byte("ok")
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(ok) })
	for _, h := range []struct {
		name    string
		handler http.Handler
	}{
		{"none", plain},
		{"middleware,unused", p.Middleware(plain)},
		{"middleware,FromContext", p.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Write(FromContext(r.Context()).Client().Copy(ok))
		}))},
		{"HandlerFunc", p.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *Workspace) {
			w.Write(ws.Client().Copy(ok))
		})},
	} {
		b.Run("handler="+h.name, func(b *testing.B) {
			w := discardResponse{http.Header{}}
			r := httptest.NewRequest("GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.handler.ServeHTTP(w, r)
			}
		})
	}
}
