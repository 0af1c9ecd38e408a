package workspace

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A HostCanary restricts Watermark to some of the hosts of a fleet. Whether a host
// is among them follows from a hash of its name, so it stays in when the share
// is raised, and needs to ask nobody.
type HostCanary struct {
	// BasisPoints is the share of hosts in units of 1/10,000: 0 is none of them,
	// 10,000 all.
	BasisPoints int

	// HostID tells this host from the others, and stays the same over restarts. It
	// must not be empty unless BasisPoints is 0 or 10,000.
	HostID string

	// Salt is the name of the rollout. With another one other hosts go first.
	Salt string
}

const allBasisPoints = 10_000

// check returns an error that wraps ErrConfig and names the bad value.
func (c *HostCanary) check() error {
	switch {
	case c == nil:
		return nil
	case c.BasisPoints < 0 || c.BasisPoints > allBasisPoints:
		return fmt.Errorf("%w: HostCanary.BasisPoints is %d, want 0 to %d", ErrConfig, c.BasisPoints, allBasisPoints)
	case c.HostID == "" && c.BasisPoints%allBasisPoints != 0:
		return fmt.Errorf("%w: HostCanary.HostID is empty, and BasisPoints %d", ErrConfig, c.BasisPoints)
	}
	return nil
}

// Includes reports whether the pool of this name may run in Watermark on this
// host. A nil HostCanary includes every host.
func (c *HostCanary) Includes(pool string) bool {
	return c == nil || c.bucket(pool) < uint64(c.BasisPoints)
}

// bucket returns a number from 0 to 9,999 that depends on nothing but the three
// names. A hash as FNV spreads numbered hosts unevenly; this one is computed
// only when a setting changes.
func (c *HostCanary) bucket(pool string) uint64 {
	h := sha256.New()
	for _, s := range []string{c.Salt, pool, c.HostID} {
		fmt.Fprintf(h, "%d:%s,", len(s), s) // so that no two triples run together
	}
	return binary.BigEndian.Uint64(h.Sum(nil)) % allBasisPoints
}

// SetHostCanary restricts Watermark to the hosts of c from now on; nil lifts the
// restriction. The error wraps [ErrConfig]. Requests under way keep their mode.
func (p *Pool) SetHostCanary(c *HostCanary) error {
	if err := c.check(); err != nil {
		return err
	}
	barred := !c.Includes(p.cfg.Name)
	p.change("host canary", func() { p.barred = barred })
	return nil
}
