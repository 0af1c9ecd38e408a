package workspaceotel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-workspace/workspace"
)

func newPool(t testing.TB, cfg workspace.Config) *workspace.Pool {
	p, err := workspace.NewPool(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// collect returns the values of a collection by "name{attributes}".
func collect(t testing.TB, r sdk.Reader) map[string]float64 {
	var rm metricdata.ResourceMetrics
	require.NoError(t, r.Collect(context.Background(), &rm))
	got := map[string]float64{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			require.NotEmpty(t, m.Description, m.Name)
			require.NotEmpty(t, m.Unit, m.Name)
			require.Regexp(t, regexp.MustCompile(`^workspace(\.[a-z_]+)+$`), m.Name)
			var points []metricdata.DataPoint[float64]
			switch d := m.Data.(type) {
			case metricdata.Sum[float64]:
				require.True(t, d.IsMonotonic)
				points = d.DataPoints
			case metricdata.Gauge[float64]:
				points = d.DataPoints
			default:
				require.Failf(t, "kind of data", "%s: %T", m.Name, d)
			}
			for _, p := range points {
				got[m.Name+"{"+p.Attributes.Encoded(attribute.DefaultEncoder())+"}"] = p.Value
			}
		}
	}
	return got
}

func TestValues(t *testing.T) {
	reader := sdk.NewManualReader()
	meter := sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test")
	p, q := newPool(t, workspace.Config{Name: "edge", Mode: workspace.Watermark, AuditEvery: 1}), newPool(t, workspace.Config{Name: "other"})
	reg, err := Register(meter, p, q)
	require.NoError(t, err)
	ws := p.Acquire()
	ws.Client().Alloc(1000)
	ws.Release()
	p.Acquire().Abandon()
	got := collect(t, reader)
	for key, want := range map[string]float64{
		"workspace.acquired{pool=edge}":                               2,
		"workspace.acquired{pool=other}":                              0,
		"workspace.released{mode=watermark,pool=edge}":                1,
		"workspace.abandoned{pool=edge,reason=abandon}":               1,
		"workspace.ops{half=client,mode=watermark,pool=edge}":         5,
		"workspace.audits{half=client,mode=watermark,pool=edge}":      5,
		"workspace.violations{half=client,mode=watermark,pool=edge}":  0,
		"workspace.wiped{half=client,mode=watermark,pool=edge}":       1000,
		"workspace.marks.sum{half=client,mode=watermark,pool=edge}":   1000,
		"workspace.marks.count{half=client,mode=watermark,pool=edge}": 2,
		"workspace.mode{mode=watermark,pool=edge}":                    1,
		"workspace.mode{mode=shadow,pool=edge}":                       0,
		"workspace.half.size{half=backend,pool=edge}":                 262144,
		"workspace.audits.interval{pool=edge}":                        1,
		"workspace.blocks{pool=edge,state=idle}":                      float64(p.Stats().Idle),
	} {
		v, ok := got[key]
		require.True(t, ok, "%s is missing", key)
		require.Equal(t, want, v, key)
	}
	require.NoError(t, reg.Unregister())
	require.Empty(t, collect(t, reader))
}

// A number of Stats that no instrument shows was forgotten.
func TestEachNumberReachesAnInstrument(t *testing.T) {
	var s workspace.Stats
	for m := range s.Modes {
		s.Modes[m].Mode = workspace.Mode(m)
	}
	fields := map[string]reflect.Value{}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
			}
		case reflect.Int, reflect.Int64, reflect.Float64, reflect.Bool:
			fields[path] = v
		}
	}
	walk(reflect.ValueOf(&s).Elem(), "")
	read := func() map[string]float64 {
		got := map[string]float64{}
		for _, i := range instruments {
			i.read(&s, func(v float64, attrs ...attribute.KeyValue) {
				set := attribute.NewSet(attrs...)
				got[i.name+set.Encoded(attribute.DefaultEncoder())] = v
			})
		}
		return got
	}
	sums := map[string]bool{".AuditBudget": true, ".FenceEvery": true, ".Violations": true, ".Abandoned": true, ".Released": true} // settings, and sums of others
	before := read()
	for path, v := range fields {
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Float64:
			v.SetFloat(0.5)
		default:
			v.SetInt(7)
		}
		require.Equal(t, sums[path], reflect.DeepEqual(before, read()), path)
		v.Set(old)
	}
}

func TestCollectionsBalanceUnderLoad(t *testing.T) {
	reader := sdk.NewManualReader()
	p := newPool(t, workspace.Config{Name: "busy"})
	_, err := Register(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), p)
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					p.Acquire().Release()
					p.Acquire().Abandon()
				}
			}
		})
	}
	for range 30 {
		got := collect(t, reader)
		released := got["workspace.released{mode=shadow,pool=busy}"]
		abandoned := got["workspace.abandoned{pool=busy,reason=abandon}"]
		require.Equal(t, got["workspace.acquired{pool=busy}"], released+abandoned+got["workspace.in_use{pool=busy}"])
		require.False(t, math.IsNaN(released))
	}
	close(stop)
	wg.Wait()
}

// A meter that refuses gauges.
type refusing struct{ noop.Meter }

func (refusing) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return nil, errors.New("no " + name)
}

func TestRegisterRefuses(t *testing.T) {
	p := newPool(t, workspace.Config{Name: "edge"})
	_, err := Register(noop.Meter{}, p, nil)
	require.EqualError(t, err, "workspaceotel: pool 1 is nil")
	_, err = Register(noop.Meter{}, p, newPool(t, workspace.Config{Name: "edge"}))
	require.EqualError(t, err, `workspaceotel: two pools have the name "edge": set Config.Name`)
	_, err = Register(refusing{}, p)
	require.ErrorContains(t, err, "no workspace.in_use")
}

func ExampleRegister() {
	pool, err := workspace.NewPool(workspace.Config{Name: "edge"})
	if err != nil {
		panic(err)
	}
	reader := sdk.NewManualReader() // or an exporter
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	registration, err := Register(provider.Meter("workspace"), pool)
	if err != nil {
		panic(err)
	}
	defer registration.Unregister()
	var out metricdata.ResourceMetrics
	fmt.Println(reader.Collect(context.Background(), &out), len(out.ScopeMetrics[0].Metrics) > 30)
	// Output: <nil> true
}
