package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const asServer = "WORKSPACE_TEST_AS_SERVER"

// TestMain lets the test binary be the server, for tests that need a process.
func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		os.Args = append(os.Args[:1], "-addr", "127.0.0.1:0")
		main()
	}
	os.Exit(m.Run())
}

// One signal stops the server in peace, a second one at once, also while a request
// is under way that would take longer.
func TestSignals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		for _, hanging := range []bool{false, true} {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asServer+"=1")
			pipe, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { cmd.Process.Kill() })
			lines := bufio.NewScanner(pipe)
			require.True(t, lines.Scan())
			_, addr, ok := strings.Cut(lines.Text(), "serving http://")
			require.True(t, ok, lines.Text())
			addr, _, _ = strings.Cut(addr, " ")

			if hanging {
				conn, err := net.Dial("tcp", addr)
				require.NoError(t, err)
				defer conn.Close()
				_, err = conn.Write([]byte("POST /stats HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"))
				require.NoError(t, err)
				_, err = conn.Read(make([]byte, 100)) // "100 Continue": the handler has begun
				require.NoError(t, err)
			}
			require.NoError(t, cmd.Process.Signal(sig))
			require.True(t, lines.Scan())
			require.Contains(t, lines.Text(), "stopping")
			if hanging {
				require.NoError(t, cmd.Process.Signal(sig))
			}
			require.True(t, lines.Scan())
			want, status := "stopped: 0 workspaces", exitOK
			if hanging {
				want, status = "quitting at once", exitFailed
			}
			require.Contains(t, lines.Text(), want)
			for lines.Scan() {
			}
			cmd.Wait()
			require.Equal(t, status, cmd.ProcessState.ExitCode(), "%v, a request under way: %v", sig, hanging)
		}
	}
}
