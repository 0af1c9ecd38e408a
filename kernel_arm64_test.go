//go:build !purego

package workspace

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// moreImplementations adds the assembly without DC ZVA, and what the block size
// of this processor is called.
func moreImplementations() []implementation {
	return []implementation{{"assembly, no DC ZVA", func(b []byte) {
		defer forceZVA(0)()
		zeroAsmSlice(b)
	}, firstNonZeroAsmSlice, asmMinRead}}
}

// forceZVA sets the block size until the function that it returns is called.
func forceZVA(size uintptr) (restore func()) {
	was := zvaBlock
	zvaBlock = size
	return func() { zvaBlock = was }
}

func TestZVABlock(t *testing.T) {
	for _, c := range []struct{ dczid, want uintptr }{
		{4, 64}, {6, 256}, {7, 512}, {9, 2048},
		{0, 0}, {3, 0}, // smaller than a line
		{16 | 4, 0}, {16, 0}, // prohibited
		{1<<32 | 4, 64}, // reserved bits
	} {
		require.Equal(t, c.want, zvaBlockOf(c.dczid), "DCZID_EL0 %#x", c.dczid)
	}
}

func TestZVAName(t *testing.T) {
	for size, want := range map[uintptr]string{0: "neon", 64: "neon+zva64", 256: "neon+zva256", 512: "neon+zva512"} {
		restore := forceZVA(size)
		require.Equal(t, want, asmName())
		restore()
	}
}

// The processor decides how much DC ZVA zeroes. If that were more or less than we
// think, the self-test has to see it. The forced size must not be smaller than the
// real one without the room around it: the instruction would zero what is there.
func TestSelfTestSeesAWrongZVABlock(t *testing.T) {
	real := zvaBlockOf(dczid())
	if real == 0 {
		t.Skip("DC ZVA is prohibited here")
	}
	for _, forced := range []uintptr{64, 256, 512, 2048} {
		restore := forceZVA(forced)
		var err error
		if forced >= real {
			err = compareKernels(zero, firstNonZero)
		} else {
			err = compareInOneBlock()
		}
		restore()
		if forced == real {
			require.NoError(t, err)
		} else {
			require.Error(t, err, "forced %d, real %d", forced, real)
		}
	}
}

// compareInOneBlock zeroes a part of a range that has 4 KB of room on both sides
// and reports whether something outside that part was changed.
func compareInOneBlock() error {
	mem := make([]byte, 16<<10)
	fillBytes(mem)
	at := 4096 - int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%4096) + 4096 + 64
	zeroAsmSlice(mem[at : at+1024+64])
	for i, c := range mem {
		if inside := i >= at && i < at+1024+64; inside != (c == 0) {
			return errors.New("the blocks have another size")
		}
	}
	return nil
}

func fillBytes(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

// Every length and offset with each block size would need several processors; what
// does not depend on one is the arithmetic around the blocks, which
// TestKernelZeroAtEachLengthAndOffset runs with the block size of this processor.
func TestZVAIsUsedFromTwoBlocksOn(t *testing.T) {
	if zvaBlock == 0 {
		t.Skip("DC ZVA is prohibited here")
	}
	full := make([]byte, 16<<10)
	fillBytes(full)
	buf, zeros := make([]byte, len(full)), make([]byte, len(full))
	for n := 2*int(zvaBlock) - 130; n < 4*int(zvaBlock)+130; n++ {
		for _, off := range []int{0, 1, 15, 16, 48, 63, 64, int(zvaBlock) - 1, int(zvaBlock)} {
			if n < 0 {
				continue
			}
			off += 2048
			copy(buf, full)
			zeroAsmSlice(buf[off : off+n])
			requireZeroed(t, buf, full, zeros, off, n)
		}
	}
}
