//go:build !(amd64 || arm64) || purego

package workspace

import (
	"runtime"
	"sync"
)

const stackPrefix = "goroutine "

// stackBuffers saves an allocation: what is given to runtime.Stack escapes.
var stackBuffers = sync.Pool{New: func() any { return new([len(stackPrefix) + 20]byte) }}

// goroutine returns a value that no other goroutine has as long as the calling
// one lives: the number in "goroutine 123 [running]:", as runtime.Stack prints
// it. Should that text ever change the result is 0, which the middleware
// takes for a foreign goroutine. It costs about 2 us.
func goroutine() uintptr {
	buf := stackBuffers.Get().(*[len(stackPrefix) + 20]byte)
	defer stackBuffers.Put(buf)
	b := buf[:runtime.Stack(buf[:], false)]
	if len(b) < len(stackPrefix) || string(b[:len(stackPrefix)]) != stackPrefix {
		return 0
	}
	n := uintptr(0)
	for _, c := range b[len(stackPrefix):] {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uintptr(c-'0')
	}
	return n
}
