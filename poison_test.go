package workspace

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func poisonConfigs() []Config {
	configs := []Config{{Debug: Poison}}
	if canMap {
		configs = append(configs, Config{Debug: Poison, Memory: Mapped})
	}
	return configs
}

// The slice is old, the block idle: a reader sees rubbish, not zeros that look right.
func TestPoisonIsWhatALateReaderSees(t *testing.T) {
	for _, cfg := range poisonConfigs() {
		for _, mode := range allModes {
			cfg.Mode = mode
			p := newTestPool(t, cfg)
			for n := range 4 {
				ws := p.Acquire()
				requireClean(t, ws)
				for _, h := range bothHalves {
					require.Zero(t, arenaOf(ws, h).Mark())
				}
				b := ws.Client().Alloc(ws.Client().Size())
				c := ws.Backend().Alloc(1000)
				stain(b, n)
				ws.Release()
				require.Equal(t, bytes.Repeat([]byte{poisonByte}, len(b)), b)
				require.Equal(t, bytes.Repeat([]byte{poisonByte}, len(c)), c)
			}
			blocks, violations := p.AuditIdle()
			require.Equal(t, 1, blocks)
			require.Zero(t, violations)
			require.EqualValues(t, 1, p.Stats().Created, "one block served them all")
		}
	}
}

// A late write is found when the block is next used, before its request starts,
// or by AuditIdle: each byte of both halves, whatever was written.
func TestPoisonFindsLateWrites(t *testing.T) {
	for _, cfg := range poisonConfigs() {
		for _, h := range bothHalves {
			for _, c := range []struct {
				offsets []int
				value   byte
			}{
				{[]int{0}, 0}, {[]int{0}, 1}, {[]int{DefaultHalfSize - 1}, 0}, {[]int{70_000, 70_001, 99_999}, poisonByte ^ 1},
			} {
				for name, find := range map[string]func(p *testPool){
					"acquire": func(p *testPool) {
						ws := p.Acquire()
						requireClean(t, ws)
						require.EqualValues(t, 2, p.Stats().Created, "another block")
						ws.Release()
						require.EqualValues(t, 1, p.Stats().Doubts.Violation)
					},
					"AuditIdle": func(p *testPool) {
						_, violations := p.AuditIdle()
						require.Equal(t, 1, violations)
						require.Zero(t, p.Stats().Idle)
					},
				} {
					t.Run(name, func(t *testing.T) {
						p := newTestPool(t, cfg)
						ws := p.Acquire()
						b := arenaOf(ws, h).Alloc(DefaultHalfSize)
						ws.Release()
						for _, i := range c.offsets {
							b[i] = c.value
						}
						find(p)
						v := p.violations(1)[0]
						require.Equal(t, PoisonDamaged, v.Kind)
						require.Equal(t, h, v.Half)
						require.Equal(t, c.offsets[0], v.First)
						require.Equal(t, c.offsets[len(c.offsets)-1], v.Last)
						require.Equal(t, len(c.offsets), v.Count)
						require.Contains(t, v.Error(), "bytes changed between")
						require.True(t, p.Stats().BreakerOpen)
					})
				}
			}
		}
	}
}

func TestPoisonAndADamagedGuard(t *testing.T) {
	p := newTestPool(t, Config{Debug: Poison})
	ws := p.Acquire()
	guard := ws.blk.guard(Backend)
	ws.Release()
	guard[3] ^= 4
	ws = p.Acquire()
	requireClean(t, ws)
	ws.Release()
	require.Equal(t, GuardDamaged, p.violations(1)[0].Kind)
}

// Whoever may still use an abandoned block finds its own bytes there.
func TestAbandonedBlocksAreNotPoisoned(t *testing.T) {
	for _, cfg := range poisonConfigs() {
		p := newTestPool(t, cfg)
		ws := p.Acquire()
		b := ws.Client().Copy(tag(1))
		ws.Abandon()
		require.Equal(t, tag(1), b)
	}
}

// A guard that was damaged while the block lay idle is one violation, not two.
func TestPoisonFindsADamagedGuardOnce(t *testing.T) {
	p := newTestPool(t, Config{Debug: Poison})
	ws := p.Acquire()
	guard := ws.blk.guard(Client)
	ws.Release()
	guard[0]++
	p.Acquire().Release()
	v := p.violations(1)[0]
	require.Equal(t, GuardDamaged, v.Kind)
	require.Equal(t, []int{-1, -1, 0}, []int{v.First, v.Last, v.Count})
	require.False(t, v.Guard)
}
