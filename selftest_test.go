package workspace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPoolSelfTest(t *testing.T) {
	for _, sizes := range [][2]int{{0, 0}, {MinHalfSize, 2 * MinHalfSize}, {1 << 20, MinHalfSize}} {
		p, err := NewPool(Config{
			ClientSize: sizes[0], BackendSize: sizes[1], AuditEvery: -1,
			OnViolation: func(v *Violation) { t.Error("the pool itself was told of", v) },
		})
		require.NoError(t, err)
		before := p.Stats()
		require.NoError(t, p.SelfTest(), "%v", sizes)
		require.Equal(t, before, p.Stats(), "the pool itself has no part in it")
	}
}

func TestPoolSelfTestOfAClosedPool(t *testing.T) {
	p, err := NewPool(Config{MaxLive: 1})
	require.NoError(t, err)
	p.Close()
	require.NoError(t, p.SelfTest())
	require.Panics(t, func() { new(Pool).SelfTest() })
}
