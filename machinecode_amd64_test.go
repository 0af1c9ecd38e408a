//go:build !purego

package workspace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The cold wipe is worth its place only if its stores go round the caches, and is
// safe only with the fence that orders them.
func TestMachineCodeOfTheColdWipe(t *testing.T) {
	code := codeOf(t, coldEntry(), "zeroColdAsm")
	require.Equal(t, 4, countCode(t, code, `c5.[5d]e7`), "non-temporal 32-byte stores")
	require.Equal(t, 1, countCode(t, code, `0faef8`), "SFENCE")
	require.Equal(t, 1, countCode(t, code, `c5f877`), "VZEROUPPER")
	require.Zero(t, countCode(t, code, `f3(4.)?a[ab]|0f01fc`), "REP STOS, CLZERO")
}
