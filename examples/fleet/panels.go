package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// A panel is what is needed here of a panel of the dashboard. Rows hold none.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

// everything makes the variables of the dashboard choose all there is.
var everything = strings.NewReplacer("$job", ".*", "$pool", ".*", "$revision", ".*", "$__rate_interval", "10s")

// askPanels runs each query of the dashboard, and returns how many there are. One
// without data is an error: somebody misspelt a name.
func (d *demo) askPanels(ctx context.Context, file string) (queries int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for _, p := range dashboard.Panels {
		for _, t := range p.Targets {
			queries++
			got, _, _, err := d.prom.api.Query(ctx, everything.Replace(t.Expr), time.Now())
			if series, ok := got.(model.Vector); err == nil && (!ok || len(series) == 0) {
				err = errors.New("no data")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("panel %q: %s: %w", p.Title, t.Expr, err))
			}
		}
	}
	if queries == 0 {
		errs = append(errs, fmt.Errorf("%s has no queries", file))
	}
	return queries, errors.Join(errs...)
}
