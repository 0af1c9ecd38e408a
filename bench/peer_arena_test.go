//go:build goexperiment.arenas

package bench

import (
	"arena"
	"testing"
)

// Go's experimental arenas; run with GOEXPERIMENT=arenas.
func init() {
	register(func(testing.TB) peer {
		return peer{
			name:   "arena",
			zeroed: true,
			serve: func(pieces, copies [][]byte, check func(...[]byte)) {
				a := arena.NewArena()
				for i, p := range pieces {
					copies[i] = arena.MakeSlice[byte](a, len(p), len(p))
					copy(copies[i], p)
				}
				if check != nil {
					check(copies...)
				}
				clear(copies) // the collector must not meet a pointer into freed memory
				a.Free()
			},
			take: func(n int, look func([]byte)) {
				a := arena.NewArena()
				look(arena.MakeSlice[byte](a, n, n))
				a.Free()
			},
		}
	})
}
