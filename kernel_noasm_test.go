//go:build !(amd64 || arm64) || purego

package workspace

func zeroAsmSlice([]byte)             { panic("no assembly") }
func firstNonZeroAsmSlice([]byte) int { panic("no assembly") }
