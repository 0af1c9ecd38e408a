package workspace

import "fmt"

// A Memory says where the blocks of a pool come from.
type Memory uint8

// The kinds of memory. The zero value is Heap: a slice of it that is kept too
// long keeps its block alive, and never faults.
const (
	Heap   Memory = iota // garbage-collected
	Mapped               // mapped from the system, with inaccessible pages around each half
	numMemories
)

var memoryNames = [numMemories]string{"heap", "mapped"}

// String returns "heap" or "mapped".
func (m Memory) String() string { return nameOf(memoryNames[:], int(m), "memory") }

// MarshalText writes the name, for JSON and logs.
func (m Memory) MarshalText() ([]byte, error) { return nameText(m, memoryNames[:], "memory") }

// UnmarshalText reads a name in any case.
func (m *Memory) UnmarshalText(text []byte) error {
	return parseName(m, memoryNames[:], "memory", text)
}

// A block is the pooled piece of memory behind a Workspace: client half, its
// guard, backend half, its guard. Users never see one. It keeps no reference
// to the request that had it.
//
// It is memory without Go pointers. On the heap the guards are 64 bytes that
// are checked when a request ends. In mapped memory they are inaccessible pages,
// so guards is empty.
type block struct {
	mem      []byte    // all of it; in mapped memory not all of it is accessible
	halves   [2][]byte // cap is len
	guards   [2][]byte
	next     [2]countdown // what is left of the sampler's countdown for each half
	trails   [2]trail     // the last operations before an audit
	rests    [2]int64     // Pool.rests when each half was last wiped past its mark
	region   *region      // nil: heap memory
	tenure   *tenure      // nil: not fenced
	poisoned bool         // idle, and filled with the poison
}

// newBlock allocates a zeroed block on the heap with its guards set.
func newBlock(client, backend int, next func() countdown) *block {
	b := &block{
		mem:  make([]byte, client+guardSize+backend+guardSize),
		next: [2]countdown{next(), next()},
	}
	rest := b.mem
	for h, size := range [2]int{client, backend} {
		b.halves[h], rest = rest[:size:size], rest[size:]
		b.guards[h], rest = rest[:guardSize:guardSize], rest[guardSize:]
		restoreGuard(b.guards[h])
	}
	return b
}

// newMappedBlock returns a zeroed block of mapped memory.
func newMappedBlock(client, backend int, next func() countdown, advice advice) (*block, error) {
	r, err := openRegion(client, backend, advice)
	if err != nil {
		return nil, err
	}
	return &block{mem: r.all, halves: r.halves, next: [2]countdown{next(), next()}, region: r}, nil
}

// newBlock makes a block of the kind that the Config asks for. number is that of
// the workspace that will have it; fence says to fence it. Where the system gives
// no memory the block comes from the heap, and that is counted.
func (p *Pool) newBlock(fence bool, number int64) *block {
	if fence || p.cfg.Memory == Mapped {
		b, err := newMappedBlock(p.cfg.ClientSize, p.cfg.BackendSize, p.countdown, advice{lock: p.cfg.Lock, huge: p.cfg.HugePages})
		if fence {
			p.fenced(err == nil)
		}
		if err != nil {
			p.mapFailed(err)
			return newBlock(p.cfg.ClientSize, p.cfg.BackendSize, p.countdown)
		}
		if fence {
			b.tenure = newTenure(p, b.region, number)
		}
		return b
	}
	return newBlock(p.cfg.ClientSize, p.cfg.BackendSize, p.countdown)
}

// mapFailed counts a system call that failed, and logs the first.
func (p *Pool) mapFailed(err error) {
	p.mu.Lock()
	p.n.MapFailures++
	first := p.n.MapFailures == 1
	p.mu.Unlock()
	if first {
		p.tell(func() {
			p.logger().Error("workspace: the system refused mapped memory; blocks come from the heap instead; further failures are only counted", "pool", p.cfg.Name, "error", err)
		})
	}
}

// half returns the memory of one half, with cap equal to len.
func (b *block) half(h Half) []byte { return b.halves[h] }

// guard returns the guard behind one half: empty in mapped memory.
func (b *block) guard(h Half) []byte { return b.guards[h] }

func restoreGuard(g []byte) {
	p := guardPattern()
	copy(g, p[:])
}

// checkMemory returns an error that names the setting that this platform can't
// serve, and why.
func (c *Config) checkMemory() error {
	switch {
	case c.Memory >= numMemories:
		return fmt.Errorf("%w: Memory is %d, want Heap or Mapped", ErrConfig, c.Memory)
	case c.Debug >= numDebugs:
		return fmt.Errorf("%w: Debug is %d, want DebugOff, Poison or Fence", ErrConfig, c.Debug)
	case c.FenceEvery < 0 || c.FenceEvery > maxFenceEvery:
		return fmt.Errorf("%w: FenceEvery is %d, want 0 to %d", ErrConfig, c.FenceEvery, maxFenceEvery)
	case c.Quarantine < 0 || c.Quarantine > maxQuarantine:
		return fmt.Errorf("%w: Quarantine is %d, want 0 to %d", ErrConfig, c.Quarantine, maxQuarantine)
	case c.Memory != Mapped && c.Lock:
		return fmt.Errorf("%w: Lock needs Memory Mapped, but Memory is %s", ErrConfig, c.Memory)
	case c.Memory != Mapped && c.HugePages:
		return fmt.Errorf("%w: HugePages needs Memory Mapped, but Memory is %s", ErrConfig, c.Memory)
	case c.HugePages && !hugePages:
		return fmt.Errorf("%w: HugePages is set: %w", ErrConfig, errNoHugePages)
	case (c.Memory == Mapped || c.Debug == Fence || c.FenceEvery > 0) && !canMap:
		return fmt.Errorf("%w: Memory is %s, Debug is %s, FenceEvery is %d: %w", ErrConfig, c.Memory, c.Debug, c.FenceEvery, errNoMapping)
	}
	return nil
}
