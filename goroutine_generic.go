//go:build !(amd64 || arm64) || purego

package workspace

import "runtime"

// goroutine returns a value that no other goroutine has as long as the calling
// one lives: the number in "goroutine 123 [running]:", as runtime.Stack prints
// it. Should that text ever change the result is 0, which the middleware
// takes for a foreign goroutine. It costs about 2 us.
func goroutine() uintptr {
	const prefix = "goroutine "
	var buf [len(prefix) + 20]byte
	b := buf[:runtime.Stack(buf[:], false)]
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return 0
	}
	n := uintptr(0)
	for _, c := range b[len(prefix):] {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uintptr(c-'0')
	}
	return n
}
