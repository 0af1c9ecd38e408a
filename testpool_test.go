package workspace

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fakeT records what TestPool says to a test.
type fakeT struct {
	mu       sync.Mutex
	errors   []string
	fatal    string
	cleanups []func()
}

func (f *fakeT) Helper()          {}
func (f *fakeT) Name() string     { return "TestOfSomebody" }
func (f *fakeT) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fakeT) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}
func (f *fakeT) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// end runs the clean-ups as the end of a test does, last one first.
func (f *fakeT) end() {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		c := f.cleanups[last]
		f.cleanups = f.cleanups[:last]
		c()
	}
}

// verdict runs a test of a user with a TestPool and returns what it was told.
func verdict(body func(p *Pool), configure ...func(*Config)) []string {
	f := &fakeT{}
	p := watchedPool(f, 50*time.Millisecond, configure)
	body(p)
	f.end()
	return f.errors
}

func inPoison(c *Config) { c.Debug = Poison }

func TestTestPoolAccepts(t *testing.T) {
	for name, body := range map[string]func(p *Pool){
		"nothing": func(*Pool) {},
		"released": func(p *Pool) {
			for n := range 20 {
				ws := p.Acquire()
				stain(ws.Client().Alloc(10_000), n)
				ws.Reset()
				stain(ws.Backend().Alloc(20_000), n)
				ws.Release()
			}
		},
		"abandoned":       func(p *Pool) { p.Acquire().Abandon() },
		"released twice":  func(p *Pool) { ws := p.Acquire(); ws.Release(); ws.Release() },
		"hold let go":     func(p *Pool) { ws := p.Acquire(); done := ws.Hold(); ws.Release(); done(); done() },
		"closed":          func(p *Pool) { p.Close(); p.Acquire().Release() },
		"just about done": func(p *Pool) { ws := p.Acquire(); time.AfterFunc(10*time.Millisecond, ws.Release) },
	} {
		require.Empty(t, verdict(body), name)
		require.Empty(t, verdict(body, inPoison), name)
	}
}

//go:noinline
func forgetful(p *Pool) *Workspace { return p.Acquire() }

//go:noinline
func holder(ws *Workspace) func() { return ws.Hold() }

func TestTestPoolFindsWhatIsLeftOpen(t *testing.T) {
	for _, configure := range [][]func(*Config){nil, {inPoison}} {
		got := verdict(func(p *Pool) { forgetful(p) }, configure...)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "a workspace was not released, acquired by\n\t")
		require.Contains(t, got[0], "workspace.forgetful testpool_test.go:")

		got = verdict(func(p *Pool) {
			ws := p.Acquire()
			holder(ws)
			ws.Hold()()
			ws.Release()
		}, configure...)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "a hold is open, taken by\n\t")
		require.Contains(t, got[0], "workspace.holder testpool_test.go:")

		limit := append(slices.Clone(configure), func(c *Config) { c.MaxLive = 1 })
		got = verdict(func(p *Pool) { ws := p.Acquire(); forgetful(p); ws.Release() }, limit...)
		require.Len(t, got, 1, "one without a block counts, too")
		require.Contains(t, got[0], "workspace.forgetful testpool_test.go:")

		got = verdict(func(p *Pool) { holder(forgetful(p)) }, configure...)
		require.Len(t, got, 2, "both")

		got = verdict(func(p *Pool) { p.Acquire().Backend().Body([]byte("x")) }, configure...)
		require.Len(t, got, 2, "a body that is not closed holds the workspace")
	}
}

func TestTestPoolFindsViolations(t *testing.T) {
	for _, configure := range [][]func(*Config){nil, {inPoison}} {
		told := 0
		configure = append(configure, func(c *Config) { c.OnViolation = func(*Violation) { told++ } })
		got := verdict(func(p *Pool) {
			ws := p.Acquire()
			ws.Client().mem()[5000] = 1 // past the mark
			ws.Release()
		}, configure...)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "dirty-tail in pool \"TestOfSomebody\"")
		require.Contains(t, got[0], "Workspace).Release")
		require.Equal(t, 1, told, "the user's own function is called, too")
	}
}

