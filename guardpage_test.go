//go:build unix

package workspace

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// between returns n bytes, rounded up to whole pages, with a page before and one
// behind that can be neither read nor written: whoever strays there dies.
func between(t *testing.T, n int) []byte {
	page := unix.Getpagesize()
	n = (n + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	inner := mem[page : page+n : page+n]
	require.NoError(t, unix.Mprotect(inner, unix.PROT_READ|unix.PROT_WRITE))
	return inner
}

// flush returns the ranges of n bytes that begin where mem begins and that end
// where it ends.
func flush(mem []byte, n int) [][]byte {
	return [][]byte{mem[:n:n], mem[len(mem)-n:]}
}

func guardLengths() []int {
	return append(lengths(4160, scaled(1, 3)), aroundThresholds()...)
}

func TestKernelZeroBetweenGuardPages(t *testing.T) {
	eachImplementation(t, func(t *testing.T, k implementation) {
		mem := between(t, 513<<10)
		for i := range mem {
			mem[i] = 0xa5
		}
		for _, n := range guardLengths() {
			for _, b := range flush(mem, n) {
				k.zero(b)
				if i := slowFirst(b); i >= 0 {
					require.Failf(t, "not zero", "byte %d of %d", i, n)
				}
				for i := range b {
					b[i] = 0xa5
				}
			}
		}
		require.Equal(t, 0, slowFirst(mem))
		for i, c := range mem {
			if c != 0xa5 {
				require.Failf(t, "changed", "byte %d of %d", i, len(mem))
			}
		}
	})
}

func TestKernelSearchBetweenGuardPages(t *testing.T) {
	eachImplementation(t, func(t *testing.T, k implementation) {
		mem := between(t, 513<<10)
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range guardLengths() {
			for side, b := range flush(mem, n) {
				context := fmt.Sprintf("side %d", side)
				k.requireFirst(t, -1, b, context)
				if n == 0 {
					continue
				}
				for _, i := range []int{n - 1, r.IntN(n), max(0, n-1-r.IntN(64)), 0} {
					b[i] = 1
					k.requireFirst(t, i, b, context)
					b[i] = 0
				}
			}
		}
	})
}

// A whole mapping of halves as a pool has them, from edge to edge.
func TestKernelsOnWholePages(t *testing.T) {
	eachImplementation(t, func(t *testing.T, k implementation) {
		for _, n := range []int{unix.Getpagesize(), 64 << 10, 256 << 10, 512 << 10} {
			mem := between(t, n)
			for i := range mem {
				mem[i] = 0xff
			}
			k.zero(mem)
			k.requireFirst(t, -1, mem, "from edge to edge")
			mem[len(mem)-1] = 1
			k.requireFirst(t, len(mem)-1, mem, "the last one")
		}
	})
}

// A search whose byte is wiped meanwhile must still end, inside the range. The
// kernels look twice, so the byte can be gone the second time.
func TestKernelSearchBesideAWriter(t *testing.T) {
	if raceEnabled {
		t.Skip("the race is what this test is about")
	}
	eachImplementation(t, func(t *testing.T, k implementation) {
		mem := between(t, 64<<10)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				for range 1000 {
					mem[40_000], mem[len(mem)-1] = 1, 1
					mem[40_000], mem[len(mem)-1] = 0, 0
				}
			}
		}()
		for range scaled(20_000, 2000) {
			switch i := k.firstNonZero(mem); i {
			case -1, 40_000, len(mem) - 1:
			default:
				require.Failf(t, "wrong offset", "%d", i)
			}
		}
		close(stop)
		<-stopped
	})
}
