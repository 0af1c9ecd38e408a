//go:build !(amd64 || arm64) || purego

package workspace

import "unsafe"

// asmName is empty: there is no assembly for this platform.
func asmName() string { return "" }

const coldAsm = false

func zeroAsm(unsafe.Pointer, uintptr)             { panic("workspace: no assembly") }
func zeroColdAsm(unsafe.Pointer, uintptr)         { panic("workspace: no assembly") }
func firstNonZeroAsm(unsafe.Pointer, uintptr) int { panic("workspace: no assembly") }
