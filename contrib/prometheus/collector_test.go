package workspaceprom

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/go-workspace/workspace"
)

func newPool(t testing.TB, cfg workspace.Config) *workspace.Pool {
	if cfg.OnViolation == nil {
		cfg.OnViolation = func(*workspace.Violation) {}
	}
	p, err := workspace.NewPool(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// use runs a request that writes so many bytes of each half.
func use(p *workspace.Pool, client, backend int) {
	ws := p.Acquire()
	defer ws.Release()
	ws.Client().Alloc(client)
	ws.Backend().Alloc(backend)
}

func registry(pools ...*workspace.Pool) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(pools...))
	return r
}

func TestExpositionIsClean(t *testing.T) {
	r := registry(newPool(t, workspace.Config{Name: "a"}), newPool(t, workspace.Config{Name: "b"}))
	problems, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestExposition(t *testing.T) {
	p := newPool(t, workspace.Config{Name: "edge", Mode: workspace.Watermark, AuditEvery: 1, Canary: 0.25, MaxIdle: 7})
	use(p, 1024, 1025)
	use(p, 300_000, 5)
	p.Acquire().Abandon()
	held := p.Acquire()
	defer held.Release()
	require.NoError(t, testutil.GatherAndCompare(registry(p), strings.NewReader(`
# HELP workspace_abandoned_total Workspaces that ended in doubt, so that their block was abandoned.
# TYPE workspace_abandoned_total counter
workspace_abandoned_total{pool="edge",reason="abandon"} 1
workspace_abandoned_total{pool="edge",reason="panic"} 0
workspace_abandoned_total{pool="edge",reason="reservation"} 0
workspace_abandoned_total{pool="edge",reason="running"} 0
workspace_abandoned_total{pool="edge",reason="upgrade"} 0
workspace_abandoned_total{pool="edge",reason="violation"} 0
# HELP workspace_acquired_total Workspaces handed out.
# TYPE workspace_acquired_total counter
workspace_acquired_total{pool="edge"} 4
# HELP workspace_audit_interval_ops Mean operations between sampled audits of a half; 0: off.
# TYPE workspace_audit_interval_ops gauge
workspace_audit_interval_ops{pool="edge"} 1
# HELP workspace_canary_ratio Share of requests that run in mode watermark while the pool is in shadow.
# TYPE workspace_canary_ratio gauge
workspace_canary_ratio{pool="edge"} 0.25
# HELP workspace_half_bytes Size of the half.
# TYPE workspace_half_bytes gauge
workspace_half_bytes{half="backend",pool="edge"} 262144
workspace_half_bytes{half="client",pool="edge"} 262144
# HELP workspace_in_use Workspaces in use.
# TYPE workspace_in_use gauge
workspace_in_use{pool="edge"} 1
# HELP workspace_mark_bytes The highest mark that a request left in the half.
# TYPE workspace_mark_bytes histogram
workspace_mark_bytes_bucket{half="backend",pool="edge",le="1024"} 2
workspace_mark_bytes_bucket{half="backend",pool="edge",le="2048"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="4096"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="8192"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="16384"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="32768"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="65536"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="131072"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="262144"} 3
workspace_mark_bytes_bucket{half="backend",pool="edge",le="+Inf"} 3
workspace_mark_bytes_sum{half="backend",pool="edge"} 1030
workspace_mark_bytes_count{half="backend",pool="edge"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="1024"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="2048"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="4096"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="8192"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="16384"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="32768"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="65536"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="131072"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="262144"} 3
workspace_mark_bytes_bucket{half="client",pool="edge",le="+Inf"} 3
workspace_mark_bytes_sum{half="client",pool="edge"} 1024
workspace_mark_bytes_count{half="client",pool="edge"} 3
# HELP workspace_mode 1 for the mode that new requests get (canaries aside), else 0.
# TYPE workspace_mode gauge
workspace_mode{mode="fullclear",pool="edge"} 0
workspace_mode{mode="shadow",pool="edge"} 0
workspace_mode{mode="watermark",pool="edge"} 1
# HELP workspace_overflows_total Requests for which something did not fit into the half.
# TYPE workspace_overflows_total counter
workspace_overflows_total{half="backend",mode="fullclear",pool="edge"} 0
workspace_overflows_total{half="backend",mode="shadow",pool="edge"} 0
workspace_overflows_total{half="backend",mode="watermark",pool="edge"} 0
workspace_overflows_total{half="client",mode="fullclear",pool="edge"} 0
workspace_overflows_total{half="client",mode="shadow",pool="edge"} 0
workspace_overflows_total{half="client",mode="watermark",pool="edge"} 1
# HELP workspace_released_total Workspaces that were wiped and came back.
# TYPE workspace_released_total counter
workspace_released_total{mode="fullclear",pool="edge"} 0
workspace_released_total{mode="shadow",pool="edge"} 0
workspace_released_total{mode="watermark",pool="edge"} 2
# HELP workspace_violations_total Violations: bytes past the mark that were not zero, damaged guards, bad accounting.
# TYPE workspace_violations_total counter
workspace_violations_total{half="backend",mode="fullclear",pool="edge"} 0
workspace_violations_total{half="backend",mode="shadow",pool="edge"} 0
workspace_violations_total{half="backend",mode="watermark",pool="edge"} 0
workspace_violations_total{half="client",mode="fullclear",pool="edge"} 0
workspace_violations_total{half="client",mode="shadow",pool="edge"} 0
workspace_violations_total{half="client",mode="watermark",pool="edge"} 0
`), "workspace_abandoned_total", "workspace_acquired_total", "workspace_audit_interval_ops", "workspace_canary_ratio", "workspace_half_bytes", "workspace_in_use",
		"workspace_mark_bytes", "workspace_mode", "workspace_overflows_total", "workspace_released_total", "workspace_violations_total"))
}

// setAll gives each number in v another value, and returns the paths of what it set.
func setAll(v reflect.Value, path string, next *int64, set map[string]reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			setAll(v.Field(i), path+"."+v.Type().Field(i).Name, next, set)
		}
	case reflect.Array:
		for i := range v.Len() {
			setAll(v.Index(i), fmt.Sprintf("%s[%d]", path, i), next, set)
		}
	case reflect.Int64, reflect.Int:
		*next += 1_000_003
		v.SetInt(*next)
		set[path] = v
	case reflect.Bool, reflect.Float64:
		set[path] = v
	}
}

