package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// tell answers a call of clock_gettime.
func (c call) tell(t *testing.T, now time.Time) instead {
	b := binary.NativeEndian.AppendUint64(nil, uint64(now.Unix()))
	if err := c.write(c.args[1], binary.NativeEndian.AppendUint64(b, uint64(now.Nanosecond()))); err != nil {
		t.Error(err)
	}
	return instead{returns: true}
}

// TestClockSteps sets the clock three hours on, and three hours back, while a check and a recording watch.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	numbers := []int{unix.SYS_ARCH_PRCTL, unix.SYS_BPF, unix.SYS_CLOCK_GETTIME}
	const window = 2 * time.Second
	// stepped has the clock of a command go wrong a third of the window after it attached its first program, and be set
	// right when the window is over, but not before the command has asked for the time in between.
	stepped := func(t *testing.T, step time.Duration, steps *int) func(call) instead {
		var began time.Time
		return func(c call) instead {
			switch c.nr {
			case unix.SYS_ARCH_PRCTL:
				if err := c.hideVDSO(); err != nil {
					t.Error(err)
				}
				return instead{}
			case unix.SYS_BPF:
				if began.IsZero() && c.args[0] == unix.BPF_LINK_CREATE {
					began = time.Now()
				}
				return instead{}
			}
			since := time.Since(began)
			if c.args[0] != unix.CLOCK_REALTIME || began.IsZero() || since < window/3 || since > window && *steps > 0 {
				return instead{}
			}
			*steps++
			return c.tell(t, time.Now().Add(step))
		}
	}
	for _, step := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		t.Run("check "+step.String(), func(t *testing.T) {
			t.Parallel()
			steps := 0
			node.check(t, numbers, stepped(t, step, &steps), "--for", window.String())
			if steps == 0 {
				t.Error("nothing asked for the time while it was wrong")
			}
		})
		t.Run("record "+step.String(), func(t *testing.T) {
			t.Parallel()
			file, steps := filepath.Join(t.TempDir(), "recording"), 0
			cmd := exec.Command(watchedName, slices.Concat([]string{filterOf(numbers), "record", file, "--for", (2 * window).String()}, node.flags)...)
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := watchCalls(t, cmd, stepped(t, step, &steps))(); err != nil || steps == 0 {
				t.Fatalf("%v, %d steps: %s", err, steps, said.String())
			}
			out, err := exec.Command("lasthop", "replay", file, "-o", "json").Output()
			if status := new(exec.ExitError); err != nil && !errors.As(err, &status) {
				t.Fatal(err)
			}
			var r struct {
				Window   struct{ Seconds float64 }
				Findings []struct{ Code model.Code }
			}
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%+v", r)
			if len(r.Findings) == 0 || r.Findings[0].Code != "StaleMACRewrite" || r.Window.Seconds < 0 || r.Window.Seconds > 60 {
				t.Errorf("replayed: %+v", r)
			}
		})
	}
}

// TestClockOfAgent sets the clock while an agent watches, which begins its observation anew.
func TestClockOfAgent(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	control, tty := openTerminal(t)
	cmd := exec.Command(watchedName, slices.Concat(
		[]string{filterOf([]int{unix.SYS_ARCH_PRCTL, unix.SYS_CLOCK_GETTIME}), "agent", "--dir", t.TempDir(), "--listen", "127.0.0.1:0"}, node.flags)...)
	cmd.Stderr = tty
	var set atomic.Bool
	wait := watchCalls(t, cmd, func(c call) instead {
		if c.nr == unix.SYS_ARCH_PRCTL {
			if err := c.hideVDSO(); err != nil {
				t.Error(err)
			}
		} else if c.args[0] == unix.CLOCK_REALTIME && set.Load() {
			return c.tell(t, time.Now().Add(-3*time.Hour))
		}
		return instead{}
	})
	tty.Close() // If the agent ends, so does what is read.
	readUntil(t, control, "observing ")
	set.Store(true)
	readUntil(t, control, "the machine's clock was set by -3h0m0s; trying again")
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Error(err)
	}
	go func() { _, _ = io.Copy(io.Discard, control) }()
	_ = wait()
	if status := cmd.ProcessState.ExitCode(); status != exitInterrupted {
		t.Errorf("status %d", status)
	}
}

