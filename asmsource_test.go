package workspace

import (
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What can be seen in the assembly without running it, so that each platform
// checks it for all.

// An asmLine is one instruction, or a label.
type asmLine struct {
	file string
	fn   string // the name on the TEXT line
	text string // without comments
}

func asmLines(t *testing.T, pattern string) (all []asmLine) {
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files, "the sources must be here")
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		fn := ""
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "//")
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if name, ok := strings.CutPrefix(line, "TEXT ·"); ok {
				fn, _, _ = strings.Cut(name, "(")
			}
			all = append(all, asmLine{file, fn, line})
		}
	}
	return all
}

// A kernel that overwrites its caller's frame pointer works until a tracer walks
// the stack (apache/arrow-go#150). So none has a frame, calls anything, or touches
// the registers that the stack hangs on.
func TestAssemblyLeavesTheStackAlone(t *testing.T) {
	for pattern, forbidden := range map[string]string{
		"*_amd64.s": `\b(BP|SP|PUSHQ|POPQ|CALL)\b`,
		"*_arm64.s": `\b(R18|R18_PLATFORM|R28|R29|R30|RSP|BL|CALL)\b|, *g$`,
	} {
		bad := regexp.MustCompile(forbidden)
		for _, l := range asmLines(t, pattern) {
			if strings.HasPrefix(l.text, "TEXT") {
				require.Regexp(t, `\(SB\), NOSPLIT, \$0-\d+$`, l.text, l.file)
				continue
			}
			require.NotRegexp(t, bad, l.text, "%s: %s", l.file, l.fn)
		}
	}
}

// Upper halves of registers that are left dirty slow down whatever floating point
// code comes next (minio/md5-simd#5, minio/blake2b-simd#24).
func TestAssemblyCleansWideRegisters(t *testing.T) {
	wide := regexp.MustCompile(`\b[YZ]\d+\b`)
	uses, lines := map[string]bool{}, asmLines(t, "*_amd64.s")
	for _, l := range lines {
		uses[l.fn] = uses[l.fn] || wide.MatchString(l.text)
	}
	dirty, returns := false, 0
	for _, l := range lines {
		switch {
		case strings.HasPrefix(l.text, "TEXT"), strings.HasSuffix(l.text, ":"):
			dirty = uses[l.fn] // whoever jumps here may have used them
		case wide.MatchString(l.text):
			dirty = true
		case l.text == "VZEROUPPER":
			dirty = false
		case l.text == "RET":
			require.False(t, dirty, "%s: a return from %s without VZEROUPPER", l.file, l.fn)
			dirty = uses[l.fn]
			if uses[l.fn] {
				returns++
			}
		}
	}
	require.Equal(t, 4, returns, "returns from code that uses wide registers")
}

// The processor's bit alone does not say that the system saves the registers
// (samtools/htscodecs#140, halide/Halide#9017), nor does AVX mean AVX2
// (lukechampine/fastxor#2). So nothing here asks the processor itself, except for
// the block size of DC ZVA; package cpu of x/sys knows how.
func TestFeaturesComeFromOnePlace(t *testing.T) {
	for _, l := range asmLines(t, "*.s") {
		require.NotRegexp(t, `\b(CPUID|XGETBV)\b`, l.text, l.file)
		if strings.HasPrefix(l.text, "MRS") {
			require.Equal(t, "MRS  DCZID_EL0, R0", l.text, l.file)
		}
	}
	text, err := os.ReadFile("kernel_amd64.go")
	require.NoError(t, err)
	require.Contains(t, string(text), "\tif cpu.X86.HasAVX2 {\n\t\treturn \"avx2\"\n\t}\n\treturn \"\"\n", "asmName asks for what the code uses")
	for _, l := range asmLines(t, "*_amd64.s") {
		require.NotRegexp(t, `\b(Z\d+|K[1-7]|[XY](1[6-9]|[23]\d))\b`, l.text, "%s: AVX-512", l.file)
	}
}

// With the tag purego there is no assembly in the build, and without it there is
// just where it belongs: builds by other compilers depend on it (tinygo-org/tinygo#5305,
// cloudflare/circl#491, Consensys-Incorporated/gnark-crypto#602).
func TestPuregoHasNoAssembly(t *testing.T) {
	for _, platform := range []string{
		"linux/amd64", "linux/arm64", "linux/386", "linux/arm", "linux/riscv64", "linux/s390x", "linux/ppc64le", "linux/loong64",
		"darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64", "freebsd/amd64", "js/wasm", "wasip1/wasm",
	} {
		for _, tags := range [][]string{nil, {"purego"}, {"race"}, {"race", "purego"}} {
			ctx := build.Default
			ctx.GOOS, ctx.GOARCH, _ = strings.Cut(platform, "/")
			ctx.CgoEnabled, ctx.BuildTags = false, tags
			pkg, err := ctx.ImportDir(".", 0)
			require.NoError(t, err)
			has := len(tags) == 0 || tags[len(tags)-1] != "purego"
			has = has && (ctx.GOARCH == "amd64" || ctx.GOARCH == "arm64")
			require.Equal(t, has, len(pkg.SFiles) > 0, "%s %v: %v", platform, tags, pkg.SFiles)
			require.Empty(t, pkg.CgoFiles)
			require.Contains(t, pkg.GoFiles, "kernel.go")
		}
	}
}
