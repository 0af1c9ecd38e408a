package main

import (
	"fmt"
	"strings"
)

// parseEquivalents reads the list of mutants that no test can see: a line with
// the key, then indented lines with the reason. It returns reasons by key.
func parseEquivalents(text string) (map[string]string, error) {
	out := map[string]string{}
	key := ""
	for i, l := range strings.Split(text, "\n") {
		l = strings.TrimRight(l, " \r")
		switch {
		case l == "" || l[0] == '#':
		case l[0] != '\t':
			if _, twice := out[l]; twice {
				return nil, fmt.Errorf("line %d: %s stands there twice", i+1, l)
			}
			key = l
			out[key] = ""
		case key == "":
			return nil, fmt.Errorf("line %d: a reason without a mutant", i+1)
		default:
			out[key] = strings.TrimSpace(out[key] + " " + strings.TrimSpace(l))
		}
	}
	for key, reason := range out {
		if reason == "" {
			return nil, fmt.Errorf("no reason for %s", key)
		}
	}
	return out, nil
}

// stale returns the entries that match no mutant any more.
func stale(equivalents map[string]string, all []*mutant) []string {
	known := map[string]bool{}
	for _, m := range all {
		known[m.key()] = true
	}
	var out []string
	for key := range equivalents {
		if !known[key] {
			out = append(out, key)
		}
	}
	return out
}
