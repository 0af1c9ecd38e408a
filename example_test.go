package workspace_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-workspace/workspace"
)

func Example() {
	pool, err := workspace.NewPool(workspace.Config{Mode: workspace.Watermark})
	if err != nil {
		panic(err)
	}
	ws := pool.Acquire()
	page := ws.Client().Alloc(4096) // zeroed, len and cap 4096
	copy(page, "something secret")
	ws.Release() // wipes 4096 bytes, not 512 KB

	wiped := pool.Stats().Modes[workspace.Watermark].Totals().WipedBytes
	fmt.Println(len(page), "bytes allocated,", wiped, "wiped")
	// Output: 4096 bytes allocated, 4096 wiped
}

func ExamplePool_Middleware() {
	pool, _ := workspace.NewPool(workspace.Config{})
	handler := pool.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws := workspace.FromContext(r.Context()) // takes a block, at the first call
		buf := ws.Client().Buffer()
		fmt.Fprintf(buf, "hello %s", r.URL.Query().Get("name"))
		w.Write(buf.Bytes())
	}))

	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, httptest.NewRequest("GET", "/?name=gopher", nil))
	fmt.Println(rec.Body)
	// Output: hello gopher
}

func ExampleArena_Rewind() {
	pool, _ := workspace.NewPool(workspace.Config{})
	ws := pool.Acquire()
	defer ws.Release()
	a := ws.Client()
	start := a.Snapshot()
	for i := range 3 {
		row := a.CopyString("row " + strconv.Itoa(i))
		fmt.Printf("%s at %d\n", row, a.Position())
		a.Rewind(start) // the next row uses the same bytes, zeroed again
	}
	fmt.Println("mark", a.Mark())
	// Output:
	// row 0 at 5
	// row 1 at 5
	// row 2 at 5
	// mark 5
}

func ExampleArena_Reserve() {
	pool, _ := workspace.NewPool(workspace.Config{})
	ws := pool.Acquire()
	defer ws.Release()
	a := ws.Backend()
	room := a.Reserve(64) // the size is known only afterwards
	n := copy(room, "answer of the backend")
	answer := a.Commit(n)
	fmt.Printf("%s, position %d, mark %d\n", answer, a.Position(), a.Mark())
	// Output: answer of the backend, position 21, mark 64
}

func ExampleWorkspace_Go() {
	pool, _ := workspace.NewPool(workspace.Config{})
	ws := pool.Acquire()
	note := ws.Client().CopyString("audit trail")
	done := make(chan string)
	ws.Go(func() { done <- string(note) }) // the block stays until this returns
	ws.Release()
	fmt.Println(<-done)
	// Output: audit trail
}

func ExampleBuffer_AvailableBuffer() {
	pool, _ := workspace.NewPool(workspace.Config{})
	ws := pool.Acquire()
	defer ws.Release()
	buf := ws.Client().Buffer()
	for i := range 3 {
		buf.Write(strconv.AppendInt(buf.AvailableBuffer(), int64(i*i), 10))
		io.WriteString(buf, ";")
	}
	fmt.Println(buf)
	// Output: 0;1;4;
}

func ExampleMakeSlice() {
	pool, _ := workspace.NewPool(workspace.Config{})
	ws := pool.Acquire()
	defer ws.Release()
	counts := workspace.MakeSlice[uint32](ws.Client(), 256)
	for _, c := range []byte("hello") {
		counts[c]++
	}
	fmt.Println(counts['l'], len(counts), cap(counts))
	// Output: 2 256 256
}

// The README shows the smallest example; it must be the one that compiles.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	hello, err := os.ReadFile("examples/hello/main.go")
	require.NoError(t, err)
	start := strings.Index(string(hello), "package main")
	require.NotEqual(t, -1, start)
	require.Contains(t, string(readme), "```go\n"+string(hello[start:])+"```")
}
