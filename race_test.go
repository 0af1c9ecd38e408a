//go:build race

package workspace

// raceEnabled says that this test binary has the race detector built in. It
// allocates on its own, so counts of allocations mean nothing under it.
const raceEnabled = true
