package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// A server is a service that listens.
type server struct {
	addr    net.Addr
	ended   chan error // gets why Serve returned, when nobody asked for it
	http    *http.Server
	service *service
}

// start listens on addr and serves h, the routes of s, in the background.
func start(addr string, s *service, h http.Handler) (*server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot serve on %q: %w", addr, err)
	}
	if s.upstream == "" {
		s.upstream = "http://" + reachable(ln.Addr()) + "/echo"
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // for clients that know beforehand
	srv := &server{
		addr:    ln.Addr(),
		ended:   make(chan error, 1),
		service: s,
		http: &http.Server{
			Handler:           h,
			Protocols:         protocols,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       30 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    64 << 10,
			ErrorLog:          s.log,
		},
	}
	go func() {
		if err := srv.http.Serve(ln); err != http.ErrServerClosed {
			srv.ended <- err
		}
	}()
	return srv, nil
}

// reachable returns an address at which this process reaches its listener.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// stop takes no more requests and waits for those under way, but no longer than
// the timeout; then it cuts them off and says so.
func (s *server) stop(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// First, since /proxy may have open connections to this very server, and
	// Shutdown gives one that has had no request yet five seconds.
	s.service.transport.CloseIdleConnections()
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
		err = fmt.Errorf("requests were cut off after %v: %w", timeout, err)
	}
	return err
}
