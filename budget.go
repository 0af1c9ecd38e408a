package workspace

import (
	"math"
	"math/bits"
	"time"
)

const maxAuditBudget = 1_000_000

// A budget derives the sampler's interval from the audits that were made. It
// looks at how many there were and how long they took, never at what was
// audited. It needs no clock of its own: it is asked at each audit.
type budget struct {
	perSecond int // 0: the interval stays as it is
	every     int // the interval
	since     time.Time
	audits    int64 // since then
}

// spend counts an audit at a moment. It reports whether the interval is another
// afterwards.
func (b *budget) spend(now time.Time) (changed bool) {
	if b.perSecond == 0 {
		return false
	}
	b.audits++
	took := max(now.Sub(b.since), time.Millisecond)
	if b.audits < 60*int64(b.perSecond) && took < time.Minute {
		return false
	}
	// So many operations there were for each audit that was allowed.
	want := float64(b.every) * float64(b.audits) / (float64(b.perSecond) * took.Seconds())
	want = math.Ceil(min(max(want, float64(b.every)/2), maxAuditEvery))
	old := b.every
	b.every = 1 << bits.Len(uint(want)-1) // the next power of two
	b.since, b.audits = now, 0
	return b.every != old
}

// resample makes the sampler for the interval that the budget has found.
func (p *Pool) resample() {
	s := newSampler(p.budget.every, p.cfg.draw)
	if p.cfg.AuditBudget > 0 {
		s.chunk = maxChunk
	}
	p.sampler.Store(&s)
}

// countdown draws one from the sampler that holds now.
func (p *Pool) countdown() countdown { return p.sampler.Load().next() }
