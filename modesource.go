package workspace

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A ModeSource is where the mode of a pool comes from: a configuration system, a
// flag service, a file. Poll returns the mode that is wanted now, before ctx is
// done. Follow calls it from one goroutine.
type ModeSource interface {
	Poll(ctx context.Context) (Mode, error)
}

// A ModeFile is a ModeSource: the path of a file that holds the name of a mode.
type ModeFile string

// Poll reads the file. White space around the name does not matter.
func (f ModeFile) Poll(context.Context) (Mode, error) {
	text, err := readSmall(string(f), maxModeFile)
	if err != nil {
		return 0, fmt.Errorf("mode file: %w", err)
	}
	var m Mode
	if err := m.UnmarshalText([]byte(strings.TrimSpace(string(text)))); err != nil {
		return 0, fmt.Errorf("mode file %s: %w", string(f), err)
	}
	return m, nil
}

const (
	maxModeFile = 32 // bytes: more is some other file, and does not belong into a log
	maxFailures = 3  // of Poll in a row
)

// Follow sets the mode of the pool to what source says, at once and then in the
// given interval, until ctx is done; it returns the cause. Run it in a goroutine of its
// own. Poll has as long as the interval. When it fails three times in a row, no request runs in Watermark until it
// works again or SetMode is called: no news is no permission. An interval that is
// not positive is an error that wraps [ErrConfig].
func (p *Pool) Follow(ctx context.Context, source ModeSource, interval time.Duration) error {
	if interval <= 0 {
		return fmt.Errorf("%w: Follow in intervals of %v", ErrConfig, interval)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failures := 0
	for {
		m, err := poll(ctx, source, interval)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = p.setMode(m, "mode source")
		}
		if err == nil {
			if failures >= maxFailures {
				p.logger().Info("workspace: the source of the mode works again", "pool", p.cfg.Name, "mode", m.String())
			}
			failures = 0
		} else if failures++; failures == maxFailures {
			p.change(fmt.Sprintf("mode source failed %d times: %v", failures, err), func() { p.lost = true })
			p.logger().Error("workspace: the source of the mode fails; no request runs in watermark", "pool", p.cfg.Name, "error", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func poll(ctx context.Context, source ModeSource, patience time.Duration) (Mode, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return source.Poll(ctx)
}
