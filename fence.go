package workspace

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// The fence finds late reads, which no check of zeros can see. A fenced block
// is used once. When its request has ended, all of it becomes inaccessible, and
// its addresses are not used again for some time: the first touch stops at the
// line that did it. In production one request in Config.FenceEvery gets such a
// block; the idea is that of GWP-ASan (arXiv:2311.09394).

// A Debug says what the pool does to find those who use memory too late.
type Debug uint8

// The debugging aids. They cost much time.
const (
	DebugOff Debug = iota
	Poison         // an idle block holds a pattern, which is checked and wiped when the block is next used
	Fence          // each request gets a mapped block of its own, which is inaccessible afterwards
	numDebugs
)

var debugNames = [numDebugs]string{"off", "poison", "fence"}

// String returns "off", "poison" or "fence".
func (d Debug) String() string { return nameOf(debugNames[:], int(d), "debug") }

// MarshalText writes the name, for JSON and logs.
func (d Debug) MarshalText() ([]byte, error) { return nameText(d, debugNames[:], "debug") }

// UnmarshalText reads a name in any case.
func (d *Debug) UnmarshalText(text []byte) error { return parseName(d, debugNames[:], "debug", text) }

const (
	maxFenceEvery     = 1 << 30
	maxFences         = 16 // fenced blocks with FenceEvery, in use or abandoned and not collected, at once
	defaultQuarantine = 256
	maxQuarantine     = 1 << 16
)

// A tenure is the time for which one workspace has a fenced block.
type tenure struct {
	region   *region
	pool     *Pool
	number   int64 // of the workspace
	acquired []uintptr
	released []uintptr // nil while it lasts; fences.Mutex guards it
	forever  bool      // the addresses must not be used again; after a TestPool, too: a goroutine that a test left behind must not reach the memory of the next test
}

// fences are the tenures that last, and those whose addresses are blocked.
var fences struct {
	sync.Mutex
	tenures map[*tenure]struct{}
}

func newTenure(p *Pool, r *region, number int64) *tenure {
	t := &tenure{region: r, pool: p, number: number, acquired: pcs(3)}
	fences.Lock()
	defer fences.Unlock()
	if fences.tenures == nil {
		fences.tenures = map[*tenure]struct{}{}
	}
	fences.tenures[t] = struct{}{}
	return t
}

// end notes who ended the tenure: the calling stack.
func (t *tenure) end() {
	stack := pcs(2)
	fences.Lock()
	t.released = stack
	fences.Unlock()
	t.record()
}

// shut makes the memory inaccessible. It must have ended.
func (t *tenure) shut() {
	if err := t.region.shut(); err != nil {
		t.forever = true // it is no fence, but at least nobody else gets it
		t.pool.mapFailed(err)
	}
}

// record writes where the block was and who released it to where it survives a
// crash: the message of a crash names no more than the address.
func (t *tenure) record() {
	if w := t.pool.watch; w != nil {
		w.fenced(t)
		return
	}
	level := slog.LevelInfo // FenceEvery: few, and in production
	if t.pool.cfg.Debug == Fence {
		level = slog.LevelDebug
	}
	t.pool.tell(func() {
		if log := t.pool.logger(); log.Enabled(context.Background(), level) {
			log.Log(context.Background(), level, "workspace: the request of a fenced block has ended", "pool", t.pool.cfg.Name, "workspace", t.number,
				"client", t.addresses(Client), "backend", t.addresses(Backend), "released", strings.Join(frames(t.released), " < "))
		}
	})
}

// addresses returns the first address of a half and the first one behind it.
func (t *tenure) addresses(h Half) string {
	b := t.region.halves[h]
	return fmt.Sprintf("%#x-%#x", addressOf(b), addressOf(b)+uintptr(len(b)))
}

// forget drops the record of a tenure whose addresses are not watched any more,
// and lets them be used again where that is allowed.
func (t *tenure) forget() {
	if t == nil {
		return
	}
	fences.Lock()
	delete(fences.tenures, t)
	fences.Unlock()
	if !t.forever {
		t.region.putSpare()
	}
}

// fencesLocked decides whether the next request gets a fenced block.
func (p *Pool) fencesLocked() bool {
	if p.cfg.Debug != Fence {
		if p.cfg.FenceEvery == 0 {
			return false
		}
		if hi, _ := bits.Mul64(p.cfg.draw(), uint64(p.cfg.FenceEvery)); hi != 0 {
			return false
		}
		if p.fences >= maxFences {
			p.n.FenceSkipped++
			return false
		}
	}
	p.fences++
	return true
}

