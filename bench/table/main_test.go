package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const input = `goos: linux
pkg: example.org/x
BenchmarkRequest/bytes=4KB/peer=make-2      100  900 ns/op  1.000 zeroed  64 B/op
BenchmarkRequest/bytes=4KB/peer=make-2      100  1000 ns/op 1.000 zeroed  64 B/op
BenchmarkRequest/bytes=4KB/peer=make-2      100  9000 ns/op 1.000 zeroed  64 B/op
BenchmarkRequest/bytes=4KB/peer=pool-2      100  200 ns/op  0 zeroed  0 B/op
BenchmarkRequest/bytes=4KB/peer=workspace-2 100  500 ns/op  1.000 zeroed  0 B/op
BenchmarkRequest/bytes=20KB/peer=make-2     100  2000 ns/op 1.000 zeroed  64 B/op
BenchmarkRequest/bytes=20KB/peer=pool-2     100  700.5 ns/op  0 zeroed  0 B/op
BenchmarkAlloc/sampling=on-2                100  7.891 ns/op  0.25 created/op
BenchmarkPlain-2                            100  3 ns/op
PASS
`

// The ratio is to make: pool keeps no promise, workspace is ours.
func TestMatrix(t *testing.T) {
	benches, err := read(strings.NewReader(input))
	require.NoError(t, err)
	var out strings.Builder
	matrix(&out, benches[:5], "bytes", "workspace")
	require.Equal(t, `| Request | zeroed | 4KB, ns/op | 20KB, ns/op |
|---|--:|--:|--:|
| peer=make -2 | yes | 1000 ±202% (x1.00) | 2000 ±0% (x1.00) |
| peer=pool -2 | no | 200 ±0% (x0.20) | 700 ±0% (x0.35) |
| peer=workspace -2 | yes | 500 ±0% (x0.50) | |

`, out.String())
}

func TestList(t *testing.T) {
	benches, err := read(strings.NewReader(input))
	require.NoError(t, err)
	var out strings.Builder
	list(&out, benches[3:], "workspace")
	require.Equal(t, `| Request | ns/op | ± | ratio | zeroed | B/op |
|---|--:|--:|--:|--:|--:|
| bytes=20KB peer=make -2 | 2000 | 0% | x1.00 | 1 | 64 |
| bytes=20KB peer=pool -2 | 700 | 0% | x0.35 | 0 | 0 |

| Alloc | ns/op | ± | created/op |
|---|--:|--:|--:|
| sampling=on -2 | 7.89 | 0% | 0.25 |

| Plain | ns/op | ± |
|---|--:|--:|
| -2 | 3 | 0% |

`, out.String())
}

func TestReadRefusesAnInputWithoutResults(t *testing.T) {
	_, err := read(strings.NewReader("FAIL\n"))
	require.Error(t, err)
}
