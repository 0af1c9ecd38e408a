package workspace

// wipeStep is the longest piece zeroed without a point where the scheduler
// may stop the goroutine. Clearing cannot be preempted, so a stop-the-world
// would wait for the whole of a large half (golang/go#69327). The runtime
// zeroes its own large objects in steps of the same size.
const wipeStep = 256 << 10

// zero sets every byte of b to zero. b must hold no Go pointers.
func zero(b []byte) {
	for len(b) > wipeStep {
		zeroPiece(b[:wipeStep])
		b = b[wipeStep:]
	}
	clear(b)
}

// zeroPiece is kept out of line: the stack check at its entry is the
// preemption point that a loop around clear would not have.
//
//go:noinline
func zeroPiece(b []byte) { clear(b) }
