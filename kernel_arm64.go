//go:build !purego

package workspace

import (
	"strconv"
	"unsafe"
)

// asmName names the assembly that this machine can run: every arm64 has NEON.
func asmName() string {
	if zvaBlock == 0 {
		return "neon"
	}
	return "neon+zva" + strconv.Itoa(int(zvaBlock))
}

// zvaBlock is how many bytes DC ZVA zeroes at a time, or 0 when it is not to be
// used. clear_arm64.s reads it.
var zvaBlock = zvaBlockOf(dczid())

// zvaBlockOf reads a value of DCZID_EL0: bit 4 prohibits the instruction, bits 3
// to 0 are the binary logarithm of the block size in words of four bytes. A
// block smaller than a cache line is not worth it.
func zvaBlockOf(dczid uintptr) uintptr {
	size := uintptr(4) << (dczid & 15)
	if dczid&16 != 0 || size < 64 {
		return 0
	}
	return size
}

// dczid returns the register DCZID_EL0.
func dczid() uintptr

// coldAsm is false: DC ZVA does not read memory first either.
const coldAsm = false

func zeroColdAsm(unsafe.Pointer, uintptr) { panic("workspace: no assembly") }
