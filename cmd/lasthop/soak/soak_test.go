// Package soak watches a node for long under load: floods of small packets, many
// connections, pods that come and go, and a link that goes up and down.
package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns"
)

var duration = flag.Duration("duration", 30*time.Second, "how long to watch, at most 10s with -short")

// The load, if the machine can bear it, and what the watching process may use beside
// it.
const (
	datagrams   = 20_000 // a second, of 64 bytes with their headers
	connections = 5_000  // a second
	podsAtOnce  = 5
	podsEvery   = podsAtOnce * time.Minute / 200
	flapsEvery  = 100 * time.Millisecond

	descriptors = 256
	resident    = 128 << 10 // KiB
)

const cluster = `
topology:
  plugin: kubenet
  nodes:
    - {name: left, pods: [stays, other, one, two, three, four, five]}
    - {name: right, pods: [far]}
traffic:
  - {from: [left/stays, left/other, right/far], to: [left/stays, right/far, outside], proto: [tcp, udp, icmp]}
`

// TestSoak wants no finding above info from a healthy node under load, bounded use of
// memory and descriptors, and nothing left at the end.
func TestSoak(t *testing.T) {
	s, err := scenario.Parse("soak.yaml", []byte(cluster))
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), s, lab.Options{ID: fmt.Sprintf("soak%d", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	node := l.Nodes()[0].Netns
	w := watch(t, node)
	if testing.Short() {
		*duration = min(*duration, 4*time.Second)
	}
	load, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	var running sync.WaitGroup
	for name, f := range map[string]func(context.Context) error{
		"traffic":     func(ctx context.Context) error { return l.RunTraffic(ctx, func() {}) },
		"datagrams":   func(ctx context.Context) error { return flood(ctx, l) },
		"connections": func(ctx context.Context) error { return connect(ctx, l) },
		"pods":        func(ctx context.Context) error { return churn(ctx, l) },
		"flaps":       func(ctx context.Context) error { return flap(ctx, node) },
		"resources":   w.measure,
	} {
		running.Go(func() {
			if err := f(load); err != nil && load.Err() == nil {
				t.Errorf("%s: %v", name, err)
				cancel()
			}
		})
	}
	running.Wait()
	w.interrupt()
	t.Logf("%v: %d datagrams, %d connections, %d pods; at most %d descriptors, %d KiB; %v of processor time",
		*duration, sent.Load(), connected.Load(), made.Load(), w.descriptors, w.resident, w.cmd.ProcessState.SystemTime()+w.cmd.ProcessState.UserTime())
	left(t, node)
}

var sent, connected, made atomic.Int64

// every calls f at that interval until ctx ends.
func every(ctx context.Context, interval time.Duration, f func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := f(); err != nil {
				return err
			}
		}
	}
}

// inside runs f on a thread in the namespace of a place of the lab, until it returns.
func inside(l *lab.Lab, place string, f func() error) error {
	ns, err := netns.Named("lasthop-" + l.ID() + "-" + strings.Replace(place, "/", ".", 1))
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(f)
}

// far is a port of the pod on the other node.
func far(l *lab.Lab, port int) (unix.Sockaddr, error) {
	e, err := l.Scenario().Topology.Resolve("right/far")
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: port, Addr: e.Addr.As4()}, nil
}

func socket(kind int) (int, error) {
	return unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
}

// flood sends datagrams to a socket that takes and forgets them.
func flood(ctx context.Context, l *lab.Lab) error {
	const port = 4001
	to, err := far(l, port)
	if err != nil {
		return err
	}
	sink := -1
	err = inside(l, "right/far", func() (err error) {
		if sink, err = socket(unix.SOCK_DGRAM); err != nil {
			return err
		}
		// An overflow would be a fault, and lasthop would find it.
		return errors.Join(unix.Bind(sink, &unix.SockaddrInet4{Port: port}), unix.SetsockoptInt(sink, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	})
	if err != nil {
		return err
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 64)
		for {
			if n, err := unix.Read(sink, b); err != nil || n == 0 {
				return
			}
		}
	})
	defer func() {
		unix.Shutdown(sink, unix.SHUT_RDWR) //nolint:errcheck // it wakes the reader, connected or not
		reading.Wait()
		unix.Close(sink)
	}()
	return inside(l, "left/stays", func() error {
		s, err := socket(unix.SOCK_DGRAM)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.Connect(s, to); err != nil {
			return err
		}
		const interval = 2 * time.Millisecond
		return every(ctx, interval, func() error {
			for range int(datagrams * interval / time.Second) {
				if _, err := unix.Write(s, make([]byte, 64-14-20-8)); err != nil && !errors.Is(err, unix.ENOBUFS) {
					return err
				}
				sent.Add(1)
			}
			return nil
		})
	})
}

