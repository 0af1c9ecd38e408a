package main

import "time"

// A soak that can't fail proves nothing. -plant makes one fault again and again,
// which the soak must find.

// spoil returns the answer to send: with -plant=answer now and then a copy with a wrong byte.
func (s *server) spoil(v *visit, b []byte) []byte {
	if s.opt.plant != plantAnswer || len(b) == 0 || v.rng.IntN(20) > 0 {
		return b
	}
	s.planted.Add(1)
	bad := append([]byte(nil), b...)
	i := v.rng.IntN(len(bad))
	bad[i] = v.tag[(i+1)%len(v.tag)] // an own byte, so that only the comparison can find it
	return bad
}

// lendSlice is the mistake that the library can't prevent: with -plant=late the handler
// lets a goroutine have a slice, without a hold, which writes to it after the end.
func (s *server) lendSlice(v *visit) {
	if s.opt.plant != plantLate || v.rng.IntN(10) > 0 {
		return
	}
	s.planted.Add(1)
	kept := v.halves[0].a.Alloc(64)
	wait := time.Duration(1+v.rng.IntN(5)) * time.Millisecond
	s.background(func() {
		time.Sleep(wait)
		writeLate(kept, v.tag)
	})
}

// writeLate is hidden from the race detector, which would find the fault first.
//
//go:norace
//go:noinline
func writeLate(b []byte, t tag) {
	for i := range b {
		b[i] = t[i%len(t)]
	}
}
