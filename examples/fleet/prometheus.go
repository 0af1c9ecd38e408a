package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// A server is a running Prometheus.
type server struct {
	api  promv1.API
	url  string
	stop func()
}

// install installs Prometheus where it is absent, as on a new machine.
func install(ctx context.Context) error {
	if _, err := exec.LookPath("prometheus"); err == nil {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("prometheus is not in PATH, and there is no apt-get to install it: see https://prometheus.io/download")
	}
	fmt.Println("installing prometheus with apt-get")
	if err := run(ctx, "", "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return run(ctx, "", "apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus")
}

// startPrometheus starts a server that scrapes the hosts and evaluates the rules.
func startPrometheus(ctx context.Context, dir, rules string, hosts []*host) (*server, error) {
	text, err := os.ReadFile(rules)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(hastenRules(string(text))), 0o644); err != nil {
		return nil, err
	}
	var targets []string
	for _, h := range hosts {
		targets = append(targets, fmt.Sprintf("%q", h.addr))
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
- job_name: edge
  static_configs: [{targets: [%s]}]
`, strings.Join(targets, ", "))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o644); err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+addr)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		cancel()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait(); log.Close() }()
	s := &server{url: "http://" + addr, stop: func() { cancel(); <-done }}
	client, err := api.NewClient(api.Config{Address: s.url})
	if err != nil {
		s.stop()
		return nil, err
	}
	s.api = promv1.NewAPI(client)
	for range 100 {
		resp, err := http.Get(s.url + "/-/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case <-done:
			cancel()
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("prometheus ended:\n%s", text)
		case <-time.After(200 * time.Millisecond):
		}
	}
	s.stop()
	return nil, errors.New("prometheus was not ready after 20 s; see prometheus.log")
}

func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// value returns the value of the only series of a query; ok says whether there is one.
func (s *server) value(ctx context.Context, query string) (v float64, ok bool, err error) {
	got, _, _, err := s.api.Query(ctx, query, time.Now())
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", query, err)
	}
	series, isVector := got.(model.Vector)
	switch {
	case !isVector || len(series) > 1:
		return 0, false, fmt.Errorf("%s: want one series, got %v", query, got)
	case len(series) == 0:
		return 0, false, nil
	}
	return float64(series[0].Value), true, nil
}

// firing reports whether an alert fires for an instance.
func (s *server) firing(ctx context.Context, alert, instance string) (bool, error) {
	got, err := s.api.Alerts(ctx)
	if err != nil {
		return false, err
	}
	for _, a := range got.Alerts {
		if string(a.Labels["alertname"]) == alert && string(a.Labels["instance"]) == instance && a.State == promv1.AlertStateFiring {
			return true, nil
		}
	}
	return false, nil
}
