//go:build !race

package workspace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Without the race detector the announcements are nothing: they cost no call and
// touch no memory.
func TestRaceHooksAreNothing(t *testing.T) {
	b := []byte{1, 2, 3}
	require.Zero(t, testing.AllocsPerRun(10, func() { raceWrite(b); raceRead(b); raceWrite(nil); raceRead(nil) }))
	require.Equal(t, []byte{1, 2, 3}, b)
}
