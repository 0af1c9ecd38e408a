package workspace

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What TESTING.md says is tested is tested: each test that it names exists, and
// each fault in its tables has one.
func TestTestingTableIsTrue(t *testing.T) {
	text, err := os.ReadFile("TESTING.md")
	require.NoError(t, err)
	exists := testFunctions(t)
	name := regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w*`)
	for _, n := range name.FindAllString(string(text), -1) {
		require.True(t, exists[n], "TESTING.md names %s", n)
	}

	_, tables, ok := strings.Cut(string(text), "\n## Faults that others had\n")
	require.True(t, ok)
	rows, seen := 0, map[string]bool{}
	for line := range strings.Lines(tables) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| source |") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		require.Len(t, cells, 3, line)
		source, _, _ := strings.Cut(cells[0], ",")
		require.NotEmpty(t, source, line)
		require.False(t, seen[source], "%s has two rows", source)
		require.NotEmpty(t, cells[1], line)
		require.Regexp(t, name, cells[2], "%s has no test", source)
		require.NotContains(t, cells[2], "(", "a mark that something is still to come")
		seen[source] = true
		rows++
	}
	require.GreaterOrEqual(t, rows, 66)
}

// testFunctions returns the names of all tests and fuzz targets in this folder and below.
func testFunctions(t *testing.T) map[string]bool {
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
		return nil
	}))
	return found
}