// fenced counts a block that was to be fenced.
func (p *Pool) fenced(done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done {
		p.n.Fenced++
		return
	}
	p.n.FenceSkipped++
	p.fences--
}

// quarantineLocked puts the tenure, which has ended, into quarantine. It returns
// the one whose time there is over, or nil.
func (p *Pool) quarantineLocked(t *tenure) (over *tenure) {
	if p.closed {
		t.forever = t.forever || p.watch != nil
		return t
	}
	p.blocked = append(p.blocked, t)
	if len(p.blocked) <= p.cfg.Quarantine {
		return nil
	}
	over, p.blocked[0] = p.blocked[0], nil
	p.blocked = p.blocked[1:]
	return over
}

// refence gives a workspace that was just reset another fenced block, so that
// what it had before is out of reach.
func (ws *Workspace) refence() {
	p, old := ws.pool, ws.blk
	ws.blk = p.newBlock(true, old.tenure.number)
	for _, a := range []*Arena{&ws.client, &ws.backend} {
		a.base = unsafe.SliceData(ws.blk.half(a.half))
	}
	old.tenure.end()
	old.tenure.shut()
	p.mu.Lock()
	p.n.Created++
	p.n.Discarded++
	over := p.quarantineLocked(old.tenure)
	p.mu.Unlock()
	over.forget()
}

// A FenceFault describes a read or a write that a fence stopped: of memory whose
// request had ended, or outside of a half. It is an error that wraps
// [ErrReleased] or [ErrMisuse]. It holds no contents of memory.
type FenceFault struct {
	Pool      string   `json:"pool"`
	Workspace int64    `json:"workspace"` // its number among those that the pool handed out, from 1
	Half      Half     `json:"half"`
	Offset    int      `json:"offset"`   // bytes from the start of the half; below 0 or at least Size: outside
	Size      int      `json:"size"`     // bytes in the half
	Acquired  []string `json:"acquired"` // the stack that acquired the workspace: function file:line, innermost first
	Released  []string `json:"released"` // the stack that released or reset it; empty: it was in use
}

// Error says in one line what was touched, and who released it.
func (f *FenceFault) Error() string {
	s := fmt.Sprintf("workspace %d of pool %q: byte %d of the %s half (%d bytes)", f.Workspace, f.Pool, f.Offset, f.Half, f.Size)
	if len(f.Released) == 0 {
		return fmt.Sprintf("%v: outside of memory in use: %s, acquired by %s", ErrMisuse, s, strings.Join(f.Acquired, " < "))
	}
	return fmt.Sprintf("%v: touched late: %s, acquired by %s, released by %s", ErrReleased, s, strings.Join(f.Acquired, " < "), strings.Join(f.Released, " < "))
}

// Unwrap returns ErrReleased for memory whose request had ended, else ErrMisuse.
func (f *FenceFault) Unwrap() error {
	if len(f.Released) == 0 {
		return ErrMisuse
	}
	return ErrReleased
}

// FenceFaultOf explains a panic. v is what recover returned in a goroutine that
// called [runtime/debug.SetPanicOnFault] with true, so that a bad address panics
// instead of ending the program. The result is nil when the address was not in a
// fenced block, or its time in quarantine is over. A fault in memory whose request
// had ended is counted (Stats.LateTouches).
func FenceFaultOf(v any) *FenceFault {
	fault, ok := v.(interface { // what the runtime panics with
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return nil
	}
	t, released := tenureAt(fault.Addr())
	if t == nil {
		return nil
	}
	f := &FenceFault{Pool: t.pool.cfg.Name, Workspace: t.number, Acquired: frames(t.acquired), Released: frames(released)}
	// The pages between the halves belong to neither. An overrun is more frequent
	// than an underrun, so they count for the half in front.
	if fault.Addr() >= addressOf(t.region.pages[Backend]) {
		f.Half = Backend
	}
	half := t.region.halves[f.Half]
	f.Offset, f.Size = int(fault.Addr()-addressOf(half)), len(half)
	if released != nil {
		t.pool.mu.Lock()
		t.pool.n.LateTouches++
		t.pool.mu.Unlock()
		t.pool.watch.touched(f)
	}
	return f
}

// tenureAt returns the tenure of the block at an address, and the stack that ended
// it: nil when it lasts.
func tenureAt(addr uintptr) (t *tenure, released []uintptr) {
	fences.Lock()
	defer fences.Unlock()
	for t := range fences.tenures {
		if addr-addressOf(t.region.all) < uintptr(len(t.region.all)) {
			return t, t.released
		}
	}
	return nil, nil
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
