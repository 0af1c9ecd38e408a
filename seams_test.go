package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// The places where more than [0, P) of a half is dirty, or where the position,
// the mark, the open reservation and the end of the half meet. They come from
// the histories of C servers with workspaces per request, above all Varnish.

const seamHalf = 8 << 10 // size of each half here

var errNetwork = errors.New("connection reset by peer")

// seam runs f as one request in each mode, with each operation audited and with
// none. Then the request ends: its block must be all zero, go back to the
// pool, and be clean when the next request gets it.
func seam(t *testing.T, name string, f func(t *testing.T, ws *Workspace)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
			ws := pool.Acquire()
			blk := ws.blk
			f(t, ws)
			ws.Release()
			requireWiped(t, blk)
			next := pool.Acquire()
			defer next.Release()
			require.True(t, next.blk == blk, "the next request must get the same block, or this test proves nothing")
			requireClean(t, next)
			require.Zero(t, next.Client().Mark()+next.Backend().Mark())
		})
	})
}

// inAllModes runs f with a pool in each mode, with each operation audited and
// with none.
func inAllModes(t *testing.T, cfg Config, f func(t *testing.T, pool *testPool)) {
	t.Helper()
	if cfg.ClientSize == 0 {
		cfg.ClientSize, cfg.BackendSize = seamHalf, seamHalf
	}
	for _, mode := range allModes {
		for every, audits := range map[int]string{1: "audited", -1: "unaudited"} {
			t.Run(mode.String()+"/"+audits, func(t *testing.T) {
				cfg := cfg
				cfg.Mode, cfg.AuditEvery = mode, every
				f(t, newTestPool(t, cfg))
			})
		}
	}
}

// requireWiped checks the memory behind a workspace that has ended.
func requireWiped(t testing.TB, blk *block) {
	t.Helper()
	for _, h := range []Half{Client, Backend} {
		mem := blk.half(h)
		require.True(t, bytes.Equal(mem, make([]byte, len(mem))), "%s half after the release: non-zero bytes from %d to %d", h, firstNonZero(mem), lastNonZero(mem))
		require.True(t, guardIntact(blk.guard(h)), "%s guard after the release", h)
	}
}

// requireTail checks what must hold at every moment: the mark is at or past
// what was handed out, and all past the mark is zero.
func requireTail(t testing.TB, a *Arena) {
	t.Helper()
	w := a.Mark()
	require.GreaterOrEqual(t, w, a.Position(), "W >= P")
	require.LessOrEqual(t, w, len(a.mem()), "W <= E")
	require.True(t, bytes.Equal(a.mem()[w:], make([]byte, len(a.mem())-w)), "past the mark, which is %d: last non-zero byte at %d", w, w+lastNonZero(a.mem()[w:]))
}

// requireZeros checks that b was handed out as zero memory that it owns alone.
func requireZeros(t testing.TB, b []byte, n int) {
	t.Helper()
	require.Len(t, b, n)
	require.Equal(t, n, cap(b), "cap is len")
	require.True(t, bytes.Equal(b, make([]byte, n)), "handed out with old bytes: first at %d", firstNonZero(b))
}

