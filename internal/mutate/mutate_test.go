package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const tiny = `package tiny

const limit = 3

var names = []string{"a"}

func clamp(n int, strict bool) int {
	if n < 0 && strict {
		return 0
	}
	n += 2
	return min(n, limit)
}

func check(n int) (err error) {
	defer func() { recover() }()
	if n == 1 {
		return errOne
	}
	return
}
`

func keysOf(ms []*mutant) []string {
	number(ms)
	var out []string
	for _, m := range ms {
		out = append(out, m.key())
	}
	return out
}

func TestMutantsOfATinySource(t *testing.T) {
	f, err := parseFile("tiny.go", tiny)
	require.NoError(t, err)
	require.Equal(t, []string{
		"tiny.go clamp negate: n < 0 && strict -> !(n < 0 && strict)",
		"tiny.go clamp logic: n < 0 && strict -> n < 0 || strict",
		"tiny.go clamp boundary: n < 0 -> n <= 0",
		"tiny.go clamp constant: 0 -> 1",
		"tiny.go clamp constant: 0 -> (-1)",
		"tiny.go clamp constant: 0 -> 1 #2",
		"tiny.go clamp constant: 0 -> (-1) #2",
		"tiny.go clamp arithmetic: n += 2 -> n -= 2",
		"tiny.go clamp delete: n += 2 -> nothing",
		"tiny.go clamp constant: 2 -> 3",
		"tiny.go clamp constant: 2 -> 1",
		"tiny.go clamp return: min(n, limit) -> 0",
		"tiny.go clamp minmax: min(n, limit) -> max(n, limit)",
		"tiny.go check delete: recover() -> nothing",
		"tiny.go check negate: n == 1 -> !(n == 1)",
		"tiny.go check constant: 1 -> 2",
		"tiny.go check constant: 1 -> 0",
		"tiny.go check return: errOne -> nil",
		"tiny.go check delete: return -> nothing",
		"tiny.go - constant: 3 -> 4",
		"tiny.go - constant: 3 -> 2",
	}, keysOf(f.mutants(func(string) bool { return true })))

	one := f.mutants(func(name string) bool { return name == "check" })
	require.Len(t, one, 6)
	require.Contains(t, one[1].apply(tiny), "if !(n == 1) {\n")
}

// Each statement here yields one mutant, or the two that are named.
func TestOperators(t *testing.T) {
	for _, c := range []struct {
		body string
		want []string
	}{
		{"f(a <= b)", []string{"boundary: a <= b -> a < b"}},
		{"f(a > b)", []string{"boundary: a > b -> a >= b"}},
		{"f(a >= b)", []string{"boundary: a >= b -> a > b"}},
		{"f(a != b)", []string{"equality: a != b -> a == b"}},
		{"f(a || b)", []string{"logic: a || b -> a && b"}},
		{"f(a - b)", []string{"arithmetic: a - b -> a + b"}},
		{"f(max(a, b))", []string{"minmax: max(a, b) -> min(a, b)"}},
		{"f(true)", []string{"bool: true -> false"}},
		{"f(0x10)", []string{"constant: 0x10 -> 17", "constant: 0x10 -> 15"}},
		{"f(1.5, \"2\")", nil},
		{"a--", []string{"arithmetic: a-- -> a++", "delete: a-- -> nothing"}},
		{"a := b", nil},
		{"a = b", []string{"delete: a = b -> nothing"}},
		{"for a { f() }", []string{"negate: a -> !(a)", "delete: f() -> nothing"}},
		{"switch { case a: }", []string{"negate: a -> !(a)"}},
		{"switch { case a == b: }", []string{"negate: a == b -> !(a == b)"}},
		{"func() bool { return a }()", []string{"return: a -> false", "return: a -> true"}},
		{"func() (*T, error) { return a, b }()", []string{"return: a -> nil", "return: b -> nil"}},
		{"func() *T { return nil }()", nil},
	} {
		f, err := parseFile("x.go", "package x\nfunc g() {\n"+c.body+"\n}")
		require.NoError(t, err, c.body)
		var got []string
		for _, k := range keysOf(f.mutants(func(string) bool { return true })) {
			if k != "x.go g delete: "+oneLine(c.body)+" -> nothing" || len(c.want) > 1 && c.body == "a--" || c.body == "a = b" {
				got = append(got, k[len("x.go g "):])
			}
		}
		require.Equal(t, c.want, got, c.body)
	}
}

func TestFaultsMustMatchOnce(t *testing.T) {
	f, err := parseFile("tiny.go", tiny)
	require.NoError(t, err)
	m, err := semantic{"no limit", "tiny.go", "clamp", "min(n, limit)", "n"}.mutant(f)
	require.NoError(t, err)
	require.Equal(t, "tiny.go clamp fault: no limit -> n", m.key())
	require.Contains(t, m.apply(tiny), "\treturn n\n}")
	for _, s := range []semantic{
		{"twice", "tiny.go", "clamp", "0", ""},
		{"never", "tiny.go", "clamp", "errOne", ""},
		{"nowhere", "tiny.go", "gone", "n", ""},
	} {
		_, err := s.mutant(f)
		require.ErrorContains(t, err, s.name)
	}
}