func TestTestPoolCountsViolationsThatItWasNotToldOf(t *testing.T) {
	for _, further := range []int{1, 5} {
		stop := make(chan struct{})
		got := verdict(func(p *Pool) {
			for range maxReports + further {
				ws := p.Acquire()
				ws.Client().mem()[5000] = 1
				ws.Release()
			}
			close(stop)
		}, inPoison, func(c *Config) { c.OnViolation = func(*Violation) { <-stop } })
		require.Len(t, got, maxReports+1)
		require.Equal(t, fmt.Sprintf("workspace.TestPool: %d further violations were found", further), got[maxReports])
	}
}

func TestTestPoolFindsLateWritesByThePoison(t *testing.T) {
	got := verdict(func(p *Pool) {
		ws := p.Acquire()
		b := ws.Client().Alloc(100)
		ws.Release()
		b[42] = 0
	}, inPoison)
	require.Len(t, got, 1)
	require.Contains(t, got[0], "poison-damaged")
	require.Contains(t, got[0], "1 bytes changed between 42 and 42")
}

func TestTestPoolRefusesABadConfig(t *testing.T) {
	f := &fakeT{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		TestPool(f, func(c *Config) { c.ClientSize = 5 })
	}()
	<-done
	require.Contains(t, f.fatal, "ClientSize is 5 bytes")
}

func TestTestPoolTakesTheConfig(t *testing.T) {
	p := TestPool(t, func(c *Config) {
		require.Equal(t, t.Name(), c.Name)
		require.Equal(t, Watermark, c.Mode)
		require.Equal(t, 1, c.AuditEvery)
		require.Equal(t, canMap, c.Debug == Fence)
		c.Mode, c.BackendSize = FullClear, MinHalfSize
	})
	ws := p.Acquire()
	require.Equal(t, MinHalfSize, ws.Backend().Size())
	require.Equal(t, FullClear, ws.Mode())
	ws.Release()
	require.NotZero(t, p.Stats().Totals().Audits)
}

// What it writes to its file it does not write to the log as well.
func TestTestPoolLeavesTheLogAlone(t *testing.T) {
	var log strings.Builder
	require.Empty(t, verdict(func(p *Pool) { p.Acquire().Release() }, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}))
	require.Empty(t, log.String())
}

// The file that explains a crash exists while it may be needed, and not longer.
func TestTestPoolRemovesItsFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir) // os.TempDir on Unix
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "workspace-fence-*.log"))
		require.NoError(t, err)
		return names
	}
	one, two := &fakeT{}, &fakeT{}
	p := watchedPool(one, time.Second, nil)
	q := watchedPool(two, time.Second, []func(*Config){inPoison})
	require.Empty(t, files())
	ws := p.Acquire()
	half := ""
	if canMap {
		half = ws.blk.tenure.addresses(Client)
	}
	ws.Release()
	q.Acquire().Release()
	if canMap {
		require.Len(t, files(), 1)
		text, err := os.ReadFile(files()[0])
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), "workspace 1 of pool \"TestOfSomebody\": client half "+half))
		require.Contains(t, string(text), "released by ")
		require.Contains(t, string(text), "TestTestPoolRemovesItsFile testpool_test.go:")
	}
	require.Empty(t, p.watch.live, "nobody is watched after the end")
	one.end()
	if canMap {
		require.Len(t, files(), 1, "the other test goes on")
	}
	p.Acquire().Release()
	two.end()
	require.Empty(t, files())
	p.Acquire().Release()
	require.Empty(t, files(), "nobody would remove it")

	three := &fakeT{}
	p = watchedPool(three, time.Second, nil)
	p.Acquire().Release()
	require.Equal(t, canMap, len(files()) == 1)
	three.end()
	require.Empty(t, files())
}