func TestSeamsReservations(t *testing.T) {
	for how, end := range map[string]func(*Arena){
		"abort":             (*Arena).Abort,
		"commit of nothing": func(a *Arena) { a.Commit(0) },
	} {
		seam(t, "reserve all, write some, keep nothing/"+how, func(t *testing.T, ws *Workspace) {
			for _, a := range []*Arena{ws.Client(), ws.Backend()} {
				a.Alloc(104)
				res := a.Reserve(a.Room())
				copy(res, strings.Repeat("sort keys ", 30))
				end(a)
				require.Equal(t, 104, a.Position())
				require.NotZero(t, a.mem()[104], "the left-over is real")
				require.Equal(t, seamHalf, a.Mark(), "the whole reservation counts")
				requireTail(t, a)
				requireZeros(t, a.Alloc(2000), 2000)
			}
		})
	}

	seam(t, "reserve all, write much, keep less", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		res := a.Reserve(a.Room())
		stain(res[:5000:5000], 1)
		kept := a.Commit(100)
		require.Equal(t, 100, a.Position())
		require.Equal(t, 100, cap(kept))
		require.GreaterOrEqual(t, a.Mark(), 5000)
		requireZeros(t, a.Alloc(3000), 3000)
		require.True(t, bytes.HasPrefix(kept, tag(1)))
	})

	seam(t, "only the last byte of a reservation is written", func(t *testing.T, ws *Workspace) {
		a := ws.Backend()
		a.Alloc(8)
		res := a.Reserve(1001)
		res[1000] = 1
		a.Commit(3)
		require.Equal(t, 8+1001, a.Mark())
		require.EqualValues(t, 1, a.mem()[8+1000])
		requireTail(t, a)
		requireZeros(t, a.Alloc(4000), 4000)
	})

	seam(t, "formatter fills a reservation and does not fit", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(16)
		text := bytes.Repeat([]byte("x"), seamHalf)
		res := a.Reserve(a.Room())
		require.Less(t, copy(res, text), len(text))
		a.Abort()
		_, err := a.TryAlloc(len(text))
		require.ErrorIs(t, err, ErrFull)
		require.True(t, a.Overflowed())
		require.Equal(t, 16, a.Position())
		require.NotZero(t, a.mem()[seamHalf-1], "written up to the last byte")
		require.Equal(t, seamHalf, a.Mark())
	})

	// A Buffer stands in for the formatter that writes first and looks later: it
	// writes all or nothing, so what does not fit dirties nothing.
	seam(t, "builder does not fit", func(t *testing.T, ws *Workspace) {
		ws.pool.cfg.MaxSpill = 0 // no heap
		a := ws.Client()
		b := a.Buffer()
		for a.Room() >= 100 {
			fmt.Fprintf(b, "%099d\n", 7)
		}
		before := b.Len()
		n, err := fmt.Fprintf(b, "%0*d", seamHalf, 7)
		require.ErrorIs(t, err, ErrFull)
		require.Zero(t, n)
		require.Equal(t, before, b.Len())
		require.Equal(t, before, a.Position())
		require.Equal(t, before, a.Mark(), "nothing was written past it")
		require.True(t, a.Overflowed())
		requireTail(t, a)
	})

	seam(t, "builder moves to the heap and leaves its start behind", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		b := a.Buffer()
		b.Write(bytes.Repeat([]byte("a"), 5000))
		n, err := b.Write(bytes.Repeat([]byte("b"), 5000))
		require.NoError(t, err)
		require.Equal(t, 5000, n)
		require.Equal(t, 10000, b.Len())
		require.True(t, a.Overflowed())
		require.Equal(t, 5000, a.Mark())
		require.NotZero(t, a.mem()[4999])
		requireTail(t, a)
	})

	for name, r := range map[string]func() io.Reader{
		"end of stream": func() io.Reader { return strings.NewReader("GET / HT") },
		"timeout": func() io.Reader {
			return iotest.TimeoutReader(iotest.HalfReader(strings.NewReader("GET / HTTP/1.1\r\n")))
		},
		"reset": func() io.Reader {
			return io.MultiReader(strings.NewReader("GET /"), iotest.ErrReader(errNetwork))
		},
		"junk":     func() io.Reader { return bytes.NewReader(bytes.Repeat([]byte{0xff, 0xfe}, 300)) },
		"too long": func() io.Reader { return strings.NewReader(strings.Repeat("cookie: a=b\r\n", 100)) },
	} {
		seam(t, "receive into a reservation fails/"+name, func(t *testing.T, ws *Workspace) {
			a := ws.Client()
			a.Alloc(64)
			res := a.Reserve(1024)
			got, rd := 0, r()
			for got < len(res) {
				n, err := rd.Read(res[got:])
				got += n
				if err != nil {
					break
				}
			}
			require.NotZero(t, got)
			a.Abort() // none of the exits keeps anything
			require.Equal(t, 64, a.Position())
			require.NotZero(t, a.mem()[64+got-1], "the received bytes are still there")
			require.GreaterOrEqual(t, a.Mark(), 64+got)
			requireTail(t, a)
		})
		seam(t, "receive into a buffer fails/"+name, func(t *testing.T, ws *Workspace) {
			a := ws.Client()
			a.Alloc(64)
			b := a.Buffer()
			n, _ := b.ReadFrom(r())
			require.NotZero(t, n)
			require.EqualValues(t, n, b.Len(), "what came before the error stays")
			require.GreaterOrEqual(t, a.Mark(), 64+b.Len())
			requireTail(t, a)
		})
	}

	// Bytes of the next request that arrived with this one must get out before
	// the boundary. They can, and a boundary leaves none of them behind.
	seam(t, "surplus of a read is carried over a message boundary", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		res := a.Reserve(1000)
		in := a.Commit(copy(res, "GET /1\nGET /2\n"))
		surplus := bytes.Clone(in[7:])
		ws.Reset()
		requireZeros(t, a.mem(), seamHalf) // the boundary wipes the surplus, too
		require.Equal(t, "GET /2\n", string(a.Copy(surplus)))
		require.Equal(t, 7, a.Mark())
	})

	seam(t, "several reads into one reservation, longest first", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		res := a.Reserve(2000)
		for i, n := range []int{1900, 40, 700} { // each from the start again
			stain(res[:n:n], i)
		}
		a.Commit(700)
		require.GreaterOrEqual(t, a.Mark(), 1900)
		requireTail(t, a)
		requireZeros(t, a.Alloc(1500), 1500)
	})

	seam(t, "buffer tail scribbled on again and again, longest first", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		b := a.Buffer()
		b.Grow(1000)
		for i, n := range []int{1000, 40, 700} {
			free := b.AvailableBuffer()
			stain(free[:n:n], i)
			requireTail(t, a)
		}
		b.WriteString("short")
		require.Equal(t, 1000, a.Mark())
		require.Equal(t, "short", b.String())
		requireTail(t, a)
	})

	for keep := range map[int]bool{0: true, 30: true} {
		seam(t, fmt.Sprintf("decoder starts over at the start of its reservation/keeps %d", keep), func(t *testing.T, ws *Workspace) {
			a := ws.Backend()
			res := a.Reserve(512)
			stain(res, 1) // the header list that was too long
			stain(res[:30:30], 2)
			a.Commit(keep)
			require.Equal(t, keep, a.Position())
			require.Equal(t, 512, a.Mark())
			requireTail(t, a)
			requireZeros(t, a.Alloc(600), 600)
		})
	}

	// A raw reservation costs its full extent even when nothing was written: the
	// caller has the slice and the arena can't look. What "reserve all, write
	// nothing" must not cost is had from a Buffer.
	seam(t, "nothing is written/a raw reservation costs its extent", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Reserve(300)
		a.Abort()
		require.Equal(t, 300, a.Mark())
	})
	seam(t, "nothing is written/a buffer costs nothing", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(24)
		b := a.Buffer()
		require.Zero(t, b.Len())
		n, err := b.Write(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 24, a.Mark())
		require.Equal(t, 24, a.Position())
	})
	seam(t, "nothing is written/a buffer costs what was written to it", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		fmt.Fprintf(a.Buffer(), "%s %d", "status", 200)
		require.Equal(t, len("status 200"), a.Mark())
	})

	seam(t, "reservation of no bytes in a full half", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(seamHalf)
		require.Empty(t, a.Reserve(0))
		requirePanicIs(t, ErrReserved, func() { a.Snapshot() })
		require.Empty(t, a.Commit(0))
		require.Empty(t, a.Reserve(a.Room()))
		a.Abort()
		require.Equal(t, seamHalf, a.Position())
		require.Equal(t, seamHalf, a.Mark())
		require.False(t, a.Overflowed())
	})

	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 1023} {
		seam(t, fmt.Sprintf("reservation of an odd size/%d bytes kept in full", n), func(t *testing.T, ws *Workspace) {
			a := ws.Client()
			a.Alloc(8)
			res := a.Reserve(n)
			require.Equal(t, n, cap(res))
			stain(res, 1)
			kept := a.Commit(n)
			require.Equal(t, 8+n, a.Position(), "the size is not rounded up")
			require.Equal(t, 8+n, a.Mark())
			requireTail(t, a)
			next := a.Alloc(1)
			require.Equal(t, (8+n+7)&^7+1, a.Position())
			next[0] = 0xff
			require.Equal(t, tag(1)[(n-1)%16], kept[n-1])
		})
	}

	t.Run("reservation still open when the request ends", func(t *testing.T) {
		inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
			ws := pool.Acquire()
			blk := ws.blk
			ws.Client().Alloc(100)
			res := ws.Client().Reserve(500)
			stain(res, 1)
			ws.Release()
			v := pool.violations(1)[0]
			require.Equal(t, OpenReservation, v.Kind)
			require.Equal(t, Client, v.Half)
			require.Equal(t, 604, v.Mark)
			requireWiped(t, blk) // past P, up to R
			s := pool.Stats()
			require.EqualValues(t, 1, s.Doubts.Reservation)
			require.Zero(t, s.Idle)

			// Whoever opened it may still write. That must reach nobody.
			stain(res, 1)
			next := pool.Acquire()
			require.False(t, next.blk == blk)
			requireClean(t, next)
			next.Release()
		})
	})

	t.Run("reservation still open at a message boundary", func(t *testing.T) {
		inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
			ws := pool.Acquire()
			res := ws.Backend().Reserve(500)
			stain(res, 1)
			requirePanicIs(t, ErrReserved, ws.Reset)
			require.Equal(t, 500, ws.Backend().Mark(), "nothing has changed")
			require.True(t, bytes.HasPrefix(ws.Backend().Commit(500), tag(1)))
			ws.Release()
		})
	})

	seam(t, "reservation opened by one goroutine and ended by another", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		opened, parked := make(chan []byte), make(chan bool)
		go func() { // the acceptor
			res := a.Reserve(400)
			stain(res[:300:300], 1)
			opened <- res
		}()
		res := <-opened
		go func() { // the poller, which only waits
			defer close(parked)
			res[399] = 1
		}()
		stain(ws.Backend().Alloc(100), 2) // the other half goes on meanwhile
		<-parked
		require.Equal(t, 200, len(a.Commit(200)))
		require.Equal(t, 400, a.Mark())
		requireTail(t, a)
	})

	seam(t, "commit that is refused", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(40)
		requirePanicIs(t, ErrMisuse, func() { a.Commit(0) }) // none open
		a.Abort()                                            // which does nothing then
		stain(a.Reserve(100), 1)
		for _, n := range []int{101, -1, math.MaxInt, math.MinInt} {
			requirePanicIs(t, ErrMisuse, func() { a.Commit(n) })
			require.Equal(t, 140, a.Mark())
			require.LessOrEqual(t, a.Position(), 40)
		}
		require.Len(t, a.Commit(100), 100) // it was still open
		requirePanicIs(t, ErrMisuse, func() { a.Commit(1) })
		require.Equal(t, 140, a.Position())
		require.Equal(t, 140, a.Mark())
		ws.Reset()
		requirePanicIs(t, ErrMisuse, func() { a.Commit(1) })
		require.Zero(t, a.Mark())
	})

	seam(t, "scan that copies and then keeps the original", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		original := a.CopyString("already-lower-case")
		res := a.Reserve(len(original))
		require.Equal(t, string(original), string(res[:copy(res, bytes.ToLower(original))]))
		a.Abort()
		require.Equal(t, 24+18, a.Mark())
		requireTail(t, a)
		require.Equal(t, "already-lower-case", string(original))
		requireZeros(t, a.Alloc(18), 18)
	})
}

