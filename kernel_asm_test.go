//go:build (amd64 || arm64) && !purego

package workspace

import "unsafe"

func zeroAsmSlice(b []byte) { zeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))) }

func firstNonZeroAsmSlice(b []byte) int {
	return firstNonZeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}
