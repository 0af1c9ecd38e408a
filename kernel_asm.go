//go:build (amd64 || arm64) && !purego

package workspace

import "unsafe"

// zeroAsm zeroes n bytes at p, and nothing else. n must be asmMinZero or more.
//
//go:noescape
func zeroAsm(p unsafe.Pointer, n uintptr)

// firstNonZeroAsm returns the offset of the first byte of the n at p that is not
// zero, or -1. It reads nothing else. n must be asmMinRead or more.
//
//go:noescape
func firstNonZeroAsm(p unsafe.Pointer, n uintptr) int

// kernelEntries returns where the code of the two begins. Only the test that
// reads the machine code asks; the linker drops it from programs.
func kernelEntries() (zero, firstNonZero uintptr)
