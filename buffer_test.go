package workspace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// digits returns n bytes, none of them zero.
func digits(n int) []byte { return bytes.Repeat([]byte("0123456789"), n/10+1)[:n] }

func TestBufferGrowsInPlace(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	a.Alloc(16)
	b := a.Buffer()
	require.Equal(t, 16, a.Position(), "no memory before the first write")
	var want []byte
	for i := 1; a.Position()+i <= arenaHalf; i++ {
		p := digits(i)
		n, err := b.Write(p)
		require.NoError(t, err)
		require.Equal(t, i, n)
		want = append(want, p...)
		require.Equal(t, 16+len(want), a.Position(), "by just what was written")
		require.Equal(t, a.Position(), a.Mark())
		require.Equal(t, 16, placeOf(a, b.Bytes()))
	}
	require.Equal(t, want, b.Bytes())
	require.Equal(t, len(want), b.Len())
	require.Equal(t, string(want), b.String())
	rest := arenaHalf - a.Position()
	b.WriteString(strings.Repeat("x", rest))
	require.Equal(t, arenaHalf, a.Position(), "up to the last byte")
	require.False(t, a.Overflowed())
	requireTail(t, a)
}

// Each way to write appends the same bytes.
func TestBufferWriters(t *testing.T) {
	for name, write := range map[string]func(b *Buffer, p []byte) error{
		"Write":       func(b *Buffer, p []byte) error { _, err := b.Write(p); return err },
		"WriteString": func(b *Buffer, p []byte) error { _, err := b.WriteString(string(p)); return err },
		"WriteByte": func(b *Buffer, p []byte) error {
			for _, c := range p {
				if err := b.WriteByte(c); err != nil {
					return err
				}
			}
			return nil
		},
		"ReadFrom": func(b *Buffer, p []byte) error { _, err := b.ReadFrom(bytes.NewReader(p)); return err },
		"io.Copy":  func(b *Buffer, p []byte) error { _, err := io.Copy(b, bytes.NewReader(p)); return err },
		"io.WriteString": func(b *Buffer, p []byte) error {
			s := string(p)
			_, err := io.WriteString(b, s)
			return err
		},
		"fmt.Fprintf":     func(b *Buffer, p []byte) error { _, err := fmt.Fprintf(b, "%s", p); return err },
		"AvailableBuffer": func(b *Buffer, p []byte) error { _, err := b.Write(append(b.AvailableBuffer(), p...)); return err },
		"bufio.Writer": func(b *Buffer, p []byte) error {
			w := bufio.NewWriterSize(b, 16)
			w.Write(p)
			return w.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{0, 1, 7, 63, 64, 65, 300, 3000, arenaHalf, 3 * arenaHalf} {
				ws := acquireSmall(t, Config{})
				a := ws.Client()
				a.Alloc(3)
				b := a.Buffer()
				require.NoError(t, b.WriteByte('>'))
				require.NoError(t, write(b, digits(size)))
				require.Equal(t, ">"+string(digits(size)), b.String())
				require.Equal(t, size+1, b.Len())
				requireTail(t, a)
				ws.Release()
			}
		})
	}
}

func TestBufferUsers(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	b := a.Buffer()
	require.NoError(t, json.NewEncoder(b).Encode(map[string]int{"a": 1}))
	for i := range 5 {
		b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(i), 10))
	}
	require.Equal(t, "{\"a\":1}\n01234", b.String())
}

func TestBufferMoves(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	b := a.Buffer()
	b.WriteString("first")
	early := b.Bytes()
	between := a.CopyString("between")
	b.WriteString(", second")
	require.Equal(t, "first, second", b.String())
	require.Equal(t, 16, placeOf(a, b.Bytes()), "it moved behind the other allocation")
	require.Equal(t, "between", string(between))
	require.Equal(t, "first", string(early), "what Bytes returned stays")
	b.WriteString(strings.Repeat("x", 100))
	require.Equal(t, 16+113, a.Position(), "and from there it grows in place again")
	requireTail(t, a)
}

