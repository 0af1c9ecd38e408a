package main

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/go-workspace/workspace"
)

const (
	topWords   = 5
	maxListed  = 64  // bytes; longer words are counted but not listed
	firstSlots = 256 // of the word table; a power of two
)

// A word says where a word first stands in the text and how often it comes. It
// holds no pointer, so it may lie in an arena.
type word struct {
	off, len, count uint32 // count 0: an empty slot
}

// A wordTable counts the words of a text. It is a hash table whose slots lie in
// an arena; when it is full the words move to one of twice the size.
type wordTable struct {
	arena *workspace.Arena
	seed  maphash.Seed
	text  []byte
	slots []word
	used  int // distinct words
	words int
}

// wordCount is one line of the list of the most frequent words.
type wordCount struct {
	Word  string `json:"word"`
	Count uint32 `json:"count"`
}

// countWords counts the words of the text: whatever ASCII white space separates.
func countWords(a *workspace.Arena, seed maphash.Seed, text []byte) *wordTable {
	t := &wordTable{arena: a, seed: seed, text: text}
	for i := 0; i < len(text); i++ {
		start := i
		for i < len(text) && !space(text[i]) {
			i++
		}
		if i > start {
			t.add(word{off: uint32(start), len: uint32(i - start)})
		}
	}
	return t
}

func space(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// countLines counts the lines of the text; the last one may lack its newline.
func countLines(text []byte) int {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}

// of returns the bytes of a word.
func (t *wordTable) of(w word) []byte { return t.text[w.off:][:w.len] }

// add counts w once more.
func (t *wordTable) add(w word) {
	if t.used >= len(t.slots)/4*3 {
		t.grow()
	}
	slot := t.find(w)
	if slot.count == 0 {
		*slot = w
		t.used++
	}
	slot.count++
	t.words++
}

// find returns the slot of w, or the empty one where it belongs.
func (t *wordTable) find(w word) *word {
	mask := uint64(len(t.slots) - 1)
	for i := maphash.Bytes(t.seed, t.of(w)) & mask; ; i = (i + 1) & mask {
		if slot := &t.slots[i]; slot.count == 0 || bytes.Equal(t.of(*slot), t.of(w)) {
			return slot
		}
	}
}

// grow doubles the table. The slots are zero, so they are empty.
func (t *wordTable) grow() {
	old := t.slots
	t.slots = workspace.MakeSlice[word](t.arena, max(firstSlots, 2*len(old)))
	for _, w := range old {
		if w.count > 0 {
			*t.find(w) = w
		}
	}
}

// top returns the most frequent words, those of the same count in byte order.
func (t *wordTable) top() []wordCount {
	var best []word
	for _, w := range t.slots {
		if w.count == 0 || w.len > maxListed {
			continue
		}
		i, _ := slices.BinarySearchFunc(best, w, func(a, b word) int {
			return cmp.Or(cmp.Compare(b.count, a.count), bytes.Compare(t.of(a), t.of(b)))
		})
		if i < topWords {
			best = slices.Insert(best, i, w)
			best = best[:min(len(best), topWords)]
		}
	}
	list := []wordCount{}
	for _, w := range best {
		list = append(list, wordCount{Word: string(t.of(w)), Count: w.count})
	}
	return list
}
