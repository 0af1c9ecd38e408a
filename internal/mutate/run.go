package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// The verdicts on a mutant.
const (
	killed    = "killed"
	survived  = "survived"
	notViable = "not viable" // does not compile
	viable    = "viable"     // compiles, and is not tested yet; only in the file of results
)

// A result is what became of a mutant.
type result struct {
	Key     string  `json:"key"`
	Verdict string  `json:"verdict"`
	By      string  `json:"by,omitempty"` // the test that failed, or what else ended the run
	Seconds float64 `json:"seconds"`
	Sources string  `json:"sources"` // hash of the package without tests
	mutant  *mutant
}

// quick are tests that see most mutants within a second. They go first.
const quick = "^(TestPlanted|TestSeams.*|TestMark.*|TestRelease.*|TestReservations|TestZeroAfterRewind|TestBadAccounting.*|TestDoubts.*|" +
	"TestSizes.*|TestNegativeSizes|TestLateHandles.*|TestOverflow.*|TestWipedAndSavedBytes|TestViolation.*|TestSampler.*|TestModel|FuzzPlanted)$"

// A runner runs test programs.
type runner struct {
	dir     string
	run     string // tests to run; "": the quick ones, then all
	timeout time.Duration
}

// try runs the program until a test fails. It returns "" when none did.
func (r *runner) try(ctx context.Context, b binary) (by string, err error) {
	if r.run != "" {
		return r.tests(ctx, b, "-test.run="+r.run)
	}
	if by, err = r.tests(ctx, b, "-test.run="+quick); by != "" || err != nil {
		return by, err
	}
	return r.tests(ctx, b, "-test.skip="+quick)
}

func (r *runner) tests(ctx context.Context, b binary, which string) (string, error) {
	limit, cancel := context.WithTimeout(ctx, r.timeout+10*time.Second)
	defer cancel()
	cmd := command(limit, b.path, which, "-test.short", "-test.failfast", "-test.count=1", "-test.timeout="+r.timeout.String())
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), b.env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var failed *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case limit.Err() != nil:
		return "timeout", nil
	case !errors.As(err, &failed):
		return "", err
	}
	return reason(string(out)), nil
}

var failLine = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^(panic: test timed out)|^(panic: .*|fatal error: .*)`)

// reason finds in the output what failed first.
func reason(out string) string {
	m := failLine.FindStringSubmatch(out)
	switch {
	case m == nil:
		return "exit status"
	case m[1] != "":
		return m[1]
	case m[2] != "":
		return "timeout"
	}
	if by := oneLine(m[3]); len(by) < 60 {
		return by
	} else {
		return strings.TrimSpace(by[:60]) + "..."
	}
}

func minutes(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
