package workspace

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"
)

// MakeSlice returns a zeroed slice of n values in memory of the arena, with cap
// n. Like [Arena.Alloc] it goes to the heap without room.
//
// T must hold no pointer of any kind, at any depth: the garbage collector does
// not look into a block, so what such a pointer points to would be freed.
// MakeSlice panics with the name of T otherwise, and when n is negative or the
// size of the slice does not fit an int; else when Alloc would.
func MakeSlice[T any](a *Arena, n int) []T {
	var t T
	mustBePointerFree[T]("MakeSlice")
	size := int(unsafe.Sizeof(t))
	if n < 0 || size > 0 && n > int(^uint(0)>>1)/size {
		panic(fmt.Errorf("%w: MakeSlice: %d elements of %d bytes (%T)", ErrMisuse, n, size, t))
	}
	if size == 0 || n == 0 {
		a.mustBeUsable("MakeSlice")
		a.mustNotBeReserved("MakeSlice")
		return make([]T, n)
	}
	b := a.allocTyped("MakeSlice", n*size)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// Alloc returns a pointer to a zeroed T in memory of the arena. T must hold no
// pointer: see [MakeSlice].
func Alloc[T any](a *Arena) *T {
	var t T
	mustBePointerFree[T]("Alloc")
	size := int(unsafe.Sizeof(t))
	if size == 0 {
		a.mustBeUsable("Alloc")
		a.mustNotBeReserved("Alloc")
		return new(T)
	}
	b := a.allocTyped("Alloc", size)
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

// allocTyped is Arena.Alloc for n > 0 under the name of the function that was
// called. No type without pointers needs more than minAlign.
func (a *Arena) allocTyped(method string, n int) []byte {
	if a.usable() && n <= a.room() {
		return a.Alloc(n)
	}
	return a.allocSlow(method, n, minAlign)
}

// CopyOf returns a copy of s in memory of the arena. T must hold no pointer: see
// [MakeSlice]. For bytes and strings there are [Arena.Copy] and
// [Arena.CopyString].
func CopyOf[T any](a *Arena, s []T) []T {
	dst := MakeSlice[T](a, len(s))
	copy(dst, s)
	return dst
}

// pointerFree remembers the answer for each struct and array type that was asked about.
var pointerFree sync.Map // reflect.Type -> bool

func mustBePointerFree[T any](fn string) {
	t := reflect.TypeFor[T]()
	if scalar(t.Kind()) {
		return
	}
	ok, known := pointerFree.Load(t)
	if !known {
		ok = !holdsPointer(t)
		pointerFree.Store(t, ok)
	}
	if !ok.(bool) {
		panic(fmt.Errorf("%w: %s[%s]: the type holds a pointer, which the garbage collector would not see here", ErrMisuse, fn, t))
	}
}

func scalar(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Complex128 }

// holdsPointer reports whether a value of type t contains anything that the
// garbage collector follows.
func holdsPointer(t reflect.Type) bool {
	switch k := t.Kind(); {
	case scalar(k):
		return false
	case k == reflect.Array:
		return holdsPointer(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if holdsPointer(t.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return true // pointer, string, slice, map, func, chan, interface, unsafe.Pointer
}
