package workspace

import (
	"encoding/binary"
	"math/bits"
)

// firstNonZeroGeneric is firstNonZero in plain Go: the fallback, and what the
// assembly is compared with. firstNonZero has told the race detector what is read;
// a second time, word by word, would only drown that.
//
//go:norace
func firstNonZeroGeneric(b []byte) int {
	i := 0
	for ; len(b)-i >= 64; i += 64 {
		p := b[i : i+64 : i+64]
		if word(p[0:])|word(p[8:])|word(p[16:])|word(p[24:])|
			word(p[32:])|word(p[40:])|word(p[48:])|word(p[56:]) != 0 {
			break // the loops below find the exact byte
		}
	}
	for ; len(b)-i >= 8; i += 8 {
		if w := word(b[i:]); w != 0 {
			// Read as little-endian, so the lowest set bit is in the first byte.
			return i + bits.TrailingZeros64(w)/8
		}
	}
	for ; i < len(b); i++ {
		if b[i] != 0 {
			return i
		}
	}
	return -1
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
