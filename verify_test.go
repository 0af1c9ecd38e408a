package workspace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The byte loops that the search functions must agree with.
func slowFirst(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return -1
}

func slowLast(b []byte) int {
	last := -1
	for i, c := range b {
		if c != 0 {
			last = i
		}
	}
	return last
}

func slowCount(b []byte) (n int) {
	for _, c := range b {
		if c != 0 {
			n++
		}
	}
	return n
}

// requireSearchesAgree compares all three functions with the loops. It calls
// require only on a difference, as it runs millions of times.
func requireSearchesAgree(t *testing.T, b []byte, context string) {
	t.Helper()
	if got, want := firstNonZero(b), slowFirst(b); got != want {
		require.Equal(t, want, got, "firstNonZero, length %d, %s", len(b), context)
	}
	if got, want := lastNonZero(b), slowLast(b); got != want {
		require.Equal(t, want, got, "lastNonZero, length %d, %s", len(b), context)
	}
	if got, want := countNonZero(b), slowCount(b); got != want {
		require.Equal(t, want, got, "countNonZero, length %d, %s", len(b), context)
	}
}

// Each length at each start, with non-zero bytes all around: what lies outside
// must not matter. An end test by equality can be stepped over, and then the
// search runs on into a neighbour (Cloudbleed, 2017).
func TestSearchAtEachLengthAndOffset(t *testing.T) {
	const lengths, offsets = 300, 128
	buf := bytes.Repeat([]byte{0xff}, lengths+2*offsets)
	for off := 0; off < offsets; off += scaled(1, 5) {
		for n := 0; n <= lengths; n++ {
			b := buf[off : off+n]
			clear(b)
			if firstNonZero(b) != -1 || lastNonZero(b) != -1 || countNonZero(b) != 0 {
				requireSearchesAgree(t, b, fmt.Sprintf("offset %d, all zero", off))
			}
			for i := range b {
				b[i] = 1
				if got := firstNonZero(b); got != i {
					require.Equal(t, i, got, "offset %d, length %d", off, n)
				}
				b[i] = 0
			}
			if n > 0 {
				b[n/3], b[n-1] = 0x80, 1
				requireSearchesAgree(t, b, fmt.Sprintf("offset %d", off))
			}
			for i := range b {
				b[i] = 0xff
			}
		}
	}
}

// Each bit at each place of a buffer that is longer than any unrolled loop,
// and a second one behind it.
func TestSearchFindsEachBit(t *testing.T) {
	buf := make([]byte, 4<<10)
	for i := range buf {
		for bit := range 8 {
			buf[i] = 1 << bit
			if got := firstNonZero(buf); got != i {
				require.Equal(t, i, got, "bit %d", bit)
			}
		}
		for _, gap := range []int{1, 7, 8, 9, 63, 64, 65, len(buf) - 1 - i} {
			j := i + gap
			if gap == 0 || j >= len(buf) {
				continue
			}
			buf[j] = 1
			if firstNonZero(buf) != i || lastNonZero(buf) != j || countNonZero(buf) != 2 {
				requireSearchesAgree(t, buf, fmt.Sprintf("bytes %d and %d", i, j))
			}
			buf[j] = 0
		}
		buf[i] = 0
	}
	requireSearchesAgree(t, nil, "nil")
}

func TestGuardIntactSeesEachBit(t *testing.T) {
	g := make([]byte, guardSize)
	require.False(t, guardIntact(g), "zero is no guard")
	restoreGuard(g)
	require.True(t, guardIntact(g))
	for i := range g {
		for bit := range 8 {
			g[i] ^= 1 << bit
			require.False(t, guardIntact(g), "byte %d bit %d", i, bit)
			g[i] ^= 1 << bit
		}
	}
	require.True(t, guardIntact(g))
	require.False(t, guardIntact(g[:guardSize-1]), "a part is not enough")
}

