// Mutate changes the library in small ways and runs its tests on each change. A
// change that no test sees is either a gap in the tests or changes nothing that
// can be seen; the latter stand, with the reason, in equivalent.txt.
//
//	go run ./internal/mutate                      # all, from the root of the module
//	go run ./internal/mutate -file snapshot.go
//	go run ./internal/mutate -n 50 -seed 7        # a sample
//	go run ./internal/mutate -budget 2m -json results.jsonl -resume
//
// It exits with 1 if a mutant survives that is not in the list, and with 2 if
// it could not do its work.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed equivalent.txt
var equivalentText string

type options struct {
	file, fn, only  string
	n               int
	seed            uint64
	list            bool
	workers         int
	run, json, keep string
	resume, again   bool
	timeout, budget time.Duration
}

func main() {
	var o options
	p := library
	flag.StringVar(&p.dir, "dir", ".", "`directory` of the package")
	flag.StringVar(&o.file, "file", "", "mutate only this `file`")
	flag.StringVar(&o.fn, "func", "", "mutate only this `function`, as in Arena.high or high")
	flag.StringVar(&o.only, "only", "", "only mutants whose key matches this `regexp`")
	flag.IntVar(&o.n, "n", 0, "take a sample of this many; 0: all")
	flag.Uint64Var(&o.seed, "seed", 1, "of the sample")
	flag.BoolVar(&o.list, "list", false, "print the mutants and run nothing")
	flag.IntVar(&o.workers, "workers", 1, "mutants tested at once")
	flag.StringVar(&o.run, "run", "", "run only the tests that match this `regexp`")
	flag.StringVar(&o.json, "json", "", "append results to this `file`, a line each")
	flag.StringVar(&o.keep, "keep", "", "keep the program that has all mutants in this `directory`, and use it again")
	flag.BoolVar(&o.resume, "resume", false, "do not repeat what stands in the -json file")
	flag.BoolVar(&o.again, "again", false, "with -resume: repeat survivors all the same")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Minute, "of the tests on one mutant; a mutant that takes longer is killed")
	flag.DurationVar(&o.budget, "budget", 0, "stop after this time; 0: never")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	open, err := mutate(ctx, p, o, equivalentText, os.Stdout, os.Stderr)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	case open > 0:
		os.Exit(1)
	}
}

// mutate does it all. It returns how many mutants survived that are not in the
// list of equivalents.
func mutate(ctx context.Context, p plan, o options, equivalentText string, out, progress io.Writer) (open int, err error) {
	begun := time.Now()
	if p.dir, err = filepath.Abs(p.dir); err != nil {
		return 0, err
	}
	all, files, err := p.mutants()
	if err != nil {
		return 0, err
	}
	equivalents, err := parseEquivalents(equivalentText)
	if err != nil {
		return 0, fmt.Errorf("equivalent.txt: %w", err)
	}
	if s := stale(equivalents, all); len(s) > 0 {
		return 0, fmt.Errorf("equivalent.txt names mutants that there are no more:\n%s", strings.Join(s, "\n"))
	}
	ms, err := o.choose(all)
	if err != nil {
		return 0, err
	}
	if o.list {
		for _, m := range ms {
			fmt.Fprintf(out, "%d\t%s\n", m.Line, m.key())
		}
		return 0, nil
	}

	sources, tests, err := hashes(p.dir)
	if err != nil {
		return 0, err
	}
	unchanged := "no mutant, tests " + tests
	var results []result
	known := map[*mutant]string{} // verdicts
	sane := false
	if o.resume {
		last, err := earlier(o.json, sources)
		if err != nil {
			return 0, err
		}
		for _, m := range ms {
			r, ok := last[m.key()]
			if !ok || o.again && r.Verdict == survived {
				continue
			}
			known[m] = r.Verdict
			if r.Verdict != viable {
				r.mutant = m
				results = append(results, r)
			}
		}
		_, sane = last[unchanged]
	}
	report := func(result) error { return nil }
	if o.json != "" {
		f, err := os.OpenFile(o.json, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		enc := json.NewEncoder(f)
		enc.SetEscapeHTML(false)
		report = func(r result) error { return enc.Encode(r) }
	}

	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	if o.budget > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.budget)
		defer cancel()
	}
	t := &tester{p: p, o: o, files: files, known: known, sane: sane && o.run == "", unchanged: unchanged, total: len(ms) - len(results), progress: progress}
	t.report = func(r result) error {
		r.Sources = sources
		if r.mutant != nil && r.Verdict != viable {
			results = append(results, r)
		}
		return report(r)
	}
	if t.total > 0 {
		err = t.test(ctx, ms, &builder{dir: p.dir, tmp: tmp, keep: o.keep, id: sources + "-" + tests})
	}
	open = summary(out, results, equivalents, t.total-t.done, time.Since(begun))
	if ctx.Err() != nil {
		err = nil // cut short: the summary says so
	}
	return open, err
}

