//go:build !purego

package kernelbench

import "unsafe"

//go:noescape
func loadOne(p unsafe.Pointer, n uintptr)

//go:noescape
func loadFour(p unsafe.Pointer, n uintptr)

//go:noescape
func storeOne(p unsafe.Pointer, n uintptr)
