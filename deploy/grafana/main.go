// Grafana writes the dashboard for workspace pools to its standard output:
//
//	go run ./deploy/grafana > deploy/grafana/dashboard.json
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	text, err := build()
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}

// source is the data source that the reader of the dashboard has chosen.
var source = common.DataSourceRef{Type: ptr("prometheus"), Uid: ptr("${source}")}

func ptr[T any](v T) *T { return &v }

func query(expr, legend string) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Datasource(source).Expr(expr).LegendFormat(legend)
}

// A lines panel shows queries over time.
func lines(title, unit, description string, queries ...*prometheus.DataqueryBuilder) *timeseries.PanelBuilder {
	p := timeseries.NewPanelBuilder().Title(title).Unit(unit).Description(description).Datasource(source).Span(8).Height(8)
	for i, q := range queries {
		p = p.WithTarget(q.RefId(string(rune('A' + i))))
	}
	return p
}

// A list panel shows what a query gives now.
func list(title, description, expr string) *table.PanelBuilder {
	return table.NewPanelBuilder().Title(title).Description(description).Datasource(source).Span(8).Height(8).
		WithTarget(query(expr, "").Instant().Format(prometheus.PromQueryFormatTable).RefId("A"))
}

func logarithmic(p *timeseries.PanelBuilder) *timeseries.PanelBuilder {
	return p.ScaleDistribution(common.NewScaleDistributionConfigBuilder().Type(common.ScaleDistributionLog).Log(10))
}

// variable lets the reader choose values of a label.
func variable(name, label, metric string) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(source).
		Query(dashboard.StringOrMap{String: ptr(fmt.Sprintf("label_values(%s, %s)", metric, name))}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).AllValue(".*")
}

// What the queries below select by: recorded series have no pool.
const (
	pools    = `{job=~"$job",pool=~"$pool"}`
	builds   = `{job=~"$job",revision=~"$revision"}`
	sampled  = `{job=~"$job",pool=~"$pool",trigger="sampled"}`
	interval = "[$__rate_interval]"
)

// build returns the dashboard as JSON.
func build() ([]byte, error) {
	//lint:ignore SA1019 any Grafana imports this format; the newer one needs the newest
	d, err := dashboard.NewDashboardBuilder("Workspace").Uid("workspace").Tags([]string{"workspace"}).Refresh("1m").Time("now-6h", "now").
		WithVariable(dashboard.NewDatasourceVariableBuilder("source").Label("Source").Type("prometheus")).
		WithVariable(variable("job", "Job", "workspace_build_info")).
		WithVariable(variable("pool", "Pool", "workspace_acquired_total")).
		WithVariable(variable("revision", "Revision", "workspace_build_info")).
		WithRow(dashboard.NewRowBuilder("Assurance")).
		WithPanel(lines("Sampled audits", "ops", "By the mode that they ran in.", query("sum by (mode) (rate(workspace_audits_total"+sampled+interval+"))", "{{mode}}"))).
		WithPanel(lines("Gate", "none", "1: go on. 0: not enough seen yet. -1: a violation within a day.", query("job_revision:workspace_gate"+builds, "{{job}} {{revision}}")).Min(-1).Max(1)).
		WithPanel(logarithmic(lines("At most this share of operations violates", "percentunit", "Of the last day, by build.",
			query("job_revision:workspace_violation_ratio:upper95_1d"+builds, "95 % {{revision}}"), query("job_revision:workspace_violation_ratio:upper999999_1d"+builds, "99.9999 % {{revision}}")))).
		WithPanel(logarithmic(lines("Audits of the last day", "short", "By build; and on the processor model with the fewest, which the gate looks at.",
			query("job_revision:workspace_audits:sum1d"+builds, "{{revision}}"), query("job_revision:workspace_audits_weakest_cpu:sum1d"+builds, "weakest {{revision}}")))).
		WithPanel(list("Violations by build and processor", "Since the processes started.", "job_revision_cpu:workspace_violations:level"+builds)).
		WithPanel(lines("Audits against the interval", "none", "Made, and promised by the interval. They differ by chance only.",
			query("sum(rate(workspace_audits_total"+sampled+interval+"))", "made"),
			query("sum(sum by (job, instance, pool) (rate(workspace_ops_total"+pools+interval+")) / on (job, instance, pool) (workspace_audit_interval_ops"+pools+" > 0))", "promised"))).
		WithRow(dashboard.NewRowBuilder("Safety")).
		WithPanel(lines("Hosts by mode", "short", "The mode that new requests get.", query("sum by (mode) (workspace_mode"+pools+")", "{{mode}}"))).
		WithPanel(list("Open breakers, and what else bars Watermark", "Pools that run more carefully than they were set to.",
			"workspace_breaker_open"+pools+" == 1 or workspace_host_excluded"+pools+" == 1 or workspace_mode_source_lost"+pools+" == 1")).
		WithPanel(lines("Blocks", "short", "In use, and not.", query("sum(workspace_in_use"+pools+")", "in use"), query("sum by (state) (workspace_blocks"+pools+")", "{{state}}"))).
		WithPanel(lines("Abandoned", "ops", "By reason.", query("sum by (reason) (rate(workspace_abandoned_total"+pools+interval+"))", "{{reason}}"))).
		WithPanel(lines("Trouble", "short", "Each should be 0.",
			query("sum(workspace_violations_total"+pools+")", "violations"), query("sum(workspace_late_touches_total"+pools+")", "late touches"),
			query("sum(workspace_double_releases_total"+pools+")", "double releases"), query("sum(workspace_reports_dropped_total"+pools+")", "reports dropped"),
			query("sum(workspace_reporter_panics_total"+pools+")", "reporter panics"), query("sum(workspace_map_failures_total"+pools+")", "mapping failures"))).
		WithPanel(lines("Without a block", "ops", "Requests that had to use the heap, wholly or in part.",
			query("sum(rate(workspace_blockless_total"+pools+interval+"))", "no block"), query("sum by (half) (rate(workspace_overflows_total"+pools+interval+"))", "{{half}} overflowed"))).
		WithRow(dashboard.NewRowBuilder("Value")).
		WithPanel(lines("Zeros written, and left out", "Bps", "What Watermark did not write; in Shadow, what it would not.",
			query("sum by (mode) (rate(workspace_wiped_bytes_total"+pools+interval+"))", "written, {{mode}}"), query("sum by (mode) (rate(workspace_saved_bytes_total"+pools+interval+"))", "past the mark, {{mode}}"))).
		WithPanel(lines("Share that Watermark saves", "percentunit", "Of the zeros that a full clear writes.", query(`job:workspace_saved:ratio_rate5m{job=~"$job"}`, "{{job}}")).Min(0).Max(1)).
		WithPanel(lines("Time spent on audits", "percentunit", "Of one core.", query("sum by (instance) (rate(workspace_audit_seconds_total"+pools+interval+"))", "{{instance}}"))).
		WithPanel(heatmap.NewPanelBuilder().Title("Marks").Description("The highest mark that a request left in a half.").Datasource(source).Span(16).Height(8).
			WithTarget(query("sum by (le) (increase(workspace_mark_bytes_bucket"+pools+interval+"))", "{{le}}").Format(prometheus.PromQueryFormatHeatmap).RefId("A"))).
		WithPanel(lines("Requests", "reqps", "Workspaces handed out.", query("sum(rate(workspace_acquired_total"+pools+interval+"))", "acquired"))).
		Build()
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}
