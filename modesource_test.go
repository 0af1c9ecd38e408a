package workspace

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A sourceFunc is a ModeSource for tests.
type sourceFunc func(ctx context.Context) (Mode, error)

func (f sourceFunc) Poll(ctx context.Context) (Mode, error) { return f(ctx) }

func TestModeFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "mode")
	for _, c := range []struct {
		text, err string
		want      Mode
	}{
		{"watermark\n", "", Watermark},
		{" \tFullClear\r\n", "", FullClear},
		{"shadow", "", Shadow},
		{"", `mode "" is none of shadow, watermark, fullclear`, 0},
		{"on", `mode "on" is none of shadow, watermark, fullclear`, 0},
		{"watermark shadow", `mode "watermark shadow" is none of`, 0},
		{strings.Repeat("s3cret", 10), "has more than 32 bytes", 0},
	} {
		require.NoError(t, os.WriteFile(name, []byte(c.text), 0o600))
		m, err := ModeFile(name).Poll(t.Context())
		if c.err == "" {
			require.NoError(t, err)
			require.Equal(t, c.want, m)
			continue
		}
		require.ErrorContains(t, err, c.err)
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), "s3crets3cret", "the file may be the wrong one")
	}
	_, err := ModeFile(filepath.Join(t.TempDir(), "none")).Poll(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ModeFile(t.TempDir()).Poll(t.Context())
	require.Error(t, err, "a directory")
}

func TestFollowAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "mode")
	require.NoError(t, os.WriteFile(name, []byte("watermark"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{})
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Follow(ctx, ModeFile(name), time.Second) }()
		synctest.Wait()
		require.Equal(t, Watermark, p.Mode(), "at once")

		require.NoError(t, os.WriteFile(name, []byte("fullclear"), 0o600))
		time.Sleep(900 * time.Millisecond)
		require.Equal(t, Watermark, p.Mode(), "not before the interval is over")
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, FullClear, p.Mode())

		why := errors.New("the end of the test")
		stop(why)
		require.Equal(t, why, <-ended)
		require.Equal(t, FullClear, p.Mode())
	})
}

// No news is no permission to run in Watermark.
func TestFollowASourceThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log eventLog
		var lines safeBuffer
		p := newTestPool(t, Config{Canary: 1, OnEvent: log.add, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		var mu sync.Mutex
		mode, err := Watermark, error(nil)
		set := func(m Mode, e error) {
			mu.Lock()
			defer mu.Unlock()
			mode, err = m, e
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- p.Follow(ctx, sourceFunc(func(context.Context) (Mode, error) {
				mu.Lock()
				defer mu.Unlock()
				return mode, err
			}), time.Second)
		}()
		sleep := func(seconds int) Stats {
			time.Sleep(time.Duration(seconds) * time.Second)
			synctest.Wait()
			return p.Stats()
		}
		requireMode := func(want Mode) {
			ws := p.Acquire()
			defer ws.Release()
			require.Equal(t, want, ws.Mode())
		}
		time.Sleep(time.Second / 2)
		require.Equal(t, Watermark, p.Stats().Effective)

		set(Watermark, errors.New("no route to the flags"))
		require.False(t, sleep(2).SourceLost, "two failures are no reason")
		requireMode(Watermark)
		s := sleep(1)
		require.True(t, s.SourceLost)
		require.Equal(t, Watermark, s.Mode, "this is what was wanted last")
		require.Equal(t, Shadow, s.Effective)
		requireMode(Shadow)
		require.True(t, sleep(10).SourceLost)

		set(Watermark, nil)
		s = sleep(1)
		require.False(t, s.SourceLost)
		require.Equal(t, Watermark, s.Effective)

		set(Shadow, nil) // now the canary's 100 % are what runs in watermark
		sleep(1)
		requireMode(Watermark)
		set(99, nil) // not an error of Poll, but no mode either
		require.True(t, sleep(3).SourceLost)
		requireMode(Shadow)
		require.NoError(t, p.SetMode(Shadow))
		require.False(t, p.Stats().SourceLost, "a person decided")
		requireMode(Watermark)
		require.False(t, sleep(10).SourceLost, "and is not overruled by the same outage")
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)

		require.Equal(t, 2, strings.Count(lines.String(), "the source of the mode fails"), "once for each outage")
		require.Equal(t, 1, strings.Count(lines.String(), "the source of the mode works again"), "three failures later")
		log.mu.Lock()
		defer log.mu.Unlock()
		var causes []string
		for _, e := range log.list {
			causes = append(causes, e.From.String()+" "+e.To.String()+" "+e.Cause)
		}
		require.Equal(t, []string{
			"shadow watermark mode source",
			"watermark shadow mode source failed 3 times: no route to the flags",
			"shadow watermark mode source",
			"watermark shadow mode source",
		}, causes)
	})
}

// A Poll that the end of Follow interrupted is no failure.
func TestFollowEndsInAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{Mode: Watermark})
		ctx, stop := context.WithCancel(t.Context())
		polls := 0
		err := p.Follow(ctx, sourceFunc(func(ctx context.Context) (Mode, error) {
			if polls++; polls == maxFailures {
				stop()
			}
			return Shadow, errors.New("no")
		}), time.Second)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, p.Stats().SourceLost)
	})
}

func TestFollowLimitsEachPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{Mode: Watermark})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- p.Follow(ctx, sourceFunc(func(ctx context.Context) (Mode, error) {
				<-ctx.Done()
				return Watermark, ctx.Err()
			}), time.Second)
		}()
		time.Sleep(10 * time.Second)
		require.True(t, p.Stats().SourceLost, "a source that hangs is one that fails")
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestFollowRefusesAnInterval(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second} {
		err := newTestPool(t, Config{}).Follow(t.Context(), ModeFile("x"), d)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, d.String())
	}
}
