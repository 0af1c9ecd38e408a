package bench

import (
	"slices"
	"testing"

	"github.com/valyala/bytebufferpool"
)

// valyala/bytebufferpool: one growing buffer, and a pool that learns which sizes
// to keep. Wiped means that what was written is cleared by hand before Put.
func init() {
	for _, wipe := range []bool{false, true} {
		register(func(testing.TB) peer {
			pool := new(bytebufferpool.Pool)
			name := "bytebufferpool"
			if wipe {
				name += ",wiped"
			}
			return peer{
				name:   name,
				zeroed: wipe,
				serve: func(pieces, _ [][]byte, check func(...[]byte)) {
					buf := pool.Get()
					for _, p := range pieces {
						buf.Write(p)
					}
					if check != nil {
						check(buf.B)
					}
					if wipe {
						clear(buf.B)
					}
					pool.Put(buf)
				},
				take: func(n int, look func([]byte)) {
					buf := pool.Get()
					buf.B = slices.Grow(buf.B, n)
					look(buf.B[:n])
					pool.Put(buf)
				},
			}
		})
	}
}