func TestSeamsRewind(t *testing.T) {
	seam(t, "allocate, fill, rewind, end", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(16)
		s := a.Snapshot()
		stain(a.Alloc(3000), 1)
		p := a.Position()
		a.Rewind(s)
		require.Equal(t, 16, a.Position())
		require.Equal(t, p, a.Mark())
		require.NotZero(t, a.mem()[p-1])
		requireTail(t, a)
	})

	seam(t, "nested snapshots", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		outer := a.Snapshot()
		stain(a.Alloc(1000), 1)
		inner := a.Snapshot()
		stain(a.Alloc(2000), 2)
		a.Rewind(inner)
		require.Equal(t, 1000, a.Position())
		stain(a.Alloc(100), 3)
		a.Rewind(inner) // as often as wanted
		a.Rewind(outer)
		require.Zero(t, a.Position())
		require.Equal(t, 3000, a.Mark())
		requireZeros(t, a.Alloc(4000), 4000)
	})

	seam(t, "snapshots used out of order", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		outer := a.Snapshot()
		stain(a.Alloc(1000), 1)
		inner := a.Snapshot()
		stain(a.Alloc(2000), 2)
		a.Rewind(outer)
		requirePanicIs(t, ErrStale, func() { a.Rewind(inner) })
		stain(a.Alloc(1500), 3) // P is past inner's position again
		requirePanicIs(t, ErrStale, func() { a.Rewind(inner) })
		require.Equal(t, 1500, a.Position())
		require.Equal(t, 3000, a.Mark())
	})

	// A restart, a retry, the next request of a connection without a boundary.
	seam(t, "rollback to the start, then much less", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		start := a.Snapshot()
		stain(a.Alloc(7000), 1)
		a.Rewind(start)
		stain(a.Alloc(16), 2)
		require.Equal(t, 16, a.Position())
		require.Equal(t, 7000, a.Mark())
		a.Rewind(start)
		require.Equal(t, 7000, a.Mark())
		requireTail(t, a)
	})

	seam(t, "snapshot from above a rollback", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		low := a.Snapshot()
		secret := a.Alloc(640)
		stain(secret, 1)
		high := a.Snapshot()
		a.Rewind(low)
		// Going up to it would show the old bytes as allocated again.
		requirePanicIs(t, ErrStale, func() { a.Rewind(high) })
		require.Zero(t, a.Position())
		require.Equal(t, 640, a.Mark())
		requireZeros(t, a.Alloc(640), 640)
		requirePanicIs(t, ErrStale, func() { a.Rewind(high) }) // P equals its position
	})

	// In Varnish a reset after an overflow does nothing. Here it goes back, and
	// only the overflow stays.
	seam(t, "rewind after an overflow", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		s := a.Snapshot()
		stain(a.Alloc(6000), 1)
		stain(a.Alloc(6000), 2) // on the heap
		require.True(t, a.Overflowed())
		a.Rewind(s)
		require.True(t, a.Overflowed())
		require.Zero(t, a.Position())
		require.Equal(t, 6000, a.Mark())
		requireZeros(t, a.Alloc(16), 16)
	})

	seam(t, "pipelined bytes move down over themselves", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		start := a.Snapshot()
		a.Alloc(40)
		next := a.Alloc(3000)
		for i := range next {
			next[i] = byte(i%251 + 1)
		}
		want := bytes.Clone(next)
		a.Rewind(start)
		moved := a.Copy(next) // [40, 3040) to [0, 3000)
		require.Equal(t, want, moved)
		require.Equal(t, 3000, a.Position())
		require.Equal(t, 3040, a.Mark(), "the end of the old copy lies above P")
		require.NotZero(t, a.mem()[3039])
		requireTail(t, a)
		requireZeros(t, a.Alloc(100), 100)
	})

	seam(t, "pipelined bytes move to where they do not fit", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		next := a.Alloc(5000)
		stain(next, 1)
		_, err := a.TryAlloc(len(next))
		require.ErrorIs(t, err, ErrFull)
		require.Equal(t, 5000, a.Position())
		require.Equal(t, string(next), string(a.Copy(next))) // the heap takes it
		require.Equal(t, 5000, a.Mark())
		require.True(t, a.Overflowed())
	})

	seam(t, "late write through a slice from before a rewind", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		s := a.Snapshot()
		kept := a.Alloc(2000)
		a.Rewind(s)
		stain(kept, 1)
		requireTail(t, a)
		requireZeros(t, a.Alloc(1000), 1000)
		requireZeros(t, a.Alloc(2000), 2000)
	})

	// A bare slice kept beyond a boundary can't be stopped. It is found, and its
	// bytes go to nobody.
	t.Run("late write through a slice from before a boundary", func(t *testing.T) {
		for _, mode := range allModes {
			pool := newTestPool(t, Config{Mode: mode, ClientSize: seamHalf, BackendSize: seamHalf})
			ws := pool.Acquire()
			blk := ws.blk
			kept := ws.Client().Alloc(100)
			ws.Reset()
			kept[99] = 1
			ws.Client().Snapshot() // any operation
			v := pool.violations(1)[0]
			require.Equal(t, DirtyTail, v.Kind)
			require.Equal(t, 99, v.First)
			ws.Release()
			requireWiped(t, blk)
			require.EqualValues(t, 1, pool.Stats().Abandoned)
		}
	})
	t.Run("late write after the release", func(t *testing.T) {
		for _, mode := range allModes {
			pool := newTestPool(t, Config{Mode: mode, ClientSize: seamHalf, BackendSize: seamHalf})
			ws := pool.Acquire()
			blk := ws.blk
			kept := ws.Backend().Alloc(100)
			ws.Release()
			kept[7] = 1
			next := pool.Acquire()
			require.False(t, next.blk == blk)
			requireClean(t, next)
			v := pool.violations(1)[0]
			require.Equal(t, OpAcquire, v.Op)
			require.Equal(t, Backend, v.Half)
			require.Equal(t, 7, v.First)
			next.Release()
		}
	})
	t.Run("asynchronous operation completes late", func(t *testing.T) {
		inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
			ws := pool.Acquire()
			blk := ws.blk
			into, cancelled := ws.Client().Alloc(1000), make(chan bool)
			finished := make(chan bool)
			done := ws.Hold()
			go func() {
				defer close(finished)
				<-cancelled
				stain(into, 1)
				done()
			}()
			ws.Release()
			next := pool.Acquire()
			require.False(t, next.blk == blk, "the block is still held")
			close(cancelled)
			<-finished
			requireClean(t, next)
			requireWiped(t, blk)
			next.Release()
		})
	})

	seam(t, "zeros written into memory just given up", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		s := a.Snapshot()
		b := a.Alloc(1000)
		stain(b, 1)
		a.Rewind(s)
		clear(b[:500])
		require.Equal(t, 1000, a.Mark())
		require.NoError(t, ws.Audit())
		requireZeros(t, a.Alloc(700), 700)
	})
}

