package workspace

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The values were computed with another program: a host must keep its place when
// the library is updated.
func TestHostCanaryBuckets(t *testing.T) {
	for _, c := range []struct {
		salt, pool, host string
		want             uint64
	}{
		{"", "default", "host-1", 8146},
		{"2026-q1", "edge", "host-1", 1490},
		{"2026-q1", "edge", "host-2", 5603},
		{"a", "bc", "d", 6615},
		{"ab", "c", "d", 9756},
	} {
		hc := &HostCanary{Salt: c.salt, HostID: c.host}
		require.Equal(t, c.want, hc.bucket(c.pool), c)
		for _, in := range []int{0, 1, int(c.want), int(c.want) + 1, 10_000} {
			hc.BasisPoints = in
			require.Equal(t, in > int(c.want), hc.Includes(c.pool), "%v at %d", c, in)
		}
	}
}

func TestHostCanaryIsExactAtTheEnds(t *testing.T) {
	for i := range 20_000 {
		c := &HostCanary{HostID: fmt.Sprintf("host-%d", i)}
		require.False(t, c.Includes("p"))
		c.BasisPoints = 10_000
		require.True(t, c.Includes("p"))
	}
	require.True(t, (*HostCanary)(nil).Includes("p"))
	require.True(t, (&HostCanary{BasisPoints: 10_000}).Includes("p"), "without a name, too")
	require.False(t, (&HostCanary{}).Includes("p"))
}

// Numbered hosts are spread evenly, and those of one rollout are not those of
// another.
func TestHostCanarySpreadsHosts(t *testing.T) {
	const hosts, cells = 100_000, 100
	var counts [cells]int64
	both := 0
	for i := range hosts {
		a := &HostCanary{BasisPoints: 1000, HostID: fmt.Sprintf("edge%05d.example.com", i), Salt: "a"}
		b := &HostCanary{BasisPoints: 1000, HostID: a.HostID, Salt: "b"}
		counts[a.bucket("p")*cells/allBasisPoints]++
		if a.Includes("p") && b.Includes("p") {
			both++
		}
	}
	require.Less(t, chiSquare(counts[:], func(int) float64 { return hosts / cells }), chiSquareLimit(cells-1))
	require.InDelta(t, hosts/100, both, 150, "a tenth of a tenth")
}

func TestHostCanaryRestrictsWatermark(t *testing.T) {
	none, all := &HostCanary{HostID: "h"}, &HostCanary{HostID: "h", BasisPoints: 10_000}
	for _, c := range []struct {
		cfg  Config
		want Mode
	}{
		{Config{Mode: Watermark, HostCanary: none}, Shadow},
		{Config{Mode: Watermark, HostCanary: all}, Watermark},
		{Config{Mode: FullClear, HostCanary: all}, FullClear},
		{Config{Mode: FullClear, HostCanary: none}, FullClear},
		{Config{Mode: Shadow, HostCanary: all}, Shadow},
		{Config{Mode: Shadow, Canary: 1, HostCanary: none}, Shadow},
		{Config{Mode: Shadow, Canary: 1, HostCanary: all}, Watermark},
	} {
		p := newTestPool(t, c.cfg)
		ws := p.Acquire()
		require.Equal(t, c.want, ws.Mode(), "%+v", c.cfg)
		ws.Release()
		s := p.Stats()
		require.Equal(t, c.cfg.HostCanary == none, s.HostExcluded)
		if c.cfg.Canary == 0 {
			require.Equal(t, c.want, s.Effective)
			require.Equal(t, c.cfg.Mode, s.Mode)
		}
	}

	p := newTestPool(t, Config{Mode: Watermark})
	under := p.Acquire()
	require.NoError(t, p.SetHostCanary(none))
	next := p.Acquire()
	require.Equal(t, Watermark, under.Mode(), "a request keeps its mode")
	require.Equal(t, Shadow, next.Mode())
	require.NoError(t, p.SetHostCanary(nil))
	last := p.Acquire()
	require.Equal(t, Watermark, last.Mode())
	for _, ws := range []*Workspace{under, next, last} {
		ws.Release()
	}
}

func TestHostCanaryRefusesBadValues(t *testing.T) {
	p := newTestPool(t, Config{Mode: Watermark})
	for _, c := range []struct {
		canary HostCanary
		want   string
	}{
		{HostCanary{BasisPoints: -1, HostID: "h"}, "HostCanary.BasisPoints is -1, want 0 to 10000"},
		{HostCanary{BasisPoints: 10_001, HostID: "h"}, "HostCanary.BasisPoints is 10001, want 0 to 10000"},
		{HostCanary{BasisPoints: 50}, "HostCanary.HostID is empty, and BasisPoints 50"},
	} {
		_, err := NewPool(Config{HostCanary: &c.canary})
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, c.want)
		err = p.SetHostCanary(&c.canary)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, Watermark, p.Stats().Effective, "left as it was")
	}
}
