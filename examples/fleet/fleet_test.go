package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rule that is not found is a rule that runs at the pace of days.
func TestHastenedRules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", "rules.yml"))
	require.NoError(t, err)
	rules := string(text)
	for _, old := range []string{"[1d]", "[1h]", "[5m]", "interval: 30s", "interval: 1m", "[1d])) * 30", strictBound, "keep_firing_for: 1h"} {
		require.Contains(t, rules, old)
	}
	fast := hastenRules(rules)
	require.NotRegexp(t, `\[\d+[dhm]\]|\* 30\b|interval: (30s|1m)`, fast)
	require.Contains(t, fast, demoBound)
	require.Equal(t, strings.Count(rules, "\n"), strings.Count(fast, "\n"))
}

func TestTheFaultStandsInTheLibrary(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", faultFile))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), faultOld))
}

func TestWrongAnswersAreSeen(t *testing.T) {
	var l load
	_, want := request()
	l.judge(want, want, nil)
	require.Zero(t, l.wrong.Load())
	l.judge(want+"x", want, nil)
	l.judge("y", want, nil)
	require.EqualValues(t, 2, l.wrong.Load())
	require.Contains(t, l.first, "want")
}

func TestFlags(t *testing.T) {
	require.NoError(t, check(12, 40, 16, nil))
	for _, c := range []struct {
		hosts, rate, every int
		rest               []string
		want               string
	}{
		{3, 40, 16, nil, "-hosts is 3, want 4 to 64"},
		{65, 40, 16, nil, "-hosts is 65, want 4 to 64"},
		{12, 0, 16, nil, "-rate is 0, want 1 to 1000"},
		{12, 1001, 16, nil, "-rate is 1001, want 1 to 1000"},
		{12, 40, 0, nil, "-every is 0, want 1 to 16777216"},
		{12, 40, 1<<24 + 1, nil, "-every is 16777217, want 1 to 16777216"},
		{12, 40, 16, []string{"now"}, `unexpected argument "now"`},
	} {
		require.EqualError(t, check(c.hosts, c.rate, c.every, c.rest), c.want)
	}
}
