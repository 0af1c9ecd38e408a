//go:build !arm64 || purego

package workspace

func moreImplementations() []implementation { return nil }
