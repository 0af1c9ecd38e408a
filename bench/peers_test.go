package bench

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const kb = 1 << 10

// A peer is one way to give a request scratch memory. Each has a file of its
// own, peer_NAME_test.go, which registers it.
//
// A request is always the same work: take scratch memory, copy 40 pieces into
// it, give it back. Each file spells the loop out for itself: behind an
// interface every copy would cost a call more than it does a user of the peer.
type peer struct {
	name string
	// zeroed: what a request gets is zero, whatever requests before it wrote.
	zeroed bool
	// serve does one request. Peers that hand out separate slices leave them in
	// copies; those that write into one growing buffer do not use it. A check
	// that is not nil gets what was copied while the memory is still the request's.
	serve func(pieces, copies [][]byte, check func(got ...[]byte))
	// take gets n bytes of scratch memory as a request would, shows them to look
	// before anything is written to them, and gives them back. It is for tests.
	take func(n int, look func([]byte))
}

// peers makes each peer anew, so that no benchmark inherits buffers from another.
var peers []func(testing.TB) peer

func register(p func(testing.TB) peer) { peers = append(peers, p) }

const numPieces = 40

// pieces cuts total bytes, none of them zero, into 40 pieces: a few long ones
// and many short ones, as header lines and body fragments are.
func pieces(total int) [][]byte {
	src := make([]byte, total)
	for i := range src {
		src[i] = byte(1 + i%251)
	}
	weights := [8]int{1, 2, 1, 4, 1, 3, 1, 7} // 20 in all
	var out [][]byte
	for i := range numPieces {
		n := total / (numPieces / len(weights)) * weights[i%len(weights)] / 20
		if i == numPieces-1 {
			n = len(src)
		}
		out = append(out, src[:n:n])
		src = src[n:]
	}
	return out
}

var totals = []int{4 * kb, 20 * kb, 100 * kb}

func BenchmarkRequest(b *testing.B) {
	for _, total := range totals {
		for _, newPeer := range peers {
			p := newPeer(b)
			b.Run(fmt.Sprintf("bytes=%dKB/peer=%s", total/kb, p.name), func(b *testing.B) {
				src, copies := pieces(total), make([][]byte, numPieces)
				b.SetBytes(int64(total))
				b.ReportAllocs()
				for b.Loop() {
					p.serve(src, copies, nil)
				}
				reportZeroed(b, p)
			})
		}
	}
}

// As many requests at once as there are processors.
func BenchmarkRequestParallel(b *testing.B) {
	const total = 20 * kb
	for _, newPeer := range peers {
		p := newPeer(b)
		b.Run(fmt.Sprintf("bytes=%dKB/peer=%s", total/kb, p.name), func(b *testing.B) {
			b.SetBytes(total)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				src, copies := pieces(total), make([][]byte, numPieces)
				for pb.Next() {
					p.serve(src, copies, nil)
				}
			})
			reportZeroed(b, p)
		})
	}
}

// reportZeroed tells the table program which peers may be compared.
func reportZeroed(b *testing.B, p peer) {
	v := 0.0
	if p.zeroed {
		v = 1
	}
	b.ReportMetric(v, "zeroed")
}

// A benchmark of a peer that copies less, or wipes less than it says, would be
// worth nothing.
func TestPeersDoTheSameWork(t *testing.T) {
	for _, newPeer := range peers {
		p := newPeer(t)
		t.Run(p.name, func(t *testing.T) {
			for _, total := range totals {
				require.NoError(t, verify(p, total), "%d bytes", total)
			}
		})
	}
}

