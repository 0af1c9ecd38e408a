//go:build !(386 || arm || mips || mipsle)

package workspace

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smaps returns the value in kB, or the words, of one line of /proc/self/smaps for
// the mapping at an address (proc_pid_smaps(5)).
func smaps(t *testing.T, addr uintptr, field string) string {
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	within := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			within = from <= addr && addr < to
		} else if value, ok := strings.CutPrefix(line, field+":"); ok && within {
			return strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		}
	}
	t.Fatalf("%s of %#x is not in smaps", field, addr)
	return ""
}

func kilobytes(t *testing.T, addr uintptr, field string) int {
	n, err := strconv.Atoi(smaps(t, addr, field))
	require.NoError(t, err)
	return n
}

func TestTrimGivesThePagesBack(t *testing.T) {
	p := newTestPool(t, Config{Memory: Mapped, MaxIdle: 1})
	ws := p.Acquire()
	at := address(ws.blk.half(Client))
	require.Zero(t, kilobytes(t, at, "Rss"), "a block that nobody has written to costs no memory")
	smear(ws.Client().Alloc(64<<10), tag(1))
	require.GreaterOrEqual(t, kilobytes(t, at, "Rss"), 64)
	ws.Release()
	require.GreaterOrEqual(t, kilobytes(t, at, "Rss"), 64, "an idle block keeps its pages")
	p.Trim(0)
	require.Zero(t, kilobytes(t, at, "Rss"))
}

// Locking fills the pages at once, so the advice must come first.
func TestLockAndHugePagesReachTheSystemTogether(t *testing.T) {
	const size = 4 << 20 // holds an aligned huge page of 2 MB
	b, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer unix.Munmap(b)
	if unix.Madvise(b, unix.MADV_HUGEPAGE) != nil || unix.Mlock(b[:size]) != nil {
		t.Skip("this system has no huge pages, or locks less than 4 MB")
	}
	if kilobytes(t, addressOf(b), "AnonHugePages") == 0 {
		t.Skip("this system gives no huge pages")
	}
	require.NoError(t, unix.Munlock(b[:size]))
	p := newTestPool(t, Config{Memory: Mapped, Lock: true, HugePages: true, ClientSize: size, BackendSize: MinHalfSize})
	ws := p.Acquire()
	require.NotZero(t, kilobytes(t, address(ws.blk.half(Client)), "AnonHugePages"))
	ws.Release()
}

func TestLockAndHugePagesReachTheSystem(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		flag string // of VmFlags in smaps
	}{{Config{Lock: true}, "lo"}, {Config{HugePages: true}, "hg"}} {
		for _, on := range []bool{true, false} {
			cfg := Config{}
			if on {
				cfg = c.cfg
			}
			cfg.Memory = Mapped
			p := newTestPool(t, cfg)
			ws := p.Acquire()
			for _, h := range bothHalves {
				require.Equal(t, on, strings.Contains(" "+smaps(t, address(ws.blk.half(h)), "VmFlags")+" ", " "+c.flag+" "))
			}
			at := address(ws.blk.half(Client))
			ws.Release()
			p.Trim(0)
			require.NotContains(t, " "+smaps(t, at, "VmFlags")+" ", " lo ", "what is let go is not locked any more")
		}
	}
}
