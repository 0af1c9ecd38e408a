//go:build race

package workspace

import (
	"runtime"
	"unsafe"
)

// raceWrite tells the race detector that b is written. It sees neither
// assembly nor the clear of a slice by itself.
func raceWrite(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

// raceRead tells the race detector that b is read.
func raceRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}
