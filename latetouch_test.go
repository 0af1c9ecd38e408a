//go:build (linux || darwin || freebsd || netbsd || openbsd || dragonfly) && !(386 || arm || mips || mipsle)

package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What no check of zeros can find, since nothing is written: those who keep a bare
// slice, a string or a decoded value that points into the memory. TestPool finds
// each at its first touch.

// lateIn runs body in a test of a user with a TestPool. It requires that the first
// late touch was stopped, that its report names where the workspace was released,
// and that the test of the user failed for it and nothing else.
func lateIn(t *testing.T, body func(p *Pool) *FenceFault) *FenceFault {
	t.Helper()
	var f *FenceFault
	errs := verdict(func(p *Pool) { f = body(p) })
	require.NotNil(t, f, "nothing stopped it")
	require.ErrorIs(t, f, ErrReleased)
	require.NotEmpty(t, f.Released)
	require.Len(t, errs, 1)
	require.Contains(t, errs[0], f.Error())
	return f
}

// go-chi/chi#993, gin-gonic/gin#3319: a goroutine outlives the handler and
// reads its slice again and again.
func TestFenceStopsTheGoroutineThatOutlivesTheHandler(t *testing.T) {
	f := lateIn(t, func(p *Pool) *FenceFault {
		stopped, started := make(chan any, 1), make(chan bool)
		handler := p.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request, ws *Workspace) {
			b := ws.Client().Alloc(1000)
			stain(b, 1)
			go func() {
				debug.SetPanicOnFault(true)
				defer func() { stopped <- recover() }()
				for i := 0; ; i++ {
					sink = b[i%len(b)]
					if i == 10 {
						close(started)
					}
					time.Sleep(100 * time.Microsecond)
				}
			}()
			<-started
		})
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		return FenceFaultOf(<-stopped)
	})
	require.Equal(t, Client, f.Half)
	require.Less(t, f.Offset, 1000)
	require.Contains(t, strings.Join(f.Released, "\n"), "Workspace).endRequest")
}

// A lateReader is a body that reports what stopped its Read.
type lateReader struct {
	io.Reader
	stopped chan any
}

func (r lateReader) Read(p []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			r.stopped <- v
			n, err = 0, errors.New("stopped by the fence")
		}
	}()
	return r.Reader.Read(p)
}

// golang/go#51907, golang/go#81445: the HTTP client reads a body after Do has
// returned. Arena.Body would hold the workspace; this is the bare slice.
func TestFenceStopsTheClientThatReadsABareBodyLate(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex() // else the server reads the body first
		w.WriteHeader(http.StatusBadGateway)
		rc.Flush()
		io.Copy(io.Discard, r.Body)
	}))
	defer upstream.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	lateIn(t, func(p *Pool) *FenceFault {
		stopped := make(chan any, 1)
		ws := p.Acquire()
		b := ws.Backend().Alloc(200 << 10)
		stain(b, 1)
		gate, first := make(chan bool), strings.Repeat("x", 100<<10) // enough for the request to be on its way
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "POST", upstream.URL, io.MultiReader(strings.NewReader(first), waitFor{gate}, lateReader{bytes.NewReader(b), stopped}))
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: transport}).Do(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadGateway, resp.StatusCode, "the answer is here, the body is not sent")
		ws.Release()
		close(gate)
		fault := FenceFaultOf(<-stopped)
		resp.Body.Close()
		return fault
	})
}

// waitFor is a reader that is empty once its channel is closed.
type waitFor struct{ gate chan bool }

func (w waitFor) Read([]byte) (int, error) { <-w.gate; return 0, io.EOF }

// cortexproject/cortex#6808, yarpc/yarpc-go#2366: decoded values point into
// the buffer. bytes.Fields and json.RawMessage by UnmarshalJSON's argument do so.
func TestFenceStopsReadersOfDecodedViews(t *testing.T) {
	for name, decode := range map[string]func(b []byte) []byte{
		"bytes.Fields":     func(b []byte) []byte { return bytes.Fields(b)[1] },
		"bytes.Cut":        func(b []byte) []byte { _, after, _ := bytes.Cut(b, []byte(":")); return after },
		"bytes.TrimSpace":  func(b []byte) []byte { return bytes.TrimSpace(b) },
		"json.Unmarshaler": func(b []byte) []byte { var v viewOfJSON; _ = json.Unmarshal(b, &v); return v.raw },
	} {
		t.Run(name, func(t *testing.T) {
			lateIn(t, func(p *Pool) *FenceFault {
				cache := map[string][]byte{}
				ws := p.Acquire()
				cache["x"] = decode(ws.Client().Copy([]byte(`{"key": "value" }`)))
				require.NotEmpty(t, cache["x"])
				ws.Release()
				return FenceFaultOf(touching(func() { _ = bytes.Clone(cache["x"]) }))
			})
		})
	}
}