// connect opens connections and resets them: closed ones would wait for a minute.
func connect(ctx context.Context, l *lab.Lab) error {
	const port = 4002
	to, err := far(l, port)
	if err != nil {
		return err
	}
	listener := -1
	err = inside(l, "right/far", func() (err error) {
		if listener, err = socket(unix.SOCK_STREAM); err != nil {
			return err
		}
		return errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Port: port}), unix.Listen(listener, 4096))
	})
	if err != nil {
		return err
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, _, err := unix.Accept(listener)
			if err != nil && !errors.Is(err, unix.ECONNABORTED) {
				return
			}
			if err == nil {
				unix.Close(c)
			}
		}
	})
	defer func() {
		unix.Shutdown(listener, unix.SHUT_RDWR) //nolint:errcheck // it wakes the acceptor
		accepting.Wait()
		unix.Close(listener)
	}()
	return inside(l, "left/other", func() error {
		const interval = 2 * time.Millisecond
		return every(ctx, interval, func() error {
			for range int(connections * interval / time.Second) {
				s, err := socket(unix.SOCK_STREAM)
				if err != nil {
					return err
				}
				err = errors.Join(unix.Connect(s, to), unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
				unix.Close(s)
				if err != nil {
					return err
				}
				connected.Add(1)
			}
			return nil
		})
	})
}

// churn makes and deletes pods.
func churn(ctx context.Context, l *lab.Lab) error {
	var peers []scenario.Endpoint
	for _, ref := range []string{"left/stays", "right/far"} {
		peer, err := l.Scenario().Topology.Resolve(ref)
		if err != nil {
			return err
		}
		peers = append(peers, peer)
	}
	return every(ctx, podsEvery, func() error {
		made.Add(podsAtOnce)
		return l.Churn(ctx, []string{"left/one", "left/two", "left/three", "left/four", "left/five"}, podsAtOnce, peers...)
	})
}

// flap takes a link of the node that nothing uses down and up.
func flap(ctx context.Context, node string) error {
	if err := ip("-n", node, "link", "add", "flap0", "type", "veth", "peer", "name", "flap1"); err != nil {
		return err
	}
	up := false
	return every(ctx, flapsEvery, func() error {
		up = !up
		return ip("-n", node, "link", "set", "flap0", map[bool]string{true: "up", false: "down"}[up])
	})
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, bytes.TrimSpace(out))
	}
	return nil
}

// watching is `lasthop watch`.
type watching struct {
	t       *testing.T
	cmd     *exec.Cmd
	reading sync.WaitGroup
	// descriptors and resident, in KiB, are the most that it had.
	descriptors, resident int
}

// watch returns once everything is attached.
func watch(t *testing.T, node string) *watching {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "lasthop")
	build := exec.Command("go", "build", "-o", binary, "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	w := &watching{t: t, cmd: exec.Command("nsenter", "--net=/run/netns/"+node, binary, "watch")}
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	attached := make(chan struct{})
	w.reading.Go(func() {
		first := true
		for lines := bufio.NewScanner(out); lines.Scan(); first = false {
			if first {
				close(attached)
			}
			var f struct{ Kind, Change, Code, Severity, Title string }
			if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
				t.Errorf("%v: %s", err, lines.Bytes())
			}
			if f.Kind == "Finding" && f.Change == "opened" && f.Severity != "info" {
				t.Errorf("found on a healthy node: %s", lines.Bytes())
			}
		}
		if first {
			close(attached)
		}
	})
	<-attached
	return w
}

// measure looks at what the process uses, each second.
func (w *watching) measure(ctx context.Context) error {
	proc := "/proc/" + strconv.Itoa(w.cmd.Process.Pid)
	err := every(ctx, time.Second, func() error {
		fds, err := os.ReadDir(proc + "/fd")
		if err != nil {
			return err
		}
		status, err := os.ReadFile(proc + "/status")
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		kib, err := strconv.Atoi(strings.Fields(rest + " none")[0])
		if err != nil {
			return err
		}
		w.descriptors, w.resident = max(w.descriptors, len(fds)), max(w.resident, kib)
		return nil
	})
	if w.descriptors > descriptors || w.resident > resident {
		w.t.Errorf("it had %d descriptors and %d KiB, want at most %d and %d", w.descriptors, w.resident, descriptors, resident)
	}
	return err
}

// interrupt ends it.
func (w *watching) interrupt() {
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		w.t.Error(err)
	}
	w.reading.Wait()
	var exit *exec.ExitError
	if err := w.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		w.t.Errorf("interrupted: %v, want status 130", err)
	}
}

// left wants nothing of lasthop on the node.
func left(t *testing.T, node string) {
	out, err := exec.Command("tc", "-n", node, "qdisc", "show").CombinedOutput()
	if err != nil {
		t.Fatalf("tc: %v: %s", err, out)
	}
	if strings.Contains(string(out), "clsact") {
		t.Errorf("left:\n%s", out)
	}
}
