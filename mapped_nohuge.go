//go:build !linux || 386 || arm || mips || mipsle

package workspace

const hugePages = false

func adviseHuge([]byte) error { return errNoHugePages }
