//go:build !purego

#include "textflag.h"

// func goroutine() uintptr
//
// The address of the runtime's record of the running goroutine, which the
// runtime keeps in thread-local storage. Only its identity is used.
TEXT ·goroutine(SB), NOSPLIT, $0-8
	MOVQ TLS, CX
	MOVQ 0(CX)(TLS*1), AX
	MOVQ AX, ret+0(FP)
	RET
