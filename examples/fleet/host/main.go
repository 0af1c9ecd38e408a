// Host is one server of the fleet in the example next to it: an HTTP server with
// a pool, its metrics, and a configuration that it reads from files.
//
//	host -id h1 -listen 127.0.0.1:8080 -mode-file mode -canary-file canary -breaker-file h1.breaker
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/go-workspace/workspace"
	workspaceprom "github.com/go-workspace/workspace/contrib/prometheus"
)

func main() {
	id := flag.String("id", "", "`name` of this host, the same after each restart")
	listen := flag.String("listen", "127.0.0.1:0", "`address` to listen on")
	modeFile := flag.String("mode-file", "", "`file` that holds the mode: shadow, watermark or fullclear")
	canaryFile := flag.String("canary-file", "", "`file` that holds the share of hosts that may run in Watermark, in 1/10,000")
	breakerFile := flag.String("breaker-file", "", "`file` in which an open breaker survives a restart")
	every := flag.Int("every", 16, "mean `operations` between audits of a half")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *modeFile, *canaryFile, workspace.Config{
		Name: "edge", HostCanary: &workspace.HostCanary{HostID: *id, Salt: "example"}, AuditEvery: *every, BreakerFile: *breakerFile,
		OnEvent: func(e workspace.Event) {
			slog.Info("event", "host", *id, "kind", e.Kind.String(), "from", e.From.String(), "to", e.To.String(), "cause", e.Cause)
		},
	}); err != nil {
		fmt.Fprintln(os.Stderr, "host:", err)
		os.Exit(1)
	}
}

// serve serves until ctx is done.
func serve(ctx context.Context, listen, modeFile, canaryFile string, cfg workspace.Config) error {
	pool, err := workspace.NewPool(cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(workspaceprom.NewCollector(pool))
	go pool.Follow(ctx, workspace.ModeFile(modeFile), time.Second/2)
	go followCanary(ctx, pool, canaryFile, *cfg.HostCanary)

	mux := http.NewServeMux()
	mux.Handle("POST /work", pool.HandlerFunc(work))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/workspace", workspace.DebugHandler(pool))
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	fmt.Println("listening on", ln.Addr())
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// followCanary reads the share of hosts twice a second. A file that can't be read
// leaves things as they are: the mode has a source of its own.
func followCanary(ctx context.Context, pool *workspace.Pool, name string, canary workspace.HostCanary) {
	for ctx.Err() == nil {
		if text, err := os.ReadFile(name); err == nil {
			if canary.BasisPoints, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				err = pool.SetHostCanary(&canary)
			}
			if err != nil {
				slog.Error("canary file", "file", name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second / 2):
		}
	}
}

// work answers with the words of the request, each followed by its checksum. It
// parses each word in memory that it gives up again, as a parser that backtracks
// does: this is what the mark has to remember.
func work(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
	in := ws.Client().Buffer()
	if _, err := in.ReadFrom(http.MaxBytesReader(w, r.Body, 1<<17)); err != nil {
		status := http.StatusBadRequest
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), status)
		return
	}
	scratch, out := ws.Backend(), ws.Client().Buffer()
	for word := range bytes.FieldsSeq(in.Bytes()) {
		start := scratch.Snapshot()
		upper := scratch.Copy(word)
		for i := range upper {
			upper[i] &^= 0x20
		}
		fmt.Fprintf(out, "%s:%08x ", word, crc32.ChecksumIEEE(upper))
		scratch.Rewind(start)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		slog.Debug("the client has gone", "error", err)
	}
}