// Growth in small steps that has to move each time must not cost the square.
func TestBufferMovesSeldom(t *testing.T) {
	pool := newTestPool(t, Config{AuditEvery: -1})
	ws := pool.Acquire()
	defer ws.Release()
	a := ws.Client()
	b := a.Buffer()
	for i := range 10000 {
		b.WriteByte(byte(i))
		a.Alloc(1)
	}
	require.False(t, a.Overflowed())
	require.Less(t, a.Position(), 10000*8+3*10000+10000)
}

func TestBufferOnTheHeap(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	b := a.Buffer()
	b.Write(digits(3000))
	p := a.Position()
	n, err := b.Write(digits(3000))
	require.NoError(t, err)
	require.Equal(t, 3000, n)
	require.Equal(t, append(digits(3000), digits(3000)...), b.Bytes())
	require.Equal(t, -1, placeOf(a, b.Bytes()))
	require.Equal(t, 6000, cap(b.Bytes()))
	require.True(t, a.Overflowed())
	require.Equal(t, p, a.Position(), "what it had stays, as Bytes may refer to it")
	require.Len(t, a.Alloc(500), 500, "the half goes on")
	for range 100 {
		b.WriteString("more")
	}
	require.Equal(t, 6400, b.Len())
	s := a.Snapshot()
	b.WriteString("!")
	a.Rewind(s)
	require.Equal(t, 6401, b.Len(), "heap memory is no matter of a rewind")
	requireTail(t, a)
}

// A write that does not fit writes nothing at all.
func TestBufferWritesAllOrNothing(t *testing.T) {
	for name, write := range map[string]func(b *Buffer, p []byte) (int, error){
		"Write":       (*Buffer).Write,
		"WriteString": func(b *Buffer, p []byte) (int, error) { return b.WriteString(string(p)) },
		"WriteByte": func(b *Buffer, p []byte) (int, error) {
			err := b.WriteByte(p[0])
			return 0, err
		},
	} {
		for _, written := range []int{0, 1, 100, 2000, arenaHalf} {
			t.Run(fmt.Sprint(name, " after ", written), func(t *testing.T) {
				ws := acquireSmall(t, Config{MaxSpill: -1})
				a := ws.Client()
				b := a.Buffer()
				b.Write(digits(written))
				a.Alloc(a.Room())
				p, w := a.Position(), a.Mark()
				n, err := write(b, digits(101))
				require.ErrorIs(t, err, ErrFull)
				require.Zero(t, n)
				require.Equal(t, string(digits(written)), b.String())
				require.Equal(t, []int{p, w}, []int{a.Position(), a.Mark()})
				require.True(t, a.Overflowed())
				requirePanicIs(t, ErrFull, func() { b.Grow(102) })
				require.Equal(t, string(digits(written)), b.String())
			})
		}
	}
	t.Run("heap budget in several steps", func(t *testing.T) {
		a := acquireSmall(t, Config{MaxSpill: 1000}).Client()
		a.Alloc(arenaHalf)
		b := a.Buffer()
		want := ""
		for range 1000 {
			if _, err := b.WriteString("0123456789"); err != nil {
				require.ErrorIs(t, err, ErrFull)
				break
			}
			want += "0123456789"
			require.LessOrEqual(t, a.spilled, 1000)
		}
		require.Equal(t, want, b.String())
		require.GreaterOrEqual(t, len(want), 400, "a good part of the budget is of use")
		require.Less(t, len(want), 1001)
	})
}

