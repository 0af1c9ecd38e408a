//go:build (linux || darwin || freebsd || netbsd || openbsd || dragonfly) && !(386 || arm || mips || mipsle)

package workspace

import (
	"bytes"
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// touching runs f in a goroutine in which a bad address panics, and returns what
// it panicked with.
func touching(f func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		debug.SetPanicOnFault(true)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	return panicked
}

var sink byte

// requireBlocked requires that no byte of b can be read or written.
func requireBlocked(t *testing.T, b []byte) {
	t.Helper()
	for _, i := range []int{0, len(b) / 2, len(b) - 1} {
		for what, touch := range map[string]func(){"read": func() { sink = b[i] }, "write": func() { b[i] = 1 }} {
			require.Implements(t, (*interface{ Addr() uintptr })(nil), touching(touch), "%s byte %d of %d", what, i, len(b))
		}
	}
}

// requireOpen requires that b can be read and written.
func requireOpen(t *testing.T, b []byte) {
	t.Helper()
	require.Nil(t, touching(func() {
		for i := range b {
			b[i]++
			b[i]--
		}
	}))
}

// A page of 4096 bytes, as on amd64, of 16,384, as on Apple's arm64, and of 65,536,
// as some Linux distributions have on arm64.
func TestMappedLayout(t *testing.T) {
	for _, c := range []struct {
		page, client, backend int
		pages                 [2][2]int
		total                 int
	}{
		{4096, 4097, 1, [2][2]int{{4096, 12288}, {16384, 20480}}, 24576}, // no half is so small, but the arithmetic is right
		{4096, 4096, 4096, [2][2]int{{4096, 8192}, {12288, 16384}}, 20480},
		{4096, 262144, 8192, [2][2]int{{4096, 266240}, {270336, 278528}}, 282624},
		{16384, 4096, 20480, [2][2]int{{16384, 32768}, {49152, 81920}}, 98304},
		{65536, 262144, 4096, [2][2]int{{65536, 327680}, {393216, 458752}}, 524288},
	} {
		pages, total := layOut([2]int{c.client, c.backend}, c.page)
		require.Equal(t, c.pages, pages)
		require.Equal(t, c.total, total)
	}
}

func TestMappedBlockStandsBetweenInaccessiblePages(t *testing.T) {
	page := unix.Getpagesize()
	for _, size := range blockSizes {
		b, err := newMappedBlock(size[0], size[1], noGap, advice{})
		require.NoError(t, err)
		for h, half := range b.halves {
			require.Len(t, half, size[h])
			require.Equal(t, len(half), cap(half))
			require.Zero(t, address(half)%maxAlign)
			require.Equal(t, -1, firstNonZero(half))
			requireOpen(t, half)
			first, behind := unsafe.Pointer(unsafe.SliceData(half)), unsafe.Add(unsafe.Pointer(unsafe.SliceData(half)), len(half))
			requireBlocked(t, unsafe.Slice((*byte)(behind), page))
			requireBlocked(t, unsafe.Slice((*byte)(unsafe.Add(first, -(len(b.region.pages[h])-len(half))-page)), page))
		}
		require.NoError(t, b.region.shut())
		for _, half := range b.halves {
			requireBlocked(t, half)
		}
		b.region.putSpare()
	}
}

// What stood in a region is gone when it is opened again, whatever was done
// with it, and the addresses that are used again are those shut first.
func TestShutRegionsComeBackZeroInTheOrderTheyWent(t *testing.T) {
	const client, backend = 3 * MinHalfSize, 7 * MinHalfSize // sizes of no other test
	for _, how := range []advice{{}, {lock: true}} {
		var regions []*region
		for range 5 {
			r, err := openRegion(client, backend, how)
			require.NoError(t, err)
			for _, half := range r.halves {
				require.Equal(t, -1, firstNonZero(half))
				copy(half, bytes.Repeat([]byte{0xee}, len(half)))
			}
			regions = append(regions, r)
		}
		for _, r := range regions {
			require.NoError(t, r.shut())
			r.putSpare()
		}
		for i, want := range regions {
			r, err := openRegion(client, backend, advice{})
			require.NoError(t, err)
			require.Same(t, want, r, "region %d", i)
			for _, half := range r.halves {
				require.Equal(t, -1, firstNonZero(half), "the old bytes are gone")
			}
		}
		for _, r := range regions {
			require.NoError(t, r.shut())
			r.putSpare()
		}
	}
	for range 5 { // leave none for the next run
		require.NotNil(t, takeSpare([2]int{client, backend}))
	}
	require.Nil(t, takeSpare([2]int{client, backend}))
}

// erigontech/erigon#23161: a slice that outlives its mapping reads whatever was
// mapped there next.
func TestMappedAddressesAreNeverGivenBack(t *testing.T) {
	p := newTestPool(t, Config{Memory: Mapped, MaxIdle: 4, ClientSize: 5 * MinHalfSize, BackendSize: 9 * MinHalfSize})
	var kept [][]byte
	all, _ := acquireMany(p.Pool, 4)
	for _, ws := range all {
		for _, h := range bothHalves {
			b := arenaOf(ws, h).Alloc(MinHalfSize)
			smear(b, tag(1))
			kept = append(kept, b)
		}
	}
	for _, ws := range all {
		ws.Release()
	}
	require.Equal(t, 2, p.Trim(2))
	p.Close()
	for _, b := range kept {
		requireBlocked(t, b)
	}
	// Whatever is mapped now, by the runtime or by us, it is somewhere else.
	for range 200 {
		m, err := mapRange(64 << 10)
		require.NoError(t, err)
		for _, b := range kept {
			require.False(t, overlap(m, b))
		}
		big := make([]byte, 1<<20)
		for _, b := range kept {
			require.False(t, overlap(big, b))
		}
		require.NoError(t, unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m)), uintptr(len(m))))
	}
	for _, b := range kept {
		requireBlocked(t, b)
	}
}

