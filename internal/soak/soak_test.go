package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-workspace/workspace"
)

// soakFor runs the program and returns its status, its summary and its progress.
func soakFor(t *testing.T, args ...string) (status int, r summary, stderr string) {
	t.Helper()
	var out, progress bytes.Buffer
	status = run(t.Context(), append(args, "-json"), &out, &progress)
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), "%s\n%s", out.String(), progress.String())
	return status, r, progress.String()
}

func TestSoak(t *testing.T) {
	status, r, stderr := soakFor(t, "-for", "2s", "-clients", "8", "-seed", "1")
	require.Equal(t, exitOK, status, stderr)
	require.True(t, r.Passed)
	require.NotZero(t, r.Answers1)
	require.NotZero(t, r.Answers2)
	require.NotZero(t, r.Audits)
	require.NotZero(t, r.Checked)
	require.NotZero(t, r.Expected, "reservations left open")
	require.Len(t, r.Routes, int(numRoutes), "each route")
	require.GreaterOrEqual(t, len(r.Troubles), int(numTroubles)-2, "most kinds of trouble: %v", r.Troubles)
	require.NotZero(t, r.Events["late uses refused"])
	require.Equal(t, r.Acquired, r.Released+r.Abandoned)
	require.LessOrEqual(t, r.GoroutinesAfter, r.GoroutinesBefore)
	require.Contains(t, stderr, "requests (HTTP/1.1 ")
}

func TestSoakFindsWhatIsPlanted(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"-plant", "foreign bytes|dirty-tail"},                                  // by whichever looks first
		{"-plant=late -audit -1 -mode shadow", "foreign bytes|found at forced"}, // without sampled audits
		{"-plant=answer", "they differ at byte|not as it must be|differs"},      // in a whole answer, or a part of one
	} {
		t.Run(tt.args, func(t *testing.T) {
			status, r, stderr := soakFor(t, append(strings.Fields(tt.args), "-for", "5s", "-clients", "8")...)
			require.Equal(t, exitFailed, status, stderr)
			require.False(t, r.Passed)
			require.NotZero(t, r.Events["planted faults"])
			require.Regexp(t, tt.want, strings.Join(r.Listed, "\n"))
			require.Contains(t, stderr, "FAULT after ")
		})
	}
}

// An interrupt ends a soak in peace.
func TestSoakEndsEarly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	var out bytes.Buffer
	require.Equal(t, exitOK, run(ctx, []string{"-for", "1h", "-clients", "2"}, &out, io.Discard), "%s", &out)
	require.Less(t, time.Since(start), 30*time.Second)
	require.Contains(t, out.String(), "PASSED")
	require.Contains(t, out.String(), " + 0 in use")
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"-for 0s", "-for is 0s"},
		{"-for x", "invalid value"},
		{"-clients 0", "-clients is 0"},
		{"-mode fast", "none of shadow, watermark, fullclear"},
		{"-plant=x", "want late or answer"},
		{"-audit 99999999", "AuditEvery"},
		{"30m", "there are only flags"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), strings.Fields(tt.args), io.Discard, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.want)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "said once: %s", &stderr)
	}
	var stderr bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"-h"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "go run ./internal/soak -for 30m")

	o, err := parse([]string{"-mode", "Watermark", "-plant", "-for", "10s", "-fuzz"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, workspace.Watermark, o.mode.start())
	require.False(t, o.mode.mixed())
	require.Equal(t, plantLate, o.plant)
	require.Equal(t, 5*time.Second, o.soakTime())
	require.Equal(t, 5*time.Second, o.fuzzTime())
	require.NotZero(t, o.seed)
}

