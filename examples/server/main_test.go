package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lockedBuffer may be written to by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args    string
		status  int
		message string
	}{
		{"-h", exitOK, "-audit-every n"},
		{"-nonsense", exitUsage, "-nonsense"},
		{"extra", exitUsage, `unexpected argument "extra"`},
		{"-mode rinse", exitUsage, `"rinse"`},
		{"-canary 1.5", exitUsage, "Canary is 1.5"},
		{"-canary NaN", exitUsage, "Canary is NaN"},
		{"-audit-every 20000000", exitUsage, "AuditEvery is 20000000"},
		{"-demo -audit-every 20000000", exitUsage, "AuditEvery is 20000000"},
		{"-max-body 0", exitUsage, "-max-body is 0"},
		{"-max-body 99999999", exitUsage, "-max-body is 99999999"},
		{"-upstream example.com", exitUsage, `-upstream is "example.com"`},
		{"-upstream ftp://example.com/", exitUsage, `-upstream is "ftp://example.com/"`},
		{"-json", exitUsage, "-json needs -demo"},
		{"-seconds 1", exitUsage, "-seconds needs -demo"},
		{"-clients 1", exitUsage, "-clients needs -demo"},
		{"-demo -mode shadow", exitUsage, "-mode does not go with -demo"},
		{"-demo -addr 127.0.0.1:0", exitUsage, "-addr does not go with -demo"},
		{"-demo -seconds 0", exitUsage, "-seconds is 0"},
		{"-demo -seconds -1", exitUsage, "-seconds is -1"},
		{"-demo -seconds NaN", exitUsage, "-seconds is NaN"},
		{"-demo -seconds 1e9", exitUsage, "-seconds is 1e+09"},
		{"-demo -clients 0", exitUsage, "-clients is 0"},
		{"-demo -clients 1001", exitUsage, "-clients is 1001"},
		{"-addr 127.0.0.1:99999", exitFailed, `"127.0.0.1:99999"`},
	} {
		var stdout, stderr lockedBuffer
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit) // in case that it serves
		defer cancel()
		require.Equal(t, tt.status, run(ctx, strings.Fields(tt.args), &stdout, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.message, tt.args)
		require.Empty(t, stdout.String(), tt.args)
		if tt.status != exitOK {
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line says it: %s", tt.args)
		}
	}
}

func TestPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	var stdout, stderr lockedBuffer
	require.Equal(t, exitFailed, run(t.Context(), []string{"-addr", ln.Addr().String()}, &stdout, &stderr))
	require.Contains(t, stderr.String(), ln.Addr().String())
}

// serving runs the program until stop is called, and returns its URL.
func serving(t *testing.T, args ...string) (url string, stderr *lockedBuffer, stop func(), status <-chan int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stderr = &lockedBuffer{}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, append([]string{"-addr", "127.0.0.1:0"}, args...), io.Discard, stderr) }()
	require.Eventually(t, func() bool {
		_, rest, ok := strings.Cut(stderr.String(), "serving ")
		url, _, _ = strings.Cut(rest, " ")
		return ok
	}, waitLimit, time.Millisecond)
	return url, stderr, cancel, ended
}

const waitLimit = 10 * time.Second

func TestServeUntilInterrupted(t *testing.T) {
	url, stderr, stop, status := serving(t, "-mode", "WATERMARK", "-audit-every", "-1")
	resp, err := http.Post(url+"/proxy", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	require.Contains(t, string(body), `"body":"hello"`, "without -upstream, /proxy reaches this server")
	http.DefaultClient.CloseIdleConnections()
	stop()
	require.Equal(t, exitOK, <-status)
	require.Contains(t, stderr.String(), "in mode watermark")
	require.Contains(t, stderr.String(), "stopping")
	require.Contains(t, stderr.String(), "stopped: 2 workspaces, 0 audits, 0 violations")
}

// A request that is under way when the signal comes gets its answer.
func TestShutdownWaitsForRequests(t *testing.T) {
	url, stderr, stop, status := serving(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /stats HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	answers := bufio.NewReader(conn)
	line, err := answers.ReadString('\n') // the handler now waits for the body
	require.NoError(t, err)
	require.Contains(t, line, "100")
	_, err = answers.ReadString('\n')
	require.NoError(t, err)

	stop()
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "stopping") }, waitLimit, time.Millisecond)
	require.Empty(t, status, "it has not ended")
	_, err = io.WriteString(conn, "a b a")
	require.NoError(t, err)
	resp, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, `{"tag":"","bytes":5,"lines":1,"words":3,"distinct":2,"top":[{"word":"a","count":2},{"word":"b","count":1}]}`+"\n", string(body))
	conn.Close()
	require.Equal(t, exitOK, <-status)
}

// A request that takes too long is cut off, and the exit status says so.
func TestShutdownCutsOff(t *testing.T) {
	s, _ := newTestService(t, 0)
	entered, leave := make(chan struct{}), make(chan struct{})
	srv, err := start("127.0.0.1:0", s, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-leave
	}))
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := http.Get("http://" + srv.addr.String())
		got <- err
	}()
	<-entered
	require.ErrorContains(t, srv.stop(time.Millisecond), "cut off after 1ms")
	select {
	case err := <-got:
		require.Error(t, err)
	case <-time.After(waitLimit):
		t.Error("the client still waits")
	}
	close(leave)
}