func overlap(a, b []byte) bool {
	return address(a) < address(b)+uintptr(len(b)) && address(b) < address(a)+uintptr(len(a))
}

// dgraph-io/badger#1136, numtide/treefmt#696: memory is unmapped while a reader
// still has it.
func TestNothingIsUnmappedUnderAHolder(t *testing.T) {
	for _, cfg := range mappedConfigs() {
		p := newTestPool(t, withMaxIdle(cfg, 64))
		var inUse, released, ended sync.WaitGroup
		closed := make(chan struct{})
		inUse.Add(64)
		released.Add(32)
		for i := range 64 {
			ended.Go(func() {
				ws := p.Acquire()
				b := ws.Client().Alloc(64 << 10)
				c := ws.Backend().Copy(tag(i))
				done := func() {}
				if i%2 == 0 {
					done = ws.Hold()
					ws.Release()
					released.Done()
				}
				inUse.Done()
				<-closed
				for range 20 { // while Close and Trim are called again and again
					smear(b, tag(i))
					require.Equal(t, tag(i), c)
				}
				done()
				ws.release()
			})
		}
		inUse.Wait()
		released.Wait()
		p.Close()
		p.Trim(0)
		close(closed)
		for range 20 {
			p.Close()
			p.Trim(0)
			p.AuditIdle()
			ws := p.Acquire() // has no block
			require.Zero(t, ws.Client().Size())
			ws.Release()
			_, err := p.AcquireContext(t.Context())
			require.ErrorIs(t, err, ErrClosed)
		}
		ended.Wait()
		s := p.Stats()
		require.Zero(t, s.InUse)
		require.Zero(t, s.Idle)
		require.EqualValues(t, 64, s.Created)
		require.EqualValues(t, 64, s.Discarded)
		require.Zero(t, s.MapFailures)
	}
}

func withMaxIdle(c Config, n int) Config {
	c.MaxIdle = n
	return c
}