func TestInspect(t *testing.T) {
	const size, off = 1000, 300
	for _, c := range []struct {
		name  string
		off   int
		dirty []int
		guard bool // damage it
		want  *Violation
	}{
		{name: "clean", off: off},
		{name: "below the mark does not count", off: off, dirty: []int{0, 299}},
		{name: "at the mark", off: off, dirty: []int{300}, want: &Violation{Kind: DirtyTail, First: 300, Last: 300, Count: 1, Runs: 1, LongestRun: 1, RunList: []Run{{300, 1}}, Guard: true}},
		{name: "just past the mark", off: off, dirty: []int{299, 301}, want: &Violation{Kind: DirtyTail, First: 301, Last: 301, Count: 1, Runs: 1, LongestRun: 1, RunList: []Run{{301, 1}}, Guard: true}},
		{name: "last byte", off: off, dirty: []int{999}, want: &Violation{Kind: DirtyTail, First: 999, Last: 999, Count: 1, Runs: 1, LongestRun: 1, RunList: []Run{{999, 1}}, Guard: true}},
		{name: "scattered", off: off, dirty: []int{5, 310, 400, 998}, want: &Violation{Kind: DirtyTail, First: 310, Last: 998, Count: 3, Runs: 3, LongestRun: 1, RunList: []Run{{310, 1}, {400, 1}, {998, 1}}, Guard: true}},
		{name: "whole half", off: 0, dirty: []int{0, 999}, want: &Violation{Kind: DirtyTail, First: 0, Last: 999, Count: 2, Runs: 2, LongestRun: 1, RunList: []Run{{0, 1}, {999, 1}}, Guard: true}},
		{name: "full half", off: size, dirty: []int{0, 999}},
		{name: "guard", off: off, dirty: []int{0}, guard: true, want: &Violation{Kind: GuardDamaged, First: -1, Last: -1}},
		{name: "guard of a full half", off: size, guard: true, want: &Violation{Kind: GuardDamaged, First: -1, Last: -1}},
		{name: "tail and guard", off: off, dirty: []int{999}, guard: true, want: &Violation{Kind: DirtyTail, First: 999, Last: 999, Count: 1, Runs: 1, LongestRun: 1, RunList: []Run{{999, 1}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			half, guard := make([]byte, size), make([]byte, guardSize)
			restoreGuard(guard)
			for _, i := range c.dirty {
				half[i] = 0xa5
			}
			if c.guard {
				guard[guardSize-1]++
			}
			if c.want != nil {
				c.want.Size, c.want.Mark, c.want.Stable, c.want.Bits = size, c.off, true, 4*c.want.Count // of 0xa5
				c.want.Hints = c.want.hints()
			}
			require.Equal(t, c.want, inspect(half, guard, c.off))
			for _, i := range c.dirty {
				require.Equal(t, byte(0xa5), half[i], "it only reads")
			}
		})
	}
}

var sampleViolation = Violation{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Pool: "edge", Half: Backend, Kind: DirtyTail, Op: OpRelease, Mode: Watermark,
	Size: 4096, Mark: 100, First: 200, Last: 300, Count: 7, Bits: 9, Runs: 2, LongestRun: 6, RunList: []Run{{200, 6}, {300, 1}}, Stable: true, Guard: true,
	Hints: []string{"look there"}, Trail: []Step{{OpAlloc, 50, 100}},
	Kernel: "portable", Build: "example.com/x@v1 go1.26", Stack: []string{"f f.go:1", "g g.go:2"},
}

func TestViolationText(t *testing.T) {
	dirty := sampleViolation
	require.EqualError(t, &dirty, `workspace: dirty-tail in pool "edge", backend half, found at release in mode watermark: mark 100 of 4096, 7 bytes not zero between 200 and 300`)
	dirty.Count, dirty.Last = 1, 200
	require.ErrorContains(t, &dirty, "1 bytes not zero between 200 and 200")
	dirty = sampleViolation
	dirty.Guard = false
	require.ErrorContains(t, &dirty, "7 bytes not zero between 200 and 300, guard damaged")
	guard := sampleViolation
	guard.Kind, guard.First, guard.Last, guard.Count, guard.Guard, guard.Half, guard.Op = GuardDamaged, -1, -1, 0, false, Client, OpAcquire
	require.EqualError(t, &guard, `workspace: guard-damaged in pool "edge", client half, found at acquire in mode watermark: mark 100 of 4096, guard damaged`)

	var v *Violation
	require.True(t, errors.As(fmt.Errorf("audit: %w", &dirty), &v))
	require.Same(t, &dirty, v)
}

func TestViolationAsLogRecord(t *testing.T) {
	var buf bytes.Buffer
	slog.New(slog.NewJSONHandler(&buf, nil)).Error("found", "violation", &sampleViolation)
	var record struct{ Violation map[string]any }
	require.NoError(t, json.Unmarshal(buf.Bytes(), &record))
	require.Equal(t, map[string]any{
		"pool": "edge", "half": "backend", "kind": "dirty-tail", "op": "release", "mode": "watermark",
		"size": 4096.0, "mark": 100.0, "first": 200.0, "last": 300.0, "count": 7.0, "bits": 9.0, "runs": 2.0, "longest_run": 6.0, "stable": true, "guard": true,
		"run_list": []any{map[string]any{"offset": 200.0, "length": 6.0}, map[string]any{"offset": 300.0, "length": 1.0}},
		"hints":    []any{"look there"}, "trail": []any{map[string]any{"op": "alloc", "position": 50.0, "mark": 100.0}},
		"kernel": "portable", "build": "example.com/x@v1 go1.26", "stack": "f f.go:1 < g g.go:2",
	}, record.Violation)
}

func TestViolationAsJSON(t *testing.T) {
	text, err := json.Marshal(&sampleViolation)
	require.NoError(t, err)
	require.JSONEq(t, `{"time":"2026-01-02T03:04:05Z","pool":"edge","half":"backend","kind":"dirty-tail","op":"release","mode":"watermark",
		"size":4096,"mark":100,"first":200,"last":300,"count":7,"bits":9,"runs":2,"longest_run":6,"run_list":[{"offset":200,"length":6},{"offset":300,"length":1}],"stable":true,"guard":true,
		"hints":["look there"],"trail":[{"op":"alloc","position":50,"mark":100}],
		"kernel":"portable","build":"example.com/x@v1 go1.26","stack":["f f.go:1","g g.go:2"]}`, string(text))
	var back Violation
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, sampleViolation, back)
	require.ErrorIs(t, json.Unmarshal([]byte(`{"kind":"harmless"}`), &back), ErrConfig)
}

