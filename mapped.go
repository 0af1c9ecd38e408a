package workspace

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Mapped memory. A block of it is one region: a range of addresses that the
// system gave us, in which everything but the pages of the two halves is
// inaccessible. Each half ends where such a page begins.
//
// A region that is no longer needed is shut: a fresh, inaccessible mapping takes
// the place of the old one. The system frees the old pages at once, whether
// they were locked or not, and whoever reads or writes there later faults.
// Advice such as MADV_DONTNEED would return the pages, too, but only Linux
// promises that they come back zeroed, and not for locked pages (madvise(2));
// mapping anew is the same call everywhere. MADV_FREE would leave the old bytes
// in place until the system needs the page.
//
// An address that was mapped is never unmapped. So a slice that is kept too long
// reaches a workspace or faults. It never reaches the Go heap, or a mapping of
// somebody else, and nothing is unmapped under a handle or a hold.

// A region is the range of addresses of one block.
type region struct {
	all    []byte    // the whole range
	pages  [2][]byte // whole pages that are accessible while it is open
	halves [2][]byte // at the end of pages
	sizes  [2]int
}

// advice says how the system should treat the pages.
type advice struct{ lock, huge bool }

// maxAddresses is how many bytes of addresses all regions may have, open, shut
// and never used again: far more than blocks need, and a part of the 128 TB that
// most systems have. A Go program that finds no free address ends. Clients can
// make a server abandon blocks, so without a limit they could bring that about.
const maxAddresses = 1 << 43

// addresses is how many bytes of addresses the regions have.
var addresses atomic.Int64

var (
	errNoAddresses = fmt.Errorf("mapped blocks have used up %d bytes of addresses", int64(maxAddresses))

	errNoMapping   = errors.New("mapped memory needs 64-bit Linux, macOS or BSD")
	errNoHugePages = errors.New("advice about huge pages needs Linux")
)

// The system calls. A test replaces them to see what happens when one fails.
var (
	sysMap     = mapRange
	sysOpen    = openPages
	sysMapAnew = mapAnew
)

// spare are the regions that are shut and may be opened again, the longest shut
// first. Those of abandoned blocks are not among them: their addresses are never
// used again.
var spare struct {
	sync.Mutex
	regions map[[2]int][]*region // by the sizes of the halves
}

// layOut divides a range for halves of these sizes. pages are where the pages
// of each half begin and end; total is the length of the range. page is the
// system's page size in bytes.
func layOut(sizes [2]int, page int) (pages [2][2]int, total int) {
	at := page
	for h, size := range sizes {
		n := (size + page - 1) / page * page
		pages[h] = [2]int{at, at + n}
		at += n + page
	}
	return pages, at
}

// openRegion returns a region with both halves accessible and zero.
func openRegion(client, backend int, advice advice) (*region, error) {
	sizes := [2]int{client, backend}
	r := takeSpare(sizes)
	if r == nil {
		pages, total := layOut(sizes, pageSize())
		if addresses.Load() > maxAddresses-int64(total) {
			return nil, errNoAddresses
		}
		addresses.Add(int64(total))
		all, err := sysMap(total)
		if err != nil {
			addresses.Add(-int64(total))
			return nil, fmt.Errorf("map %d bytes: %w", total, err)
		}
		r = &region{all: all, sizes: sizes}
		for h, p := range pages {
			r.pages[h] = all[p[0]:p[1]:p[1]]
			r.halves[h] = all[p[1]-sizes[h] : p[1] : p[1]]
		}
	}
	for _, pages := range r.pages {
		if err := sysOpen(pages, advice); err != nil {
			if r.shut() == nil {
				r.putSpare()
			}
			return nil, err
		}
	}
	return r, nil
}

// shut frees the pages and makes the whole range inaccessible. After an error
// the range must not be used again.
func (r *region) shut() error {
	if err := sysMapAnew(r.all); err != nil {
		return fmt.Errorf("map %d bytes anew: %w", len(r.all), err)
	}
	return nil
}

// putSpare lets the region, which must be shut, be opened again for another block.
func (r *region) putSpare() {
	spare.Lock()
	defer spare.Unlock()
	if spare.regions == nil {
		spare.regions = map[[2]int][]*region{}
	}
	spare.regions[r.sizes] = append(spare.regions[r.sizes], r)
}

// takeSpare returns the region that was shut first, or nil.
func takeSpare(sizes [2]int) *region {
	spare.Lock()
	defer spare.Unlock()
	list := spare.regions[sizes]
	if len(list) == 0 {
		return nil
	}
	r := list[0]
	list[0] = nil
	spare.regions[sizes] = list[1:]
	return r
}

// letGo frees the memory of a block that is clean and has no handle.
func (p *Pool) letGo(b *block) {
	if b == nil || b.region == nil {
		return // the collector does it
	}
	if err := b.region.shut(); err != nil {
		p.mapFailed(err)
		return
	}
	b.region.putSpare()
}

// blockForEver frees the memory of a block that somebody may still touch. Its
// addresses are never used again.
func (p *Pool) blockForEver(r *region) {
	if err := r.shut(); err != nil {
		p.mapFailed(err)
	}
}

// close ends the use of a block by a request, before the pool gets it back.
// doubted blocks are left as they are; somebody may still use them.
func (b *block) close(debug Debug, doubted bool) {
	if b.tenure != nil {
		b.tenure.end()
	}
	switch {
	case doubted:
	case b.tenure != nil:
		b.tenure.shut()
	case debug == Poison:
		b.poison()
	}
}

// An abandonedMapping is mapped memory whose block was abandoned.
type abandonedMapping struct {
	pool   *Pool
	region *region
	tenure *tenure // nil: not fenced
}

// collected runs when the collector has found that no handle of the workspace is
// left. Bare slices may be: whoever uses one from now on faults.
func (m abandonedMapping) collected() {
	m.pool.abandoned.Add(-1)
	if m.tenure == nil {
		m.pool.blockForEver(m.region)
		return
	}
	m.tenure.forever = true
	m.tenure.shut()
	m.pool.mu.Lock()
	m.pool.fences--
	over := m.pool.quarantineLocked(m.tenure)
	m.pool.mu.Unlock()
	over.forget()
}
