package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// To build the tests takes many times as long as to run them until one fails.
// So they are built once: each function gets, in front of its own body, a switch
// over the mutants of it, and the environment says which one is active.
//
// One that does not compile would spoil this for all, so the type checker sees
// each one first. Mutants outside of functions are built by themselves.

const variable = "MUTANT" // of the environment

// selectFile stands beside the mutated files.
const selectFile = `package %s

import "os"

var activeMutant = os.Getenv("` + variable + `")
`

// A checker tells whether a mutant compiles.
type checker struct {
	dir   string
	fset  *token.FileSet
	names []string // files of the package for this platform
	asts  map[string]*ast.File
	imp   types.Importer
}

func newChecker(dir string) (*checker, error) {
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}}={{.Export}}{{end}}", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	for l := range strings.Lines(string(out)) {
		path, name, _ := strings.Cut(strings.TrimSpace(l), "=")
		exports[path] = name
	}
	c := &checker{dir: dir, fset: token.NewFileSet(), names: pkg.GoFiles, asts: map[string]*ast.File{}}
	c.imp = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, name := range c.names {
		if c.asts[name], err = parser.ParseFile(c.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	return c, c.check("", "")
}

// check reports why the package does not compile with src in place of the file
// name.
func (c *checker) check(name, src string) error {
	var files []*ast.File
	for _, n := range c.names {
		f := c.asts[n]
		if n == name {
			var err error
			if f, err = parser.ParseFile(c.fset, name, src, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: c.imp, Sizes: types.SizesFor("gc", build.Default.GOARCH)}
	_, err := conf.Check(c.dir, c.fset, files, nil)
	return err
}

// combined returns the source of f with all of ms in it. ids gives each its number.
func (f *file) combined(ms []*mutant, ids map[*mutant]string) string {
	byScope := map[*scope][]*mutant{}
	for _, m := range ms {
		s := f.scopeAt(m.pos, m.end)
		byScope[s] = append(byScope[s], m)
	}
	src := f.src
	for i := len(f.scopes) - 1; i >= 0; i-- { // backwards, so that offsets stay right
		s := &f.scopes[i]
		if len(byScope[s]) == 0 {
			continue
		}
		from, to := f.offset(s.body.Lbrace), f.offset(s.body.Rbrace)+1
		var b strings.Builder
		b.WriteString("\nswitch activeMutant {\n")
		for _, m := range byScope[s] {
			fmt.Fprintf(&b, "case %q:\n%s%s%s\n", ids[m], f.src[from:m.pos], m.text, f.src[m.end:to])
			if s.typ.Results == nil {
				b.WriteString("return\n")
			}
		}
		b.WriteString("}\n")
		src = src[:from+1] + b.String() + src[from+1:]
	}
	return src
}

// together reports whether m can be built beside others.
func (f *file) together(m *mutant) bool {
	s := f.scopeAt(m.pos, m.end)
	return s != nil && !s.labeled
}

// A binary is a test program and the number to call it with.
type binary struct {
	path string
	env  []string
}

// builder builds test programs in a directory of its own.
type builder struct {
	dir  string // of the package
	tmp  string
	keep string // where the program with all mutants stays; "": nowhere
	id   string // of the sources and tests
	n    int
}

// build compiles the tests with the given files in place of those on disk.
func (b *builder) build(ctx context.Context, sources map[string]string) (string, error) {
	b.n++
	replace := map[string]string{}
	for name, src := range sources {
		to := filepath.Join(b.tmp, fmt.Sprintf("%d-%s", b.n, name))
		if err := os.WriteFile(to, []byte(src), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(b.dir, name)] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(b.tmp, fmt.Sprintf("%d.json", b.n))
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(b.tmp, fmt.Sprintf("%d.test", b.n))
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-c", "-o", path, "-overlay", list, ".")
	cmd.Dir = b.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	return path, nil
}

// buildAll compiles ms into one program. The ids are the values of the variable.
func (b *builder) buildAll(ctx context.Context, ms []*mutant, files map[string]*file) (path string, ids map[*mutant]string, err error) {
	ids = map[*mutant]string{}
	byFile := map[string][]*mutant{}
	for i, m := range ms {
		ids[m] = fmt.Sprint(i + 1)
		byFile[m.File] = append(byFile[m.File], m)
	}
	sources := map[string]string{}
	for name, ms := range byFile {
		f := files[name]
		sources[name] = f.combined(ms, ids)
		sources["mutant_select.go"] = fmt.Sprintf(selectFile, f.ast.Name.Name)
	}
	if b.keep == "" {
		path, err = b.build(ctx, sources)
		return path, ids, err
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		io.WriteString(h, sources[name])
	}
	path = filepath.Join(b.keep, fmt.Sprintf("%s-%x.test", b.id, h.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, ids, nil
	}
	if err := os.MkdirAll(b.keep, 0o755); err != nil {
		return "", nil, err
	}
	built, err := b.build(ctx, sources)
	if err != nil {
		return "", nil, err
	}
	return path, ids, os.Rename(built, path)
}

// filesOf returns the files of ms, in their order.
func filesOf(ms []*mutant) []string {
	var names []string
	for _, m := range ms {
		if !slices.Contains(names, m.File) {
			names = append(names, m.File)
		}
	}
	return names
}