//go:noinline
func callersOuter(secret string) []string { return callersInner(secret + "!") }

//go:noinline
func callersInner(secret string) []string {
	if secret == "" {
		return nil
	}
	return callers(0)
}

// The stack names functions and lines, and no argument: those may hold what a
// request was about.
func TestCallersNameNoArguments(t *testing.T) {
	const secret = "s3cret-argument"
	got := callersOuter(secret)
	require.Greater(t, len(got), 2)
	for i, want := range []string{`callersInner`, `callersOuter`, `TestCallersNameNoArguments`} {
		require.Regexp(t, `^[^ ()]+/workspace\.`+want+` verify_test\.go:\d+$`, got[i])
	}
	require.NotContains(t, strings.Join(got, " "), secret)
	require.NotContains(t, strings.Join(got, " "), "0x")

	skipped := func() []string { return callers(1) }()
	require.Contains(t, skipped[0], "TestCallersNameNoArguments ", "callers(1) leaves its caller out")
}

func TestCallersOfADeepStack(t *testing.T) {
	var deep func(n int) []string
	deep = func(n int) []string {
		if n > 0 {
			return deep(n - 1)
		}
		return callers(0)
	}
	got := deep(500)
	require.NotEmpty(t, got)
	require.LessOrEqual(t, len(got), 100, "a report stays short")
}

