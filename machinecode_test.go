//go:build (amd64 || arm64) && !purego

package workspace

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What the assembler made of the kernels is looked at in the running process: a
// body that is right but slow would pass every other test. The bytes are read
// from the entry of a function to its end, and patterns are counted in them, as
// go tool objdump decodes AVX code wrongly.

// machineCode returns the code of the two kernels.
func machineCode(t *testing.T) (zero, first []byte) {
	z, f := kernelEntries()
	return codeOf(t, z, "zeroAsm"), codeOf(t, f, "firstNonZeroAsm")
}

// codeOf returns the bytes from entry to the end of the function there.
func codeOf(t *testing.T, entry uintptr, name string) []byte {
	fn := runtime.FuncForPC(entry)
	require.NotNil(t, fn)
	require.Equal(t, entry, fn.Entry())
	require.Contains(t, fn.Name(), name)
	size := uintptr(0)
	for runtime.FuncForPC(entry+size) != nil && runtime.FuncForPC(entry+size).Entry() == entry {
		size++
	}
	require.Greater(t, size, uintptr(100))
	require.Less(t, size, uintptr(4096))
	// The address is one of code, which does not move. Converted this way since
	// vet takes a plain conversion for a mistake.
	return bytes.Clone(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&entry))), size))
}

// A codePattern says how often a kind of instruction must occur, at least; never
// if that is 0.
type codePattern struct {
	what    string
	pattern string // amd64: of the code in hexadecimal; arm64: mask and value of a word
	atLeast int
}

// The AVX2 instructions are coded with a two-byte prefix (c5) or, with registers
// from R8 on, a three-byte one (c4). The digit before the opcode holds the vector
// length, which must be 256 bits, and the mandatory prefix.
var amd64Patterns = struct{ zero, first []codePattern }{
	zero: []codePattern{
		{"aligned 32-byte store", `c5.[5d]7f|c4.1.[5d]7f`, 12},
		{"unaligned 32-byte store", `c5.[6e]7f|c4.1.[6e]7f`, 10},
		{"VZEROUPPER", `c5f877`, 1},
		{"32-byte load", `c5.[56de]6f|c4.1.[56de]6f`, 0},
		{"16-byte aligned store", `660f7f|660f29|0f29[01][0-7]`, 0},
		{"non-temporal store", `c5.[5d]e7|c4.1.[5d]e7|660fe7`, 0},
		{"REP STOS", `f3(4.)?a[ab]`, 0},
		{"CLZERO", `0f01fc`, 0},
		{"prefetch", `0f18|0f0d`, 0},
	},
	first: []codePattern{
		{"32-byte load", `c5.[56de]6f|c4.1.[56de]6f`, 8},
		{"32-byte OR", `c5.[5d]eb|c4.1.[5d]eb`, 20},
		{"32-byte test", `c4.27d17`, 4},
		{"VZEROUPPER", `c5f877`, 2},
		{"32-byte store", `c5.[56de]7f|c4.1.[56de]7f`, 0},
		{"REP SCAS", `f3(4.)?a[ef]|f2(4.)?a[ef]`, 0},
		{"prefetch", `0f18|0f0d`, 0},
	},
}

var arm64Patterns = struct{ zero, first []codePattern }{
	zero: []codePattern{
		{"DC ZVA", "ffffffe0 d50b7420", 1},
		{"store of a Q pair", "ffc00000 ad000000", 6},
		{"store of a byte in a loop", "ffe00c00 38000400", 0}, // post-indexed
	},
	first: []codePattern{
		{"load of a Q pair", "ffc00000 ad400000", 14},
		{"OR of 16 bytes", "ffe0fc00 4ea01c00", 25},
		{"load of a byte in a loop", "ffe00c00 38400400", 0},
	},
}

// countCode counts an instruction in code, on amd64 at each byte.
func countCode(t *testing.T, code []byte, pattern string) (n int) {
	if runtime.GOARCH == "amd64" {
		re := regexp.MustCompile("^(?:" + pattern + ")")
		text := hex.EncodeToString(code)
		for i := 0; i < len(text); i += 2 {
			if re.MatchString(text[i:]) {
				n++
			}
		}
		return n
	}
	mask, value, _ := strings.Cut(pattern, " ")
	m, err := hex.DecodeString(mask)
	require.NoError(t, err)
	v, err := hex.DecodeString(value)
	require.NoError(t, err)
	for ; len(code) >= 4; code = code[4:] {
		if binary.LittleEndian.Uint32(code)&binary.BigEndian.Uint32(m) == binary.BigEndian.Uint32(v) {
			n++
		}
	}
	return n
}

func TestMachineCode(t *testing.T) {
	zero, first := machineCode(t)
	patterns := amd64Patterns
	if runtime.GOARCH == "arm64" {
		patterns = arm64Patterns
	}
	for _, f := range []struct {
		name     string
		code     []byte
		patterns []codePattern
	}{{"zeroAsm", zero, patterns.zero}, {"firstNonZeroAsm", first, patterns.first}} {
		for _, p := range f.patterns {
			n := countCode(t, f.code, p.pattern)
			t.Logf("%s, %d bytes: %d x %s", f.name, len(f.code), n, p.what)
			if p.atLeast > 0 {
				require.GreaterOrEqual(t, n, p.atLeast, "%s: %s", f.name, p.what)
			} else {
				require.Zero(t, n, "%s: %s", f.name, p.what)
			}
		}
	}
}

// GNU objdump decodes AVX2 code correctly, so where it is installed it must find
// the same instructions.
func TestMachineCodeAgainstObjdump(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64 only")
	}
	objdump, err := exec.LookPath("objdump")
	if err != nil {
		t.Skip("objdump is not installed")
	}
	zero, first := machineCode(t)
	for _, f := range []struct {
		name  string
		code  []byte
		lines map[string]string // pattern of a line: pattern of the code
	}{
		{"zeroAsm", zero, map[string]string{
			`vmovdqa %ymm0,`: amd64Patterns.zero[0].pattern,
			`vmovdqu %ymm0,`: amd64Patterns.zero[1].pattern,
			`vzeroupper`:     amd64Patterns.zero[2].pattern,
			`rep stos`:       amd64Patterns.zero[6].pattern,
		}},
		{"firstNonZeroAsm", first, map[string]string{
			`vmovdq[au] .*\),%ymm`: amd64Patterns.first[0].pattern,
			`vpor .*%ymm`:          amd64Patterns.first[1].pattern,
			`vptest %ymm`:          amd64Patterns.first[2].pattern,
			`vzeroupper`:           amd64Patterns.first[3].pattern,
		}},
	} {
		file := filepath.Join(t.TempDir(), f.name)
		require.NoError(t, os.WriteFile(file, f.code, 0o600))
		out, err := exec.Command(objdump, "-D", "-b", "binary", "-m", "i386:x86-64", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		text := regexp.MustCompile(`[ \t]+`).ReplaceAllString(string(out), " ")
		for line, pattern := range f.lines {
			require.Equal(t, countCode(t, f.code, pattern), len(regexp.MustCompile(line).FindAllString(text, -1)), "%s: %s\n%s", f.name, line, text)
		}
	}
}
