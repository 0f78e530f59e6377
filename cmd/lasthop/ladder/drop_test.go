package ladder

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCapabilitiesDropped looks at every thread of a watch that runs as root.
func TestCapabilitiesDropped(t *testing.T) {
	const (
		used = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYSLOG | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
		may  = used | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_RESOURCE
	)
	m := up(t)
	cmd := exec.Command("nsenter", "--net="+m.net, m.binary, "watch")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The first line says that all is attached.
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Error(err)
	}
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/*/status")
	if err != nil || len(threads) < 2 {
		t.Errorf("threads: %v, %v", threads, err)
	}
	for _, file := range threads {
		status, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			name, hex, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if !strings.HasPrefix(name, "Cap") {
				continue
			}
			set, err := strconv.ParseUint(hex, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			switch name {
			case "CapEff", "CapPrm", "CapBnd":
				if set&^uint64(may) != 0 || set&used != used {
					t.Errorf("%s: %s, want %x and at most %x", file, line, uint64(used), uint64(may))
				}
			case "CapInh", "CapAmb":
				if set != 0 {
					t.Errorf("%s: %s, want none", file, line)
				}
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("interrupted: %v", err)
	}
}
