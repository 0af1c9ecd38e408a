//go:build (amd64 || arm64) && !purego

package workspace

import "unsafe"

// zeroAsmSlice leaves what is too short for the assembly to clear.
func zeroAsmSlice(b []byte) {
	if len(b) < asmMinZero {
		clear(b)
		return
	}
	zeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

func firstNonZeroAsmSlice(b []byte) int {
	return firstNonZeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}