type viewOfJSON struct{ raw []byte }

func (v *viewOfJSON) UnmarshalJSON(b []byte) error { v.raw = b; return nil }

// gofiber/fiber#2067, gofiber/fiber#4475: a string made of the request's buffer
// in a long-lived table is overwritten, and the crash names neither. Here the
// first use after the release is stopped, with a name on it.
func TestFenceStopsReadersOfUnsafeStrings(t *testing.T) {
	for name, use := range map[string]func(s string){
		"map key":   func(s string) { _ = map[string]int{s: 1}["x"] },
		"compare":   func(s string) { sink = byte(strings.Compare(s, "accept-language")) },
		"header":    func(s string) { http.Header{}.Set(s, "x") },
		"log field": func(s string) { _ = fmt.Sprintf("field=%s", s) },
	} {
		t.Run(name, func(t *testing.T) {
			f := lateIn(t, func(p *Pool) *FenceFault {
				ws := p.Acquire()
				b := ws.Client().Copy([]byte("accept-encoding"))
				s := unsafe.String(unsafe.SliceData(b), len(b))
				ws.Release()
				return FenceFaultOf(touching(func() { use(s) }))
			})
			require.Contains(t, f.Error(), `pool "TestOfSomebody"`)
		})
	}
}

// CVE-2014-0160: a home-made free list hides reads of old memory from every
// tool that watches the allocator. So the pool must have a tool of its own.
func TestFenceAndPoisonSeeWhatTheFreeListHides(t *testing.T) {
	lateIn(t, func(p *Pool) *FenceFault {
		ws := p.Acquire()
		old := ws.Client().Alloc(64 << 10)
		copy(old, "sixteen bytes...")
		ws.Release()
		next := p.Acquire()
		defer next.Release()
		stain(next.Client().Alloc(64<<10), 2)
		return FenceFaultOf(touching(func() { _ = bytes.Clone(old) }))
	})
	p := newTestPool(t, Config{Debug: Poison})
	ws := p.Acquire()
	old := ws.Client().Alloc(64 << 10)
	ws.Release()
	require.Equal(t, bytes.Repeat([]byte{poisonByte}, len(old)), old)
}

// A system call is no instruction of ours: it returns an error.
func TestSystemCallsRefuseFencedMemory(t *testing.T) {
	p := newTestPool(t, Config{Debug: Fence})
	ws := p.Acquire()
	b := ws.Client().Alloc(100)
	ws.Release()
	file, err := os.Create(filepath.Join(t.TempDir(), "x"))
	require.NoError(t, err)
	defer file.Close()
	_, err = file.Write(b)
	require.ErrorContains(t, err, "bad address")
}

// In a goroutine that does not ask for panics the program ends, at the line that did
// it. What the memory was stands in the file.
func TestCrashIsExplained(t *testing.T) {
	if where := os.Getenv("WORKSPACE_TEST_CRASH"); where != "" {
		p := TestPool(t)
		ws := p.Acquire()
		b := ws.Backend().Alloc(100)
		releaseHere(ws)
		if where == "test" {
			crashHere(b)
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			crashHere(b)
		}()
		<-done
		return
	}
	for _, where := range []string{"goroutine", "test"} {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashIsExplained$")
		cmd.Env = append(os.Environ(), "WORKSPACE_TEST_CRASH="+where, "TMPDIR="+dir)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Regexp(t, `workspace\.crashHere\([^\n]*\n[^\n]*latetouch_test\.go:`, string(out))
		at := regexp.MustCompile(` addr=(0x[0-9a-f]+) `).FindStringSubmatch(string(out))
		require.NotNil(t, at, "%s", out)
		addr, err := strconv.ParseUint(at[1], 0, 64)
		require.NoError(t, err)
		files, err := filepath.Glob(filepath.Join(dir, "workspace-fence-*.log"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		if where == "test" {
			require.Contains(t, string(out), files[0]+" says, by address, what the memory was")
		} else {
			require.Contains(t, string(out), "fatal error: fault")
		}
		text, err := os.ReadFile(files[0])
		require.NoError(t, err)
		half := regexp.MustCompile(`workspace 1 of pool "TestCrashIsExplained": .* backend half (0x[0-9a-f]+)-(0x[0-9a-f]+)`).FindStringSubmatch(string(text))
		require.NotNil(t, half, "%s", text)
		from, err := strconv.ParseUint(half[1], 0, 64)
		require.NoError(t, err)
		require.EqualValues(t, 42, addr-from)
		require.Contains(t, string(text), "workspace.releaseHere fence_test.go:")
	}
}

//go:noinline
func crashHere(b []byte) { sink = b[42] }
