package workspace

import (
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An eventLog collects the events of a pool.
type eventLog struct {
	mu   sync.Mutex
	list []Event
}

func (l *eventLog) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, e)
}

// take returns the next n events, sorted by kind, and forgets them.
func (l *eventLog) take(t *testing.T, n int) []Event {
	var got []Event
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.list) < n {
			return false
		}
		got, l.list = l.list, nil
		return true
	}, 5*time.Second, time.Millisecond)
	require.Len(t, got, n)
	slices.SortFunc(got, func(a, b Event) int { return int(a.Kind) - int(b.Kind) })
	for i := range got {
		require.WithinDuration(t, time.Now(), got[i].Time, time.Minute)
		got[i].Time = time.Time{}
	}
	return got
}

func plantViolation(p *Pool) {
	ws := p.Acquire()
	ws.Client().mem()[ws.Client().Size()-1] = 1
	ws.Release()
}

func TestEvents(t *testing.T) {
	var log eventLog
	p := newTestPool(t, Config{Name: "edge", OnEvent: log.add, HostCanary: &HostCanary{BasisPoints: 10_000}})

	require.NoError(t, p.SetMode(Watermark))
	require.Equal(t, []Event{{Pool: "edge", Kind: ModeChanged, From: Shadow, To: Watermark, Cause: "SetMode"}}, log.take(t, 1))
	require.NoError(t, p.SetMode(Watermark))
	require.Error(t, p.SetMode(99))
	require.False(t, p.Rearm("nothing to do"))

	plantViolation(p.Pool)
	got := log.take(t, 3)
	v := got[2].Violation
	require.Equal(t, []Event{
		{Pool: "edge", Kind: ModeChanged, From: Watermark, To: Shadow, Cause: "violation"},
		{Pool: "edge", Kind: BreakerTripped, From: Watermark, To: Shadow, Cause: "dirty-tail"},
		{Pool: "edge", Kind: ViolationFound, From: Shadow, To: Shadow, Cause: "dirty-tail", Violation: v},
	}, got)
	require.Equal(t, p.violations(1)[0], v)

	plantViolation(p.Pool)
	require.Equal(t, ViolationFound, log.take(t, 1)[0].Kind, "it trips once")

	require.True(t, p.Rearm("was a planted byte"))
	require.Equal(t, []Event{
		{Pool: "edge", Kind: ModeChanged, From: Shadow, To: Watermark, Cause: "rearmed: was a planted byte"},
		{Pool: "edge", Kind: BreakerRearmed, From: Shadow, To: Watermark, Cause: "was a planted byte"},
	}, log.take(t, 2))

	require.NoError(t, p.SetHostCanary(&HostCanary{}))
	require.Equal(t, []Event{{Pool: "edge", Kind: ModeChanged, From: Watermark, To: Shadow, Cause: "host canary"}}, log.take(t, 1))
	require.NoError(t, p.SetMode(FullClear))
	require.NoError(t, p.SetMode(Watermark))
	require.Len(t, log.take(t, 2), 2, "to full clear, and to shadow since the host canary bars watermark")
	p.violations(2)
}

func TestEventsReadBack(t *testing.T) {
	e := Event{Time: time.Unix(1e9, 0).UTC(), Pool: "p", Kind: BreakerTripped, From: Watermark, To: Shadow, Cause: "dirty-tail"}
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.JSONEq(t, `{"time":"2001-09-09T01:46:40Z","pool":"p","kind":"breaker-tripped","from":"watermark","to":"shadow","cause":"dirty-tail"}`, string(text))
	var back Event
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, e, back)
	require.ErrorContains(t, new(EventKind).UnmarshalText([]byte("x")), `event "x" is none of mode-changed, breaker-tripped, breaker-rearmed, violation-found`)
	require.Equal(t, "event(9)", EventKind(9).String())
}

// Whoever is told of events may hang or panic: requests end all the same.
func TestEventsThatNobodyTakes(t *testing.T) {
	stop := make(chan struct{})
	p := newTestPool(t, Config{Mode: Watermark, OnEvent: func(Event) { <-stop; panic("told") }})
	p.expectViolations()
	for range 3 * maxReports {
		plantViolation(p.Pool)
	}
	s := p.Stats()
	require.EqualValues(t, 3*maxReports, s.Violations)
	require.Positive(t, s.ReportsDropped)
	require.Equal(t, s.Acquired, s.Abandoned)
	close(stop)
	require.Eventually(t, func() bool { return p.Stats().ReporterPanics > 0 }, 5*time.Second, time.Millisecond)
}
