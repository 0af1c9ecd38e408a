package workspace

import "time"

// An EventKind says what an [Event] is about.
type EventKind uint8

// The kinds of Event.
const (
	ModeChanged    EventKind = iota // the effective mode is another: see Event.From, To and Cause
	BreakerTripped                  // the first violation
	BreakerRearmed                  // Rearm was called; Cause is its reason
	ViolationFound                  // see Event.Violation
)

var eventNames = [...]string{"mode-changed", "breaker-tripped", "breaker-rearmed", "violation-found"}

// String returns the name of the kind.
func (k EventKind) String() string { return nameOf(eventNames[:], int(k), "event") }

// MarshalText writes the name, for JSON and logs.
func (k EventKind) MarshalText() ([]byte, error) { return nameText(k, eventNames[:], "event") }

// UnmarshalText reads a name in any case.
func (k *EventKind) UnmarshalText(text []byte) error {
	return parseName(k, eventNames[:], "event", text)
}

// An Event is something that an operator wants to know at once. One may overtake
// another; Time says which came first. It holds no contents of memory.
type Event struct {
	Time      time.Time  `json:"time"`
	Pool      string     `json:"pool"`
	Kind      EventKind  `json:"kind"`
	From      Mode       `json:"from"`            // the effective mode before
	To        Mode       `json:"to"`              // and after
	Cause     string     `json:"cause,omitempty"` // why
	Violation *Violation `json:"violation,omitempty"`
}

// emit tells Config.OnEvent, without waiting for it.
func (p *Pool) emit(e Event) {
	if p.cfg.OnEvent == nil {
		return
	}
	e.Time, e.Pool = time.Now(), p.cfg.Name
	p.tell(func() { p.cfg.OnEvent(e) })
}

// change makes a change on which the effective mode depends, and says so if that
// is another afterwards. It returns the effective mode before and after.
func (p *Pool) change(cause string, f func()) (from, to Mode) {
	p.mu.Lock()
	from = p.effectiveLocked()
	f()
	to = p.effectiveLocked()
	p.mu.Unlock()
	if from != to {
		p.emit(Event{Kind: ModeChanged, From: from, To: to, Cause: cause})
	}
	return from, to
}
