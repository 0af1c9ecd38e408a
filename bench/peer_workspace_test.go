package bench

import (
	"testing"

	"github.com/go-workspace/workspace"
	"github.com/stretchr/testify/require"
)

// This library, with sampled audits on as by default: separate slices by Copy,
// and one growing Buffer as a match for the growing peers.
func init() {
	newPool := func(tb testing.TB, m workspace.Mode) *workspace.Pool {
		p, err := workspace.NewPool(workspace.Config{Mode: m})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.Zero(tb, p.Stats().Violations, "violations") })
		return p
	}
	take := func(p *workspace.Pool) func(int, func([]byte)) {
		return func(n int, look func([]byte)) {
			ws := p.Acquire()
			look(ws.Client().Alloc(n))
			ws.Release()
		}
	}
	for _, m := range []workspace.Mode{workspace.Watermark, workspace.FullClear} {
		register(func(tb testing.TB) peer {
			pool := newPool(tb, m)
			return peer{
				name:   "workspace," + m.String(),
				zeroed: true,
				serve: func(pieces, copies [][]byte, check func(...[]byte)) {
					ws := pool.Acquire()
					a := ws.Client()
					for i, p := range pieces {
						copies[i] = a.Copy(p)
					}
					if check != nil {
						check(copies...)
					}
					ws.Release()
				},
				take: take(pool),
			}
		})
	}
	register(func(tb testing.TB) peer {
		pool := newPool(tb, workspace.Watermark)
		return peer{
			name:   "workspace,watermark,Buffer",
			zeroed: true,
			serve: func(pieces, _ [][]byte, check func(...[]byte)) {
				ws := pool.Acquire()
				buf := ws.Client().Buffer()
				for _, p := range pieces {
					buf.Write(p)
				}
				if check != nil {
					check(buf.Bytes())
				}
				ws.Release()
			},
			take: take(pool),
		}
	})
}
