//go:build (linux || darwin || freebsd || netbsd || openbsd || dragonfly) && !(386 || arm || mips || mipsle)

package workspace

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canMap: 32-bit systems are left out, since they run out of addresses where those of
// abandoned blocks are never used again.
const canMap = true

func pageSize() int { return unix.Getpagesize() }

// mapRange returns n bytes of inaccessible memory. They cost addresses only.
func mapRange(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// mapAnew puts inaccessible memory in the place of b, whose pages are freed.
// POSIX: mmap with MAP_FIXED replaces what was mapped there.
func mapAnew(b []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED)
	return err
}

// openPages makes whole pages accessible.
func openPages(b []byte, advice advice) error {
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("make %d bytes accessible: %w", len(b), err)
	}
	if advice.huge {
		if err := adviseHuge(b); err != nil {
			return fmt.Errorf("advise huge pages for %d bytes: %w", len(b), err)
		}
	}
	if advice.lock { // after the advice: this fills the pages
		if err := unix.Mlock(b); err != nil {
			return fmt.Errorf("lock %d bytes in memory (see ulimit -l): %w", len(b), err)
		}
	}
	return nil
}
