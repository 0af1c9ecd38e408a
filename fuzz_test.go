package workspace

import (
	"fmt"
	"testing"
	"time"
)

// FuzzArena runs any sequence of operations against the model.
func FuzzArena(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(randomSequence(seed, 30+int(seed)*8))
	}
	// One operation again and again, on the client half, then on both.
	for i := range modelOps {
		same := []byte{byte(i)}
		for n := range 40 {
			same = append(same, byte(i<<1), byte(n*7), byte(n))
		}
		f.Add(same)
	}
	for _, ops := range modelStories {
		for head := range byte(3) {
			f.Add(script(head, ops...))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) { runModel(t, data) })
}

// modelStories are sequences that real programs go through. A number after a
// name is what the operation reads next.
var modelStories = [][]any{
	{"Snapshot", "Alloc", 99, "write", 0, 0, "Rewind", 1, "Alloc", 50, "Release", "Alloc", 99},
	{"Reserve", 90, 1, "Commit", 5, 10, "Alloc", 80, "Reserve", 99, 1, "Abort", "Alloc", 99},
	{"Reserve", 90, 1, "Release", "Alloc", 99, "Reserve", 9, 1, "Reset", "Commit", 1},
	{"Buffer", "Buffer.Write", 0, 60, 0, "Alloc", 9, "Buffer.Write", 0, 90, 0, "Buffer.Bytes", 0, "Reset", "Buffer.Bytes", 0},
	{"Buffer", "Buffer.ReadFrom", 0, 99, 9, 3, "Buffer.AvailableBuffer", 0, 9, "Snapshot", "Buffer.Write", 0, 99, 0, "Rewind", 1, "Buffer.Write", 0, 9, 0},
	{"Alloc", 150, 9, "Alloc", 60, "TryAlloc", 1, "Copy", 99, "Reserve", 50, 1, "Commit", 1, "Rewind", 0, "Reset", "Alloc", 99},
	{"Snapshot", "Alloc", 99, "Snapshot", "Rewind", 2, "Alloc", 99, "Rewind", 1, "write late", "Alloc", 99, "SetMode", 1, "Release", "SetMode", 2, "Release"},
}

// script encodes a story for a pool as head describes it.
func script(head byte, ops ...any) []byte {
	data := []byte{head}
	for _, op := range ops {
		switch op := op.(type) {
		case int:
			data = append(data, byte(op))
		case string:
			i := 0
			for modelOps[i].name != op {
				i++
			}
			data = append(data, byte(i<<1))
		}
	}
	return data
}

// FuzzPlanted plants one byte where there must be none, at some moment of any
// sequence, and requires that the next operation on that half finds it.
func FuzzPlanted(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(byte(seed), byte(seed*37), uint16(seed*1009), byte(1+seed*5), randomSequence(seed, int(seed)*6))
	}
	for _, at := range []uint16{0, 1, 7, 8, 31, 32, 63, 64, 65, 4094, 4095} {
		for find := range byte(len(plantedFinds)) {
			f.Add(byte(0), find, at, byte(0x80), []byte{1})
			f.Add(byte(3), find, at, byte(1), []byte{0})
		}
	}
	f.Fuzz(func(t *testing.T, where, find byte, at uint16, value byte, data []byte) {
		runPlanted(t, where, find, int(at), value, data)
	})
}

type plantedFind struct {
	op  Op
	run func(h *modelHalf, free int) bool // free: bytes from P that may be allocated
}

// plantedFinds are the operations on a half that find what was planted past its
// mark, or in its guard. None of them may take P past the byte: what lies
// below the mark is the request's own. They report whether they could run.
var plantedFinds = []plantedFind{
	{OpForced, func(h *modelHalf, _ int) bool { return h.ws.Audit() != nil }},
	{OpSnapshot, func(h *modelHalf, _ int) bool { h.a.Snapshot(); return true }},
	{OpRewind, func(h *modelHalf, _ int) bool {
		// Made by hand, as Snapshot would find the byte already.
		h.a.Rewind(Snapshot{arena: h.a, pos: h.a.pos, seq: h.a.seq + 1})
		return true
	}},
	{OpAlloc, func(h *modelHalf, _ int) bool { h.a.Alloc(0); return true }},
	{OpAlloc, func(h *modelHalf, free int) bool {
		if free < 9 {
			return false
		}
		h.a.Alloc(min(free-8, 100))
		return true
	}},
	{OpAlloc, func(h *modelHalf, free int) bool {
		if free < 9 {
			return false
		}
		h.a.Buffer().Write([]byte("x"))
		return true
	}},
	{OpReserve, func(h *modelHalf, free int) bool {
		if free < 9 {
			return false
		}
		h.a.Reserve(min(free-8, 100))
		h.a.Abort()
		return true
	}},
	{OpRelease, func(h *modelHalf, _ int) bool { h.ws.Release(); return true }},
	{OpReset, func(h *modelHalf, _ int) bool { h.ws.Reset(); return true }},
	{OpAcquire, nil}, // planted while the block lies idle
}

