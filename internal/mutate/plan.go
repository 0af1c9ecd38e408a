package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A plan says what is mutated.
type plan struct {
	dir      string // of the package
	targets  []target
	semantic []semantic
}

// A target is a file and the functions of it that are mutated; nil means all,
// and what stands outside of functions.
type target struct {
	file  string
	funcs []string
}

// A semantic mutant is a fault that somebody could have thought of.
type semantic struct {
	name string
	file string
	fn   string // the function that holds old
	old  string // stands there exactly once
	new  string
}

// library is the plan for this module: the code on which it depends that every
// byte is zero when the next request gets it.
var library = plan{
	targets: []target{
		{file: "watermark.go"},
		{file: "alloc.go"},
		{file: "reserve.go"},
		{file: "snapshot.go"},
		{file: "sampler.go"},
		{file: "budget.go"},
		{file: "memory.go"},
		{file: "mapped.go"},
		{file: "fence.go"},
		{file: "poison.go"},
		{file: "testpool.go"},
		{file: "canary.go"},
		{file: "modesource.go"},
		{file: "breakerfile.go"},
		{file: "event.go"},
		{file: "verify.go"},
		{file: "shape.go"},
		{file: "breaker.go"},
		{file: "pool.go", funcs: []string{
			"Pool.acquire", "Pool.take", "Pool.refusalLocked", "Pool.effectiveLocked", "Pool.mayLocked", "Pool.setMode", "Pool.letAllGo", "Pool.Trim", "Pool.Close", "Pool.giveBack", "Pool.settle",
			"DoubtStats.count", "Pool.addLocked", "Pool.countDoubleRelease", "Pool.countAudit", "ModeStats.half",
			"Pool.trimLocked", "Pool.AuditIdle",
		}},
		{file: "workspace.go", funcs: []string{
			"Workspace.doubt", "Workspace.begin", "Workspace.copied", "Workspace.mustBeLive", "Workspace.Release", "Workspace.release",
			"Workspace.Abandon", "Workspace.Hold", "Workspace.Reset", "Workspace.wipesAll", "Workspace.Audit", "Workspace.violated",
			"Workspace.drop", "Workspace.end",
		}},
	},
	semantic: faults,
}

// mutants makes all mutants of the plan, and the files that they belong to.
func (p plan) mutants() ([]*mutant, map[string]*file, error) {
	files := map[string]*file{}
	load := func(name string) (*file, error) {
		if f := files[name]; f != nil {
			return f, nil
		}
		src, err := os.ReadFile(filepath.Join(p.dir, name))
		if err != nil {
			return nil, err
		}
		f, err := parseFile(name, string(src))
		files[name] = f
		return f, err
	}
	var out []*mutant
	for _, s := range p.semantic {
		f, err := load(s.file)
		if err != nil {
			return nil, nil, err
		}
		m, err := s.mutant(f)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, m)
	}
	for _, t := range p.targets {
		f, err := load(t.file)
		if err != nil {
			return nil, nil, err
		}
		for _, fn := range t.funcs {
			if !slices.ContainsFunc(f.scopes, func(s scope) bool { return s.name == fn }) {
				return nil, nil, fmt.Errorf("%s has no function %s", t.file, fn)
			}
		}
		out = append(out, f.mutants(func(name string) bool { return t.funcs == nil || slices.Contains(t.funcs, name) })...)
	}
	number(out)
	return out, files, nil
}

func (s semantic) mutant(f *file) (*mutant, error) {
	for _, sc := range f.scopes {
		if sc.name != s.fn {
			continue
		}
		from, to := f.offset(sc.body.Lbrace), f.offset(sc.body.Rbrace)+1
		body := f.src[from:to]
		if n := strings.Count(body, s.old); n != 1 {
			return nil, fmt.Errorf("fault %q: the old text stands %d times in %s of %s, want once", s.name, n, s.fn, s.file)
		}
		at := from + strings.Index(body, s.old)
		return &mutant{
			File: s.file, Func: s.fn, Op: "fault", Old: s.name, New: oneLine(s.new), Line: 1 + strings.Count(f.src[:at], "\n"),
			pos: at, end: at + len(s.old), text: s.new,
		}, nil
	}
	return nil, fmt.Errorf("fault %q: %s has no function %s", s.name, s.file, s.fn)
}
