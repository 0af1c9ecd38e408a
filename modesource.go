package workspace

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// A ModeSource is where the mode of a pool comes from: a configuration system, a
// flag service, a file. Poll returns the mode that is wanted now. It is called
// from one goroutine.
type ModeSource interface {
	Poll(ctx context.Context) (Mode, error)
}

// A ModeFile is a ModeSource: the path of a file that holds the name of a mode.
type ModeFile string

// Poll reads the file. White space around the name does not matter.
func (f ModeFile) Poll(context.Context) (Mode, error) {
	text, err := os.ReadFile(string(f))
	if err != nil {
		return 0, err
	}
	var m Mode
	if len(text) > maxModeFile {
		return 0, fmt.Errorf("%w: mode file %s has %d bytes", ErrConfig, string(f), len(text))
	}
	if err := m.UnmarshalText([]byte(strings.TrimSpace(string(text)))); err != nil {
		return 0, fmt.Errorf("mode file %s: %w", string(f), err)
	}
	return m, nil
}

const (
	maxModeFile = 100 // bytes: more is some other file, and does not belong into a log
	maxFailures = 3   // of Poll in a row
)

// Follow sets the mode of the pool to what source says, at once and then in the
// given interval, until ctx is done; it returns the cause. Run it in a goroutine of its
// own. When Poll fails three times in a row, the pool goes to Shadow until Poll
// works again: no news is no permission to run in Watermark. An interval that is
// not positive is an error that wraps [ErrConfig].
func (p *Pool) Follow(ctx context.Context, source ModeSource, interval time.Duration) error {
	if interval <= 0 {
		return fmt.Errorf("%w: Follow in intervals of %v", ErrConfig, interval)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failures := 0
	for {
		m, err := source.Poll(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = p.setMode(m, "mode source")
		}
		if err == nil {
			failures = 0
		} else if failures++; failures == maxFailures {
			p.logger().Error("workspace: the source of the mode fails; the pool goes to shadow", "pool", p.cfg.Name, "error", err)
			p.setMode(Shadow, fmt.Sprintf("mode source failed %d times: %v", failures, err))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
