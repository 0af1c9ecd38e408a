//go:build !purego

#include "textflag.h"

// func zeroAsm(p unsafe.Pointer, n uintptr)
//
// Needs AVX2 and n >= asmMinZero. All stores are ordinary ones, which leave a line in the cache it
// is in: what a request has just written is there, and non-temporal stores would
// push it out to memory. Where a length is no multiple of a
// step the last stores overlap those before: zeroing a byte twice does no harm,
// and counting out the rest costs branches.
//
//	DI       next byte to zero, of the first stream
//	R8..R10  the same of the other three streams
//	SI       end of the range
//	DX       n
//	CX       where a loop ends
//	Y0       zero
TEXT ·zeroAsm(SB), NOSPLIT, $0-16
	MOVQ    p+0(FP), DI
	MOVQ    n+8(FP), DX
	LEAQ    (DI)(DX*1), SI
	VPXOR   Y0, Y0, Y0
	VMOVDQU Y0, 0(DI)            // head
	CMPQ    DX, $40960           // from here on it cannot all be in the L1 cache
	JAE     fourStreams

	// After the head the stores are aligned, so that none crosses a line. The loop runs at one store a cycle, the most there is.
	ADDQ $32, DI
	ANDQ $-32, DI
	LEAQ -128(SI), CX

	PCALIGN $32
oneStream: // 128 bytes a turn, until 128 or less are left
	VMOVDQA Y0, 0(DI)
	VMOVDQA Y0, 32(DI)
	VMOVDQA Y0, 64(DI)
	VMOVDQA Y0, 96(DI)
	ADDQ    $128, DI
	CMPQ    DI, CX
	JB      oneStream
	JMP     last128

fourStreams:
	// The range in quarters, a line of each in turn: more misses are under way
	// at a time, and the prefetcher follows four streams. As fast as one stream
	// in L1 and L2, and faster from memory.
	VMOVDQU Y0, 32(DI)
	ADDQ    $64, DI              // the first whole line
	ANDQ    $-64, DI
	MOVQ    SI, CX
	SUBQ    DI, CX
	SHRQ    $2, CX
	ANDQ    $-64, CX             // bytes in a quarter
	LEAQ    (DI)(CX*1), R8
	LEAQ    (R8)(CX*1), R9
	LEAQ    (R9)(CX*1), R10
	ADDQ    DI, CX               // end of the first quarter

	PCALIGN $32
fourLoop: // 64 bytes of each quarter a turn
	VMOVDQA Y0, 0(DI)
	VMOVDQA Y0, 32(DI)
	VMOVDQA Y0, 0(R8)
	VMOVDQA Y0, 32(R8)
	VMOVDQA Y0, 0(R9)
	VMOVDQA Y0, 32(R9)
	VMOVDQA Y0, 0(R10)
	VMOVDQA Y0, 32(R10)
	ADDQ    $64, DI
	ADDQ    $64, R8
	ADDQ    $64, R9
	ADDQ    $64, R10
	CMPQ    DI, CX
	JB      fourLoop

	// Less than 256 bytes are left behind the fourth quarter.
	VMOVDQU Y0, -256(SI)
	VMOVDQU Y0, -224(SI)
	VMOVDQU Y0, -192(SI)
	VMOVDQU Y0, -160(SI)
last128:
	VMOVDQU Y0, -128(SI)
	VMOVDQU Y0, -96(SI)
	VMOVDQU Y0, -64(SI)
	VMOVDQU Y0, -32(SI)
	VZEROUPPER
	RET

// func zeroColdAsm(p unsafe.Pointer, n uintptr)
//
// Needs AVX2 and n >= asmMinZero. Non-temporal stores write whole lines to memory without
// reading them first. They are ordered with nothing until the fence at the end.
//
//	DI  next byte to zero
//	SI  end of the range
//	CX  where the loop ends
//	Y0  zero
TEXT ·zeroColdAsm(SB), NOSPLIT, $0-16
	MOVQ    p+0(FP), DI
	MOVQ    n+8(FP), SI
	ADDQ    DI, SI
	VPXOR   Y0, Y0, Y0
	VMOVDQU Y0, 0(DI)            // head
	VMOVDQU Y0, 32(DI)
	ADDQ    $64, DI              // the first whole line
	ANDQ    $-64, DI
	LEAQ    -128(SI), CX

	PCALIGN $32
coldLoop: // 128 bytes a turn, until 128 or less are left
	VMOVNTDQ Y0, 0(DI)
	VMOVNTDQ Y0, 32(DI)
	VMOVNTDQ Y0, 64(DI)
	VMOVNTDQ Y0, 96(DI)
	ADDQ     $128, DI
	CMPQ     DI, CX
	JB       coldLoop
	VMOVDQU Y0, -128(SI)
	VMOVDQU Y0, -96(SI)
	VMOVDQU Y0, -64(SI)
	VMOVDQU Y0, -32(SI)
	SFENCE
	VZEROUPPER
	RET

// func coldEntry() uintptr
TEXT ·coldEntry(SB), NOSPLIT, $0-8
	LEAQ ·zeroColdAsm(SB), AX
	MOVQ AX, ret+0(FP)
	RET
