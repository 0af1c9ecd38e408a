package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// A chart is one query over the time of the run.
type chart struct {
	file, title, unit, query string
	by                       model.LabelName // what tells the lines apart
	log                      bool
}

var charts = []chart{
	{"audits.svg", "Audits", "a second", "job_mode:workspace_audits:rate5m", "mode", false},
	{"bound.svg", "At most this share of operations violates, at 99.9999 %", "share", "job_revision:workspace_violation_ratio:upper999999_1d", "revision", true},
	{"gate.svg", "Gate", "-1, 0, 1", "job_revision:workspace_gate", "revision", false},
	{"written.svg", "Zeros written, and left out", "MB a second", `label_replace(sum(rate(workspace_wiped_bytes_total[10s])) / 1e6, "what", "written", "", "") or label_replace(sum(rate(workspace_saved_bytes_total{mode="watermark"}[10s])) / 1e6, "what", "left out in watermark", "", "")`, "what", false},
	{"modes.svg", "Hosts by mode", "hosts", "sum by (mode) (workspace_mode)", "mode", false},
	{"breakers.svg", "Open breakers", "hosts", `label_replace(sum(workspace_breaker_open), "what", "open", "", "")`, "what", false},
}

// report writes the report and its charts, and returns the name of its file.
func (d *demo) report(ctx context.Context, dir string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# A fleet of %d hosts, %s\n\n", len(d.fleet.hosts), d.began.UTC().Format(time.RFC3339))
	fmt.Fprintf(&b, "Good build %.12s, build with the fault %.12s. The rules are those of deploy/prometheus with shorter times, and a gate at %s instead of %s.\n\n", d.good.revision, d.bad.revision, demoBound, strictBound)
	b.WriteString("| after | |\n|---|---|\n")
	for _, s := range d.steps {
		fmt.Fprintf(&b, "| %.1f s | %s |\n", s.at.Sub(d.began).Seconds(), s.what)
	}
	for _, c := range charts {
		if err := d.draw(ctx, c, filepath.Join(dir, c.file)); err != nil {
			return "", fmt.Errorf("%s: %w", c.file, err)
		}
		fmt.Fprintf(&b, "\n## %s\n\n![%s](%s)\n", c.title, c.title, c.file)
	}
	name := filepath.Join(dir, "report.md")
	return name, os.WriteFile(name, []byte(b.String()), 0o644)
}

// draw draws one chart.
func (d *demo) draw(ctx context.Context, c chart, file string) error {
	got, _, _, err := d.prom.api.QueryRange(ctx, c.query, promv1.Range{Start: d.began, End: time.Now(), Step: time.Second})
	if err != nil {
		return err
	}
	series, ok := got.(model.Matrix)
	if !ok || len(series) == 0 {
		return fmt.Errorf("%s has no data", c.query)
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, "seconds", c.unit
	p.Legend.Top, p.Legend.XOffs = true, -vg.Centimeter/2
	p.X.Min, p.X.Max = 0, time.Since(d.began).Seconds()
	p.Add(plotter.NewGrid())
	for i, s := range series {
		var xy plotter.XYs
		for _, v := range s.Values {
			y := float64(v.Value)
			if math.IsNaN(y) || math.IsInf(y, 0) || c.log && y <= 0 {
				continue
			}
			xy = append(xy, plotter.XY{X: v.Timestamp.Time().Sub(d.began).Seconds(), Y: y})
		}
		if len(xy) == 0 {
			continue
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return err
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i)
		p.Add(line)
		p.Legend.Add(d.name(string(s.Metric[c.by])), line)
	}
	if c.log {
		p.Y.Max *= 30 // room for the legend
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 0}
	} else {
		p.Y.Min = min(p.Y.Min, 0)
		p.Y.Max = max(p.Y.Max*1.4, 1)
	}
	return p.Save(20*vg.Centimeter, 9*vg.Centimeter, file)
}

// name is what a line is called.
func (d *demo) name(label string) string {
	switch label {
	case d.good.revision:
		return "good build"
	case d.bad.revision:
		return "build with the fault"
	}
	return label
}
