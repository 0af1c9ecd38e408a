package bench

import (
	"testing"

	"github.com/dgraph-io/ristretto/v2/z"
)

// ristretto's z.Allocator: chunks that a bump pointer runs through, kept by a
// z.AllocatorPool. Copy hands out memory that is not zero. "wiped" clears by
// hand what was handed out, "AllocateAligned" uses the method that zeroes.
func init() {
	const chunk = 128 * kb // holds the largest request: growth is not measured
	type variant struct {
		name          string
		wipe, aligned bool
	}
	for _, v := range []variant{
		{name: "z.Allocator"},
		{name: "z.Allocator,wiped", wipe: true},
		{name: "z.Allocator,AllocateAligned", aligned: true},
	} {
		register(func(tb testing.TB) peer {
			pool := z.NewAllocatorPool(64)
			tb.Cleanup(pool.Release)
			return peer{
				name:   v.name,
				zeroed: v.wipe || v.aligned,
				serve: func(pieces, copies [][]byte, check func(...[]byte)) {
					a := pool.Get(chunk, "bench")
					if v.aligned {
						for i, p := range pieces {
							copies[i] = a.AllocateAligned(len(p))
							copy(copies[i], p)
						}
					} else {
						for i, p := range pieces {
							copies[i] = a.Copy(p)
						}
					}
					if check != nil {
						check(copies...)
					}
					if v.wipe {
						for _, c := range copies {
							clear(c)
						}
					}
					pool.Return(a)
				},
				take: func(n int, look func([]byte)) {
					a := pool.Get(chunk, "bench")
					if v.aligned {
						look(a.AllocateAligned(n))
					} else {
						look(a.Allocate(n))
					}
					pool.Return(a)
				},
			}
		})
	}
}