// TestStopped stops a check for ten seconds of its window.
func TestStopped(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	control, tty := openTerminal(t)
	cmd := exec.Command("lasthop", slices.Concat([]string{"check", "--for", "11s", "-o", "json"}, node.flags)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	readUntil(t, control, "watching: ")
	go func() { _, _ = io.Copy(io.Discard, control) }()
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	node.judge(t, err, cmd.ProcessState.ExitCode(), out.Bytes(), "")
}

// TestShortProcesses has processes come and go, some hundred in each second, for as long as a check searches them.
func TestShortProcesses(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	forks := exec.Command("sh", "-c", "echo begun; while :; do for i in 1 2 3 4 5 6 7 8 9 10; do (:) & done; wait; done")
	begun, err := forks.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forks.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(begun, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	if node.check(t, []int{unix.SYS_UNAME}, func(call) instead { return instead{} }) {
		t.Error("a gap is named")
	}
	if err := forks.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = forks.Wait() // It was killed.
}

// TestNamespaceDies deletes a pod at the moment at which a check enters its namespace.
func TestNamespaceDies(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Errorf("ip %v: %v: %s", args, err, out)
		}
	}
	for at := 1; at <= 3; at++ {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			pod := node.netns + ".dying"
			run("netns", "add", pod)
			run("-n", node.netns, "link", "add", "dying", "type", "veth", "peer", "name", "eth0", "netns", pod)
			run("-n", node.netns, "link", "set", "dying", "up")
			run("-n", pod, "addr", "add", "10.240.0.99/32", "dev", "eth0")
			run("-n", pod, "link", "set", "eth0", "up")
			run("-n", pod, "route", "add", "default", "dev", "eth0")
			ns, err := netns.Open(netns.Dirs[0] + "/" + pod)
			if err != nil {
				t.Fatal(err)
			}
			inode, entered := uint64(ns.Inode()), 0
			ns.Close()
			node.check(t, []int{unix.SYS_SETNS}, func(c call) instead {
				var st unix.Stat_t
				err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", c.process, c.args[0]), &st)
				if err == nil && st.Ino == inode {
					if entered++; entered == at {
						run("-n", node.netns, "link", "del", "dying")
						run("netns", "del", pod)
					}
				}
				return instead{}
			})
			if entered < at {
				t.Errorf("entered %d times", entered)
			}
		})
	}
}

// TestOutputErrors has what a command writes fail, and be taken in part only.
func TestOutputErrors(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	half := func(c call) instead {
		fd, err := c.own(c.args[0])
		if err != nil {
			return refuse(unix.EBADF)
		}
		defer unix.Close(fd)
		n, err := unix.Write(fd, c.memory(c.args[1], int(c.args[2]+1)/2))
		if err != nil {
			return refuse(unix.EIO)
		}
		return instead{value: int64(n), returns: true}
	}
	fails := func(err unix.Errno) func(call) instead { return func(call) instead { return refuse(err) } }
	for _, tt := range []struct {
		name  string
		reply func(call) instead
		says  string
	}{{"EIO", fails(unix.EIO), "input/output error"}, {"ENOSPC", fails(unix.ENOSPC), "no space left on device"}, {"in halves", half, ""}} {
		for _, command := range few([]string{"check -o json", "check -o text", "record FILE", "check --pcap FILE"}, 1) {
			t.Run(command+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				output := filepath.Join(t.TempDir(), "output")
				args := strings.Fields(strings.ReplaceAll(command, "FILE", output))
				cmd := exec.Command(watchedName, slices.Concat([]string{strconv.Itoa(unix.SYS_WRITE)}, args, []string{"--for", "1s"}, node.flags)...)
				var out, said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &said
				file, wrote := strings.Contains(command, "FILE"), 0
				_ = watchCalls(t, cmd, func(c call) instead {
					// A recording has a name of its own until it is whole.
					if file && strings.HasPrefix(c.file(c.args[0]), filepath.Dir(output)) || !file && c.args[0] == 1 {
						wrote++
						return tt.reply(c)
					}
					return instead{}
				})()
				status := cmd.ProcessState.ExitCode()
				_, err := os.Stat(output)
				switch {
				case wrote == 0:
					t.Errorf("nothing was written: %s", said.String())
				case tt.says != "":
					if status != exitCannot || !strings.Contains(said.String(), tt.says) || err == nil {
						t.Errorf("status %d, file: %v: %s", status, err, said.String())
					}
				case status != exitFindings && status != exitClean:
					t.Errorf("status %d: %s", status, said.String())
				case command == "check -o json":
					node.judge(t, nil, status, out.Bytes(), said.String())
				case command == "record FILE":
					if out, err := exec.Command("lasthop", "replay", output, "-o", "json").CombinedOutput(); !bytes.Contains(out, []byte("StaleMACRewrite")) {
						t.Errorf("%v: %s", err, out)
					}
				}
			})
		}
	}
}

