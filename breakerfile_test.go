package workspace

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitForBreakerFile waits until the file is there, or gone.
func waitForBreakerFile(t *testing.T, name string, there bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return there == (err == nil)
	}, waitLimit, pollEvery)
}

func TestBreakerSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "breaker")
	start := func() *testPool {
		p := newTestPool(t, Config{Name: "edge", Mode: Watermark, BreakerFile: name})
		p.expectViolations()
		return p
	}
	p := start()
	require.False(t, p.Stats().BreakerOpen)
	require.NoFileExists(t, name)
	plantViolation(p.Pool)
	waitForBreakerFile(t, name, true)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	var r breakerRecord
	require.NoError(t, json.Unmarshal(text, &r))
	v := p.violations(1)[0]
	require.Equal(t, breakerRecord{buildName(), "edge", "dirty-tail", r.Time}, r)
	require.True(t, v.Time.Equal(r.Time))

	p = start()
	s := p.Stats()
	require.True(t, s.BreakerOpen, "the same build starts with an open breaker")
	require.Equal(t, Shadow, s.Effective)
	require.Zero(t, s.BreakerTrips, "it did not open now")
	require.Equal(t, r.Time.Unix(), s.LastViolation)
	require.True(t, p.Rearm("understood"))
	require.NoFileExists(t, name)
	require.False(t, start().Stats().BreakerOpen)

	plantViolation(p.Pool)
	waitForBreakerFile(t, name, true)
	r.Build = "another"
	require.NoError(t, writeBreaker(name, r))
	require.False(t, start().Stats().BreakerOpen, "another build starts afresh")
	require.FileExists(t, name, "should the other one come back")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "no files are left behind")
}

// Whatever is not the record of another build keeps the breaker open.
func TestBreakerFileThatCantBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "unexpected end of JSON input",
		"{":                              "unexpected end of JSON input",
		"{}":                             "it names no build",
		"null":                           "it names no build",
		`{"build": 1}`:                   "cannot unmarshal number",
		`{"build":"x"} {}`:               "invalid character",
		strings.Repeat("x", 1<<16+1):     "has more than 65536 bytes",
		`{"build":"x","time":"not one"}`: "parsing time",
	} {
		name := filepath.Join(t.TempDir(), "breaker")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		var log strings.Builder
		p := newTestPool(t, Config{Mode: Watermark, BreakerFile: name, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.True(t, p.Stats().BreakerOpen, text)
		require.Equal(t, Shadow, p.Stats().Effective)
		require.Contains(t, log.String(), want)
		require.Contains(t, log.String(), name)
		require.True(t, p.Rearm("a bad file"))
		require.NoFileExists(t, name)
	}
}

func TestBreakerFileThatCantBeWritten(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "none", "breaker"), filepath.Join(os.DevNull, "breaker")} {
		_, err := NewPool(Config{BreakerFile: name})
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, name)
	}

	// The directory goes away later.
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	told := make(chan string, 10)
	p := newTestPool(t, Config{Mode: Watermark, BreakerFile: filepath.Join(dir, "breaker"),
		Logger: slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) { told <- string(b); return len(b), nil }), nil))})
	require.NoError(t, os.Remove(dir))
	plantViolation(p.Pool)
	p.violations(1)
	require.Contains(t, <-told, "the breaker file could not be brought up to date")
	require.True(t, p.Stats().BreakerOpen)
	require.True(t, p.Rearm("by hand"), "nothing to remove is no error")
	require.Contains(t, <-told, "breaker rearmed")
	time.Sleep(10 * time.Millisecond)
	require.Empty(t, told)
}

func TestNoBreakerFile(t *testing.T) {
	var log safeBuffer
	dir := t.TempDir()
	t.Chdir(dir)
	p := newTestPool(t, Config{Mode: Watermark, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	plantViolation(p.Pool)
	p.violations(1)
	require.True(t, p.Rearm("a test"))
	require.Eventually(t, func() bool { return len(p.reports) == 0 }, waitLimit, pollEvery)
	require.NotContains(t, log.String(), "breaker file")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestSmallFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for size, ok := range map[int]bool{0: true, 31: true, 32: true, 33: false, 34: false} {
		require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
		text, err := readSmall(name, 32)
		require.Equal(t, ok, err == nil, "%d bytes", size)
		if ok {
			require.Len(t, text, size)
		}
	}
}

// The file says in the end what the breaker is, whatever came in between.
func TestBreakerFileFollowsTheLastChange(t *testing.T) {
	name := filepath.Join(t.TempDir(), "breaker")
	p := newTestPool(t, Config{Mode: Watermark, BreakerFile: name})
	p.expectViolations()
	for range 200 {
		plantViolation(p.Pool)
		p.Rearm("again")
	}
	time.Sleep(10 * time.Millisecond)
	waitForBreakerFile(t, name, false)
	plantViolation(p.Pool)
	waitForBreakerFile(t, name, true)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