// verify checks one peer: that all bytes of all pieces are copied, to memory
// that is not the source, and that memory comes back zero exactly where the
// peer says so. A peer that does not say so must be seen to be dirty, or its
// row in the table would be labelled wrongly.
func verify(p peer, total int) error {
	// Several rounds: a sync.Pool may drop what it was given, and does so at
	// random under the race detector.
	const rounds = 50
	src, copies := pieces(total), make([][]byte, numPieces)
	want := bytes.Join(src, nil)
	dirty := false
	var err error
	for range rounds {
		checked := false
		p.serve(src, copies, func(got ...[]byte) {
			checked = true
			all := bytes.Join(got, nil)
			switch {
			case len(got) != 1 && len(got) != numPieces:
				err = fmt.Errorf("%d slices instead of 1 or %d", len(got), numPieces)
			case len(all) != total:
				err = fmt.Errorf("%d bytes copied instead of %d", len(all), total)
			case !bytes.Equal(all, want):
				err = fmt.Errorf("other bytes than those of the source")
			}
			for i, g := range got {
				if len(got) == numPieces && len(g) > 0 && &g[0] == &src[i][0] {
					err = fmt.Errorf("piece %d is the source itself", i)
				}
			}
		})
		if err == nil && !checked {
			err = fmt.Errorf("nothing was checked")
		}
		if err != nil {
			return err
		}
		p.take(total, func(b []byte) {
			if len(b) != total {
				err = fmt.Errorf("take gave %d bytes instead of %d", len(b), total)
			}
			if bytes.Count(b, []byte{0}) != len(b) {
				dirty = true
			}
		})
		if err != nil {
			return err
		}
	}
	if dirty == p.zeroed {
		return fmt.Errorf("zeroed is %t, but some of the memory was not zero: %t", p.zeroed, dirty)
	}
	return nil
}

// The checks above must be able to fail.
func TestVerifyFindsBrokenPeers(t *testing.T) {
	memory := make([]byte, 100*kb)
	good := peer{
		name:   "one slice",
		zeroed: true,
		serve: func(pieces, _ [][]byte, check func(...[]byte)) {
			n := 0
			for _, p := range pieces {
				n += copy(memory[n:], p)
			}
			check(memory[:n])
			clear(memory[:n])
		},
		take: func(n int, look func([]byte)) { look(memory[:n]) },
	}
	require.NoError(t, verify(good, 4*kb))

	for name, change := range map[string]func(p *peer){
		"keeps old bytes and says it does not": func(p *peer) {
			p.serve = func(pieces, _ [][]byte, check func(...[]byte)) {
				check(append(memory[:0], bytes.Join(pieces, nil)...))
			}
		},
		"wipes all but the last byte": func(p *peer) {
			p.serve = func(pieces, _ [][]byte, check func(...[]byte)) {
				b := append(memory[:0], bytes.Join(pieces, nil)...)
				check(b)
				clear(b[:len(b)-1])
			}
		},
		"says it keeps old bytes and does not": func(p *peer) { p.zeroed = false },
		"leaves out a piece": func(p *peer) {
			serve := p.serve
			p.serve = func(pieces, copies [][]byte, check func(...[]byte)) { serve(pieces[1:], copies, check) }
		},
		"copies a piece twice": func(p *peer) {
			serve := p.serve
			p.serve = func(pieces, copies [][]byte, check func(...[]byte)) {
				serve(append(pieces[:1:1], pieces[:len(pieces)-1]...), copies, check)
			}
		},
		"swaps two pieces": func(p *peer) {
			serve := p.serve
			p.serve = func(pieces, copies [][]byte, check func(...[]byte)) {
				s := append([][]byte(nil), pieces...)
				s[0], s[1] = s[1], s[0]
				serve(s, copies, check)
			}
		},
		"hands out the source": func(p *peer) {
			p.serve = func(pieces, _ [][]byte, check func(...[]byte)) { check(pieces...) }
		},
		"never calls check": func(p *peer) { p.serve = func(_, _ [][]byte, _ func(...[]byte)) {} },
		"takes less than asked": func(p *peer) {
			p.take = func(n int, look func([]byte)) { look(memory[:n-1]) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			clear(memory)
			p := good
			change(&p)
			require.Error(t, verify(p, 4*kb))
		})
	}
}

func TestPieces(t *testing.T) {
	for _, total := range totals {
		ps := pieces(total)
		require.Len(t, ps, numPieces)
		n := 0
		for _, p := range ps {
			require.NotEmpty(t, p)
			n += len(p)
		}
		require.Equal(t, total, n)
	}
}
