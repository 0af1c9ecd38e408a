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

// useAsm says that the assembly is in use: the machine can run it, and it has not
// failed its self-test. It is fixed when the first pool has been made.
var useAsm = asmName() != ""

// kernelName says which clear and verify code is in use, and when that is not
// what the machine seemed good for, why.
var kernelName = nameKernel()

const portable = "portable" // the plain Go code

func nameKernel() string {
	if useAsm {
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
	if len(b) > wipeStep {
		zeroPieces(b)
		return
	}
	raceWrite(b)
	if useAsm {
		zeroAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
		return
	}
	zeroGeneric(b)
}

//go:noinline
func zeroPieces(b []byte) {
	for len(b) > wipeStep {
		zeroPiece(b[:wipeStep])
		b = b[wipeStep:]
	}
	zero(b)
}

// zeroCold is zero for memory that is known to be in no cache and will not be
// read soon. Where there is a better way for that, the stores go round the caches:
// they need not read the memory first, and they leave the caches to others.
func zeroCold(b []byte) {
	if coldAsm && useAsm {
		for len(b) >= coldLeast {
			n := min(len(b), wipeStep)
			zeroColdPiece(b[:n])
			b = b[n:]
		}
	}
	zero(b)
}

// coldLeast is the length from which zeroCold goes round the caches. For less,
// the fence at the end would cost more than is gained.
const coldLeast = 8 << 10

//go:noinline
func zeroColdPiece(b []byte) {
	raceWrite(b)
	zeroColdAsm(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
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
	if useAsm && len(b) >= asmMinRead {
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
		if !useAsm {
			return
		}
		if err = compareZero(underTest.zero); err == nil {
			err = compareZero(underTest.zeroCold)
		}
		if err == nil {
			err = compareSearch(underTest.firstNonZero)
		}
		if err != nil {
			kernelName = fmt.Sprintf("%s (%s failed its self-test)", portable, kernelName)
			useAsm = false
		}
	})
	return err
}

// underTest is what selfTest compares; a test puts a faulty function here.
var underTest = struct {
	zero, zeroCold func([]byte)
	firstNonZero   func([]byte) int
}{zero, zeroCold, firstNonZero}

// The lengths that the self-test tries take each path through the assembly, and
// the offsets leave each kind of a head.
var (
	comparedLengths = []int{0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257, 513, 767, clearMost, clearMost + 1, 2049, 2111, 2175, 16 << 10, comparedMost}
	comparedOffsets = []int{0, 1, 31, comparedMargin}
)

const (
	comparedMargin = 64       // bytes before and behind a range that must stay as they are
	comparedMost   = 41 << 10 // more than any threshold of the kernels
)

// compareZero returns the first difference between zero and the plain code.
func compareZero(zero func([]byte)) error {
	full := bytes.Repeat([]byte{0xa5}, comparedMargin+comparedMost+comparedMargin)
	got, want := bytes.Clone(full), bytes.Clone(full)
	for _, n := range comparedLengths {
		for _, off := range comparedOffsets {
			end := off + n
			zero(got[off:end])
			zeroGeneric(want[off:end])
			if !bytes.Equal(got[:end+comparedMargin], want[:end+comparedMargin]) {
				return fmt.Errorf("zero of %d bytes at offset %d is wrong", n, off)
			}
			copy(got[:end], full)
			copy(want[:end], full)
		}
	}
	return nil
}

// compareSearch returns the first difference between firstNonZero and the plain
// code, on zeros that lie between bytes that are not.
func compareSearch(firstNonZero func([]byte) int) error {
	full := bytes.Repeat([]byte{0xa5}, comparedMargin+comparedMost+comparedMargin)
	got := bytes.Clone(full)
	for _, n := range comparedLengths {
		// An odd step between the places of a byte that is alone: they go through
		// each register of each stream. What is left out of an OR is found by this only.
		step := n/64 | 1
		for _, off := range comparedOffsets {
			b := got[off : off+n]
			clear(b)
			check := func() error {
				if g, w := firstNonZero(b), firstNonZeroGeneric(b); g != w {
					return fmt.Errorf("the first non-zero byte of %d at offset %d is at %d, found at %d", n, off, w, g)
				}
				return nil
			}
			if err := check(); err != nil {
				return err
			}
			for i := 0; i < n; i += step {
				b[i] = 0x80
				if g := firstNonZero(b); g != i {
					return fmt.Errorf("the only non-zero byte of %d at offset %d is at %d, found at %d", n, off, i, g)
				}
				b[i] = 0
			}
			for _, i := range []int{n - 1, n / 2, 0} { // each before the last one
				if i >= 0 && i < n {
					b[i] = 0x80
				}
				if err := check(); err != nil {
					return err
				}
			}
			copy(b, full)
		}
	}
	return nil
}