// The checks, on memory that is known to be bad. A check that can't fail proves nothing.
func TestChecksFindEachByte(t *testing.T) {
	own, other := newTag(1), newTag(2)
	for n := range 70 {
		good := own.make(0, n)
		require.True(t, own.fills(good))
		for i := range n {
			f := &findings{stderr: io.Discard, stop: func() {}}
			v := &visit{s: &server{log: f}, tag: own}
			v.wantWritten("", "", good)
			v.wantOwn("", "", good)
			v.wantZero("", "", make([]byte, n))
			require.Zero(t, f.faults())

			bad := bytes.Clone(good)
			bad[i] ^= 1
			v.wantWritten("", "", bad)
			require.EqualValues(t, 1, f.foreign.Load(), "byte %d of %d", i, n)
			v.wantOwn("", "", bad)
			require.EqualValues(t, 2, f.foreign.Load(), "byte %d of %d", i, n)
			one := make([]byte, n)
			one[i] = bad[i]
			v.wantZero("", "", one)
			require.EqualValues(t, 3, f.foreign.Load(), "byte %d of %d", i, n)
			one[i] = good[i]
			v.wantZero("", "", one)
			require.EqualValues(t, 1, f.stale.Load(), "an own byte is no zero either")
			bad[i] = 0
			v.wantWritten("", "", bad)
			require.EqualValues(t, 2, f.stale.Load(), "a zero is not what was written")
			require.Equal(t, 5, f.faults())
		}
	}
	mixed := append(own.make(0, 20), other[:]...)
	require.Equal(t, other.String(), own.owner(mixed))
	require.Empty(t, other.owner(other.make(3, 40)))
	n, first := own.foreign(mixed)
	require.NotZero(t, n)
	require.GreaterOrEqual(t, first, 20)
}

func TestTags(t *testing.T) {
	seen := map[tag]bool{}
	for n := range uint64(10_000) {
		g := newTag(n)
		require.False(t, seen[g], "tag %d", n)
		seen[g] = true
		require.NotContains(t, string(g[:]), "\x00")
		back, err := parseTag(g.String())
		require.NoError(t, err)
		require.Equal(t, g, back)
	}
	for _, s := range []string{"", "12", "00000000000000g", "0000000000000000"} {
		_, err := parseTag(s)
		require.Error(t, err, "%q", s)
	}
}

// Each difference between the pool's counters and the ledger is a fault.
func TestSettleComparesEachCounter(t *testing.T) {
	for name, change := range map[string]func(*ledger){
		"acquired":               func(l *ledger) { l.taken.Add(1) },
		"a handler that may run": func(l *ledger) { l.running.Add(-1) },
		"panic":                  func(l *ledger) { l.panicked.Add(1) },
		"upgrade":                func(l *ledger) { l.upgraded.Add(1) },
		"by Abandon":             func(l *ledger) { l.abandoned.Add(1) },
		"an open reservation":    func(l *ledger) { l.opened.Add(1) },
		"violations":             func(l *ledger) { l.openHalves.Add(1) },
		"second releases":        func(l *ledger) { l.doubles.Add(1) },
	} {
		f := &findings{stderr: io.Discard, stop: func() {}}
		s, err := newServer(options{clients: 1}, f)
		require.NoError(t, err)
		s.settle()
		require.Zero(t, f.faults())
		change(&s.ledger)
		s.settle()
		require.Contains(t, strings.Join(f.listed, "\n"), name)
	}
}