// plantedInReservation are those that find it while a reservation is open.
var plantedInReservation = []plantedFind{
	plantedFinds[0],
	{OpCommit, func(h *modelHalf, _ int) bool { h.a.Commit(len(h.res.got) / 2); return true }},
	{OpAbort, func(h *modelHalf, _ int) bool { h.a.Abort(); return true }},
}

func runPlanted(t testing.TB, where, find byte, at int, value byte, data []byte) {
	if len(data) == 0 {
		data = []byte{0}
	}
	data = append([]byte{data[0] & 0x3f}, data[1:]...) // every operation audited
	m := newModel(t, data)
	m.tidy = true
	for range modelSteps {
		if len(m.src.rest) == 0 {
			break
		}
		m.step()
	}

	h, blk := &m.half[where&1], m.blk
	inGuard := where&2 != 0
	f := plantedFinds[int(find)%len(plantedFinds)]
	if open := h.res != nil; open && find >= 128 {
		f = plantedInReservation[int(find)%len(plantedInReservation)]
	} else if open {
		h.abort()
	}
	if f.op == OpReset || f.op == OpRelease || f.op == OpAcquire {
		m.half[1-where&1].a.Abort()
	}
	if f.op == OpAcquire {
		m.ws.Release()
		m.ended++
		h.mark, h.pos = 0, 0
	}
	if h.mark == len(h.mem) {
		inGuard = true // there is no tail
	}

	// Plant it.
	var planted *byte
	off, count := -1, 0
	if inGuard {
		planted = &blk.guard(h.id)[at%guardSize]
		*planted += max(value, 1)
	} else {
		off, count = h.mark+at%(len(h.mem)-h.mark), 1
		planted = &h.mem[off]
		*planted = max(value, 1)
	}

	// Find it.
	before := m.pool.Stats()
	var next *Workspace
	if f.op == OpAcquire {
		next = m.pool.Acquire()
	} else {
		free := len(h.mem) - h.pos
		if !inGuard {
			free = off - h.pos
		}
		if !f.run(h, free) {
			f = plantedFinds[1]
			f.run(h, free)
		}
	}
	var v *Violation
	select {
	case v = <-m.reports:
	case <-time.After(waitLimit):
		m.fail("%s did not find the byte at %d of the %s half (guard: %v)", f.op, off, h.id, inGuard)
	}
	want := fmt.Sprint(DirtyTail, h.id, f.op, off, off, count, true)
	if inGuard {
		want = fmt.Sprint(GuardDamaged, h.id, f.op, off, off, count, false)
	}
	if got := fmt.Sprint(v.Kind, v.Half, v.Op, v.First, v.Last, v.Count, v.Guard); got != want {
		m.fail("reported %s, want %s", got, want)
	}
	if v.Mark < h.mark || off >= 0 && v.Mark > off {
		m.fail("reported mark %d, had %d", v.Mark, h.mark)
	}

	// Nobody gets to see it, and nobody gets the block.
	if f.op != OpRelease && f.op != OpAcquire {
		if !inGuard && *planted != 0 {
			m.fail("the byte was reported, and left there")
		}
		for i := range m.half {
			m.half[i].a.Abort()
		}
		m.ws.Release()
	}
	if next == nil {
		next = m.pool.Acquire()
	}
	for _, id := range []Half{Client, Backend} {
		if i := firstNonZero(blk.half(id)); i >= 0 || !guardIntact(blk.guard(id)) {
			m.fail("the abandoned block is not clean: %s half, byte %d", id, i)
		}
		if i := firstNonZero(next.blk.half(id)); i >= 0 {
			m.fail("the next request's block is not clean: %s half, byte %d", id, i)
		}
	}
	s := m.pool.Stats()
	switch {
	case next.blk == blk:
		m.fail("the block was not abandoned")
	case s.Abandoned != before.Abandoned+1 || s.Doubts.Violation != before.Doubts.Violation+1:
		m.fail("abandoned %d, for a violation %d", s.Abandoned-before.Abandoned, s.Doubts.Violation-before.Doubts.Violation)
	case s.Violations != before.Violations+1:
		m.fail("%d violations", s.Violations-before.Violations)
	case !s.BreakerOpen || s.BreakerTrips != 1:
		m.fail("the breaker is not open, or was before: %d trips", s.BreakerTrips)
	case next.Mode() == Watermark:
		m.fail("the next request runs in %s", next.Mode())
	}
	next.Release()
	if s := m.pool.Stats(); s.InUse != 0 || s.Acquired != s.Released+s.Abandoned {
		m.fail("balance: %+v", s)
	}
}

// The same without the fuzzer: every way to find a byte, at many places.
func TestPlanted(t *testing.T) {
	for seed := range fewer(3000) {
		src := source{randomSequence(uint64(seed), 300)}
		where, find, at, value := src.byte(), src.byte(), src.below(1<<16), src.byte()
		n := src.below(len(src.rest))
		runPlanted(t, where, find, at, value, src.rest[:min(n, len(src.rest))])
	}
}
