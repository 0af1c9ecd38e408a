//go:build unix

package main

import (
	"context"
	"os/exec"
	"syscall"
)

// command starts a program that is killed with its children, and that may not
// eat all memory: a mutant may well try.
func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	limited := append([]string{"-c", `ulimit -v 12582912 2>/dev/null; exec "$0" "$@"`, path}, args...)
	cmd := exec.CommandContext(ctx, "sh", limited...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
