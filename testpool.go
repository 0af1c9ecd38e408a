package workspace

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// A TestingT is what [TestPool] needs of a *testing.T, *testing.B or *testing.F.
type TestingT interface {
	Helper()
	Name() string
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// TestPool returns a pool for a test, which finds those who keep memory of a
// workspace too long. When the test has ended, it fails if a workspace was not
// released, a hold is open, [FenceFaultOf] explained a late touch, or a violation was
// found. It waits up to five seconds for requests that are just ending. Clean-ups
// that the test had registered before run after that, so call TestPool first.
//
// Where memory can be mapped (64-bit Linux, macOS and BSD) the pool has
// Config.Debug Fence: the first late read or write stops at the line that did it.
// In the goroutine that called TestPool it panics; [FenceFaultOf] explains what
// recover returned. In any other goroutine it ends the program, as the Go
// runtime does with every bad address, unless that goroutine called
// [runtime/debug.SetPanicOnFault]. Then the file workspace-fence-*.log in the
// directory for temporary files says, by address, what the memory was, and
// which stacks had acquired and released it. So it does when the panic in the
// goroutine of the test is not recovered. A test that gets to its end removes it.
//
// Elsewhere the pool has Config.Debug Poison, which sees late writes, and shows
// late readers rubbish.
//
// The pool is in Watermark and audits each operation. configure may change that,
// and the sizes. What does not fit into a half comes from the heap, and is not
// fenced. A system call that gets memory of an ended request fails with EFAULT.
// The race detector does not see fenced memory: run some tests with Debug Poison
// under -race, too.
func TestPool(t TestingT, configure ...func(*Config)) *Pool {
	t.Helper()
	return watchedPool(t, 5*time.Second, configure)
}

// watchedPool is TestPool. patience is how long it waits for the last requests.
func watchedPool(t TestingT, patience time.Duration, configure []func(*Config)) *Pool {
	t.Helper()
	cfg := Config{Name: t.Name(), Mode: Watermark, AuditEvery: 1, Debug: Poison, Quarantine: 4096}
	if canMap {
		cfg.Debug = Fence
	}
	for _, f := range configure {
		f(&cfg)
	}
	w := &watch{live: map[*Workspace]*life{}}
	cfg.watch = w
	onViolation := cfg.OnViolation
	cfg.OnViolation = func(v *Violation) {
		w.violated(v)
		if onViolation != nil {
			onViolation(v)
		}
	}
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatalf("workspace.TestPool: %v", err)
	}
	panics := debug.SetPanicOnFault(true)
	fenceLog.open()
	t.Cleanup(func() {
		t.Helper()
		debug.SetPanicOnFault(panics)
		w.check(t, p, patience)
		p.Close()
		if file := fenceLog.close(faulted()); file != "" {
			t.Errorf("workspace.TestPool: the test ends in a fault; %s says, by address, what the memory was and who had released it", file)
		}
	})
	return p
}

// A watch knows the workspaces of one TestPool that are alive. Any other pool has
// nil, on which all methods but fenced do nothing.
type watch struct {
	mu         sync.Mutex
	live       map[*Workspace]*life
	holds      int // so far
	violations []*Violation
	touches    []*FenceFault
}

// A life is what is known of a live workspace.
type life struct {
	acquired []uintptr
	holds    map[int][]uintptr // open ones: the stacks that called Hold
}

func (w *watch) acquired(ws *Workspace) {
	if w == nil {
		return
	}
	stack := pcs(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live[ws] = &life{acquired: stack, holds: map[int][]uintptr{}}
}

func (w *watch) ended(ws *Workspace) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.live, ws)
}

// held returns a number for the hold, for let.
func (w *watch) held(ws *Workspace) int {
	if w == nil {
		return 0
	}
	stack := pcs(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds++
	w.live[ws].holds[w.holds] = stack
	return w.holds
}

func (w *watch) let(ws *Workspace, hold int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.live[ws].holds, hold)
}

func (w *watch) violated(v *Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, v)
}

func (w *watch) touched(f *FenceFault) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touches = append(w.touches, f)
}

// fenced records a fenced block that was released.
func (w *watch) fenced(t *tenure) {
	fenceLog.write(fmt.Sprintf("%s workspace %d of pool %q: client half %s, backend half %s\n  acquired by %s\n  released by %s\n",
		time.Now().Format(time.RFC3339Nano), t.number, t.pool.cfg.Name, t.addresses(Client), t.addresses(Backend),
		strings.Join(frames(t.acquired), "\n              "), strings.Join(frames(t.released), "\n              ")))
}

// check reports to t what is wrong at the end of the test.
func (w *watch) check(t TestingT, p *Pool, patience time.Duration) {
	t.Helper()
	for end := time.Now().Add(patience); w.alive() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	p.AuditIdle()
	for range maxReports { // each report that is under way has one of these places
		p.reports <- struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for ws, l := range w.live {
		if !ws.ended.Load() {
			t.Errorf("workspace.TestPool: a workspace was not released, acquired by\n\t%s", strings.Join(frames(l.acquired), "\n\t"))
		}
		for _, stack := range l.holds {
			t.Errorf("workspace.TestPool: a hold is open, taken by\n\t%s", strings.Join(frames(stack), "\n\t"))
		}
	}
	for _, f := range w.touches {
		t.Errorf("workspace.TestPool: %v", f)
	}
	for _, v := range w.violations {
		t.Errorf("workspace.TestPool: %v\n\t%s", v, strings.Join(v.Stack, "\n\t"))
	}
	if n := p.Stats().Violations - int64(len(w.violations)); n > 0 {
		t.Errorf("workspace.TestPool: %d further violations were found", n)
	}
	if n := p.Stats().MapFailures; n > 0 {
		t.Errorf("workspace.TestPool: %d blocks were not fenced, since the system refused to map memory", n)
	}
}

func (w *watch) alive() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live)
}

// fenceLog is the file that explains, after a crash, what memory an address was.
var fenceLog crashLog

// A crashLog is a file that exists while TestPools do.
type crashLog struct {
	mu    sync.Mutex
	users int
	file  *os.File // nil until the first write
}

func (l *crashLog) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
}

// write appends s. That the file can't be written must not fail the test.
func (l *crashLog) write(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return
	}
	if l.file == nil {
		var err error
		if l.file, err = os.CreateTemp("", "workspace-fence-*.log"); err != nil {
			return
		}
	}
	l.file.WriteString(s)
}

// close removes the file when the last user has gone. keep leaves it, for a
// program that is about to end, and returns its name.
func (l *crashLog) close(keep bool) (kept string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if keep && l.file != nil {
		return l.file.Name()
	}
	if l.users--; l.users > 0 || l.file == nil {
		return ""
	}
	l.file.Close()
	os.Remove(l.file.Name())
	l.file = nil
	return ""
}

// faulted reports whether a bad address made the calling goroutine panic. Package
// testing has recovered the panic when it runs the clean-ups, and ends the program
// with it afterwards; the stack still shows it.
func faulted() bool {
	return slices.ContainsFunc(callers(0), func(frame string) bool { return strings.HasPrefix(frame, "runtime.sigpanic ") })
}
