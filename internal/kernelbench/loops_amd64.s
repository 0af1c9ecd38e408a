//go:build !purego

#include "textflag.h"

// The loops do nothing but load or store, 32 bytes at a time: what the machine
// can do. n must be a multiple of 512 and p of 64.

// func loadOne(p unsafe.Pointer, n uintptr)
TEXT ·loadOne(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	ADDQ DI, CX

	PCALIGN $32
loop:
	VMOVDQA 0(DI), Y0
	VMOVDQA 32(DI), Y1
	VMOVDQA 64(DI), Y2
	VMOVDQA 96(DI), Y3
	VMOVDQA 128(DI), Y0
	VMOVDQA 160(DI), Y1
	VMOVDQA 192(DI), Y2
	VMOVDQA 224(DI), Y3
	ADDQ    $256, DI
	CMPQ    DI, CX
	JB      loop
	VZEROUPPER
	RET

// func loadFour(p unsafe.Pointer, n uintptr)
//
// Quarters, 128 bytes of each in turn.
TEXT ·loadFour(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	SHRQ $2, CX
	LEAQ (DI)(CX*1), R8
	LEAQ (R8)(CX*1), R9
	LEAQ (R9)(CX*1), R10
	ADDQ DI, CX

	PCALIGN $32
loop:
	VMOVDQA 0(DI), Y0
	VMOVDQA 32(DI), Y1
	VMOVDQA 64(DI), Y2
	VMOVDQA 96(DI), Y3
	VMOVDQA 0(R8), Y0
	VMOVDQA 32(R8), Y1
	VMOVDQA 64(R8), Y2
	VMOVDQA 96(R8), Y3
	VMOVDQA 0(R9), Y0
	VMOVDQA 32(R9), Y1
	VMOVDQA 64(R9), Y2
	VMOVDQA 96(R9), Y3
	VMOVDQA 0(R10), Y0
	VMOVDQA 32(R10), Y1
	VMOVDQA 64(R10), Y2
	VMOVDQA 96(R10), Y3
	ADDQ    $128, DI
	ADDQ    $128, R8
	ADDQ    $128, R9
	ADDQ    $128, R10
	CMPQ    DI, CX
	JB      loop
	VZEROUPPER
	RET

// func storeOne(p unsafe.Pointer, n uintptr)
TEXT ·storeOne(SB), NOSPLIT, $0-16
	MOVQ  p+0(FP), DI
	MOVQ  n+8(FP), CX
	ADDQ  DI, CX
	VPXOR Y0, Y0, Y0

	PCALIGN $32
loop:
	VMOVDQA Y0, 0(DI)
	VMOVDQA Y0, 32(DI)
	VMOVDQA Y0, 64(DI)
	VMOVDQA Y0, 96(DI)
	ADDQ    $128, DI
	CMPQ    DI, CX
	JB      loop
	VZEROUPPER
	RET

