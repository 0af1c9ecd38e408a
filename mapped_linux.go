//go:build !(386 || arm || mips || mipsle)

package workspace

import "golang.org/x/sys/unix"

const hugePages = true

func adviseHuge(b []byte) error { return unix.Madvise(b, unix.MADV_HUGEPAGE) }
