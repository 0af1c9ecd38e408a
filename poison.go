package workspace

import "bytes"

// Debug Poison fills each block with a byte that is not zero while the block is
// idle. A late reader so gets rubbish that is easy to see instead of zeros that
// look right, and each late write is found when the block is next used, or by
// AuditIdle. It works on every platform. Fence sees more.

const poisonByte = 0xdb

// poison fills both halves of a wiped block.
func (b *block) poison() {
	for _, half := range b.halves {
		half[0] = poisonByte
		for n := 1; n < len(half); n *= 2 {
			copy(half[n:], half[:n])
		}
	}
	b.poisoned = true
}

// inspectPoison reads one half of an idle block and its guard. It returns nil
// when each byte is as poison left it and the guard is intact. Its last parameter
// is there for inspect's sake: poison has no mark.
func inspectPoison(half, guard []byte, _ int) *Violation {
	v := &Violation{Kind: PoisonDamaged, Size: len(half), Guard: guardIntact(guard)}
	// The first byte is right and each is as the one before it: so are all.
	if v.Guard && half[0] == poisonByte && bytes.Equal(half[1:], half[:len(half)-1]) {
		return nil
	}
	v.describe(half, 0, poisonByte)
	if v.Count == 0 && !v.Guard {
		v.Kind = GuardDamaged
	}
	return v
}

// unpoison checks the poison of a block that is taken from the idle list, and
// wipes the block.
func (ws *Workspace) unpoison() {
	for _, a := range []*Arena{&ws.client, &ws.backend} {
		guard := ws.blk.guard(a.half)
		v := inspectPoison(a.mem(), guard, 0)
		zero(a.mem())
		if v != nil {
			restoreGuard(guard)
			ws.violated(a, v, OpAcquire)
		}
	}
	ws.blk.poisoned = false
}
