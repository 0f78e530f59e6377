package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// victimEnv makes the test binary a process that watches the namespace at
// descriptor 3 and its link of this index until it is killed; with index 0, one
// that tries to open an engine.
const victimEnv = "LASTHOP_TRAFFIC_VICTIM"

func victim() {
	err := func() error {
		var index int
		if _, err := fmt.Sscan(os.Getenv(victimEnv), &index); err != nil {
			return err
		}
		if index == 0 {
			return fewRights()
		}
		ns, err := netns.Open("/proc/self/fd/3")
		if err != nil {
			return err
		}
		e, err := Open(Config{NS: ns})
		if err != nil {
			return err
		}
		if err := e.Attach([]Link{{Index: index, Name: "victim"}}); err != nil {
			return err
		}
		info, err := e.drops.link.Info()
		if err != nil {
			return err
		}
		fmt.Println("ready", info.ID)
		// It is to be killed. Without a timer, and with all else asleep, the
		// runtime would take this for a deadlock.
		time.Sleep(time.Hour)
		return errors.New("nobody killed it")
	}()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func startVictim(t *testing.T, ns *netns.NS, index int, as *syscall.SysProcAttr) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", victimEnv, index))
	file, err := os.Open(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = as
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// TestKilled kills a process that has programs on a link and on the
// tracepoint, and finds that neither is left.
func TestKilled(t *testing.T) {
	ends := newTwoEnds(t)
	cmd, out := startVictim(t, ends.node, ends.nodeLink.Index, nil)
	var id link.ID
	if !out.Scan() {
		t.Fatal("victim said nothing")
	}
	if _, err := fmt.Sscanf(out.Text(), "ready %d", &id); err != nil {
		t.Fatalf("victim: %s", out.Text())
	}
	if n := programsOn(t, ends.node, ends.nodeLink.Index); n != 2 {
		t.Errorf("%d programs while it lives, want 2", n)
	}
	l, err := link.NewFromID(id)
	if err != nil {
		t.Fatalf("tracepoint while it lives: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("victim ended well")
	}
	if n := programsOn(t, ends.node, ends.nodeLink.Index); n != 0 {
		t.Errorf("%d programs after it was killed", n)
	}
	if l, err := link.NewFromID(id); !errors.Is(err, os.ErrNotExist) {
		if err == nil {
			l.Close()
		}
		t.Errorf("tracepoint after it was killed: %v", err)
	}
	ends.exchange(t, 3)
}

// fewRights opens an engine with whatever rights the process has.
func fewRights() error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	e, err := Open(Config{NS: ns})
	if err == nil {
		return e.Close()
	}
	var u *model.UnsupportedError
	if !errors.As(err, &u) {
		return err
	}
	fmt.Println("unsupported:", u.Remedy)
	return nil
}

func TestFewRights(t *testing.T) {
	tests := map[string]struct {
		caps []uintptr
		want string
	}{
		"none":            {nil, "unsupported: needs CAP_BPF and CAP_PERFMON and CAP_NET_ADMIN"},
		"without perfmon": {[]uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "unsupported: needs CAP_PERFMON"},
		"enough":          {[]uintptr{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			const nobody = 65534
			cmd, out := startVictim(t, newNS(t), 0, &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
				AmbientCaps: tt.caps,
			})
			var lines []string
			for out.Scan() {
				lines = append(lines, out.Text())
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %q", err, lines)
			}
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
