package workspace

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func noGap() countdown { return countdown{1, true} }

// blockSizes are sizes of halves: the smallest, those whose blocks the runtime
// serves from its size classes, the default, and an odd pair.
var blockSizes = [][2]int{
	{MinHalfSize, MinHalfSize}, {MinHalfSize, 2 * MinHalfSize}, {2 * MinHalfSize, MinHalfSize}, {3 * MinHalfSize, MinHalfSize},
	{3 * MinHalfSize, 3 * MinHalfSize}, {DefaultHalfSize, DefaultHalfSize}, {MinHalfSize, DefaultHalfSize}, {DefaultHalfSize, 5 * MinHalfSize},
}

func TestBlockLayout(t *testing.T) {
	for _, size := range blockSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := newBlock(size[0], size[1], noGap)
			parts := [][]byte{b.half(Client), b.guard(Client), b.half(Backend), b.guard(Backend)}
			lengths := []int{size[0], guardSize, size[1], guardSize}
			next, total := address(b.mem), 0
			for i, part := range parts {
				require.Len(t, part, lengths[i], "part %d", i)
				require.Equal(t, next, address(part), "part %d begins where the one before ends", i)
				next, total = next+uintptr(len(part)), total+len(part)
			}
			require.Len(t, b.mem, total, "and nothing is left over")
			for _, h := range []Half{Client, Backend} {
				require.Equal(t, len(b.half(h)), cap(b.half(h)), "an append must not reach the guard")
				require.Equal(t, -1, firstNonZero(b.half(h)))
				require.True(t, guardIntact(b.guard(h)))
			}
			require.Equal(t, [2]countdown{{1, true}, {1, true}}, b.next)
		})
	}
}

// ortuman/nuke#16.
func TestHalvesAreAligned(t *testing.T) {
	var keep []*block // so that each has an address of its own
	for client := MinHalfSize; client <= 8*MinHalfSize; client += HalfSizeStep {
		for backend := MinHalfSize; backend <= 8*MinHalfSize; backend += HalfSizeStep {
			for range 3 {
				b := newBlock(client, backend, noGap)
				keep = append(keep, b)
				require.Zero(t, address(b.half(Client))%maxAlign, "client half of %d+%d", client, backend)
				require.Zero(t, address(b.half(Backend))%maxAlign, "backend half of %d+%d", client, backend)
			}
		}
	}
	for _, size := range blockSizes {
		b := newBlock(size[0], size[1], noGap)
		require.Zero(t, address(b.half(Client))%maxAlign, "%v", size)
		require.Zero(t, address(b.half(Backend))%maxAlign, "%v", size)
	}
	require.NotEmpty(t, keep)
	require.Zero(t, guardSize%maxAlign)
	require.Zero(t, HalfSizeStep%maxAlign)
}

// What runs over the end of a half hits its guard, so no byte of the guard may
// be what programs write most.
func TestGuardPattern(t *testing.T) {
	p := guardPattern()
	require.Equal(t, p, guardPattern(), "one pattern for the life of the process")
	different := map[byte]bool{}
	for i, c := range p {
		require.NotZero(t, c, "byte %d", i)
		different[c] = true
	}
	require.Greater(t, len(different), guardSize/4, "drawn at random")
}

func TestRestoreGuard(t *testing.T) {
	b := newBlock(MinHalfSize, MinHalfSize, noGap)
	for _, h := range []Half{Client, Backend} {
		clear(b.guard(h))
		require.False(t, guardIntact(b.guard(h)))
		restoreGuard(b.guard(h))
		require.True(t, guardIntact(b.guard(h)))
	}
	require.Equal(t, -1, firstNonZero(b.half(Client)))
	require.Equal(t, -1, firstNonZero(b.half(Backend)), "the halves are untouched")
}

func TestBlockDrawsAGapForEachHalf(t *testing.T) {
	n := 0
	b := newBlock(MinHalfSize, MinHalfSize, func() countdown { n++; return countdown{n * 10, n == 2} })
	require.Equal(t, [2]countdown{{10, false}, {20, true}}, b.next)
}

func TestMemorySettingsThatAreRefused(t *testing.T) {
	type refusal struct {
		cfg  Config
		want string
	}
	refusals := []refusal{
		{Config{Memory: 2}, "Memory is 2, want Heap or Mapped"},
		{Config{Memory: 255}, "Memory is 255, want Heap or Mapped"},
		{Config{Debug: 3}, "Debug is 3, want DebugOff, Poison or Fence"},
		{Config{FenceEvery: -1}, "FenceEvery is -1, want 0 to 1073741824"},
		{Config{FenceEvery: 1<<30 + 1}, "FenceEvery is 1073741825, want 0 to 1073741824"},
		{Config{Quarantine: -1}, "Quarantine is -1, want 0 to 65536"},
		{Config{Quarantine: 65_537}, "Quarantine is 65537, want 0 to 65536"},
		{Config{Lock: true}, "Lock needs Memory Mapped, but Memory is heap"},
		{Config{Lock: true, Debug: Fence}, "Lock needs Memory Mapped, but Memory is heap"},
		{Config{HugePages: true}, "HugePages needs Memory Mapped, but Memory is heap"},
	}
	if !hugePages {
		refusals = append(refusals, refusal{Config{Memory: Mapped, HugePages: true}, "HugePages is set: " + errNoHugePages.Error()})
	}
	if !canMap {
		refusals = append(refusals,
			refusal{Config{Memory: Mapped}, "Memory is mapped, Debug is off, FenceEvery is 0: " + errNoMapping.Error()},
			refusal{Config{Debug: Fence}, "Memory is heap, Debug is fence, FenceEvery is 0: " + errNoMapping.Error()},
			refusal{Config{FenceEvery: 7}, "Memory is heap, Debug is off, FenceEvery is 7: " + errNoMapping.Error()})
	}
	for _, r := range refusals {
		_, err := NewPool(r.cfg)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, r.want)
	}
	accepted := []Config{{Quarantine: 65_536}, {Debug: Poison}}
	if canMap {
		accepted = append(accepted, Config{Memory: Mapped, HugePages: hugePages}, Config{Debug: Fence, Memory: Mapped}, Config{FenceEvery: 1 << 30})
	}
	for _, cfg := range accepted {
		p, err := NewPool(cfg)
		require.NoError(t, err)
		p.Close()
	}
}