func TestReachable(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:80": "127.0.0.1:80", "0.0.0.0:80": "localhost:80", "[::]:80": "localhost:80", "[::1]:80": "[::1]:80"} {
		tcp, err := net.ResolveTCPAddr("tcp", addr)
		require.NoError(t, err)
		require.Equal(t, want, reachable(tcp), addr)
	}
}

// demoOptions are those of a demo of a fraction of a second.
func demoOptions(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(append([]string{"-demo", "-seconds", "0.15", "-clients", "4"}, args...), io.Discard)
	require.NoError(t, err)
	return o
}

func TestDemoFindsNothing(t *testing.T) {
	var stdout, stderr lockedBuffer
	require.Equal(t, exitOK, run(t.Context(), []string{"-demo", "-json", "-seconds", "0.3", "-clients", "4", "-audit-every", "20"}, &stdout, &stderr), &stderr)
	d := json.NewDecoder(strings.NewReader(stdout.String()))
	var got struct {
		Modes      []map[string]any `json:"modes"`
		AuditEvery int              `json:"audit_every"`
	}
	require.NoError(t, d.Decode(&got))
	_, err := d.Token()
	require.Equal(t, io.EOF, err, "one object and no more")
	require.Equal(t, 20, got.AuditEvery)
	require.Len(t, got.Modes, 3)
	for i, name := range []string{"fullclear", "shadow", "watermark"} {
		m := got.Modes[i]
		require.Equal(t, name, m["name"])
		for _, key := range []string{"requests", "rps", "p50_us", "p99_us", "wiped_bytes_per_request", "audits", "checked_answers", "http2_answers", "idle_blocks_audited"} {
			require.Greater(t, m[key], 0.0, "%s in %s", key, name)
		}
		for _, key := range []string{"violations", "foreign_tags", "wrong_answers", "failed_requests", "in_use_at_end"} {
			require.Zero(t, m[key], "%s in %s", key, name)
		}
	}
	require.Equal(t, 512.0*1024, got.Modes[0]["wiped_bytes_per_request"])
	require.Less(t, got.Modes[2]["wiped_bytes_per_request"], 512.0*1024)
	require.Equal(t, 3, strings.Count(stderr.String(), "answers checked\n"), "one line a mode where stderr is no terminal")
}

func TestDemoTable(t *testing.T) {
	o := demoOptions(t, "-seconds", "1e-9") // less than a request may take
	var stdout, stderr lockedBuffer
	require.NoError(t, newDemo(o, &stderr).run(t.Context(), &stdout), &stderr)
	for _, text := range []string{"1 operation in 200 is audited", "p99 us", "wiped B/request", "foreign tags", "fullclear", "shadow", "watermark", "Every answer was right"} {
		require.Contains(t, stdout.String(), text)
	}
	require.NotContains(t, stdout.String(), "FAILED")
}

func TestDemoInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := newDemo(demoOptions(t, "-seconds", "600"), io.Discard)
	d.wrap = func(_ *service, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cancel()
			next.ServeHTTP(w, r)
		})
	}
	var stdout bytes.Buffer
	require.Equal(t, errInterrupted, d.run(ctx, &stdout))
	require.Empty(t, stdout.String(), "no half of a report")
}

// A result that can't be written must not look like a good one.
func TestDemoReportsWriteErrors(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	for _, asJSON := range []bool{false, true} {
		require.ErrorIs(t, report{Modes: []*result{{Name: "shadow"}}}.print(w, asJSON), io.ErrClosedPipe)
	}
}

func TestPercentile(t *testing.T) {
	var ds []time.Duration
	require.Zero(t, percentile(ds, 50))
	for i := range 200 {
		ds = append(ds, time.Duration(i+1)*time.Microsecond)
	}
	for _, tt := range []struct {
		n, p int
		want float64
	}{{1, 50, 1}, {1, 99, 1}, {2, 50, 1}, {2, 99, 2}, {3, 50, 2}, {100, 50, 50}, {100, 99, 99}, {200, 50, 100}, {200, 99, 198}} {
		require.Equal(t, tt.want, percentile(ds[:tt.n], tt.p), "p%d of %d", tt.p, tt.n)
	}
}

// On a terminal there is a bar, and lines go above it.
func TestProgressBar(t *testing.T) {
	var out lockedBuffer
	p := newProgress(&out)
	require.False(t, p.bar, "a buffer is no terminal")
	p.bar = true
	load := &load{}
	load.answered.Store(42)
	now := time.Now()
	stop := p.start("shadow", now, now.Add(time.Hour), &load.answered)
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "] 42 requests") }, waitLimit, time.Millisecond)
	p.println("something")
	stop()
	require.Contains(t, out.String(), clearLine+"something\n")
	require.True(t, strings.HasSuffix(out.String(), clearLine), "the bar is gone at the end")
	p.done(&result{Name: "shadow"})
	require.True(t, strings.HasSuffix(out.String(), clearLine))
}
