package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A host is a server process.
type host struct {
	id     string
	addr   string // where it listens; the same after a restart
	cancel context.CancelFunc
	done   chan error
}

// A fleet is the hosts and the files that configure them.
type fleet struct {
	dir   string // of all files
	every int
	hosts []*host
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

// set writes a configuration file. It replaces it as a whole, so that no host
// reads half a word.
func (f *fleet) set(name, value string) error {
	if err := os.WriteFile(f.file(name+".new"), []byte(value+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(f.file(name+".new"), f.file(name))
}

// start starts n hosts of a build.
func (f *fleet) start(ctx context.Context, n int, b build) error {
	for i := range n {
		h := &host{id: fmt.Sprintf("host-%02d", i+1), addr: "127.0.0.1:0"}
		f.hosts = append(f.hosts, h)
		if err := f.run(ctx, h, b); err != nil {
			return err
		}
	}
	return nil
}

// run starts one host, and returns when it listens.
func (f *fleet) run(ctx context.Context, h *host, b build) error {
	ctx, h.cancel = context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, b.program, "-id", h.id, "-listen", h.addr, "-mode-file", f.file("mode"), "-canary-file", f.file("canary"),
		"-breaker-file", f.file(h.id+".breaker"), "-every", fmt.Sprint(f.every))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	log, err := os.OpenFile(f.file(h.id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	h.done = make(chan error, 1)
	go func() {
		io.Copy(io.Discard, out)
		h.done <- cmd.Wait()
		log.Close()
	}()
	if err != nil || !ok {
		h.stop()
		text, _ := os.ReadFile(f.file(h.id + ".log"))
		return fmt.Errorf("%s did not start: %s", h.id, text)
	}
	h.addr = addr
	return nil
}

// stop ends the host and waits for it.
func (h *host) stop() {
	h.cancel()
	<-h.done
	h.done <- nil // so that it may be stopped twice
}

func (f *fleet) stop() {
	for _, h := range f.hosts {
		if h.done != nil {
			h.stop()
		}
	}
}
