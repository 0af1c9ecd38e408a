package bench

import (
	"bytes"
	"sync"
	"testing"
)

// sync.Pool of bytes.Buffer: one growing buffer, not separate slices. Wiped
// means that what was written is cleared by hand before Put.
func init() {
	for _, wipe := range []bool{false, true} {
		register(func(testing.TB) peer {
			pool := sync.Pool{New: func() any { return new(bytes.Buffer) }}
			name := "sync.Pool+bytes.Buffer"
			if wipe {
				name += ",wiped"
			}
			return peer{
				name:   name,
				zeroed: wipe,
				serve: func(pieces, _ [][]byte, check func(...[]byte)) {
					buf := pool.Get().(*bytes.Buffer)
					for _, p := range pieces {
						buf.Write(p)
					}
					if check != nil {
						check(buf.Bytes())
					}
					if wipe {
						clear(buf.Bytes())
					}
					buf.Reset()
					pool.Put(buf)
				},
				take: func(n int, look func([]byte)) {
					buf := pool.Get().(*bytes.Buffer)
					buf.Grow(n)
					look(buf.AvailableBuffer()[:n])
					pool.Put(buf)
				},
			}
		})
	}
}
