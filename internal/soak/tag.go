package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A tag belongs to one request. Each byte tells its place in the tag by its high
// four bits and one digit by its low four, so even a single stray byte can be seen
// not to be one's own, unless it has the same digit at the same place. No byte is
// zero.
type tag [16]byte

const (
	tagDigits = 15 // of 4 bits; the byte at place 0 has a fixed digit
	tagBits   = 4 * tagDigits
)

// newTag returns the tag of request n. Neighbours differ in most digits.
func newTag(n uint64) tag {
	// Both steps are one to one, so no two requests share a tag.
	n = n * 0x9E3779B97F4A7C15 & (1<<tagBits - 1)
	return tagOf(n ^ n>>(tagBits/2))
}

func tagOf(digits uint64) (t tag) {
	t[0] = 0x0A
	for i := 1; i < len(t); i++ {
		t[i] = byte(i<<4) | byte(digits>>(4*(tagDigits-i))&0xF)
	}
	return t
}

// parseTag reads what String wrote.
func parseTag(s string) (tag, error) {
	digits, err := strconv.ParseUint(s, 16, tagBits)
	if err != nil || len(s) != tagDigits {
		return tag{}, fmt.Errorf("no tag: %q", s)
	}
	return tagOf(digits), nil
}

// String returns the digits.
func (t tag) String() string { return string(t.digits()) }

func (t tag) digits() []byte {
	s := make([]byte, tagDigits)
	for i := range s {
		s[i] = "0123456789abcdef"[t[i+1]&0xF]
	}
	return s
}

// fill writes the tag all over b.
func (t tag) fill(b []byte) {
	for n := copy(b, t[:]); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// make returns n bytes as fill writes them, from the given offset on.
func (t tag) make(offset, n int) []byte {
	b := make([]byte, offset%len(t)+n)
	t.fill(b)
	return b[offset%len(t):]
}

// fills reports whether b is as fill left it.
func (t tag) fills(b []byte) bool {
	n := min(len(b), len(t))
	return bytes.Equal(b[:n], t[:n]) && bytes.Equal(b[n:], b[:len(b)-n])
}

// foreign counts the bytes of b that are neither zero nor of this tag, and returns where the
// first one is.
func (t tag) foreign(b []byte) (n, first int) {
	for i, c := range b {
		if c != 0 && t[c>>4] != c {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	return n, first
}

// owner returns the first whole tag in b other than t, or "".
func (t tag) owner(b []byte) string {
	for i := range b {
		if len(b)-i < len(t) {
			break
		}
		var other tag
		copy(other[:], b[i:])
		if other != t && other.wellFormed() {
			return other.String()
		}
	}
	return ""
}

func (t tag) wellFormed() bool {
	for i, c := range t {
		if int(c>>4) != i {
			return false
		}
	}
	return t[0] == 0x0A
}

var zeros [64 << 10]byte

func allZero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}