// choose filters and samples.
func (o *options) choose(all []*mutant) ([]*mutant, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	var ms []*mutant
	for _, m := range all {
		if (o.file == "" || m.File == o.file) && (o.fn == "" || m.Func == o.fn || strings.HasSuffix(m.Func, "."+o.fn)) && only.MatchString(m.key()) {
			ms = append(ms, m)
		}
	}
	if len(ms) == 0 {
		return nil, errors.New("no mutant fits the flags")
	}
	if o.n > 0 && o.n < len(ms) {
		r := rand.New(rand.NewPCG(o.seed, 0))
		chosen := r.Perm(len(ms))[:o.n]
		slices.Sort(chosen)
		for i, c := range chosen {
			ms[i] = ms[c]
		}
		ms = ms[:o.n]
	}
	return ms, nil
}

// earlier returns the results by key that earlier runs on the same sources have
// left in the file name. The last one on a mutant counts.
func earlier(name, sources string) (map[string]result, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	last := map[string]result{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if r.Sources == sources {
			last[r.Key] = r
		}
	}
	return last, lines.Err()
}

// hashes identify the package without its tests, and the tests.
func hashes(dir string) (sources, tests string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", "", err
	}
	hs, ht := sha256.New(), sha256.New()
	for _, name := range names {
		if ext := filepath.Ext(name); ext != ".go" && ext != ".s" {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return "", "", err
		}
		h := hs
		if strings.HasSuffix(name, "_test.go") {
			h = ht
		}
		fmt.Fprintf(h, "%s %d\n%s", filepath.Base(name), len(b), b)
	}
	return fmt.Sprintf("%x", hs.Sum(nil)[:8]), fmt.Sprintf("%x", ht.Sum(nil)[:8]), nil
}

// A tester tests mutants and tells how far it is.
type tester struct {
	p         plan
	o         options
	files     map[string]*file
	known     map[*mutant]string // verdicts of an earlier run
	sane      bool               // the tests have passed without a mutant
	unchanged string             // the key of that result
	total     int                // without these
	progress  io.Writer
	report    func(result) error

	mu      sync.Mutex
	done    int
	count   map[string]int
	started int // how many had been done when the first test ran
	clock   time.Time
}

func (t *tester) test(ctx context.Context, ms []*mutant, b *builder) error {
	t.count = map[string]int{}
	var check *checker
	var err error
	var together, alone []*mutant
	for _, m := range ms {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f := t.files[m.File]
		switch t.known[m] {
		case notViable:
			continue
		case "":
			if check == nil {
				if check, err = newChecker(t.p.dir); err != nil {
					return err
				}
			}
			if err := check.check(m.File, m.apply(f.src)); err != nil {
				if err := t.record(result{mutant: m, Verdict: notViable, By: oneLine(err.Error())}); err != nil {
					return err
				}
				continue
			}
			if err := t.report(result{mutant: m, Key: m.key(), Verdict: viable}); err != nil {
				return err
			}
		}
		// Those that an earlier run has tested are built all the same, so that the
		// program stays the same.
		if f.together(m) {
			together = append(together, m)
		} else {
			alone = append(alone, m)
		}
	}
	r := &runner{dir: t.p.dir, run: t.o.run, timeout: t.o.timeout}
	fmt.Fprintf(t.progress, "%d mutants compile; building %d of them into one program\n", len(together)+len(alone), len(together))
	path, ids, err := b.buildAll(ctx, together, t.files)
	if err != nil {
		return err
	}
	t.started, t.clock = t.done, time.Now()
	if !t.sane {
		if by, err := r.try(ctx, binary{path: path}); err != nil || by != "" {
			return errors.Join(err, fmt.Errorf("the tests fail without a mutant: %s", by))
		}
		fmt.Fprintf(t.progress, "without a mutant the tests pass, in %.1fs\n", time.Since(t.clock).Seconds())
		if err := t.report(result{Key: t.unchanged, Verdict: survived}); err != nil {
			return err
		}
	}
	t.clock = time.Now()

	jobs := make(chan *mutant)
	var wg sync.WaitGroup
	var failure error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range max(1, t.o.workers) {
		wg.Go(func() {
			for m := range jobs {
				bin := binary{path: path, env: []string{variable + "=" + ids[m]}}
				if err := t.one(ctx, r, m, bin); err != nil {
					t.mu.Lock()
					failure = errors.Join(failure, err)
					t.mu.Unlock()
					cancel()
				}
			}
		})
	}
	tested := func(m *mutant) bool { return t.known[m] == killed || t.known[m] == survived }
	for _, m := range together {
		if tested(m) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		select {
		case jobs <- m:
		case <-ctx.Done():
		}
	}
	close(jobs)
	wg.Wait()
	if failure != nil {
		return failure
	}
	for _, m := range alone {
		if tested(m) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		path, err := b.build(ctx, map[string]string{m.File: m.apply(t.files[m.File].src)})
		if err != nil {
			return err
		}
		if err := t.one(ctx, r, m, binary{path: path}); err != nil {
			return err
		}
		os.Remove(path)
	}
	return ctx.Err()
}

