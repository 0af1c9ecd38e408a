package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestTheFileIsWhatTheCodeBuilds(t *testing.T) {
	want, err := build()
	require.NoError(t, err)
	got, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go run ./deploy/grafana > deploy/grafana/dashboard.json")
}

// recorded returns the names that the rules record.
func recorded(t *testing.T) (names []string) {
	text, err := os.ReadFile("../prometheus/rules.yml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Alert string }
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				names = append(names, r.Record)
			}
			if r.Alert != "" {
				names = append(names, r.Alert)
			}
		}
	}
	require.Greater(t, len(names), 10)
	return names
}

// Whatever is recorded and is asked for here is recorded by the rules.
func TestRecordedNamesExist(t *testing.T) {
	known := recorded(t)
	for _, file := range []string{"dashboard.json", "../argo-rollouts/analysistemplate.yaml", "../README.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bjob\w*:workspace_[\w:]*\w|\bWorkspace[A-Z]\w+`).FindAllString(string(text), -1) {
			require.Contains(t, known, name, file)
		}
	}
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, name := range known {
		if strings.HasPrefix(name, "Workspace") {
			require.Contains(t, string(readme), "| "+name, "an alert without advice")
		}
	}
}

// Of the three values of the gate one is success, one failure, and all else pauses.
func TestAnalysisTemplate(t *testing.T) {
	text, err := os.ReadFile("../argo-rollouts/analysistemplate.yaml")
	require.NoError(t, err)
	var template struct {
		Kind string
		Spec struct {
			Args    []struct{ Name, Value string }
			Metrics []struct {
				SuccessCondition  string `yaml:"successCondition"`
				FailureCondition  string `yaml:"failureCondition"`
				FailureLimit      *int   `yaml:"failureLimit"`
				InconclusiveLimit int    `yaml:"inconclusiveLimit"`
				Count             int
				Provider          struct {
					Prometheus struct{ Address, Query string }
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &template))
	require.Equal(t, "AnalysisTemplate", template.Kind)
	require.Len(t, template.Spec.Metrics, 1)
	m := template.Spec.Metrics[0]
	require.Equal(t, "len(result) == 1 && result[0] == 1", m.SuccessCondition)
	require.Equal(t, "len(result) == 1 && result[0] == -1", m.FailureCondition)
	require.Zero(t, *m.FailureLimit)
	require.Less(t, m.InconclusiveLimit, m.Count, "at least one success")
	require.Equal(t, `job_revision:workspace_gate{job="{{args.job}}",revision="{{args.revision}}"}`, m.Provider.Prometheus.Query)
	for _, arg := range regexp.MustCompile(`\{\{args\.(\w+)\}\}`).FindAllStringSubmatch(string(text), -1) {
		found := false
		for _, a := range template.Spec.Args {
			found = found || a.Name == arg[1]
		}
		require.True(t, found, "argument %s", arg[1])
	}
}
