//go:build (amd64 || arm64) && !purego

package workspace

// goroutine returns a value that no other goroutine has as long as the calling
// one lives. It tells the middleware whether a workspace was taken by the
// goroutine whose deferred call gives it back, and costs about 2 ns.
func goroutine() uintptr
