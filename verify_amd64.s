//go:build !purego

#include "textflag.h"

// func firstNonZeroAsm(p unsafe.Pointer, n uintptr) int
//
// Needs AVX2 and n >= 32. The loops OR what they read together and test once a
// turn; on a hit the bytes are read again, in order and 32 at a time, for the
// exact offset. That loop has its own end, as the byte may be gone by then. The
// last read overlaps what came before and is known to be zero.
//
//	BX       p
//	DI       next byte to read, of the first stream
//	R8..R10  the same of the other three streams
//	SI       end of the range
//	DX       n
//	CX       where a loop ends
//	Y0..Y3   what was read, ORed together
TEXT ·firstNonZeroAsm(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), DX
	MOVQ DI, BX
	LEAQ (DI)(DX*1), SI
	CMPQ DX, $256
	JB   steps

	// The first 64 bytes as they lie, then whole lines.
	VMOVDQU 0(DI), Y0
	VPOR    32(DI), Y0, Y0
	VPTEST  Y0, Y0
	JNZ     steps
	ADDQ    $64, DI
	ANDQ    $-64, DI
	CMPQ    DX, $16384           // from here on it pays from memory, and costs little elsewhere
	JAE     fourStreams

blocks:
	LEAQ -256(SI), CX            // where the last whole block may begin
	CMPQ DI, CX
	JA   steps

	PCALIGN $32
block: // 256 bytes a turn
	VMOVDQA 0(DI), Y0
	VMOVDQA 32(DI), Y1
	VMOVDQA 64(DI), Y2
	VMOVDQA 96(DI), Y3
	VPOR    128(DI), Y0, Y0
	VPOR    160(DI), Y1, Y1
	VPOR    192(DI), Y2, Y2
	VPOR    224(DI), Y3, Y3
	VPOR    Y1, Y0, Y0
	VPOR    Y3, Y2, Y2
	VPOR    Y2, Y0, Y0
	VPTEST  Y0, Y0
	JNZ     steps
	ADDQ    $256, DI
	CMPQ    DI, CX
	JBE     block

steps: // all before DI are zero; behind it is a hit, or less than 256 bytes are left
	LEAQ -32(SI), CX
	CMPQ DI, CX
	JA   last
step: // 32 bytes a turn
	VMOVDQU 0(DI), Y0
	VPTEST  Y0, Y0
	JNZ     found
	ADDQ    $32, DI
	CMPQ    DI, CX
	JBE     step
last: // the last 32 bytes; a hit in them is the first of all
	MOVQ    CX, DI
	VMOVDQU 0(DI), Y0
	VPTEST  Y0, Y0
	JNZ     found
	VZEROUPPER
	MOVQ    $-1, ret+16(FP)
	RET

fourStreams:
	// The range in quarters, as in zeroAsm. The 128 bytes of a quarter are read
	// one after the other: by lines in turn it is slower from the L3 cache.
	MOVQ SI, CX
	SUBQ DI, CX
	SHRQ $2, CX
	ANDQ $-128, CX               // bytes in a quarter
	LEAQ (DI)(CX*1), R8
	LEAQ (R8)(CX*1), R9
	LEAQ (R9)(CX*1), R10
	ADDQ DI, CX                  // end of the first quarter

	PCALIGN $32
fourLoop: // 128 bytes of each quarter a turn
	VMOVDQA 0(DI), Y0
	VMOVDQA 32(DI), Y1
	VMOVDQA 64(DI), Y2
	VMOVDQA 96(DI), Y3
	VPOR    0(R8), Y0, Y0
	VPOR    32(R8), Y1, Y1
	VPOR    64(R8), Y2, Y2
	VPOR    96(R8), Y3, Y3
	VPOR    0(R9), Y0, Y0
	VPOR    32(R9), Y1, Y1
	VPOR    64(R9), Y2, Y2
	VPOR    96(R9), Y3, Y3
	VPOR    0(R10), Y0, Y0
	VPOR    32(R10), Y1, Y1
	VPOR    64(R10), Y2, Y2
	VPOR    96(R10), Y3, Y3
	VPOR    Y1, Y0, Y0
	VPOR    Y3, Y2, Y2
	VPOR    Y2, Y0, Y0
	VPTEST  Y0, Y0
	JNZ     steps                // a later quarter may have hit: all from DI on is looked at
	ADDQ    $128, DI
	ADDQ    $128, R8
	ADDQ    $128, R9
	ADDQ    $128, R10
	CMPQ    DI, CX
	JB      fourLoop
	MOVQ    R10, DI              // behind the fourth quarter less than 512 bytes are left
	JMP     blocks

found: // Y0 holds the 32 bytes at DI, not all zero
	VPXOR     Y1, Y1, Y1
	VPCMPEQB  Y1, Y0, Y0         // 0xff where a byte is zero
	VPMOVMSKB Y0, AX
	NOTL      AX
	BSFL      AX, AX
	SUBQ      BX, DI
	ADDQ      DI, AX
	VZEROUPPER
	MOVQ      AX, ret+16(FP)
	RET

// func kernelEntries() (zero, firstNonZero uintptr)
TEXT ·kernelEntries(SB), NOSPLIT, $0-16
	LEAQ ·zeroAsm(SB), AX
	MOVQ AX, zero+0(FP)
	LEAQ ·firstNonZeroAsm(SB), AX
	MOVQ AX, firstNonZero+8(FP)
	RET