func TestBufferGrow(t *testing.T) {
	a := acquireSmall(t, Config{}).Client()
	b := a.Buffer()
	b.WriteString("abc")
	b.Grow(1000)
	p := a.Position()
	require.Equal(t, 1003, p)
	require.Equal(t, "abc", b.String(), "room is not content")
	require.Equal(t, 3, cap(b.Bytes()))
	other := a.Alloc(10)
	b.Write(digits(1000))
	require.Equal(t, 1003, b.Len())
	require.Zero(t, placeOf(a, b.Bytes()), "no move within what was asked for")
	require.Equal(t, -1, firstNonZero(other))
	b.Grow(0)
	require.Equal(t, 1008+10, a.Position())
}

// AvailableBuffer is scratch space until Write says otherwise.
func TestAvailableBuffer(t *testing.T) {
	t.Run("is room", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		free := b.AvailableBuffer()
		require.Empty(t, free)
		require.GreaterOrEqual(t, cap(free), bufferMin)
		require.LessOrEqual(t, placeOf(a, free)+cap(free), a.Position())
	})
	t.Run("counts only once it is written", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		b.WriteString("head ")
		stain(b.AvailableBuffer(), 1)
		require.Equal(t, "head ", b.String())
		b.WriteString("x")
		require.Equal(t, "head x", b.String())
		require.Equal(t, 6, cap(b.Bytes()))
		requireTail(t, a)
		b.Write(append(b.AvailableBuffer(), "tail"...))
		require.Equal(t, "head xtail", b.String())
	})
	t.Run("written without a copy in between", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		free := append(b.AvailableBuffer(), "0123456789"...)
		p := a.Position()
		b.Write(free)
		require.Equal(t, placeOf(a, free), placeOf(a, b.Bytes()))
		require.Equal(t, p, a.Position())
	})
	t.Run("grown too far by append", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		next := func() []byte { return append(b.AvailableBuffer(), digits(1000)...) }
		long := next()
		require.Equal(t, -1, placeOf(a, long), "append moved it to the heap")
		b.Write(long)
		require.Equal(t, digits(1000), b.Bytes())
	})
	t.Run("never takes heap memory and never fails for want of room", func(t *testing.T) {
		a := acquireSmall(t, Config{MaxSpill: -1}).Client()
		b := a.Buffer()
		b.WriteString("x")
		a.Alloc(a.Room())
		require.Empty(t, b.AvailableBuffer())
		require.False(t, a.Overflowed())
		require.Empty(t, a.Buffer().AvailableBuffer())
	})
	t.Run("while a reservation is open", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		res := a.Reserve(100)
		require.Zero(t, cap(b.AvailableBuffer()))
		stain(res, 1)
		a.Abort()
	})
}

func TestTwoBuffersInTurns(t *testing.T) {
	ws := acquireSmall(t, Config{})
	for name, arenas := range map[string][2]*Arena{
		"one half":   {ws.Client(), ws.Client()},
		"both":       {ws.Client(), ws.Backend()},
		"both again": {ws.Backend(), ws.Client()},
	} {
		t.Run(name, func(t *testing.T) {
			ws.Reset()
			x, y := arenas[0].Buffer(), arenas[1].Buffer()
			var wantX, wantY string
			for i := range 60 {
				fmt.Fprintf(x, "x%d ", i)
				fmt.Fprintf(y, "y%d ", i*i)
				stain(x.AvailableBuffer(), 1)
				stain(y.AvailableBuffer(), 2)
				wantX += fmt.Sprintf("x%d ", i)
				wantY += fmt.Sprintf("y%d ", i*i)
				require.Equal(t, wantX, x.String())
				require.Equal(t, wantY, y.String())
				requireTail(t, arenas[0])
				requireTail(t, arenas[1])
			}
		})
	}
}