// one tests one mutant.
func (t *tester) one(ctx context.Context, r *runner, m *mutant, b binary) error {
	start := time.Now()
	by, err := r.try(ctx, b)
	if err != nil {
		return err
	}
	res := result{mutant: m, Verdict: killed, By: by, Seconds: time.Since(start).Seconds()}
	if by == "" {
		res.Verdict = survived
	}
	return t.record(res)
}

// record notes a result and shows how far it is.
func (t *tester) record(r result) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Key = r.mutant.key()
	t.done++
	t.count[r.Verdict]++
	if r.Verdict == survived {
		fmt.Fprintf(t.progress, "survived: line %d: %s\n", r.mutant.Line, r.Key)
	}
	if tested := t.done - t.started; !t.clock.IsZero() && (tested%10 == 0 || t.done == t.total) {
		left := time.Duration(float64(time.Since(t.clock)) / float64(max(1, tested)) * float64(t.total-t.done))
		fmt.Fprintf(t.progress, "%d/%d: %d killed, %d survived, %d not viable, %s left\n",
			t.done, t.total, t.count[killed], t.count[survived], t.count[notViable], minutes(left))
	}
	return t.report(r)
}

// summary prints what came out and returns how many survivors are not
// explained.
func summary(out io.Writer, results []result, equivalents map[string]string, untested int, took time.Duration) (open int) {
	ms := make([]*mutant, len(results))
	for i, r := range results {
		ms[i] = r.mutant
	}
	fmt.Fprintf(out, "%-14s %7s %7s %10s %8s %10s\n", "file", "mutants", "killed", "not viable", "survived", "equivalent")
	total := map[string]int{}
	line := func(name string, n map[string]int) {
		fmt.Fprintf(out, "%-14s %7d %7d %10d %8d %10d\n", name, n["all"], n[killed], n[notViable], n[survived], n["equivalent"])
	}
	for _, name := range filesOf(ms) {
		n := map[string]int{}
		for _, r := range results {
			if r.mutant.File != name {
				continue
			}
			n["all"]++
			_, known := equivalents[r.Key]
			if r.Verdict == survived && known {
				n["equivalent"]++
			} else {
				n[r.Verdict]++
			}
		}
		for k, v := range n {
			total[k] += v
		}
		line(name, n)
	}
	line("all", total)
	for _, r := range results {
		_, known := equivalents[r.Key]
		switch {
		case r.Verdict == survived && !known:
			open++
			fmt.Fprintf(out, "SURVIVED %s:%d: %s\n", r.mutant.File, r.mutant.Line, r.Key)
		case r.Verdict != survived && known:
			fmt.Fprintf(out, "in the list of equivalents, but %s by %s: %s\n", r.Verdict, r.By, r.Key)
		}
	}
	if untested > 0 {
		fmt.Fprintf(out, "not tested for want of time: %d\n", untested)
	}
	if by := killers(results); by != "" {
		fmt.Fprintln(out, by)
	}
	fmt.Fprintf(out, "%s in all\n", minutes(took))
	return open
}

// killers names what kills most, for whoever chooses the quick tests.
func killers(results []result) string {
	n := map[string]int{}
	for _, r := range results {
		if r.Verdict == killed {
			n[r.By]++
		}
	}
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int { return n[b] - n[a] })
	var out []string
	for _, name := range names[:min(8, len(names))] {
		out = append(out, fmt.Sprintf("%s %d", name, n[name]))
	}
	if out == nil {
		return ""
	}
	return "killed by: " + strings.Join(out, ", ")
}
