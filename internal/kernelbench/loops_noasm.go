//go:build !amd64 || purego

package kernelbench

import "unsafe"

func loadOne(unsafe.Pointer, uintptr)  { panic("kernelbench: amd64 only") }
func loadFour(unsafe.Pointer, uintptr) { panic("kernelbench: amd64 only") }
func storeOne(unsafe.Pointer, uintptr) { panic("kernelbench: amd64 only") }
