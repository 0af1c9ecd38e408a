package workspace

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// guardSize is the length in bytes of the guard behind each half. A multiple
// of 64 keeps the backend half aligned as the block is.
const guardSize = 64

// guardPattern is what every guard holds: bytes that are never zero and differ
// from process to process, so that no program can write it by habit. It is
// drawn at the first use, not at package start.
var guardPattern = sync.OnceValue(func() [guardSize]byte {
	var p [guardSize]byte
	for i := range p {
		p[i] = byte(1 + rand.N(255))
	}
	return p
})

// guardIntact reports whether g still holds the guard pattern. In mapped memory g
// is empty: inaccessible pages stand there.
func guardIntact(g []byte) bool {
	p := guardPattern()
	return len(g) == 0 || string(g) == string(p[:])
}

// An Op names an operation of a workspace: what was done when an audit ran.
type Op uint8

// The operations. Each ticks the sampler once.
const (
	OpAcquire  Op = iota // the block was taken for a request
	OpAlloc              // Alloc, TryAlloc, Copy, MakeSlice, a Buffer that grew
	OpReserve            // Reserve
	OpCommit             // Commit
	OpAbort              // Abort
	OpSnapshot           // Snapshot
	OpRewind             // Rewind
	OpReset              // Workspace.Reset
	OpRelease            // the block was given back
	OpForced             // Workspace.Audit or Pool.AuditIdle; not sampled
)

var opNames = [...]string{"acquire", "alloc", "reserve", "commit", "abort", "snapshot", "rewind", "reset", "release", "forced"}

// String returns the lower-case name of the operation.
func (o Op) String() string { return nameOf(opNames[:], int(o), "op") }

// MarshalText writes the name, for JSON and logs.
func (o Op) MarshalText() ([]byte, error) { return nameText(o, opNames[:], "op") }

// UnmarshalText reads a name in any case.
func (o *Op) UnmarshalText(text []byte) error { return parseName(o, opNames[:], "op", text) }

