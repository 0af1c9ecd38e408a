package workspace

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Values that were made from the memory of a request and are kept beyond it: in
// caches, header tables, logs.

// Getters whose strings shared the request's buffer changed them under whoever
// had kept one: as the key of a map (gofiber/fiber#426, gofiber/fiber#3367), or in
// the header table of an HTTP/2 client (gofiber/fiber#2067, gofiber/fiber#4475).
// Here a string is a copy.
func TestKeptStringsDoNotChange(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, Mode: Watermark, AuditEvery: -1})
	const keepers = 20
	keys, header := map[string]int{}, http.Header{}
	var attrs []slog.Attr
	for n := range keepers {
		ws := pool.Acquire()
		name := ws.Client().Buffer()
		fmt.Fprintf(name, "Name-%d", n)
		keys[name.String()] = n
		header[name.String()] = []string{name.String()}
		attrs = append(attrs, slog.String(name.String(), name.String()))
		ws.Release()
	}
	visitors(t, pool.Pool, 100, 100)
	require.EqualValues(t, 1, pool.Stats().Created, "all on one block, or this test proves nothing")

	require.Len(t, keys, keepers)
	for n := range keepers {
		want := fmt.Sprintf("Name-%d", n)
		got, ok := keys[want]
		require.True(t, ok, "the key %s is still found", want)
		require.Equal(t, n, got)
		require.Equal(t, want, header.Get(want))
		require.Equal(t, slog.String(want, want), attrs[n])
	}
}

// Nothing in the library makes a string that shares memory, not even inside.
func TestNoStringIsAView(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.Contains(t, files, "buffer.go", "the sources must be here")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(text), "unsafe.String(", name)
		require.NotContains(t, string(text), "*(*string)", name)
	}
}

// A message as handlers decode it, with each type that a decoder might leave
// pointing into its input.
type message struct {
	Name  string
	Data  []byte
	Raw   json.RawMessage
	Words []string
}

var decoders = []struct {
	name   string
	encode func(m message) ([]byte, error)
	decode func(b []byte) (any, error)
}{
	{"json.Unmarshal", func(m message) ([]byte, error) { return json.Marshal(m) }, func(b []byte) (any, error) {
		var m message
		return &m, json.Unmarshal(b, &m)
	}},
	{"json.Unmarshal into any", func(m message) ([]byte, error) { return json.Marshal(m) }, func(b []byte) (any, error) {
		var v any
		err := json.Unmarshal(b, &v)
		return v, err
	}},
	{"json.Decoder", func(m message) ([]byte, error) { return json.Marshal(m) }, func(b []byte) (any, error) {
		var m message
		return &m, json.NewDecoder(bytes.NewReader(b)).Decode(&m)
	}},
	{"xml.Unmarshal", func(m message) ([]byte, error) { return xml.Marshal(m) }, func(b []byte) (any, error) {
		var m message
		return &m, xml.Unmarshal(b, &m)
	}},
	{"gob", func(m message) ([]byte, error) {
		var b bytes.Buffer
		err := gob.NewEncoder(&b).Encode(m)
		return b.Bytes(), err
	}, func(b []byte) (any, error) {
		var m message
		return &m, gob.NewDecoder(bytes.NewReader(b)).Decode(&m)
	}},
	{"csv", func(m message) ([]byte, error) { return []byte(strings.Join(m.Words, ",")), nil }, func(b []byte) (any, error) {
		return csv.NewReader(bytes.NewReader(b)).Read()
	}},
	{"textproto", func(m message) ([]byte, error) { return []byte("Name: " + m.Name + "\r\n\r\n"), nil }, func(b []byte) (any, error) {
		return textproto.NewReader(bufio.NewReader(bytes.NewReader(b))).ReadMIMEHeader()
	}},
	{"string", func(m message) ([]byte, error) { return m.Data, nil }, func(b []byte) (any, error) { return string(b), nil }},
	{"bytes.Clone", func(m message) ([]byte, error) { return m.Data, nil }, func(b []byte) (any, error) { return bytes.Clone(b), nil }},
}

// Decoded messages that point into their input are mixed up once the input is
// reused (cortexproject/cortex#6808, yarpc/yarpc-go#2366). What the standard
// library decodes from a workspace may be kept, as may copies. The last step shows
// that this test would notice, and what the limit in the documentation means:
// pieces of the input itself are gone.
func TestDecodedValuesOutliveTheRequest(t *testing.T) {
	pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, Mode: Watermark, AuditEvery: -1})
	type kept struct {
		name      string
		got, want any
	}
	var cache []kept
	var views [][]byte
	for n := range 5 {
		m := message{
			Name: fmt.Sprintf("name-%d", n), Data: bytes.Repeat([]byte{byte('a' + n)}, 50),
			Raw: json.RawMessage(fmt.Sprintf(`{"raw":%d}`, n)), Words: []string{"one", "two", fmt.Sprint(n)},
		}
		for _, d := range decoders {
			text, err := d.encode(m)
			require.NoError(t, err, d.name)
			want, err := d.decode(text)
			require.NoError(t, err, d.name)
			ws := pool.Acquire()
			got, err := d.decode(ws.Client().Copy(text))
			ws.Release()
			require.NoError(t, err, d.name)
			cache = append(cache, kept{d.name, got, want})
		}
		ws := pool.Acquire()
		views = append(views, bytes.Fields(ws.Client().CopyString("these are views"))...)
		ws.Release()
	}
	visitors(t, pool.Pool, 100, scaled(1000, 100))
	require.EqualValues(t, 1, pool.Stats().Created, "all on one block, or this test proves nothing")
	for _, k := range cache {
		require.Equal(t, k.want, k.got, k.name)
	}
	for _, v := range views {
		require.NotContains(t, []string{"these", "are", "views"}, string(v), "a bare slice that was kept")
	}
}

// A decoder that damaged its input made the second decode of the same bytes fail
// (goccy/go-json#195). The owner of a slice may write to it; what it does there
// stays there, is wiped at the end, and harms no neighbour. Who wants the bytes
// whole gives away a Copy.
func TestConsumersOfOneBody(t *testing.T) {
	const text = `{"name":"a body"}`
	for _, mode := range allModes {
		pool := newTestPool(t, Config{ClientSize: lateHalf, BackendSize: lateHalf, Mode: mode})
		ws := pool.Acquire()
		blk, a := ws.blk, ws.Client()
		before := a.Copy(tag(1))
		b := a.Buffer()
		_, err := b.ReadFrom(strings.NewReader(text))
		require.NoError(t, err)
		free := b.AvailableBuffer()
		require.NotZero(t, cap(free), "room behind the body, or an append could do no harm")
		after := a.Copy(tag(2))
		mark := a.Mark()

		stain(a.Copy(b.Bytes()), 3) // a consumer that gets a copy
		require.Equal(t, text, b.String())
		_ = append(b.Bytes(), `, "more": true`...) // one that appends
		require.Equal(t, text, b.String())
		require.Equal(t, -1, firstNonZero(free[:cap(free)]), "what lies behind the body")
		stain(b.Bytes(), 4) // one that rewrites it in place, as far as it can reach
		require.NoError(t, onlyTag(b.Bytes(), 4), "all consumers of a slice see the same bytes")

		require.Equal(t, tag(1), before)
		require.Equal(t, tag(2), after)
		require.LessOrEqual(t, placeOf(a, b.Bytes())+b.Len(), mark, "all of it lies below the mark")
		requireTail(t, a)
		ws.Release()
		requireWiped(t, blk)
	}
}
