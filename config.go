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
func (m Mode) MarshalText() ([]byte, error) { return nameText(m, modeNames[:], "mode") }

// UnmarshalText reads a name in any case, so that a Mode can be a flag
// (flag.TextVar) or stand in a configuration file.
func (m *Mode) UnmarshalText(text []byte) error { return parseName(m, modeNames[:], "mode", text) }

// nameText is the name of a value that can be read back; so a bad one is not written.
func nameText[T ~uint8](v T, names []string, kind string) ([]byte, error) {
	if int(v) >= len(names) {
		return nil, fmt.Errorf("%w: %s %d", ErrConfig, kind, v)
	}
	return []byte(names[v]), nil
}

// parseName sets v to the place of a name in the list. Case does not matter.
func parseName[T ~uint8](v *T, names []string, kind string, text []byte) error {
	for i, name := range names {
		if strings.EqualFold(name, string(text)) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("%w: %s %q is none of %s", ErrConfig, kind, text, strings.Join(names, ", "))
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

	// HostCanary restricts Watermark to some of the hosts of a fleet. Nil does not.
	// The mode of a request is the most careful of Mode, or Canary, of this, and of
	// what the breaker allows. See Pool.SetHostCanary.
	HostCanary *HostCanary

	// BreakerFile is where an open breaker survives a restart: a path in a directory
	// that exists and can be written to. A program of the same build, that is of the
	// same revision and Go version, starts with an open breaker; another build does
	// not. So does one that finds a file that it can't read. Rearm removes the file.
	// Each pool needs a file of its own. Empty: nothing survives.
	BreakerFile string

	// AuditEvery is the mean number of operations on a half between two audits:
	// 1 audits each, 0 means 20,000, a negative value turns sampled audits off.
	// The highest value is 16,777,216.
	AuditEvery int

	// AuditBudget is how many sampled audits the pool makes a second, at most, on
	// average; with enough operations it makes at least half as many. The interval
	// begins with AuditEvery. It grows when a minute's audits are spent, so a burst
	// costs some minutes' audits at once, and no more. It shrinks once a minute at
	// most, by half. After the first change it is a power of two, up to 16,777,216.
	// 0 means: always AuditEvery.
	AuditBudget int

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

	// Memory is where blocks come from. Heap, the zero value, is right for almost
	// everyone. Mapped keeps them off the garbage-collected heap, with inaccessible
	// pages around each half; it needs 64-bit Linux, macOS or BSD. A slice does not
	// keep mapped memory alive: once an abandoned workspace has been collected, its
	// memory is inaccessible, and a late touch ends the program. So a handler that may
	// run on after its answer, as inside http.TimeoutHandler, must keep a hold. Nor
	// does the collector free the blocks of a pool that is dropped without Close, or
	// of a workspace that is never released. The race detector does not see mapped
	// memory. On Linux each block takes up to four of the mappings that
	// vm.max_map_count limits. When the system refuses, or all mapped blocks have
	// used up 8 TB of addresses, which abandoned ones keep for ever, blocks come
	// from the heap; see Stats.MapFailures.
	Memory Memory

	// Lock locks mapped blocks into memory (mlock), so that they are never written
	// to swap. NewPool fails when the system does not let it lock one block. Later
	// blocks that can't be locked come from the heap, unlocked, and so does all that
	// does not fit into a half; see Stats.MapFailures and Stats.SpilledBytes.
	Lock bool

	// HugePages advises the system to use huge pages for mapped blocks (Linux:
	// MADV_HUGEPAGE). It has an effect only where a half holds a whole huge page,
	// which on most systems is 2 MB. NewPool fails when the system refuses the advice.
	HugePages bool

	// Debug is for tests and for the hunt after those who use memory too late. See
	// TestPool, which sets it.
	Debug Debug

	// FenceEvery fences one request in so many, drawn at random, as Debug Fence does
	// for all. 0 fences none. At most 16 fenced blocks are in use at once; requests
	// beyond that are not fenced, and counted. A late touch of a fenced block ends
	// the program, with the line that did it; a log line from the time of the release
	// says, by address, what that memory was and who had released it. It has the
	// level Info, and is dropped when 16 reports are under way. A fenced block that is
	// abandoned while somebody may still use it stays accessible, and counts as in
	// use for ever, unless Memory is Mapped.
	FenceEvery int

	// Quarantine is how many further fenced blocks are released before the
	// addresses of one may be used again. 0 means 256. They cost no memory.
	Quarantine int

	// OnViolation is told of each violation, after the memory was wiped, in a
	// goroutine of its own. At most 16 run at once; further reports are dropped
	// and counted. A panic in it is caught and counted. Nil means: log to Logger, ten at
	// once and then one a second.
	OnViolation func(*Violation)

	// OnEvent is told of mode changes, of the breaker and of violations, in a
	// goroutine of its own like OnViolation, and within the same limit. Nil: nobody.
	OnEvent func(Event)

	// Logger gets violations, mode changes and warnings. Nil means slog.Default().
	Logger *slog.Logger

	draw  func() uint64 // source of random numbers; nil: math/rand/v2
	watch *watch        // set by TestPool
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
	case c.AuditBudget < 0 || c.AuditBudget > maxAuditBudget:
		return c, fmt.Errorf("%w: AuditBudget is %d, want 0 to %d", ErrConfig, c.AuditBudget, maxAuditBudget)
	case c.AuditBudget > 0 && c.AuditEvery < 0:
		return c, fmt.Errorf("%w: AuditBudget is %d, but AuditEvery is %d, which turns audits off", ErrConfig, c.AuditBudget, c.AuditEvery)
	case c.AuditEvery > maxAuditEvery:
		return c, fmt.Errorf("%w: AuditEvery is %d, want at most %d", ErrConfig, c.AuditEvery, maxAuditEvery)
	case c.MaxLive < 0:
		return c, fmt.Errorf("%w: MaxLive is %d, want 0 or more", ErrConfig, c.MaxLive)
	case c.MaxSpill > math.MaxInt-maxAlign:
		return c, fmt.Errorf("%w: MaxSpill is %d, want at most %d", ErrConfig, c.MaxSpill, math.MaxInt-maxAlign)
	}
	if err := c.checkMemory(); err != nil {
		return c, err
	}
	if err := c.HostCanary.check(); err != nil {
		return c, err
	}
	if err := c.checkBreakerFile(); err != nil {
		return c, err
	}
	if c.Quarantine == 0 {
		c.Quarantine = defaultQuarantine
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
