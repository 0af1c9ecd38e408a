package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The fault: the library forgets to raise the mark when the position goes down.
// What was written past the new position is then wiped by nobody.
const (
	faultFile = "watermark.go"
	faultOld  = "	a.mark = max(a.mark, a.pos)\n"
	faultNew  = "	// the mark is forgotten here\n"
)

// A build is a host program, and the revision that it carries.
type build struct {
	program  string
	revision string
}

// buildBoth copies the module to dir, with a history of its own, and builds the
// host at two revisions: as it is, and with the fault. So each program carries a
// true revision, as one from a build system does.
func buildBoth(ctx context.Context, module, dir string) (good, bad build, err error) {
	src := filepath.Join(dir, "src")
	if err := copyModule(module, src); err != nil {
		return good, bad, err
	}
	if err := run(ctx, src, "git", "init", "-q"); err != nil {
		return good, bad, err
	}
	if good, err = commitAndBuild(ctx, src, filepath.Join(dir, "host-good"), "as it is"); err != nil {
		return good, bad, err
	}
	name := filepath.Join(src, faultFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return good, bad, err
	}
	if n := strings.Count(string(text), faultOld); n != 1 {
		return good, bad, fmt.Errorf("the line that the fault removes stands %d times in %s, want once", n, faultFile)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(text), faultOld, faultNew, 1)), 0o644); err != nil {
		return good, bad, err
	}
	bad, err = commitAndBuild(ctx, src, filepath.Join(dir, "host-bad"), "a fault in the bookkeeping")
	return good, bad, err
}

func commitAndBuild(ctx context.Context, src, program, message string) (build, error) {
	b := build{program: program}
	for _, args := range [][]string{
		{"git", "add", "-A"},
		{"git", "-c", "user.name=example", "-c", "user.email=example@example.com", "-c", "commit.gpgsign=false", "commit", "-q", "-m", message},
		{"go", "build", "-buildvcs=true", "-o", program, "./examples/fleet/host"},
	} {
		if err := run(ctx, src, args...); err != nil {
			return b, err
		}
	}
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
	cmd.Dir = src
	out, err := cmd.Output()
	b.revision = strings.TrimSpace(string(out))
	return b, err
}

// run runs a command. Its output is part of the error.
func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// copyModule copies sources, and nothing that begins with a dot.
func copyModule(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && rel != "."
		switch {
		case d.IsDir() && hidden:
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case hidden || !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o644)
	})
}

// moduleRoot returns the directory of the library, in which this program must run.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/go-workspace/workspace").Output()
	if err != nil {
		return "", fmt.Errorf("the library's module is not here: run this inside of its repository: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
