package workspace

import (
	"bytes"
	"fmt"
	"sync"
	"unsafe"
)

// The two functions below are the only ones that touch every byte of a half.
//
// Assembly has no point at which the scheduler could stop the goroutine, so a
// stop-the-world would wait for the whole of a large half, or for ever when a
// loop calls assembly directly (golang/go#69327). Hence two rules. Before each
// call stands a Go function that is kept out of line: the stack check at its
// entry is such a point. And no call gets more than wipeStep bytes; the runtime
// zeroes its own large objects in steps of the same size.

// wipeStep is the longest piece that is zeroed or read without such a point.
const wipeStep = 256 << 10

// asmMost is the longest range that is given to the assembly: wipeStep, or 0 when
// it is not in use, as the machine can't run it or it has failed its self-test. It
// is fixed when the first pool has been made.
var asmMost = asmLimit()

func asmLimit() int {
	if asmName() == "" {
		return 0
	}
	return wipeStep
}

func useAsm() bool { return asmMost > 0 }

// kernelName says which clear and verify code is in use, and when that is not
// what the machine seemed good for, why.
var kernelName = nameKernel()

const portable = "portable" // the plain Go code

func nameKernel() string {
	if useAsm() {
		return asmName()
	}
	return portable
}

// zero sets every byte of b to zero. b must hold no Go pointers: the collector
// wants those zeroed a word at a time, and the kernels store what suits them.
// The compiler inlines it, so that a short range costs what clear costs; the
// call of an assembly function alone takes longer.
func zero(b []byte) {
	if len(b) > clearMost {
		zeroPiece(b)
		return
	}
	raceWrite(b)
	clear(b)
}

// clearMost is the length up to which clear is used. It is as fast as the assembly
// or faster: see BENCHMARKS.md. From 2048 bytes on Go's clear uses REP STOSQ on
// amd64, which takes long to start.
const clearMost = 2047

// zeroPiece is zero without the short way. The loop is in a function of its own,
// which makes this one cheaper to enter.
//
//go:noinline
func zeroPiece(b []byte) {
	if len(b) > asmMost {
		zeroPieces(b)
		return
	}
	raceWrite(b)
	zeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

//go:noinline
func zeroPieces(b []byte) {
	for len(b) > wipeStep {
		zeroPiece(b[:wipeStep])
		b = b[wipeStep:]
	}
	if !useAsm() {
		raceWrite(b)
		zeroGeneric(b)
		return
	}
	zero(b)
}

// zeroCold is zero for memory that is known to be in no cache and will not be
// read soon. Where there is a better way for that, the stores go round the caches:
// they need not read the memory first, and they leave the caches to others.
func zeroCold(b []byte) {
	if !coldAsm || !useAsm() || len(b) < coldLeast {
		zero(b)
		return
	}
	for len(b) > wipeStep {
		zeroColdPiece(b[:wipeStep])
		b = b[wipeStep:]
	}
	zeroColdPiece(b)
}

// coldLeast is the length from which zeroCold goes round the caches. Below about
// 8 KB that does not pay (BENCHMARKS.md).
const coldLeast = 8 << 10

//go:noinline
func zeroColdPiece(b []byte) {
	raceWrite(b)
	if len(b) >= asmMinZero {
		zeroColdAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
		return
	}
	clear(b)
}

// asmMinZero is the shortest range that zeroAsm and zeroColdAsm take.
const asmMinZero = 256

// firstNonZero returns the offset of the first byte of b that is not zero,
// or -1 when all are zero. It reads nothing outside b.
//
//go:noinline
func firstNonZero(b []byte) int {
	if len(b) > wipeStep {
		return firstInPieces(b)
	}
	raceRead(b)
	if useAsm() && len(b) >= asmMinRead {
		return firstNonZeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
	}
	return firstNonZeroGeneric(b)
}

//go:noinline
func firstInPieces(b []byte) int {
	off := 0
	for ; len(b)-off > wipeStep; off += wipeStep {
		if i := firstNonZero(b[off : off+wipeStep]); i >= 0 {
			return off + i
		}
	}
	if i := firstNonZero(b[off:]); i >= 0 {
		return off + i
	}
	return -1
}

// asmMinRead is the shortest range that firstNonZeroAsm can search.
const asmMinRead = 32

// selfTested makes the first pool run the self-test.
var selfTested sync.Once

// selfTest compares the assembly with the plain Go code, the first time it is
// called. On a difference the plain code is used from then on: a processor or an
// emulator that does not do what it says must cost time, not leak bytes. Only
// the call that found it returns the error.
func selfTest() (err error) {
	selfTested.Do(func() {
		if !useAsm() {
			return
		}
		if err = compareKernels(underTest.zero, underTest.firstNonZero); err == nil {
			err = compareKernels(underTest.zeroCold, underTest.firstNonZero)
		}
		if err != nil {
			kernelName = fmt.Sprintf("%s (%s failed its self-test)", portable, kernelName)
			asmMost = 0
		}
	})
	return err
}

// underTest is what selfTest compares; a test puts a faulty function here.
var underTest = struct {
	zero, zeroCold func([]byte)
	firstNonZero   func([]byte) int
}{zero, zeroCold, firstNonZero}

// compareKernels runs zero and firstNonZero on lengths that take each path
// through the assembly, and returns the first difference from the plain code. It
// takes about 0.3 ms.
func compareKernels(zero func([]byte), firstNonZero func([]byte) int) error {
	const margin, most = 64, 41 << 10 // more than any threshold of the kernels
	full := bytes.Repeat([]byte{0xa5}, margin+most+margin)
	got, want := bytes.Clone(full), bytes.Clone(full)
	for _, n := range []int{0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257, 513, 767, clearMost, clearMost + 1, 2049, 2111, 2175, 16 << 10, most} {
		for _, off := range []int{0, 1, 31, margin} {
			end := off + n
			zero(got[off:end])
			zeroGeneric(want[off:end])
			if !bytes.Equal(got[:end+margin], want[:end+margin]) {
				return fmt.Errorf("zero of %d bytes at offset %d is wrong", n, off)
			}
			// The zeros lie between bytes that are not. Put such a byte among
			// them, then further ones before it.
			for _, i := range []int{-1, n - 1, n / 2, 0} {
				if 0 <= i && i < n {
					got[off+i] = 0x80
				}
				if g, w := firstNonZero(got[off:end]), firstNonZeroGeneric(got[off:end]); g != w {
					return fmt.Errorf("the first non-zero byte of %d at offset %d is at %d, found at %d", n, off, w, g)
				}
			}
			copy(got[:end], full)
			copy(want[:end], full)
		}
	}
	return nil
}
