package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A breakerRecord is what Config.BreakerFile holds.
type breakerRecord struct {
	Build string    `json:"build"` // of the program whose breaker opened
	Pool  string    `json:"pool"`
	Kind  string    `json:"kind"` // of the violation
	Time  time.Time `json:"time"`
}

const maxBreakerFile = 1 << 16 // bytes: more is some other file

// checkBreakerFile returns an error when a breaker that opens could not be
// written down.
func (c *Config) checkBreakerFile() error {
	if c.BreakerFile == "" {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(c.BreakerFile), filepath.Base(c.BreakerFile)+".*")
	if err != nil {
		return fmt.Errorf("%w: BreakerFile is %q: %w", ErrConfig, c.BreakerFile, err)
	}
	f.Close()
	os.Remove(f.Name())
	return nil
}

// loadBreaker opens the breaker if the file says that this build tripped it
// before, and if it can't tell. Where there is no file, or no name of one, it stays
// closed.
func (p *Pool) loadBreaker() {
	r, err := readBreaker(p.cfg.BreakerFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Build != buildName() {
		return
	}
	p.tripped.Store(true)
	if err == nil {
		p.n.LastViolation = r.Time.Unix()
	}
	p.logger().Error("workspace: the breaker is open from the start, because of its file", "pool", p.cfg.Name, "file", p.cfg.BreakerFile, "error", err, "record", r)
}

func readBreaker(name string) (r breakerRecord, err error) {
	text, err := readSmall(name, maxBreakerFile)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if r.Build == "" {
		return r, errors.New("it names no build")
	}
	return r, nil
}

// readSmall reads a file of at most limit bytes.
func readSmall(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, err
}

// saveBreaker makes the file say what the breaker is now: so the last of several
// calls at once leaves it right.
func (p *Pool) saveBreaker() {
	if p.cfg.BreakerFile == "" {
		return
	}
	p.fileMu.Lock()
	defer p.fileMu.Unlock()
	p.mu.Lock()
	r := p.trip
	p.mu.Unlock()
	var err error
	if p.tripped.Load() {
		err = writeBreaker(p.cfg.BreakerFile, r)
	} else if err = os.Remove(p.cfg.BreakerFile); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		p.tell(func() {
			p.logger().Error("workspace: the breaker file could not be brought up to date", "pool", p.cfg.Name, "file", p.cfg.BreakerFile, "error", err)
		})
	}
}

// writeBreaker replaces the file as a whole: it is never half written, not even
// after a loss of power.
func writeBreaker(name string, r breakerRecord) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