// Bytes of an earlier use of the memory must not show, however the buffer got it.
func TestBufferShowsOnlyWhatWasWritten(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	s := a.Snapshot()
	for _, grow := range []func(b *Buffer){
		func(b *Buffer) { b.Grow(500) },
		func(b *Buffer) { b.AvailableBuffer() },
		func(b *Buffer) { b.ReadFrom(strings.NewReader("")) },
		func(b *Buffer) { b.WriteString("a"); a.Alloc(1); b.Grow(500) },
		func(b *Buffer) { b.WriteString("a"); a.Alloc(1); b.WriteString("b") },
		func(b *Buffer) { b.Grow(500); b.Grow(2000) },
	} {
		a.Rewind(s)
		stain(a.Alloc(arenaHalf), 1) // this request's own, but not written to the buffer
		a.Rewind(s)
		b := a.Buffer()
		grow(b)
		require.Equal(t, b.Len(), len(b.Bytes()))
		require.Equal(t, b.Len(), cap(b.Bytes()))
		require.Equal(t, "ab"[:b.Len()], b.String())
		b.WriteString("end")
		require.Equal(t, "ab"[:b.Len()-3]+"end", b.String())
		grown := append(b.Bytes(), 'x') // cap is len, so this is elsewhere
		require.Equal(t, -1, placeOf(a, grown))
	}
}

// A reader that delivers data in steps and then ends as told.
type scriptedReader struct {
	steps []string
	end   func(p []byte) (int, error)
	each  func(p []byte) // called with each slice
}

func (r *scriptedReader) Read(p []byte) (int, error) {
	if r.each != nil {
		r.each(p)
	}
	if len(r.steps) == 0 {
		return r.end(p)
	}
	n := copy(p, r.steps[0])
	if r.steps[0] = r.steps[0][n:]; r.steps[0] == "" {
		r.steps = r.steps[1:]
	}
	return n, nil
}

func TestReadFrom(t *testing.T) {
	text := string(digits(10000)) // more than a half
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"plain":         func(r io.Reader) io.Reader { return r },
		"one byte each": iotest.OneByteReader,
		"half":          iotest.HalfReader,
		"EOF with data": iotest.DataErrReader,
		"empty reads between": func(r io.Reader) io.Reader {
			return &iotestEmpty{r: iotest.HalfReader(r)} // more in all than are allowed in a row
		},
	} {
		for _, size := range []int{0, 1, 63, 64, 65, 1000, bufferRead, len(text)} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				pool := newTestPool(t, Config{ClientSize: 8 << 10, AuditEvery: -1})
				ws := pool.Acquire()
				defer ws.Release()
				a := ws.Client()
				b := a.Buffer()
				b.WriteString(">")
				n, err := b.ReadFrom(wrap(strings.NewReader(text[:size])))
				require.NoError(t, err)
				require.EqualValues(t, size, n)
				require.Equal(t, ">"+text[:size], b.String())
				requireTail(t, a)
				require.Equal(t, a.Position(), a.Mark())
			})
		}
	}
}

// iotestEmpty puts reads of no bytes and no error between the others.
type iotestEmpty struct {
	r io.Reader
	n int
}

func (e *iotestEmpty) Read(p []byte) (int, error) {
	if e.n++; e.n%50 != 0 {
		return 0, nil
	}
	return e.r.Read(p)
}

