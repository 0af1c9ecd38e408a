//go:build !purego

#include "textflag.h"

// TEST branches to hit unless all of V is zero. It uses R9 and R10.
#define TEST(V, hit) \
	VMOV V.D[0], R9  \
	VMOV V.D[1], R10 \
	ORR  R9, R10     \
	CBNZ R10, hit

// func firstNonZeroAsm(p unsafe.Pointer, n uintptr) int
//
// n must be 32 or more. The loops OR what they read together and test once a
// turn; on a hit the bytes are read again, in order and 16 at a time, for the
// exact offset. That loop has its own end, as the byte may be gone by then. The
// last read overlaps what came before and is known to be zero.
//
//	R0      p
//	R1      n
//	R2      end of the range
//	R3      next byte to read, of the first stream
//	R4..R6  the same of the other three streams
//	R7      where a loop ends
//	V0..V7  what was read, then ORed together
TEXT ·firstNonZeroAsm(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
	ADD  R0, R1, R2
	MOVD R0, R3
	CMP  $192, R1
	BLO  steps

	// The first 64 bytes as they lie, then whole lines.
	FLDPQ (R3), (F0, F1)
	FLDPQ 32(R3), (F2, F3)
	VORR  V1.B16, V0.B16, V0.B16
	VORR  V3.B16, V2.B16, V2.B16
	VORR  V2.B16, V0.B16, V0.B16
	TEST(V0, steps)
	ADD   $64, R3
	AND   $~63, R3
	MOVD  $16384, R7
	CMP   R7, R1
	BHS   fourStreams

blocks:
	SUB $128, R2, R7             // where the last whole block may begin
	CMP R7, R3
	BHI steps
	PCALIGN $16
block: // 128 bytes a turn
	FLDPQ (R3), (F0, F1)
	FLDPQ 32(R3), (F2, F3)
	FLDPQ 64(R3), (F4, F5)
	FLDPQ 96(R3), (F6, F7)
	VORR  V1.B16, V0.B16, V0.B16
	VORR  V3.B16, V2.B16, V2.B16
	VORR  V5.B16, V4.B16, V4.B16
	VORR  V7.B16, V6.B16, V6.B16
	VORR  V2.B16, V0.B16, V0.B16
	VORR  V6.B16, V4.B16, V4.B16
	VORR  V4.B16, V0.B16, V0.B16
	TEST(V0, steps)
	ADD   $128, R3
	CMP   R7, R3
	BLS   block

steps: // all before R3 are zero; behind it is a hit, or little is left
	SUB  $16, R2, R7
	CMP  R7, R3
	BHI  last
step: // 16 bytes a turn
	LDP  (R3), (R9, R10)
	CBNZ R9, found
	CBNZ R10, foundHigh
	ADD  $16, R3
	CMP  R7, R3
	BLS  step
last: // the last 16 bytes; a hit in them is the first of all
	MOVD R7, R3
	LDP  (R3), (R9, R10)
	CBNZ R9, found
	CBNZ R10, foundHigh
	MOVD $-1, R0
	MOVD R0, ret+16(FP)
	RET

fourStreams:
	// The range in quarters, 64 bytes of each in turn, as in the amd64 kernel:
	// more misses are under way at a time.
	SUB R3, R2, R7
	LSR $2, R7
	AND $~63, R7                 // bytes in a quarter
	ADD R3, R7, R4
	ADD R4, R7, R5
	ADD R5, R7, R6
	ADD R3, R7                   // end of the first quarter
	PCALIGN $16
fourLoop: // 64 bytes of each quarter a turn
	FLDPQ (R3), (F0, F1)
	FLDPQ 32(R3), (F2, F3)
	FLDPQ (R4), (F4, F5)
	FLDPQ 32(R4), (F6, F7)
	FLDPQ (R5), (F16, F17)
	FLDPQ 32(R5), (F18, F19)
	FLDPQ (R6), (F20, F21)
	FLDPQ 32(R6), (F22, F23)
	VORR  V1.B16, V0.B16, V0.B16
	VORR  V3.B16, V2.B16, V2.B16
	VORR  V5.B16, V4.B16, V4.B16
	VORR  V7.B16, V6.B16, V6.B16
	VORR  V17.B16, V16.B16, V16.B16
	VORR  V19.B16, V18.B16, V18.B16
	VORR  V21.B16, V20.B16, V20.B16
	VORR  V23.B16, V22.B16, V22.B16
	VORR  V2.B16, V0.B16, V0.B16
	VORR  V6.B16, V4.B16, V4.B16
	VORR  V18.B16, V16.B16, V16.B16
	VORR  V22.B16, V20.B16, V20.B16
	VORR  V4.B16, V0.B16, V0.B16
	VORR  V20.B16, V16.B16, V16.B16
	VORR  V16.B16, V0.B16, V0.B16
	TEST(V0, steps)              // a later quarter may have hit: all from R3 on is looked at
	ADD   $64, R3
	ADD   $64, R4
	ADD   $64, R5
	ADD   $64, R6
	CMP   R7, R3
	BLO   fourLoop
	MOVD  R6, R3                 // behind the fourth quarter less than 256 bytes are left
	B     blocks

foundHigh: // R10 holds the 8 bytes at R3+8
	ADD  $8, R3
	MOVD R10, R9
found: // R9 holds the 8 bytes at R3, not all zero; the first one is the lowest
	RBIT R9, R9
	CLZ  R9, R9
	SUB  R0, R3, R0
	ADD  R9>>3, R0, R0
	MOVD R0, ret+16(FP)
	RET

// func kernelEntries() (zero, firstNonZero uintptr)
TEXT ·kernelEntries(SB), NOSPLIT, $0-16
	MOVD $·zeroAsm(SB), R0
	MOVD R0, zero+0(FP)
	MOVD $·firstNonZeroAsm(SB), R0
	MOVD R0, firstNonZero+8(FP)
	RET
