package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file computes what the server must answer, from the request alone and
// with nothing of the library or of the service: another way to count words,
// another way to build JSON. What both get wrong in the same way stays unseen.

const tagPrefix = "#tag" // stands in no body but as the start of a tag

// newTag returns the tag of request n: 16 bytes that no other request has.
func newTag(n int64) string { return fmt.Sprintf("%s%012x", tagPrefix, n) }

// foreignTags counts the tags in b that are not own. A tag that a body ends in the
// middle of is none.
func foreignTags(b []byte, own string) int {
	n := 0
	for _, t := range tagPattern.FindAll(b, -1) {
		if string(t) != own {
			n++
		}
	}
	return n
}

var tagPattern = regexp.MustCompile(tagPrefix + "[0-9a-f]{12}")

// A call is one request of the demo.
type call struct {
	method, path string
	tag          string
	body         string
	filler       string // of a header; "" for none
	chunked      bool   // sent without a Content-Length
	abort        abort
}

// want returns the answer that c must get, and whether every byte is known: the
// debug page has numbers that nobody can foretell.
func (c *call) want() (answer string, exact bool) {
	switch {
	case c.path == "/healthz":
		return "{\"status\":\"ok\"}\n", true
	case strings.HasPrefix(c.path, "/debug/"):
		return "", false
	case c.path == "/stats":
		return wantStats(c.tag, c.body), true
	case c.path == "/echo":
		return wantEcho(c.method, c.tag, c.body, c.headers()), true
	case c.path == "/proxy":
		hop := map[string]string{"User-Agent": userAgent, "X-Tag": c.tag, "Content-Type": demoContentType, "Content-Length": strconv.Itoa(len(c.body))}
		upstream := strings.TrimSuffix(wantEcho("POST", c.tag, c.body, hop), "\n")
		return "{\"tag\":" + quoted(c.tag) + ",\"status\":200,\"upstream\":" + upstream + "}\n", true
	}
	panic("demo: no such route: " + c.path)
}

// headers returns the headers that arrive with c.
func (c *call) headers() map[string]string {
	h := map[string]string{"User-Agent": demoAgent, "X-Tag": c.tag}
	if c.method == "POST" {
		h["Content-Type"] = demoContentType
		if !c.chunked {
			h["Content-Length"] = strconv.Itoa(len(c.body))
		}
	}
	if c.filler != "" {
		h["X-Filler"] = c.filler
	}
	return h
}

func wantEcho(method, tag, body string, headers map[string]string) string {
	var names []string
	for name := range headers {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		names[i] = quoted(name) + ":[" + quoted(headers[name]) + "]"
	}
	tail := ""
	if !utf8.ValidString(body) {
		tail = ",\"body_base64\":\"" + base64.StdEncoding.EncodeToString([]byte(body)) + "\""
		body = ""
	}
	return "{\"method\":\"" + method + "\",\"tag\":" + quoted(tag) + ",\"headers\":{" + strings.Join(names, ",") + "},\"body\":" + quoted(body) + tail + "}\n"
}

func wantStats(tag, text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) })
	counts := map[string]int{}
	for _, w := range words {
		counts[w]++
	}
	var listed []string
	for w := range counts {
		if len(w) <= 64 {
			listed = append(listed, w)
		}
	}
	sort.Slice(listed, func(i, j int) bool {
		a, b := listed[i], listed[j]
		return counts[a] > counts[b] || counts[a] == counts[b] && a < b
	})
	var top []string
	for _, w := range listed[:min(5, len(listed))] {
		top = append(top, fmt.Sprintf(`{"word":%s,"count":%d}`, quoted(w), counts[w]))
	}
	lines := len(strings.Split(text, "\n"))
	if text == "" || strings.HasSuffix(text, "\n") {
		lines--
	}
	return fmt.Sprintf(`{"tag":%s,"bytes":%d,"lines":%d,"words":%d,"distinct":%d,"top":[%s]}`+"\n",
		quoted(tag), len(text), lines, len(words), len(counts), strings.Join(top, ","))
}

// quoted returns s as a JSON string.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string can't fail
	return string(b)
}

// An answer is what came back.
type answer struct {
	proto       int // 1 or 2: the major version of HTTP
	status      int
	contentType string
	body        []byte
	cut         bool // the client stopped reading
}

// A verdict says what is wrong with an answer.
type verdict struct {
	foreign int    // tags of other requests
	wrong   string // "" when it is right
}

// check compares an answer with what it must be. It tells where they differ but
// not how: what leaked is not to be passed on.
func (c *call) check(a answer) verdict {
	v := verdict{foreign: foreignTags(a.body, c.tag)}
	want, exact := c.want()
	contentType := "application/json"
	if c.path == "/debug/workspace" {
		contentType = "text/html; charset=utf-8"
	}
	switch {
	case c.abort == abortBody:
		// It may be refused in one way or another, but must not be taken for whole.
		if a.status < 400 {
			v.wrong = fmt.Sprintf("status %d for half a body", a.status)
		}
	case a.status != 200:
		v.wrong = fmt.Sprintf("status %d", a.status)
	case a.contentType != contentType:
		v.wrong = fmt.Sprintf("Content-Type %q", a.contentType)
	case !exact:
		if len(a.body) == 0 || strings.Contains(string(a.body), tagPrefix) {
			v.wrong = "it is empty, or shows a tag"
		}
	case a.cut:
		if !strings.HasPrefix(want, string(a.body)) {
			v.wrong = "the part that was read differs " + difference(want, a.body)
		}
	case want != string(a.body):
		v.wrong = "it differs " + difference(want, a.body)
	}
	if v.wrong != "" {
		v.wrong = fmt.Sprintf("%s %s, a body of %d bytes: %s", c.method, c.path, len(c.body), v.wrong)
	}
	return v
}

func difference(want string, got []byte) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	return fmt.Sprintf("at byte %d (%d bytes, want %d)", i, len(got), len(want))
}
