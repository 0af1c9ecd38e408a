//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly) || 386 || arm || mips || mipsle

package workspace

// Config is checked before any of these is called.

const canMap = false

func pageSize() int                  { return MinHalfSize }
func mapRange(int) ([]byte, error)   { return nil, errNoMapping }
func mapAnew([]byte) error           { return errNoMapping }
func openPages([]byte, advice) error { return errNoMapping }
