package workspace

import (
	"bytes"
	"go/format"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each length at each start: exactly the range becomes zero, not a byte more
// and none less. apache/arrow-go#150, nanovms/nanos#2126.
func TestZeroAtEachLengthAndOffset(t *testing.T) {
	const lengths, offsets = 300, 128
	full := bytes.Repeat([]byte{0xa5}, lengths+2*offsets)
	buf, zeros := bytes.Clone(full), make([]byte, lengths)
	for off := 0; off < offsets; off += scaled(1, 3) {
		for n := 0; n <= lengths; n++ {
			copy(buf, full)
			zero(buf[off : off+n])
			requireZeroed(t, buf, full, zeros, off, n)
		}
	}
}

// requireZeroed checks that of buf, a copy of full before, just n bytes at off are zero.
func requireZeroed(t *testing.T, buf, full, zeros []byte, off, n int) {
	t.Helper()
	if !bytes.Equal(buf[:off], full[:off]) || !bytes.Equal(buf[off+n:], full[off+n:]) {
		require.Failf(t, "a neighbour was changed", "offset %d length %d", off, n)
	}
	if !bytes.Equal(buf[off:off+n], zeros[:n]) {
		require.Failf(t, "not all zero", "offset %d length %d", off, n)
	}
}

// Long ranges go in pieces. No byte may fall between two of them.
func TestZeroAroundPieceBoundaries(t *testing.T) {
	const most = 4*wipeStep + 200
	full := bytes.Repeat([]byte{0xa5}, most)
	buf, zeros := bytes.Clone(full), make([]byte, most)
	for _, steps := range []int{1, 2, 3, 4} {
		for _, more := range []int{-65, -64, -9, -8, -1, 0, 1, 7, 8, 63, 64, 65} {
			for _, off := range []int{0, 1, 63, 64, 127} {
				n := steps*wipeStep + more
				copy(buf, full)
				zero(buf[off : off+n])
				requireZeroed(t, buf, full, zeros, off, n)
			}
		}
	}
	require.NotPanics(t, func() { zero(nil); zero([]byte{}) })
}

// A wipe must not keep the capacity beyond the length.
func TestZeroStopsAtTheLength(t *testing.T) {
	b := []byte{1, 2, 3, 4}
	zero(b[:2])
	require.Equal(t, []byte{0, 0, 3, 4}, b)
}

// A clear cannot be interrupted, so a long one would hold up the whole process:
// whoever stops the world waits for it (golang/go#69327, #35825). zero calls
// zeroPiece again and again, at whose entry a goroutine can be stopped. So a
// dump of all stacks, which stops the world, sooner or later shows it there.
func TestZeroCanBeInterrupted(t *testing.T) {
	big := make([]byte, MaxHalfSize)
	require.Greater(t, len(big), 8*wipeStep)
	quit, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-quit:
				return
			default:
				zero(big)
			}
		}
	}()
	defer func() { close(quit); <-stopped }()
	dump := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		return bytes.Contains(dump[:runtime.Stack(dump, true)], []byte("workspace.zeroPiece("))
	}, waitLimit, pollEvery, "a wipe of %d bytes was never stopped between two pieces", len(big))
	runtime.GC() // a collection beside running wipes comes to its end
}

// Advice by which the kernel may take pages back some day is no way to wipe: until
// it does, the old bytes are there to be read. Nor is the size of the process
// what to judge a pool by; Stats counts blocks (golang/go#28466, golang/go#33376,
// m3db/m3#2037).
func TestNoAdviceCountsAsAWipe(t *testing.T) {
	advice := regexp.MustCompile(`(?i)madv_|DiscardVirtualMemory|MEM_RESET|FreeOSMemory`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.Contains(t, files, "kernel.go", "the sources must be here")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0) // comments may speak of it
		require.NoError(t, err)
		var code strings.Builder
		require.NoError(t, format.Node(&code, token.NewFileSet(), file))
		if name == "mapped_linux.go" {
			require.Equal(t, []string{"MADV_"}, advice.FindAllString(code.String(), -1))
			require.Contains(t, code.String(), "unix.MADV_HUGEPAGE", "which wipes nothing")
			continue
		}
		require.NotRegexp(t, advice, code.String(), name)
	}
}