func TestSeamsGeometry(t *testing.T) {
	t.Run("guard is checked whole", func(t *testing.T) {
		for _, h := range []Half{Client, Backend} {
			for i := range guardSize {
				// No audits: the check at the end is not sampled.
				pool := newTestPool(t, Config{Mode: Watermark, ClientSize: seamHalf, BackendSize: seamHalf, AuditEvery: -1})
				ws := pool.Acquire()
				blk := ws.blk
				require.NoError(t, ws.Audit(), "a guard is not zero, and no violation")
				blk.guard(h)[i] ^= 0x40
				ws.Release()
				v := pool.violations(1)[0]
				require.Equal(t, GuardDamaged, v.Kind)
				require.Equal(t, h, v.Half)
				require.False(t, v.Guard)
				require.Equal(t, -1, v.First)
				require.EqualValues(t, 1, pool.Stats().Doubts.Violation)
				requireWiped(t, blk)
			}
		}
	})

	// varnish/Varnish-Cache#83: a reset to a snapshot of a full workspace.
	seam(t, "exactly full", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		start := a.Snapshot()
		stain(a.Alloc(seamHalf), 1)
		require.Zero(t, a.Room())
		require.Equal(t, seamHalf, a.Mark())
		require.False(t, a.Overflowed())
		full := a.Snapshot()
		require.NoError(t, ws.Audit(), "an empty tail is clean")
		require.Empty(t, a.Alloc(0))
		_, err := a.TryAlloc(1)
		require.ErrorIs(t, err, ErrFull)
		a.Rewind(full)
		require.Equal(t, seamHalf, a.Position())
		a.Rewind(start)
		requireZeros(t, a.Alloc(seamHalf), seamHalf)
		require.Equal(t, seamHalf, a.Mark())
	})

	t.Run("dirty byte near the mark and near the end", func(t *testing.T) {
		pool := newTestPool(t, Config{ClientSize: seamHalf, BackendSize: seamHalf, AuditEvery: -1})
		pool.expectViolations()
		for _, mark := range []int{0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 4095, 4096, 4097, seamHalf - 65, seamHalf - 64, seamHalf - 33, seamHalf - 2, seamHalf - 1} {
			ws := pool.Acquire()
			a := ws.Client()
			b := a.AllocAligned(mark, 1)
			stain(b, 1) // up to the mark: not to be reported
			offsets := []int{seamHalf - 1, seamHalf - 2}
			for off := mark; off <= mark+65; off++ {
				offsets = append(offsets, off)
			}
			for _, off := range offsets {
				if off < mark || off >= seamHalf {
					continue
				}
				a.mem()[off] = 0x80
				var v *Violation
				require.ErrorAs(t, ws.Audit(), &v, "mark %d, dirty byte at %d", mark, off)
				require.Equal(t, []int{mark, off, off, 1}, []int{v.Mark, v.First, v.Last, v.Count})
				require.NoError(t, ws.Audit(), "it was wiped")
			}
			require.EqualValues(t, mark, countNonZero(a.mem()), "below the mark nothing was touched")
			ws.Release()
		}
	})

	seam(t, "halves are apart/overflow of one", func(t *testing.T, ws *Workspace) {
		c, b := ws.Client(), ws.Backend()
		theirs := b.Alloc(seamHalf)
		stain(theirs, 2)
		c.Alloc(seamHalf - 100)
		for range 10 {
			stain(c.Alloc(100), 1) // the first fits, the rest goes to the heap
		}
		require.True(t, c.Overflowed())
		require.False(t, b.Overflowed())
		requireNoTag(t, theirs, 2)
		require.True(t, guardIntact(ws.blk.guard(Client)))
	})
	seam(t, "halves are apart/one unused", func(t *testing.T, ws *Workspace) {
		stain(ws.Client().Alloc(1000), 1)
		require.Zero(t, ws.Backend().Mark())
		require.Zero(t, ws.Backend().Position())
	})
	seam(t, "halves are apart/each has its own rewind", func(t *testing.T, ws *Workspace) {
		s := ws.Client().Snapshot()
		stain(ws.Client().Alloc(1000), 1)
		kept := ws.Backend().Alloc(2000)
		stain(kept, 2)
		ws.Client().Rewind(s)
		requirePanicIs(t, ErrMisuse, func() { ws.Backend().Rewind(s) })
		require.Equal(t, 1000, ws.Client().Mark())
		require.Equal(t, 2000, ws.Backend().Mark())
		require.Equal(t, 2000, ws.Backend().Position())
		requireNoTag(t, kept, 2)
	})
	// A fetch in the background outlives the client side: the block waits for it.
	seam(t, "halves are apart/the backend side ends later", func(t *testing.T, ws *Workspace) {
		done := ws.Hold()
		ended := make(chan bool)
		s := ws.Client().Snapshot()
		stain(ws.Client().Alloc(500), 1)
		ws.Client().Rewind(s)
		go func() {
			defer close(ended)
			stain(ws.Backend().Alloc(5000), 2)
			done()
		}()
		<-ended
		require.Equal(t, 5000, ws.Backend().Mark())
		require.Equal(t, 500, ws.Client().Mark())
	})
	t.Run("halves are apart/wiped bytes are counted for each", func(t *testing.T) {
		pool := newTestPool(t, Config{Mode: Watermark, ClientSize: seamHalf, BackendSize: seamHalf})
		ws := pool.Acquire()
		ws.Client().Alloc(640)
		ws.Release()
		m := pool.Stats().Modes[Watermark]
		require.EqualValues(t, 640, m.Client.WipedBytes)
		require.Zero(t, m.Backend.WipedBytes, "an unused half costs nothing")
		require.EqualValues(t, seamHalf-640, m.Client.SavedBytes)
		require.EqualValues(t, seamHalf, m.Backend.SavedBytes)
	})

	// One mark can't describe a half that is used from both ends. Nothing here
	// is: every kind of memory begins at P and ends at the new P or R.
	seam(t, "nothing is taken from the far end", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		buf := a.Buffer()
		for i, take := range []func() []byte{
			func() []byte { return a.Alloc(33) },
			func() []byte { return a.AllocAligned(33, 64) },
			func() []byte { b, _ := a.TryAlloc(33); return b },
			func() []byte { return a.Copy(make([]byte, 33)) },
			func() []byte { return a.CopyString(strings.Repeat("s", 33)) },
			func() []byte { return a.Reserve(33) },
			func() []byte { return a.Commit(33) },
			func() []byte { buf.Write(make([]byte, 33)); return buf.Bytes() },
			func() []byte { return MakeSlice[byte](a, 33) },
		} {
			before := a.pos
			b := take()
			stain(b, i)
			require.LessOrEqual(t, len(b)+before, a.Mark(), "step %d", i)
			require.Less(t, a.Mark(), before+64+len(b), "step %d", i)
			requireTail(t, a)
		}
	})

	// CVE-2009-2412: rounding a huge size up wrapped to a small one.
	seam(t, "size arithmetic", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		for _, p := range []int{0, 1, 7, seamHalf - 1} {
			ws.Reset()
			a.AllocAligned(p, 1)
			for _, n := range []int{math.MaxInt, math.MaxInt - 1, math.MaxInt - 7, math.MaxInt - 8, math.MaxInt - 63, math.MaxInt - seamHalf} {
				for name, f := range map[string]func(){
					"Alloc":        func() { a.Alloc(n) },
					"AllocAligned": func() { a.AllocAligned(n, 64) },
					"Reserve":      func() { a.Reserve(n) },
					"Grow":         func() { a.Buffer().Grow(n) },
					"MakeSlice":    func() { MakeSlice[byte](a, n) },
				} {
					requirePanicIs(t, ErrFull, f)
					require.Equal(t, p, a.Position(), name)
					require.Equal(t, p, a.Mark(), name)
				}
			}
			for _, n := range []int{-1, -8, math.MinInt, math.MinInt + 1} {
				requirePanicIs(t, ErrMisuse, func() { a.Alloc(n) })
				requirePanicIs(t, ErrMisuse, func() { a.Reserve(n) })
				require.Equal(t, p, a.Position())
			}
		}
	})

	// Sizes are fixed for a pool; a block belongs to one pool for ever.
	t.Run("each block has its own end", func(t *testing.T) {
		for _, c := range []Config{
			{ClientSize: 4096, BackendSize: 12288},
			{ClientSize: 12288, BackendSize: 4096},
			{ClientSize: 8192, BackendSize: 8192},
		} {
			inAllModes(t, c, func(t *testing.T, pool *testPool) {
				ws := pool.Acquire()
				blk := ws.blk
				for a, size := range map[*Arena]int{ws.Client(): c.ClientSize, ws.Backend(): c.BackendSize} {
					require.Equal(t, size, a.Size())
					require.Equal(t, size, a.Room())
					stain(a.Alloc(size), 1)
					_, err := a.TryAlloc(1)
					require.ErrorIs(t, err, ErrFull)
				}
				ws.Release()
				requireWiped(t, blk)
			})
		}
	})
	// What does change at run time is the mode, and not for those under way.
	t.Run("mode changes while a request runs", func(t *testing.T) {
		for _, from := range allModes {
			for _, to := range allModes {
				pool := newTestPool(t, Config{Mode: from, ClientSize: seamHalf, BackendSize: seamHalf})
				ws := pool.Acquire()
				s := ws.Client().Snapshot()
				stain(ws.Client().Alloc(3000), 1)
				ws.Client().Rewind(s)
				require.NoError(t, pool.SetMode(to))
				require.Equal(t, from, ws.Mode())
				ws.Release()
				next := pool.Acquire()
				requireClean(t, next)
				require.Equal(t, to, next.Mode())
				next.Release()
			}
		}
	})

	t.Run("handler panics with a reservation open", func(t *testing.T) {
		for _, deferred := range []bool{false, true} {
			inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
				var blk *block
				require.PanicsWithValue(t, "handler", func() {
					ws := pool.Acquire()
					defer ws.Release()
					blk = ws.blk
					stain(ws.Client().Alloc(100), 1)
					if deferred {
						defer ws.Client().Abort()
					}
					stain(ws.Client().Reserve(4000), 1)
					panic("handler")
				})
				requireWiped(t, blk)
				s := pool.Stats()
				if deferred {
					require.EqualValues(t, 1, s.Released)
					require.Equal(t, 1, s.Idle)
					return
				}
				require.Equal(t, OpenReservation, pool.violations(1)[0].Kind)
				require.EqualValues(t, 1, s.Doubts.Reservation)
			})
		}
	})
	// CVE-2023-45286: a buffer that was put back twice had two owners.
	t.Run("double release", func(t *testing.T) {
		inAllModes(t, Config{}, func(t *testing.T, pool *testPool) {
			first := pool.Acquire()
			first.Release()
			second := pool.Acquire()
			kept := second.Client().Alloc(100)
			stain(kept, 2)
			first.Release()
			require.True(t, bytes.HasPrefix(kept, tag(2)), "the second request's memory was wiped")
			third := pool.Acquire()
			require.False(t, third.blk == second.blk)
			third.Release()
			second.Release()
			require.EqualValues(t, 1, pool.Stats().DoubleReleases)
		})
	})

	seam(t, "audit while a reservation is open/scratch is no violation", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		stain(a.Alloc(10), 1)
		stain(a.Reserve(1000), 1)
		require.NoError(t, ws.Audit())
		require.Equal(t, 16+1000, a.Mark())
		a.Abort()
		require.NoError(t, ws.Audit())
	})
	t.Run("audit while a reservation is open/a byte past it is found", func(t *testing.T) {
		pool := newTestPool(t, Config{ClientSize: seamHalf, BackendSize: seamHalf, AuditEvery: -1})
		pool.expectViolations()
		ws := pool.Acquire()
		defer ws.Release()
		a := ws.Backend()
		stain(a.Reserve(1000), 1)
		a.mem()[1000] = 1
		var v *Violation
		require.ErrorAs(t, ws.Audit(), &v)
		require.Equal(t, 1000, v.First)
		require.Equal(t, 1000, v.Mark)
		a.Abort()
	})
	// With all reserved there is no tail to read. The guard still tells.
	t.Run("audit while a reservation is open/all reserved, one byte too many", func(t *testing.T) {
		pool := newTestPool(t, Config{ClientSize: seamHalf, BackendSize: seamHalf, AuditEvery: -1})
		ws := pool.Acquire()
		a := ws.Client()
		stain(a.Reserve(a.Room()), 1)
		ws.blk.mem[seamHalf]++ // as unsafe code or C might
		a.Abort()
		ws.Release()
		require.Equal(t, GuardDamaged, pool.violations(1)[0].Kind)
	})

	t.Run("random operations against a model", func(t *testing.T) {
		for _, mode := range allModes {
			for seed := range uint64(20) {
				runModel(t, append([]byte{byte(mode)}, randomSequence(seed, 200)...))
			}
		}
	})
}

