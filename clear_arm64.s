//go:build !purego

#include "textflag.h"

// func zeroAsm(p unsafe.Pointer, n uintptr)
//
// DC ZVA zeroes a whole block without reading it first; zvaBlock says how much
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
	CMP  $16, R1
	BLO  below16
	VEOR V0.B16, V0.B16, V0.B16
	CMP  $32, R1
	BLS  upto32
	CMP  $64, R1
	BLS  upto64
	CMP  $128, R1
	BLS  upto128

	// Over 128 bytes: a head of 64 as it lies, then whole lines.
	FSTPQ (F0, F0), (R0)
	FSTPQ (F0, F0), 32(R0)
	ADD   $64, R0
	AND   $~63, R0
	MOVD  ·zvaBlock(SB), R3
	CBZ   R3, lines
	CMP   $256, R1
	BLO   lines
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

upto128: // 65 to 128: 64 from the start, 64 up to the end
	FSTPQ (F0, F0), 32(R0)
	FSTPQ (F0, F0), -64(R2)
upto64: // 33 to 64: 32 from the start, 32 up to the end
	FSTPQ (F0, F0), (R0)
	FSTPQ (F0, F0), -32(R2)
	RET

upto32: // 16 to 32
	FMOVQ F0, (R0)
	FMOVQ F0, -16(R2)
	RET

below16:
	TBZ  $3, R1, below8
	MOVD ZR, (R0)                // 8 to 15
	MOVD ZR, -8(R2)
	RET
below8:
	TBZ  $2, R1, below4
	MOVW ZR, (R0)                // 4 to 7
	MOVW ZR, -4(R2)
	RET
below4:
	CBZ  R1, none
	MOVB ZR, (R0)                // 1 to 3: the first, the middle, the last
	LSR  $1, R1, R4
	MOVB ZR, (R0)(R4)
	MOVB ZR, -1(R2)
none:
	RET

// func dczid() uintptr
TEXT ·dczid(SB), NOSPLIT, $0-8
	MRS  DCZID_EL0, R0
	MOVD R0, ret+0(FP)
	RET