func TestJudgeFindsBadReplies(t *testing.T) {
	own, other := newTag(1), newTag(2)
	right := func(n int) []byte { return own.make(0, n) }
	spoilt := right(100)
	spoilt[99] = own[4] // own, at the wrong place
	gone := errors.New("gone")
	for _, tt := range []struct {
		name        string
		call        call
		got         reply
		wrong, lost int64
	}{
		{"right", call{answer: 100}, reply{200, right(100), nil}, 0, 0},
		{"short", call{answer: 100}, reply{200, right(99), nil}, 1, 0},
		{"long", call{answer: 100}, reply{200, right(101), nil}, 1, 0},
		{"one byte", call{answer: 100}, reply{200, spoilt, nil}, 1, 0},
		{"foreign", call{answer: 100}, reply{200, other.make(0, 100), nil}, 1, 0},
		{"status", call{answer: 100}, reply{500, right(100), nil}, 1, 0},
		{"none", call{answer: 100}, reply{err: gone}, 0, 1},
		{"no upgrade", call{answer: 100, trouble: upgrade}, reply{200, right(100), nil}, 1, 0},
		{"upgrade", call{answer: 100, trouble: upgrade}, reply{101, right(100), nil}, 0, 0},
		{"panic, answered", call{answer: 100, trouble: panicAbort}, reply{200, right(100), nil}, 1, 0},
		{"panic", call{answer: 100, trouble: panicAbort}, reply{err: gone}, 0, 0},
		{"panic, a wrong part", call{answer: 100, trouble: goexit}, reply{200, spoilt, gone}, 1, 0},
		{"part", call{answer: 100, trouble: cancelRead, part: 0.5}, reply{200, right(50), nil}, 0, 0},
		{"wrong part", call{answer: 100, trouble: cancelRead, part: 0.5}, reply{200, spoilt[50:], nil}, 1, 0},
		{"half a body taken for whole", call{answer: 100, trouble: cancelUpload}, reply{200, right(100), nil}, 1, 0},
		{"half a body", call{answer: 100, trouble: cancelUpload}, reply{400, []byte("no body: unexpected EOF\n"), nil}, 0, 0},
		{"cancelled too late", call{answer: 100, trouble: cancelWait}, reply{200, right(100), nil}, 0, 0},
		{"cancelled, wrong", call{answer: 100, trouble: cancelWait}, reply{200, spoilt, nil}, 1, 0},
		{"late", call{answer: 100, route: timeoutFunc}, reply{503, []byte(lateAnswer), nil}, 0, 0},
		{"late, but where?", call{answer: 100}, reply{503, []byte(lateAnswer), nil}, 1, 0},
		{"late, and wrong", call{answer: 100, route: timeoutFunc}, reply{503, right(8), nil}, 1, 0},
	} {
		f := &findings{stderr: io.Discard, stop: func() {}}
		l := newLoad(&server{log: f})
		tt.call.tag = own
		l.judge(&tt.call, tt.got)
		require.Equal(t, []int64{tt.wrong, tt.lost}, []int64{l.wrong.Load(), l.lost.Load()}, "%s: %v", tt.name, f.listed)
		require.EqualValues(t, tt.wrong+tt.lost, f.faults(), tt.name)
	}
}

// The fuzz targets get equal shares of the time, and what they find is a fault.
func TestFuzzShares(t *testing.T) {
	for _, broken := range []error{nil, errors.New("exit status 1")} {
		var ran []string
		tool := func(_ context.Context, dir string, stdout, _ io.Writer, args ...string) error {
			if args[0] == "list" {
				io.WriteString(stdout, "there\n")
				return nil
			}
			require.Equal(t, "there", dir)
			if args[1] == "-list" {
				io.WriteString(stdout, "FuzzOne\nFuzzTwo\nok  \tx\t0.01s\n")
				return nil
			}
			ran = append(ran, strings.Join(args, " "))
			return broken
		}
		f := &findings{stderr: io.Discard, stop: func() {}}
		k := &soak{opt: options{duration: 40 * time.Second, fuzz: true}, log: f}
		require.Len(t, k.fuzz(t.Context(), tool), 2)
		require.Equal(t, []string{
			"test -run ^$ -fuzz ^FuzzOne$ -fuzztime 10s",
			"test -run ^$ -fuzz ^FuzzTwo$ -fuzztime 10s",
		}, ran)
		require.Equal(t, broken != nil, f.faults() == 2)
	}
	f := &findings{stderr: io.Discard, stop: func() {}}
	k := &soak{opt: options{duration: time.Second, fuzz: true}, log: f}
	k.fuzz(t.Context(), func(context.Context, string, io.Writer, io.Writer, ...string) error { return nil })
	require.Equal(t, 1, f.faults(), "no targets at all")
}

// A body that the server holds to be too long would be a fault of the soak's own.
func TestBodiesAreNoLongerThanTheServerTakes(t *testing.T) {
	l := &load{}
	rng := rand.New(rand.NewPCG(1, 2))
	longest := 0
	for i := range 2_000_000 {
		c := l.draw(rng, i%2)
		longest = max(longest, c.body, c.answer)
		if c.trouble == cancelUpload || c.trouble == cancelRead {
			require.GreaterOrEqual(t, min(c.body, c.answer), 100)
		}
	}
	require.LessOrEqual(t, longest, bodyMost)
	require.Greater(t, longest, bodyMost-100, "and the longest of them are drawn")
}
