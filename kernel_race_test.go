//go:build race

package workspace

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raceCases are programs with a data race between the package and a goroutine
// that still has a slice of a released block. Each runs in a process of its own,
// since it must fail. late writes to the slice, long after the rest has run but
// without anything that orders the two.
var raceCases = map[string]func(late func(b []byte)){
	"write after the wipe": func(late func(b []byte)) {
		p, _ := NewPool(Config{Mode: Watermark, AuditEvery: -1})
		ws := p.Acquire()
		go late(ws.Client().Alloc(20_000))
		ws.Release()
	},
	"write after the wipe of a whole half": func(late func(b []byte)) {
		p, _ := NewPool(Config{Mode: FullClear, AuditEvery: -1})
		ws := p.Acquire()
		go late(ws.Client().Alloc(20_000))
		ws.Release()
	},
	"write after an audit": func(late func(b []byte)) {
		buf := make([]byte, 300<<10)
		go late(buf)
		firstNonZero(buf)
	},
	"write after a short wipe": func(late func(b []byte)) {
		buf := make([]byte, 100)
		go late(buf)
		zero(buf)
	},
}

const raceCaseVariable = "WORKSPACE_RACE_CASE"

// TestRaceCase is what the child processes run.
func TestRaceCase(t *testing.T) {
	run, ok := raceCases[os.Getenv(raceCaseVariable)]
	if !ok {
		t.Skip("only in a child of TestRaceDetectorSeesLateWrites")
	}
	if os.Getenv("WORKSPACE_KERNEL") == portable {
		usePortable(t)
	}
	// Sleep orders nothing. To spin would not do: it makes so many events that
	// the detector forgets where the wipe was, and then it says nothing.
	run(func(b []byte) {
		time.Sleep(200 * time.Millisecond)
		b[len(b)/2] = 1
	})
	time.Sleep(500 * time.Millisecond)
	os.Exit(0) // with 66 if a race was seen
}

func TestRaceDetectorSeesLateWrites(t *testing.T) {
	kernels := []string{portable}
	if useAsm {
		kernels = append(kernels, kernelName)
	}
	for _, kernel := range kernels {
		for name := range raceCases {
			t.Run(kernel+"/"+name, func(t *testing.T) {
				t.Parallel() // it waits more than it computes
				cmd := exec.Command(os.Args[0], "-test.run=^TestRaceCase$")
				cmd.Env = append(os.Environ(), raceCaseVariable+"="+name, "WORKSPACE_KERNEL="+kernel, "GORACE=exitcode=66 atexit_sleep_ms=100")
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v\n%s", err, out)
				require.Equal(t, 66, exit.ExitCode(), "%s", out)
				require.Contains(t, string(out), "DATA RACE")
				require.Contains(t, string(out), "TestRaceCase")
			})
		}
	}
}
