//go:build !race

package workspace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const raceEnabled = false

// A late writer at work changes the shape between the two looks.
func TestShapeThatChanges(t *testing.T) {
	half := make([]byte, 1<<20)
	half[len(half)-1] = 1
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				half[i%1000]++ // a data race on purpose
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	require.Eventually(t, func() bool {
		v := &Violation{Kind: DirtyTail, Guard: true}
		v.describe(half, 0, 0)
		return !v.Stable
	}, waitLimit, time.Microsecond)
}