func nameOf(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// A Kind says what a Violation found.
type Kind uint8

// The kinds of Violation.
const (
	DirtyTail       Kind = iota // a byte at or past the mark is not zero
	GuardDamaged                // the guard behind the half was overwritten
	BadAccounting               // position, mark or reservation lie outside the half
	OpenReservation             // the request ended with a reservation open
	PoisonDamaged               // the block was written to while it was idle: see Debug
)

var kindNames = [...]string{"dirty-tail", "guard-damaged", "bad-accounting", "open-reservation", "poison-damaged"}

// String returns the name of the kind.
func (k Kind) String() string { return nameOf(kindNames[:], int(k), "kind") }

// MarshalText writes the name, for JSON and logs.
func (k Kind) MarshalText() ([]byte, error) { return nameText(k, kindNames[:], "kind") }

// UnmarshalText reads a name in any case.
func (k *Kind) UnmarshalText(text []byte) error { return parseName(k, kindNames[:], "kind", text) }

// A Violation reports that a block was not as it must be. It holds offsets and
// counts, never memory contents: the leak detector must not leak.
//
// It is an error, so that [Workspace.Audit] can return it.
type Violation struct {
	Time time.Time `json:"time"`
	Pool string    `json:"pool"`
	Half Half      `json:"half"`
	Kind Kind      `json:"kind"`
	Op   Op        `json:"op"`
	Mode Mode      `json:"mode"` // the mode of the workspace
	Size int       `json:"size"` // bytes in the half
	Mark int       `json:"mark"` // bytes from the start of the half; the audit began here

	// The shape of what was found: bytes that are not zero, or not the poison. Where
	// the first look found one and the second none, Count is 0.
	First      int   `json:"first"`       // offset in the half of the first one; -1: none
	Last       int   `json:"last"`        // offset of the last one; -1: none
	Count      int   `json:"count"`       // how many
	Bits       int   `json:"bits"`        // how many bits of them differ
	Runs       int   `json:"runs"`        // in how many rows they stand
	LongestRun int   `json:"longest_run"` // bytes in the longest row
	RunList    []Run `json:"run_list"`    // the first 16 rows
	Stable     bool  `json:"stable"`      // a second look saw the same
	Guard      bool  `json:"guard"`       // the guard is intact

	Hints  []string `json:"hints,omitempty"` // guesses from the shape
	Trail  []Step   `json:"trail,omitempty"` // before a sampled audit: the last operations of the half, the oldest first; they may begin in an earlier request
	Kernel string   `json:"kernel"`          // the clear and verify code in use
	Build  string   `json:"build"`           // main module, version, revision, Go version
	Stack  []string `json:"stack"`           // where the audit ran: function file:line, innermost first
}

// Error describes the violation in one line, without the stack.
func (v *Violation) Error() string {
	s := fmt.Sprintf("workspace: %s in pool %q, %s half, found at %s in mode %s: mark %d of %d", v.Kind, v.Pool, v.Half, v.Op, v.Mode, v.Mark, v.Size)
	if v.Count > 0 {
		what := "not zero"
		if v.Kind == PoisonDamaged {
			what = "changed"
		}
		s += fmt.Sprintf(", %d bytes %s between %d and %d", v.Count, what, v.First, v.Last)
	}
	if !v.Guard {
		s += ", guard damaged"
	}
	return s
}

// LogValue groups the fields for log/slog.
func (v *Violation) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("pool", v.Pool), slog.String("half", v.Half.String()), slog.String("kind", v.Kind.String()),
		slog.String("op", v.Op.String()), slog.String("mode", v.Mode.String()),
		slog.Int("size", v.Size), slog.Int("mark", v.Mark),
		slog.Int("first", v.First), slog.Int("last", v.Last), slog.Int("count", v.Count), slog.Int("bits", v.Bits),
		slog.Int("runs", v.Runs), slog.Int("longest_run", v.LongestRun), slog.Any("run_list", v.RunList), slog.Bool("stable", v.Stable), slog.Bool("guard", v.Guard),
		slog.Any("hints", v.Hints), slog.Any("trail", v.Trail),
		slog.String("kernel", v.Kernel), slog.String("build", v.Build), slog.String("stack", strings.Join(v.Stack, " < ")),
	)
}

// inspect reads one half from off to its end, and its guard. It returns nil
// when every byte is zero and the guard is intact.
func inspect(half, guard []byte, off int) *Violation {
	first, intact := firstNonZero(half[off:]), guardIntact(guard)
	if first < 0 && intact {
		return nil
	}
	v := &Violation{Kind: GuardDamaged, Size: len(half), Mark: off, Guard: intact}
	if first >= 0 {
		v.Kind = DirtyTail
	}
	v.describe(half, off, 0)
	return v
}

// callers returns the calling stack as "function file:line". It never uses
// debug.Stack, which prints argument words and so memory contents.
func callers(skip int) []string { return frames(pcs(skip + 1)) }

// pcs returns the program counters of the calling stack, innermost first. skip 0
// begins with the caller of pcs.
func pcs(skip int) []uintptr {
	var buf [24]uintptr
	return slices.Clone(buf[:runtime.Callers(skip+2, buf[:])])
}

// frames returns the stack that pcs recorded as "function file:line".
func frames(pcs []uintptr) []string {
	if len(pcs) == 0 {
		return nil
	}
	var out []string
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.Function != "" {
			out = append(out, fmt.Sprintf("%s %s:%d", f.Function, f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line))
		}
		if !more {
			return out
		}
	}
}

// buildName is the running program as the Go toolchain recorded it.
var buildName = sync.OnceValue(func() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown " + runtime.Version()
	}
	s := bi.Main.Path + "@" + bi.Main.Version
	for _, kv := range bi.Settings {
		if kv.Key == "vcs.revision" || kv.Key == "vcs.modified" && kv.Value == "true" {
			s += " " + kv.Key + "=" + kv.Value
		}
	}
	return s + " " + bi.GoVersion
})
