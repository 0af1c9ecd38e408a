package workspace

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
)

// A Mode says what is wiped when a request ends. In each mode the block is all
// zero afterwards, and in each mode the mark is tracked and audited.
type Mode uint8

// The modes. The zero value is Shadow: an optimisation that could leak is
// switched on only after audits on the user's own traffic have shown that it
// does not.
const (
	Shadow    Mode = iota // wipe both halves whole; watch what Watermark would have left
	Watermark             // wipe each half up to its mark
	FullClear             // wipe both halves whole
	numModes
)

var modeNames = [numModes]string{"shadow", "watermark", "fullclear"}

// String returns the lower-case name of the mode.
func (m Mode) String() string { return nameOf(modeNames[:], int(m), "mode") }

// MarshalText writes the name of the mode.
func (m Mode) MarshalText() ([]byte, error) {
	if m >= numModes {
		return nil, fmt.Errorf("%w: Mode %d", ErrConfig, m)
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads a name in any case, so that a Mode can be a flag
// (flag.TextVar) or stand in a configuration file.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, name := range modeNames {
		if strings.EqualFold(name, string(text)) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("%w: mode %q is none of shadow, watermark, fullclear", ErrConfig, text)
}

// Config configures a [Pool]. The zero value works.
type Config struct {
	// Name stands in statistics and reports. Empty means "default".
	Name string

	// ClientSize and BackendSize are the sizes of the halves in bytes: multiples
	// of 4096 from 4096 to 64 MB. 0 means 256 KB.
	ClientSize, BackendSize int

	// Mode is the mode at the start. See Pool.SetMode.
	Mode Mode

	// Canary is the share of requests, 0 to 1, that run in Watermark while the
	// pool is in Shadow. See Pool.SetCanary.
	Canary float64

	// AuditEvery is the mean number of operations on a half between two audits:
	// 1 audits each, 0 means 20,000, a negative value turns sampled audits off.
	// The highest value is 16,777,216.
	AuditEvery int

	// MaxIdle is how many wiped blocks wait for a request at the most. 0 means
	// 64; a negative value keeps none.
	MaxIdle int

	// MaxLive is how many blocks may be alive outside the idle list: in use, or
	// abandoned and still referred to by something. 0 means no limit. Beyond it
	// Acquire hands out workspaces without a block, which take everything from
	// the heap, and AcquireContext returns ErrLimit. An abandoned block counts
	// until a garbage collection has found it, so leave room for some.
	MaxLive int

	// MaxSpill is how many bytes each half of a workspace may take from the heap
	// for what does not fit. 0 means 64 MB; a negative value allows none. A
	// Buffer that grows on the heap pays for each piece it moves to.
	MaxSpill int

	// OnViolation is told of each violation, after the memory was wiped, in a
	// goroutine of its own. At most 16 run at once; further reports are dropped
	// and counted. A panic in it is caught and counted. Nil means: log to Logger.
	OnViolation func(*Violation)

	// Logger gets violations, mode changes and warnings. Nil means slog.Default().
	Logger *slog.Logger

	draw func() uint64 // source of random numbers; nil: math/rand/v2
}

const (
	defaultMaxIdle  = 64
	defaultMaxSpill = 64 << 20
)

// withDefaults returns the Config with zero values filled in, or an error that
// names the field and its value.
func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		size *int
	}{{"ClientSize", &c.ClientSize}, {"BackendSize", &c.BackendSize}} {
		if *f.size == 0 {
			*f.size = DefaultHalfSize
		}
		if *f.size < MinHalfSize || *f.size > MaxHalfSize || *f.size%HalfSizeStep != 0 {
			return c, fmt.Errorf("%w: %s is %d bytes, want a multiple of %d from %d to %d", ErrConfig, f.name, *f.size, HalfSizeStep, MinHalfSize, MaxHalfSize)
		}
	}
	switch {
	case c.Mode >= numModes:
		return c, fmt.Errorf("%w: Mode is %d, want one of Shadow, Watermark, FullClear", ErrConfig, c.Mode)
	case !(c.Canary >= 0 && c.Canary <= 1):
		return c, fmt.Errorf("%w: Canary is %v, want 0 to 1", ErrConfig, c.Canary)
	case c.AuditEvery > maxAuditEvery:
		return c, fmt.Errorf("%w: AuditEvery is %d, want at most %d", ErrConfig, c.AuditEvery, maxAuditEvery)
	case c.MaxLive < 0:
		return c, fmt.Errorf("%w: MaxLive is %d, want 0 or more", ErrConfig, c.MaxLive)
	case c.MaxSpill > math.MaxInt-maxAlign:
		return c, fmt.Errorf("%w: MaxSpill is %d, want at most %d", ErrConfig, c.MaxSpill, math.MaxInt-maxAlign)
	}
	if c.Name == "" {
		c.Name = "default"
	}
	if c.AuditEvery == 0 {
		c.AuditEvery = DefaultAuditEvery
	}
	c.MaxIdle = defaulted(c.MaxIdle, defaultMaxIdle)
	c.MaxSpill = defaulted(c.MaxSpill, defaultMaxSpill)
	if c.draw == nil {
		c.draw = rand.Uint64 // seeded by the system: no two processes run in step
	}
	return c, nil
}

// defaulted reads a limit for which 0 means def and a negative value none.
func defaulted(v, def int) int {
	if v == 0 {
		return def
	}
	return max(v, 0)
}
