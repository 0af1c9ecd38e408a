//go:build !purego

package workspace

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// asmName names the assembly that this machine can run; it is empty when there
// is none. GODEBUG=cpu.avx2=off makes it so.
func asmName() string {
	if cpu.X86.HasAVX2 {
		return "avx2"
	}
	return ""
}

// coldAsm says that there is a zeroColdAsm.
const coldAsm = true

// zeroColdAsm zeroes the n bytes at p, and nothing else, round the caches. n must
// be asmMinZero or more.
//
//go:noescape
func zeroColdAsm(p unsafe.Pointer, n uintptr)

// coldEntry is like kernelEntries, for zeroColdAsm.
func coldEntry() uintptr