// An abandoned block stays as it is while a handle exists. When the collector has
// found that none does, its addresses are blocked for ever.
func TestAbandonedMappedBlocks(t *testing.T) {
	for _, cfg := range []Config{{Memory: Mapped}, {Debug: Fence, Quarantine: 1}} {
		cfg.ClientSize, cfg.BackendSize = 11*MinHalfSize, MinHalfSize // sizes of no other test
		p := newTestPool(t, cfg)
		ws := p.Acquire()
		a := ws.Client()
		b := a.Copy(tag(7))
		ws.Abandon()
		for range 3 {
			runtime.GC()
			require.Equal(t, tag(7), b, "a late reader finds its own bytes")
			require.EqualValues(t, 1, p.Stats().AbandonedLive)
		}
		runtime.KeepAlive(a) // a handle, too
		require.EqualValues(t, cfg.Debug/Fence, p.fences, "it counts as long as it is there")
		ws, a = nil, nil
		require.Eventually(t, func() bool {
			runtime.GC()
			return p.Stats().AbandonedLive == 0
		}, waitLimit, pollEvery)
		require.Eventually(t, func() bool { return touching(func() { sink = b[0] }) != nil }, waitLimit, pollEvery)
		for range 40 {
			ws := p.Acquire()
			require.False(t, overlap(ws.blk.mem, b), "never used again")
			ws.Release()
			p.Trim(0)
		}
		requireBlocked(t, b)
		require.Zero(t, p.fences)
	}
}

// Both kinds of doubt of a request that is over: the memory was wiped.
func TestBadMappedBlocksAreNotUsedAgain(t *testing.T) {
	p := newTestPool(t, Config{Memory: Mapped, MaxIdle: 4, ClientSize: 13 * MinHalfSize, BackendSize: MinHalfSize})
	ws := p.Acquire()
	mem := ws.blk.mem
	half := ws.blk.half(Client)
	ws.Release()
	half[5000] = 1
	blocks, violations := p.AuditIdle()
	require.Equal(t, 1, blocks)
	require.Equal(t, 1, violations)
	requireBlocked(t, half)
	for range 5 {
		ws := p.Acquire()
		require.False(t, overlap(ws.blk.mem, mem))
		ws.Release()
		p.Trim(0)
	}
	require.Equal(t, DirtyTail, p.violations(1)[0].Kind)

	// One that the system does not shut is counted, and not used either.
	ws = p.Acquire()
	mem, half = ws.blk.mem, ws.blk.half(Client)
	ws.Release()
	half[5000] = 1
	sysMapAnew = func([]byte) error { return errors.New("refused for the test") }
	p.AuditIdle()
	sysMapAnew = mapAnew
	require.EqualValues(t, 1, p.Stats().MapFailures)
	ws = p.Acquire()
	require.False(t, overlap(ws.blk.mem, mem))
	ws.Release()
	p.violations(2)
}

// What Trim and Close let go of is used again; a half-open region is, too, if it
// could be shut.
func TestRegionsOfCleanBlocksAreSpare(t *testing.T) {
	sizes := [2]int{23 * MinHalfSize, MinHalfSize} // of no other test
	p := newTestPool(t, Config{Memory: Mapped, ClientSize: sizes[0], BackendSize: sizes[1]})
	ws := p.Acquire()
	r := ws.blk.region
	ws.Release()
	p.Trim(0)
	refused := errors.New("refused for the test")
	opened := 0
	sysOpen = func(b []byte, how advice) error {
		if opened++; opened == 2 {
			return refused
		}
		return openPages(b, how)
	}
	_, err := openRegion(sizes[0], sizes[1], advice{})
	require.ErrorIs(t, err, refused)
	requireBlocked(t, r.halves[Client])

	opened = 1
	sysMapAnew = func([]byte) error { return refused }
	again := takeSpare(sizes)
	require.Same(t, r, again, "it was shut, so it is spare")
	again.putSpare()
	_, err = openRegion(sizes[0], sizes[1], advice{})
	sysOpen, sysMapAnew = openPages, mapAnew
	require.ErrorIs(t, err, refused)
	require.Nil(t, takeSpare(sizes), "it could not be shut")
}