func TestBuildNameHasTheGoVersion(t *testing.T) {
	require.Contains(t, buildName(), runtime.Version())
	require.NotContains(t, buildName(), "\n")
	require.NotContains(t, buildName(), "unknown")
	require.NotContains(t, buildName(), "GOARCH", "of the settings only the revision")
}

func TestEnumNames(t *testing.T) {
	type enum interface {
		fmt.Stringer
		MarshalText() ([]byte, error)
	}
	for _, c := range []struct {
		kind  string
		value func(i uint8) enum
		names []string
	}{
		{"half", func(i uint8) enum { return Half(i) }, []string{"client", "backend"}},
		{"mode", func(i uint8) enum { return Mode(i) }, []string{"shadow", "watermark", "fullclear"}},
		{"op", func(i uint8) enum { return Op(i) }, []string{"acquire", "alloc", "reserve", "commit", "abort", "snapshot", "rewind", "reset", "release", "forced"}},
		{"kind", func(i uint8) enum { return Kind(i) }, []string{"dirty-tail", "guard-damaged", "bad-accounting", "open-reservation", "poison-damaged"}},
		{"memory", func(i uint8) enum { return Memory(i) }, []string{"heap", "mapped"}},
		{"debug", func(i uint8) enum { return Debug(i) }, []string{"off", "poison", "fence"}},
	} {
		for i := range 256 {
			v := c.value(uint8(i))
			want := fmt.Sprintf("%s(%d)", c.kind, i)
			if i < len(c.names) {
				want = c.names[i]
			}
			require.Equal(t, want, v.String())
			text, err := v.MarshalText()
			if i >= len(c.names) {
				require.ErrorIs(t, err, ErrConfig, "it can be read back, so a bad one is not written")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, want, string(text))
		}
	}
	// Each constant has its name: the last of each kind is the last name.
	require.Equal(t, "backend", Backend.String())
	require.Equal(t, "fullclear", FullClear.String())
	require.Equal(t, "forced", OpForced.String())
	require.Equal(t, "poison-damaged", PoisonDamaged.String())
	require.Equal(t, "mapped", Mapped.String())
	require.Equal(t, "fence", Fence.String())
}

func TestMemoryAndDebugFromText(t *testing.T) {
	var m Memory
	require.NoError(t, m.UnmarshalText([]byte("Mapped")))
	require.Equal(t, Mapped, m)
	err := m.UnmarshalText([]byte("map"))
	require.ErrorIs(t, err, ErrConfig)
	require.ErrorContains(t, err, `memory "map" is none of heap, mapped`)
	require.Equal(t, Mapped, m, "left as it was")
	var d Debug
	require.NoError(t, d.UnmarshalText([]byte("FENCE")))
	require.Equal(t, Fence, d)
	require.ErrorContains(t, d.UnmarshalText([]byte("on")), `debug "on" is none of off, poison, fence`)
}

func TestModeFromText(t *testing.T) {
	for _, m := range allModes {
		for _, text := range []string{m.String(), strings.ToUpper(m.String()), strings.ToUpper(m.String()[:1]) + m.String()[1:]} {
			got := numModes
			require.NoError(t, got.UnmarshalText([]byte(text)))
			require.Equal(t, m, got)
		}
	}
	for _, text := range []string{"", "off", "shadow ", "0", "full-clear", "mode(1)"} {
		got := FullClear
		require.ErrorIs(t, got.UnmarshalText([]byte(text)), ErrConfig)
		require.ErrorContains(t, got.UnmarshalText([]byte(text)), fmt.Sprintf("%q", text))
		require.Equal(t, FullClear, got, "unchanged")
	}
}
