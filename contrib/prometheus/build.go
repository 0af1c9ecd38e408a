package workspaceprom

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// buildLabels returns version, revision, Go version and CPU model. What is not
// known is "unknown": the rules in deploy/prometheus promote no such build.
func buildLabels() []string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		bi = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo") // Linux alone has it
	return []string{orUnknown(bi.Main.Version), revision(bi.Settings), bi.GoVersion, cpuModel(string(cpuinfo))}
}

// revision is that of the version control system, and "-dirty" when there were
// changes that are in none.
func revision(settings []debug.BuildSetting) string {
	rev, dirty := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "" {
		return "unknown"
	}
	return rev + dirty
}

// cpuModel returns the model of the first processor in the text of /proc/cpuinfo.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "model name" {
			return orUnknown(strings.TrimSpace(value))
		}
	}
	return "unknown"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