func TestReadFromEndsBadly(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(p []byte) (int, error)
		want  error  // returned
		panic error  // or this
		tail  string // counts as read, too
	}{
		"error":             {end: func([]byte) (int, error) { return 0, errNetwork }, want: errNetwork},
		"error with data":   {end: func(p []byte) (int, error) { return copy(p, "tail"), errNetwork }, want: errNetwork, tail: "tail"},
		"timeout":           {end: func([]byte) (int, error) { return 0, iotest.ErrTimeout }, want: iotest.ErrTimeout},
		"unexpected EOF":    {end: func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }, want: io.ErrUnexpectedEOF},
		"no progress":       {end: func([]byte) (int, error) { return 0, nil }, want: io.ErrNoProgress},
		"panic":             {end: func([]byte) (int, error) { panic(errNetwork) }, panic: errNetwork},
		"more than it got":  {end: func(p []byte) (int, error) { return len(p) + 1, nil }, panic: ErrMisuse},
		"less than nothing": {end: func(p []byte) (int, error) { return -1, io.EOF }, panic: ErrMisuse},
	} {
		t.Run(name, func(t *testing.T) {
			ws := acquireSmall(t, Config{})
			a := ws.Client()
			b := a.Buffer()
			calls := 0
			r := &scriptedReader{steps: []string{"one ", "two "}, end: c.end, each: func(p []byte) { calls++; stain(p, 1) }}
			read := func() {
				n, err := b.ReadFrom(r)
				require.ErrorIs(t, err, c.want)
				require.EqualValues(t, len("one two ")+len(c.tail), n)
			}
			if c.panic != nil {
				requirePanicIs(t, c.panic, read)
			} else {
				read()
			}
			if name == "no progress" {
				require.Equal(t, 2+maxEmptyReads, calls)
			}
			require.Equal(t, "one two "+c.tail, b.String(), "what was delivered before stays, scratch does not count")
			require.Equal(t, b.Len(), cap(b.Bytes()))
			requireTail(t, a)
			b.WriteString("three") // the buffer still works
			require.True(t, strings.HasSuffix(b.String(), "three"))
		})
	}
}

// What a reader does to the arena while it reads must not let it deliver into
// memory that is no longer the buffer's.
func TestReadFromWhoseReaderMeddles(t *testing.T) {
	t.Run("rewinds", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		s := a.Snapshot()
		b := a.Buffer()
		n, err := b.ReadFrom(&scriptedReader{steps: []string{"x"}, each: func([]byte) { a.Rewind(s) }})
		require.ErrorIs(t, err, ErrStale)
		require.Zero(t, n)
		require.Zero(t, a.Position())
		requireTail(t, a)
	})
	t.Run("resets", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		b := ws.Client().Buffer()
		n, err := b.ReadFrom(&scriptedReader{steps: []string{""}, each: func([]byte) { ws.Reset() }})
		require.ErrorIs(t, err, ErrStale)
		require.Zero(t, n)
	})
	t.Run("releases", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		pool := ws.pool
		b := ws.Client().Buffer()
		n, err := b.ReadFrom(&scriptedReader{steps: []string{""}, each: func([]byte) { ws.Release() }})
		require.ErrorIs(t, err, ErrReleased)
		require.Zero(t, n)
		next := pool.Acquire()
		defer next.Release()
		requireClean(t, next)
	})
	t.Run("opens a reservation", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		text := string(digits(10000))
		n, err := b.ReadFrom(&scriptedReader{steps: []string{text}, each: func([]byte) {
			if a.res == nil {
				a.Reserve(0)
			}
		}})
		require.ErrorIs(t, err, ErrReserved, "no growth meanwhile")
		require.EqualValues(t, n, b.Len())
		require.Equal(t, text[:n], b.String())
		a.Abort()
	})
	t.Run("allocates", func(t *testing.T) {
		a := acquireSmall(t, Config{}).Client()
		b := a.Buffer()
		var theirs [][]byte
		n, err := b.ReadFrom(&scriptedReader{steps: []string{string(digits(3000))}, end: func([]byte) (int, error) { return 0, io.EOF }, each: func([]byte) {
			theirs = append(theirs, a.Copy(tag(len(theirs))))
		}})
		require.NoError(t, err)
		require.EqualValues(t, 3000, n)
		require.Equal(t, digits(3000), b.Bytes())
		for i, x := range theirs {
			require.Equal(t, tag(i), x)
		}
	})
	// Then there is no telling where the bytes of the two lie. Whatever comes of
	// it, none must show that nobody delivered.
	for name, meddle := range map[string]func(a *Arena, b *Buffer){
		"writes to the same buffer":    func(_ *Arena, b *Buffer) { b.WriteString("yy") },
		"fills the same buffer":        func(_ *Arena, b *Buffer) { b.Write(make([]byte, b.free())) },
		"makes the same buffer move":   func(a *Arena, b *Buffer) { a.Alloc(1); b.Grow(arenaHalf / 2) },
		"sends the buffer to the heap": func(a *Arena, b *Buffer) { a.Alloc(a.Room()); b.Grow(arenaHalf) },
	} {
		t.Run(name, func(t *testing.T) {
			a := acquireSmall(t, Config{}).Client()
			s := a.Snapshot()
			stain(a.Alloc(arenaHalf), 1)
			a.Rewind(s)
			b := a.Buffer()
			b.Grow(100)
			requirePanicIs(t, ErrMisuse, func() {
				b.ReadFrom(&scriptedReader{
					steps: []string{strings.Repeat("x", 20)},
					end:   func([]byte) (int, error) { return 0, io.EOF },
					each:  func([]byte) { meddle(a, b) },
				})
			})
			requireNoTag(t, b.Bytes(), 0)
			requireTail(t, a)
		})
	}
	t.Run("makes the same buffer grow in place", func(t *testing.T) {
		ws := newTestPool(t, Config{}).Acquire()
		defer ws.Release()
		b := ws.Client().Buffer()
		_, err := b.ReadFrom(&scriptedReader{
			steps: []string{"one ", "two"},
			end:   func([]byte) (int, error) { return 0, io.EOF },
			each:  func([]byte) { b.Grow(b.free() + 10) },
		})
		require.NoError(t, err)
		require.Equal(t, "one two", b.String())
	})
}