// A field of Stats that no metric shows is a field that was forgotten.
func TestEachNumberReachesAMetric(t *testing.T) {
	var s workspace.Stats
	next, set := int64(0), map[string]reflect.Value{}
	setAll(reflect.ValueOf(&s).Elem(), "", &next, set)
	gather := func() map[string]bool {
		ch := make(chan prometheus.Metric, 1000)
		collect(ch, &s)
		close(ch)
		seen := map[string]bool{}
		for m := range ch {
			var d dto.Metric
			require.NoError(t, m.Write(&d))
			seen[m.Desc().String()+d.String()] = true
		}
		return seen
	}
	configured := map[string]bool{".AuditBudget": true, ".FenceEvery": true, ".Violations": true, ".Abandoned": true, ".Released": true} // settings; and sums of others
	before := gather()
	require.Greater(t, len(before), 90)
	for path, v := range set {
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Float64:
			v.SetFloat(0.5)
		default:
			v.SetInt(v.Int() + 1)
		}
		require.Equal(t, configured[path], reflect.DeepEqual(before, gather()), "%s", path)
		v.Set(old)
	}
}

// A scrape is one moment, whatever goes on meanwhile.
func TestScrapesBalanceUnderLoad(t *testing.T) {
	p := newPool(t, workspace.Config{Name: "busy"})
	r := registry(p)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					use(p, 100, 100)
					p.Acquire().Abandon()
				}
			}
		})
	}
	for range 50 {
		got, err := r.Gather()
		require.NoError(t, err)
		sum := map[string]float64{}
		for _, f := range got {
			for _, m := range f.Metric {
				sum[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		require.Equal(t, sum["workspace_acquired_total"], sum["workspace_released_total"]+sum["workspace_abandoned_total"]+sum["workspace_in_use"])
	}
	close(stop)
	wg.Wait()
}

func TestPoolsThatCantBeExported(t *testing.T) {
	p := newPool(t, workspace.Config{Name: "edge"})
	require.PanicsWithError(t, `workspaceprom: pool 1 is nil`, func() { NewCollector(p, nil) })
	require.PanicsWithError(t, `workspaceprom: two pools have the name "edge": set Config.Name`, func() {
		NewCollector(p, newPool(t, workspace.Config{Name: "edge"}))
	})
	got, err := registry().Gather()
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestBuildInfo(t *testing.T) {
	got, err := registry(newPool(t, workspace.Config{})).Gather()
	require.NoError(t, err)
	for _, f := range got {
		if f.GetName() == "workspace_build_info" {
			require.Regexp(t, regexp.MustCompile(`cpu_model.*goversion.*go1.*kernel.*revision.*version`), f.Metric[0].String())
			require.Len(t, f.Metric, 1)
			got = nil
		}
	}
	require.Nil(t, got, "workspace_build_info is missing")

	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{[]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}, "unknown"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}, "abc"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}, "abc-dirty"},
	} {
		require.Equal(t, c.want, revision(c.settings))
	}
	require.Equal(t, "Some CPU @ 3.0GHz", cpuModel("processor\t: 0\nmodel name\t: Some CPU @ 3.0GHz\nmodel name\t: x\n"))
	require.Equal(t, "unknown", cpuModel("processor\t: 0\nmodel name\t: \n"))
	require.Equal(t, "unknown", cpuModel(""))
}

func ExampleNewCollector() {
	pool, err := workspace.NewPool(workspace.Config{Name: "edge"})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(pool))
	pool.Acquire().Release()

	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "workspace_acquired_total") {
			fmt.Print(line)
		}
	}
	// Output: workspace_acquired_total{pool="edge"} 1
}

func BenchmarkScrape16Pools(b *testing.B) {
	var pools []*workspace.Pool
	for i := range 16 {
		p := newPool(b, workspace.Config{Name: fmt.Sprint("pool", i)})
		use(p, 1000, 1000)
		pools = append(pools, p)
	}
	h := promhttp.HandlerFor(registry(pools...), promhttp.HandlerOpts{})
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		require.Equal(b, http.StatusOK, w.Code)
	}
}

func BenchmarkStats(b *testing.B) {
	p := newPool(b, workspace.Config{})
	b.ReportAllocs()
	for b.Loop() {
		p.Stats()
	}
}