// TestRefusedDetach has the kernel refuse to remove what was attached by clsact. The next start removes it.
func TestRefusedDetach(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	refused := 0
	w := newNetlinkWatch(nil)
	cmd := exec.Command(watchedName, slices.Concat([]string{filterOf([]int{unix.SYS_SENDTO}), "check", "--for", "300ms", "--attach", "clsact"}, node.flags)...)
	out, said := &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, said
	_ = watchCalls(t, cmd, func(c call) instead {
		w.respond(c)
		if a := w.last[c.args[0]]; a.protocol == unix.NETLINK_ROUTE && (a.typ == unix.RTM_DELQDISC || a.typ == unix.RTM_DELTFILTER) {
			refused++
			return refuse(unix.EPERM)
		}
		return instead{}
	})()
	t.Logf("refused %d, status %d: %s", refused, cmd.ProcessState.ExitCode(), said)
	if refused < 2 {
		t.Errorf("%d removals were refused", refused)
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if unique := model.With(nil, lines...); cmd.ProcessState.ExitCode() != exitCannot || len(unique) != len(lines) {
		t.Errorf("status %d, with lines that are there twice: %q", cmd.ProcessState.ExitCode(), lines)
	}
	node.check(t, []int{unix.SYS_UNAME}, func(call) instead { return instead{} }, "--attach", "clsact")
}

// TestLacksTypes gives a check the kernel's types without one that it looks for.
func TestLacksTypes(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	const types = "/sys/kernel/btf/vmlinux"
	text, err := os.ReadFile(types)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range few([]string{"btf_trace_kfree_skb", "skb_drop_reason", "sk_buff", "net_device", "net"}, 1) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := bytes.ReplaceAll(text, []byte("\x00"+name+"\x00"), []byte("\x00"+strings.ToUpper(name)+"\x00"))
			file := filepath.Join(t.TempDir(), "types")
			if err := os.WriteFile(file, other, 0o600); err != nil {
				t.Fatal(err)
			}
			given := 0
			gap := node.check(t, []int{unix.SYS_OPENAT}, func(c call) instead {
				if path := unix.ByteSliceToString(c.memory(c.args[1], len(types)+1)); path != types {
					return instead{}
				}
				f, err := os.Open(file)
				if err != nil {
					t.Error(err)
					return instead{}
				}
				t.Cleanup(func() { f.Close() })
				given++
				return instead{opens: true, value: int64(f.Fd())}
			})
			t.Logf("given %d times, gap %v", given, gap)
			if bytes.Equal(text, other) || given == 0 {
				t.Errorf("the types are given %d times", given)
			}
		})
	}
}

func filterOf(numbers []int) string { return strings.Join(model.Map(numbers, strconv.Itoa), ",") }