// A system call that fails costs the fence or the mapping, never the request.
func TestBlocksComeFromTheHeapWhenTheSystemRefuses(t *testing.T) {
	refused := errors.New("refused for the test")
	for what, refuse := range map[string]func(){
		"map":  func() { sysMap = func(int) ([]byte, error) { return nil, refused } },
		"open": func() { sysOpen = func([]byte, advice) error { return refused } },
	} {
		for _, cfg := range []Config{{Memory: Mapped}, {Debug: Fence}, {FenceEvery: 1}} {
			t.Run(what, func(t *testing.T) {
				cfg.ClientSize, cfg.BackendSize = 17*MinHalfSize, MinHalfSize // no spare ones
				p := newTestPool(t, cfg)
				refuse()
				defer func() { sysMap, sysOpen = mapRange, openPages }()
				for n := range 3 {
					ws := p.Acquire()
					require.Nil(t, ws.blk.region)
					requireClean(t, ws)
					ws.Client().Copy(tag(n))
					ws.Release()
				}
				s := p.Stats()
				require.Positive(t, s.MapFailures)
				require.EqualValues(t, s.Created, s.MapFailures)
				if cfg.Memory != Mapped {
					require.Zero(t, s.Fenced)
					require.EqualValues(t, 3, s.FenceSkipped)
				}
				require.Zero(t, p.fences)
				sysMap, sysOpen = mapRange, openPages
				p.Trim(0)
				ws := p.Acquire()
				require.NotNil(t, ws.blk.region, "as soon as the system has memory again")
				ws.Release()
			})
		}
	}
	for range 100 {
		takeSpare([2]int{17 * MinHalfSize, MinHalfSize})
	}
}

// Abandoned blocks never give their addresses back. The Go runtime ends the program
// when the system has none left for it, so the blocks come from the heap before.
func TestAddressesAreLimited(t *testing.T) {
	p := newTestPool(t, Config{Memory: Mapped, ClientSize: 19 * MinHalfSize, BackendSize: MinHalfSize}) // no spare ones
	_, total := layOut([2]int{19 * MinHalfSize, MinHalfSize}, pageSize())
	before := addresses.Load()
	addresses.Store(maxAddresses - int64(total))
	defer addresses.Store(before + int64(total))
	ws := p.Acquire()
	require.NotNil(t, ws.blk.region)
	over := p.Acquire()
	require.True(t, over.blk.region == nil, "not require.Nil, which would print inaccessible pages")
	over.Client().Copy(tag(1))
	over.Abandon()
	ws.Release()
	require.EqualValues(t, 1, p.Stats().MapFailures)
	p.Trim(0)
	ws = p.Acquire()
	require.NotNil(t, ws.blk.region, "a spare one takes no new addresses")
	ws.Release()
	require.EqualValues(t, maxAddresses, addresses.Load())
}

// A range that could not be shut is dropped: it is neither used again nor a fence.
func TestRegionsThatCouldNotBeShutAreDropped(t *testing.T) {
	for _, cfg := range []Config{{Memory: Mapped}, {Debug: Fence, Quarantine: 1}} {
		cfg.ClientSize, cfg.BackendSize = 19*MinHalfSize, MinHalfSize
		p := newTestPool(t, cfg)
		ws := p.Acquire()
		mem := ws.blk.mem
		sysMapAnew = func([]byte) error { return errors.New("refused for the test") }
		ws.Release()
		p.Trim(0)
		sysMapAnew = mapAnew
		require.EqualValues(t, 1, p.Stats().MapFailures)
		for range 10 {
			ws := p.Acquire()
			require.False(t, overlap(ws.blk.mem, mem))
			ws.Release()
			p.Trim(0)
		}
	}
}

func TestLockIsTriedWhenThePoolIsMade(t *testing.T) {
	p, err := NewPool(Config{Memory: Mapped, Lock: true})
	require.NoError(t, err)
	ws := p.Acquire()
	ws.Client().Copy(tag(1))
	ws.Release()
	p.Close()
	sysOpen = func(_ []byte, how advice) error {
		require.True(t, how.lock)
		return unix.ENOMEM
	}
	defer func() { sysOpen = openPages }()
	_, err = NewPool(Config{Memory: Mapped, Lock: true})
	require.ErrorIs(t, err, ErrConfig)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "Lock is true, HugePages is false")
	if hugePages {
		sysOpen = func(_ []byte, how advice) error {
			require.Equal(t, advice{huge: true}, how)
			return unix.EINVAL // a kernel without huge pages
		}
		_, err = NewPool(Config{Memory: Mapped, HugePages: true})
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorIs(t, err, unix.EINVAL)
	}
}