func TestEquivalents(t *testing.T) {
	got, err := parseEquivalents("# why\n\na.go f delete: x -> nothing\n\tnobody\n\tlooks\nb.go g bool: true -> false\n\tno\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a.go f delete: x -> nothing": "nobody looks", "b.go g bool: true -> false": "no"}, got)
	for _, bad := range []string{"a\n", "\treason\n", "a\n\tb\na\n\tb\n"} {
		_, err := parseEquivalents(bad)
		require.Error(t, err, "%q", bad)
	}
}

// The list and the table of faults must fit the library as it is.
func TestPlanFitsTheLibrary(t *testing.T) {
	p := library
	p.dir = filepath.Join("..", "..")
	all, _, err := p.mutants()
	require.NoError(t, err)
	equivalents, err := parseEquivalents(equivalentText)
	require.NoError(t, err)
	require.Empty(t, stale(equivalents, all))
	require.Greater(t, len(all), 500)
}

func TestReasons(t *testing.T) {
	require.Equal(t, "TestA", reason("=== RUN TestA\n--- FAIL: TestA (0.00s)\n--- FAIL: TestB (0.00s)\n"))
	require.Equal(t, "timeout", reason("panic: test timed out after 1s\n"))
	require.Equal(t, "panic: no", reason("x\npanic: no\n"))
	require.Equal(t, "exit status", reason(""))
}

// smallModule is a module with a test. In it "last > 0" may as well be ">=". Three
// mutants more survive since the test never asks for a last byte at 0 or 1.
var smallModule = map[string]string{
	"go.mod": "module small\n\ngo 1.26\n",
	"small.go": `package small

const size = 4

func last(b []byte) int {
	last := 0
	for i, c := range b {
		if c != 0 {
			last = i
		}
	}
	if last > 0 {
		return last
	}
	return 0
}

func wipe(b []byte) {
	for i := 0; i < len(b); i++ {
		b[i] = 0
	}
}
`,
	"small_test.go": `package small

import "testing"

func TestWipe(t *testing.T) {
	b := []byte{1, 2, 3}
	if last(b) != 2 {
		t.Fatal("last")
	}
	wipe(b)
	if b[0] != 0 || b[1] != 0 || b[2] != 0 || last(b) != 0 {
		t.Fatal("not wiped")
	}
	if size != 4 {
		t.Fatal("size")
	}
}
`,
}

func TestSmallModule(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles programs")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	t.Setenv("GOWORK", "off")
	dir := t.TempDir()
	for name, text := range smallModule {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := plan{dir: dir, targets: []target{{file: "small.go"}}, semantic: []semantic{
		{"wipes the first only", "small.go", "wipe", "b[i] = 0", "b[0] = 0"},
		{"does not compile", "small.go", "wipe", "b[i] = 0", "b[i] = x"},
	}}
	o := options{workers: 2, timeout: 2 * time.Second, json: filepath.Join(t.TempDir(), "results"), resume: true}
	const (
		same     = "small.go last boundary: last > 0 -> last >= 0"
		mistaken = "small.go wipe fault: wipes the first only -> b[0] = 0"
	)

	var out bytes.Buffer
	open, err := mutate(context.Background(), p, o, "", &out, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 4, open, out.String())
	require.Contains(t, out.String(), "SURVIVED small.go:12: "+same+"\n")
	require.Regexp(t, `(?m)^all +26 +18 +4 +4 +0$`, out.String())

	// A second time nothing has to be done, and the survivor is known.
	out.Reset()
	open, err = mutate(context.Background(), p, o, same+"\n\t0 is returned either way\n"+mistaken+"\n\twrong\n", &out, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 3, open)
	require.Regexp(t, `(?m)^all +26 +18 +4 +3 +1$`, out.String())
	require.Contains(t, out.String(), "in the list of equivalents, but killed by TestWipe: "+mistaken+"\n")

	_, err = mutate(context.Background(), p, o, "small.go gone bool: true -> false\n\tno\n", &out, io.Discard)
	require.ErrorContains(t, err, "small.go gone")

	// Cut short, it still says what it knows.
	out.Reset()
	done, cancel := context.WithCancel(context.Background())
	cancel()
	o.resume = false
	_, err = mutate(done, p, o, "", &out, io.Discard)
	require.NoError(t, err)
	require.Contains(t, out.String(), "not tested for want of time: 26\n")

	// Tests that fail by themselves prove nothing.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad_test.go"), []byte("package small\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Fail() }\n"), 0o600))
	_, err = mutate(context.Background(), p, o, "", &out, io.Discard)
	require.ErrorContains(t, err, "the tests fail without a mutant: TestBad")
}
