package workspace

// A block is the pooled piece of memory behind a Workspace: client half, its
// guard, backend half, its guard. Users never see one. It keeps no reference
// to the request that had it.
//
// It is ordinary garbage-collected memory without pointers. A slice that
// outlives its request so keeps its own block alive; it can never point to
// unmapped memory or to memory of another kind.
type block struct {
	mem    []byte
	client int      // size of the client half
	skip   [2]int   // the sampler's gap left for each half
	rests  [2]int64 // Pool.rests when each half was last wiped past its mark
}

// newBlock allocates a zeroed block with its guards set.
func newBlock(client, backend int, gap func() int) *block {
	b := &block{
		mem:    make([]byte, client+guardSize+backend+guardSize),
		client: client,
		skip:   [2]int{gap(), gap()},
	}
	restoreGuard(b.guard(Client))
	restoreGuard(b.guard(Backend))
	return b
}

// half returns the memory of one half, with cap equal to len.
func (b *block) half(h Half) []byte {
	if h == Client {
		return b.mem[:b.client:b.client]
	}
	end := len(b.mem) - guardSize
	return b.mem[b.client+guardSize : end : end]
}

// guard returns the guard behind one half.
func (b *block) guard(h Half) []byte {
	if h == Client {
		return b.mem[b.client : b.client+guardSize]
	}
	return b.mem[len(b.mem)-guardSize:]
}

func restoreGuard(g []byte) {
	p := guardPattern()
	copy(g, p[:])
}
