//go:build !purego

#include "textflag.h"

// func zeroAsm(p unsafe.Pointer, n uintptr)
//
// n must be asmMinZero or more. DC ZVA zeroes a whole block without reading it first; zvaBlock says how much
// that is, or 0. It acts on the aligned block around the address that it is
// given, so no more than whole blocks inside the range are left to it. All else
// is done with pairs of Q registers. As on amd64 the last stores overlap those
// before.
//
//	R0  next byte to zero    R3  zvaBlock
//	R1  n                    R4  where the next block begins, where a loop ends
//	R2  end of the range     V0  zero
TEXT ·zeroAsm(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
	ADD  R0, R1, R2
	VEOR V0.B16, V0.B16, V0.B16

	// A head of 64 as it lies, then whole lines.
	FSTPQ (F0, F0), (R0)
	FSTPQ (F0, F0), 32(R0)
	ADD   $64, R0
	AND   $~63, R0
	MOVD  ·zvaBlock(SB), R3
	CBZ   R3, lines
	CMP   R3<<1, R1              // a head, and at least one whole block behind it
	BLO   lines

	// Up to where the first block begins. With blocks of a line that is here.
	SUB  $1, R3, R4
	ADD  R4, R0, R5
	BIC  R4, R5, R4
	CMP  R4, R0
	BHS  blocks
toBlock: // 64 bytes a turn
	FSTPQ (F0, F0), (R0)
	FSTPQ (F0, F0), 32(R0)
	ADD   $64, R0
	CMP   R4, R0
	BLO   toBlock

blocks:
	SUB R3, R2, R4               // where the last whole block may begin
	CMP R4, R0
	BHI lines
	PCALIGN $16
block: // a block a turn
	DC  ZVA, R0
	ADD R3, R0
	CMP R4, R0
	BLS block

lines:
	SUB $64, R2, R4
	CMP R4, R0
	BHS last64
	PCALIGN $16
line: // 64 bytes a turn, until 64 or less are left
	FSTPQ (F0, F0), (R0)
	FSTPQ (F0, F0), 32(R0)
	ADD   $64, R0
	CMP   R4, R0
	BLO   line
last64:
	FSTPQ (F0, F0), -64(R2)
	FSTPQ (F0, F0), -32(R2)
	RET

// func dczid() uintptr
TEXT ·dczid(SB), NOSPLIT, $0-8
	MRS  DCZID_EL0, R0
	MOVD R0, ret+0(FP)
	RET