// A reader may use all of the slice it gets as scratch space. It must not get
// more than the buffer owns, and none of it past the mark.
func TestReadFromGivesOnlyWhatItOwns(t *testing.T) {
	ws := acquireSmall(t, Config{})
	a := ws.Client()
	b := a.Buffer()
	var gave []int
	_, err := b.ReadFrom(&scriptedReader{
		steps: []string{strings.Repeat("a", 100), strings.Repeat("b", 3000)},
		end:   func([]byte) (int, error) { return 0, io.EOF },
		each: func(p []byte) {
			gave = append(gave, len(p))
			require.Equal(t, len(p), cap(p))
			require.GreaterOrEqual(t, len(p), 1)
			if off := placeOf(a, p); off >= 0 {
				require.LessOrEqual(t, off+len(p), a.Position())
			}
			stain(p, 1)
			requireTail(t, a)
		},
	})
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("a", 100)+strings.Repeat("b", 3000), b.String())
	require.NotEmpty(t, gave)
}

func TestBufferStale(t *testing.T) {
	uses := map[string]func(b *Buffer) error{
		"Write":           func(b *Buffer) error { _, err := b.Write([]byte("x")); return err },
		"Write of none":   func(b *Buffer) error { _, err := b.Write(nil); return err },
		"WriteString":     func(b *Buffer) error { _, err := b.WriteString("x"); return err },
		"WriteByte":       func(b *Buffer) error { return b.WriteByte('x') },
		"ReadFrom":        func(b *Buffer) error { _, err := b.ReadFrom(strings.NewReader("x")); return err },
		"Grow":            func(b *Buffer) error { return panicOf(func() { b.Grow(1) }) },
		"AvailableBuffer": func(b *Buffer) error { return panicOf(func() { b.AvailableBuffer() }) },
		"Bytes":           func(b *Buffer) error { return panicOf(func() { b.Bytes() }) },
		"String":          func(b *Buffer) error { return panicOf(func() { _ = b.String() }) },
		"Len":             func(b *Buffer) error { return panicOf(func() { b.Len() }) },
	}
	for how, c := range map[string]struct {
		want error
		make func(ws *Workspace) *Buffer
	}{
		"rewound to before it": {ErrStale, func(ws *Workspace) *Buffer {
			a := ws.Client()
			s := a.Snapshot()
			b := a.Buffer()
			b.WriteString("secret")
			a.Rewind(s)
			return b
		}},
		"rewound to before it and filled again": {ErrStale, func(ws *Workspace) *Buffer {
			a := ws.Client()
			s := a.Snapshot()
			b := a.Buffer()
			b.WriteString("secret")
			a.Rewind(s)
			a.CopyString("others") // P is as it was
			return b
		}},
		"rewound to its middle": {ErrStale, func(ws *Workspace) *Buffer {
			a := ws.Client()
			b := a.Buffer()
			b.WriteString("secret")
			s := a.Snapshot()
			b.WriteString("more")
			a.Rewind(s)
			return b
		}},
		"rewound into room it asked for": {ErrStale, func(ws *Workspace) *Buffer {
			a := ws.Client()
			s := a.Snapshot()
			b := a.Buffer()
			b.Grow(10)
			a.Rewind(s)
			return b
		}},
		"reset": {ErrStale, func(ws *Workspace) *Buffer {
			b := ws.Client().Buffer()
			b.WriteString("secret")
			ws.Reset()
			return b
		}},
		"reset while empty": {ErrStale, func(ws *Workspace) *Buffer {
			b := ws.Client().Buffer()
			ws.Reset()
			return b
		}},
		// Its memory is not the half's, but it holds the last message.
		"reset while on the heap": {ErrStale, func(ws *Workspace) *Buffer {
			ws.Client().Alloc(arenaHalf)
			b := ws.Client().Buffer()
			b.WriteString("secret")
			ws.Reset()
			return b
		}},
		"reset after it moved to the heap": {ErrStale, func(ws *Workspace) *Buffer {
			b := ws.Client().Buffer()
			b.WriteString("secret")
			ws.Client().Alloc(arenaHalf)
			b.Write(make([]byte, arenaHalf))
			ws.Reset()
			return b
		}},
		"released": {ErrReleased, func(ws *Workspace) *Buffer {
			b := ws.Client().Buffer()
			b.WriteString("secret")
			ws.Release()
			return b
		}},
		"released while empty": {ErrReleased, func(ws *Workspace) *Buffer {
			b := ws.Client().Buffer()
			ws.Release()
			return b
		}},
		"of no arena": {ErrMisuse, func(*Workspace) *Buffer { return new(Buffer) }},
		"nil":         {ErrMisuse, func(*Workspace) *Buffer { return nil }},
	} {
		for name, use := range uses {
			t.Run(how+"/"+name, func(t *testing.T) {
				ws := acquireSmall(t, Config{})
				a := &ws.client
				b := c.make(ws)
				p, w := a.pos, a.high()
				require.ErrorIs(t, use(b), c.want)
				require.Equal(t, []int{p, w}, []int{a.pos, a.high()})
			})
		}
	}
	t.Run("not stale", func(t *testing.T) {
		ws := acquireSmall(t, Config{})
		a := ws.Client()
		b := a.Buffer()
		s := a.Snapshot()
		a.Alloc(100)
		a.Rewind(s) // the buffer had no memory
		b.WriteString("kept")
		s = a.Snapshot()
		a.CopyString("given up")
		a.Rewind(s) // to its very end
		b.WriteString(", too")
		require.Equal(t, "kept, too", b.String())
	})
}

// panicOf runs f and returns the error it panics with, or nil.
func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// A Buffer on a rewound half writes over old bytes and past the mark.
func TestBufferRaisesTheMark(t *testing.T) {
	for _, mode := range allModes {
		pool := newTestPool(t, Config{Mode: mode, ClientSize: arenaHalf, BackendSize: arenaHalf})
		ws := pool.Acquire()
		blk, a := ws.blk, ws.Client()
		s := a.Snapshot()
		for _, n := range []int{500, 100, 2000, 64, 3000, 1} {
			b := a.Buffer()
			b.Write(digits(n))
			stain(b.AvailableBuffer(), 1)
			requireTail(t, a)
			a.Rewind(s)
			requireTail(t, a)
		}
		require.GreaterOrEqual(t, a.Mark(), 3000)
		ws.Release()
		requireWiped(t, blk)
	}
}
