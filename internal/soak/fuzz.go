package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const (
	modulePath = "github.com/go-workspace/workspace"
	fuzzGrace  = 10 * time.Second // for go test to end after an interrupt
)

// goTool runs the go command in a directory and passes its output on.
func goTool(ctx context.Context, dir string, stdout, stderr io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if runtime.GOOS != "windows" { // which has no interrupts
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = fuzzGrace
	return cmd.Run()
}

// fuzz runs the fuzz targets of the library, each for an equal share of the time
// that is left for it. It returns what it ran.
func (k *soak) fuzz(ctx context.Context, tool func(ctx context.Context, dir string, stdout, stderr io.Writer, args ...string) error) (ran []string) {
	// In the directory of the package, as go test passes its output on at once only there.
	var where, list bytes.Buffer
	err := tool(ctx, "", &where, k.log.stderr, "list", "-f", "{{.Dir}}", modulePath)
	dir := strings.TrimSpace(where.String())
	if err == nil {
		err = tool(ctx, dir, &list, k.log.stderr, "test", "-list", "^Fuzz")
	}
	if err != nil {
		if !interrupted(ctx) {
			k.log.fault("the fuzz targets of %s: %v", modulePath, err)
		}
		return nil
	}
	var targets []string
	for line := range strings.Lines(list.String()) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "Fuzz") {
			targets = append(targets, name)
		}
	}
	if len(targets) == 0 && ctx.Err() == nil {
		k.log.fault("there are no fuzz targets in %s", modulePath)
	}
	for _, name := range targets {
		if ctx.Err() != nil {
			break
		}
		share := max(time.Second, k.opt.fuzzTime()/time.Duration(len(targets))).Round(time.Second)
		err := tool(ctx, dir, k.log.stderr, k.log.stderr, "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", share.String())
		switch {
		case err != nil && interrupted(ctx):
			ran = append(ran, name+", interrupted")
		case err != nil:
			ran = append(ran, fmt.Sprintf("%s for %v: %v", name, share, err))
			k.log.fault("%s: %v; see the output of go test", name, err)
		default:
			ran = append(ran, fmt.Sprintf("%s for %v", name, share))
		}
	}
	return ran
}

// interrupted reports whether ctx is done. An interrupt from the keyboard may reach the
// go command a little earlier than this process.
func interrupted(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(200 * time.Millisecond):
		return false
	}
}