// What two prototypes for Varnish got wrong, where it is not in the tests above:
// varnishcache/varnish-cache#3285 and #3840. Scratch of a plain release, use
// that is reported only when the result is kept, a mark lost by a rollback and
// receive errors that report nothing are there.
func TestSeamsPrototypes(t *testing.T) {
	// The extent of a reservation was added to a position that had already
	// advanced, or to the end of the reservation instead of its start.
	seam(t, "extent counts from the start of the reservation", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		a.Alloc(800)
		for range 3 {
			p := a.Position()
			a.Reserve(160)
			require.Equal(t, p+160, a.Mark())
			a.Commit(80)
			require.Equal(t, p+80, a.Position())
			require.Equal(t, p+160, a.Mark(), "neither more nor less")
		}
		require.Equal(t, 800+240, a.Position())
	})

	// A rollback within the reservation's reach must not drop its extent.
	seam(t, "rollback after a short commit", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		start := a.Snapshot()
		stain(a.Reserve(5000), 1)
		a.Commit(8)
		a.Rewind(start)
		stain(a.Reserve(16), 1)
		a.Commit(8)
		require.Equal(t, 8, a.Position())
		require.Equal(t, 5000, a.Mark())
		requireTail(t, a)
	})

	// "At least" is the wrong way round: the mark is at most too high, whoever
	// wrote and whatever was reported.
	seam(t, "mark is never a lower bound", func(t *testing.T, ws *Workspace) {
		a := ws.Client()
		start := a.Snapshot()
		buf := a.Buffer()
		for i, n := range []int{1, 500, 64, 1500, 8, 3000} {
			free := buf.AvailableBuffer()
			stain(free, i)
			buf.Write(make([]byte, n)) // zeros: what the buffer shows is no measure of what was written
			stain(buf.AvailableBuffer(), i)
			requireTail(t, a)
			if i%2 == 1 {
				a.Rewind(start)
				buf = a.Buffer()
				stain(a.Reserve(n/2), i)
				a.Abort()
				requireTail(t, a)
			}
		}
	})
}
