package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// callError is an error of a system call.
type callError struct {
	name string
	call int
	err  unix.Errno
}

// failing are system calls that lasthop makes, with an error that the kernel gives for
// each. Those that Go's runtime cannot do without as it starts are not among them.
var failing = []callError{
	{"socket", unix.SYS_SOCKET, unix.EMFILE}, {"bind", unix.SYS_BIND, unix.ENOMEM},
	{"setsockopt", unix.SYS_SETSOCKOPT, unix.ENOPROTOOPT}, {"getsockopt", unix.SYS_GETSOCKOPT, unix.EPERM},
	{"getsockname", unix.SYS_GETSOCKNAME, unix.EIO},
	{"sendto", unix.SYS_SENDTO, unix.ENOMEM}, {"recvfrom", unix.SYS_RECVFROM, unix.ENOBUFS},
	{"openat", unix.SYS_OPENAT, unix.EMFILE}, {"openat", unix.SYS_OPENAT, unix.ENOENT},
	{"read", unix.SYS_READ, unix.EIO}, {"pread64", unix.SYS_PREAD64, unix.EIO},
	{"getdents64", unix.SYS_GETDENTS64, unix.ENOENT}, {"readlinkat", unix.SYS_READLINKAT, unix.ENOENT},
	{"newfstatat", unix.SYS_NEWFSTATAT, unix.EACCES}, {"fstatfs", unix.SYS_FSTATFS, unix.EIO},
	{"statfs", unix.SYS_STATFS, unix.EIO}, {"setns", unix.SYS_SETNS, unix.EPERM}, {"ioctl", unix.SYS_IOCTL, unix.EIO},
	{"capget", unix.SYS_CAPGET, unix.EPERM}, {"capset", unix.SYS_CAPSET, unix.EPERM},
	{"prlimit64", unix.SYS_PRLIMIT64, unix.EPERM}, {"uname", unix.SYS_UNAME, unix.EPERM},
	{"sched_getaffinity", unix.SYS_SCHED_GETAFFINITY, unix.EPERM}, {"close", unix.SYS_CLOSE, unix.EIO},
	{"fstat", unix.SYS_FSTAT, unix.EIO},
	{"prctl", unix.SYS_PRCTL, unix.EPERM}, {"clock_gettime", unix.SYS_CLOCK_GETTIME, unix.EPERM},
	{"pidfd_open", unix.SYS_PIDFD_OPEN, unix.ENOSYS}, {"ppoll", unix.SYS_PPOLL, unix.EIO},
	{"faccessat2", unix.SYS_FACCESSAT2, unix.EACCES}, {"getrandom", unix.SYS_GETRANDOM, unix.ENOSYS},
}

// injectAt are the calls of a check that fail: the n-th, or all from the n-th on. In which order its threads make them
// is the scheduler's choice, so that of later calls each run tries others.
var injectAt = flag.String("inject-at", "1,1+", "have these `CALLS` of a check fail, such as 3 or 7+")

// occasion says which calls fail, by their number.
type occasion struct {
	text  string
	first int
	later bool
}

func (o occasion) fails(n int) bool { return n == o.first || o.later && n > o.first }

// occasions are those of injectAt.
func occasions(t *testing.T) (out []occasion) {
	t.Helper()
	for text := range strings.SplitSeq(*injectAt, ",") {
		o := occasion{text: text}
		number, err := "", error(nil)
		number, o.later = strings.CutSuffix(text, "+")
		if o.first, err = strconv.Atoi(number); err != nil {
			t.Fatalf("-inject-at: %v", err)
		}
		out = append(out, o)
	}
	return out
}

// faultLab is a node of a lab with traffic, whose checks find want or name a gap, and leave nothing on it.
type faultLab struct {
	want  []model.Code
	netns string
	flags []string
}

// newFaultLab brings a lab up until the test ends, when nothing of lasthop's may be left there.
func newFaultLab(t *testing.T, scenario string, want ...model.Code) faultLab {
	t.Helper()
	l := upLab(t, scenario)
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	node := l.Nodes()[0]
	before := attached(t, node.Netns)
	t.Cleanup(func() {
		if after := attached(t, node.Netns); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return faultLab{want, node.Netns, []string{"--netns", node.Netns, "--host-root", l.HostRoot(node.Name)}}
}

// check runs a check, with more flags, whose calls with the numbers respond answers, and returns whether it named a gap.
func (j faultLab) check(t *testing.T, numbers []int, respond func(call) instead, flags ...string) (gap bool) {
	t.Helper()
	cmd := exec.Command(watchedName, slices.Concat([]string{filterOf(numbers), "check", "--for", "300ms", "-o", "json"}, j.flags, flags)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := watchCalls(t, cmd, respond)()
	return j.judge(t, err, cmd.ProcessState.ExitCode(), out.Bytes(), said.String())
}

// judge wants the right findings, or a gap and no other, or the reason why there is no verdict.
func (j faultLab) judge(t *testing.T, err error, status int, out []byte, said string) (gap bool) {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s; status %v:\n%s\n%s", fmt.Sprintf(format, args...), err, said, out)
	}
	if strings.Contains(said, "goroutine ") {
		bad("it crashed")
		return false
	}
	switch status {
	case exitClean, exitFindings:
	case exitCannot:
		if !strings.Contains(said, "lasthop: ") {
			bad("it does not say why")
		}
		return true
	default:
		if !strings.Contains(said, "--host-root") {
			bad("an unexpected status")
		}
		return true
	}
	var r struct {
		Sources []struct {
			Name   string
			Status model.Status
		}
		Findings []struct {
			Code     model.Code
			Severity model.Severity
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		bad("%v", err)
		return false
	}
	for _, s := range r.Sources {
		// The cluster's nodes are in a file that is not given.
		gap = gap || s.Name != "nodes" && s.Status != model.OK
	}
	var found []model.Code
	for _, f := range r.Findings {
		if f.Severity != model.Info {
			found = append(found, f.Code)
		}
	}
	if !slices.Equal(found, j.want) && (len(found) > 0 || !gap) {
		bad("found %v, with a gap: %v", found, gap)
	}
	return gap
}

// TestInjectedErrors has system calls of a check fail, one after the other. Whichever
// fails, the check says what it sees, names what it could not read or says why it cannot
// observe, and leaves nothing on the node.
func TestInjectedErrors(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	t.Run("calls", func(t *testing.T) {
		for _, o := range occasions(t) {
			for _, f := range few(failing, 1) {
				if f.name == "capset" && !o.later {
					continue // Go's runtime ends where threads get different answers.
				}
				t.Run(f.name+" "+f.err.Error()+" "+o.text, func(t *testing.T) {
					t.Parallel()
					n := 0
					node.check(t, []int{f.call}, func(call) instead {
						if n++; o.fails(n) {
							return refuse(f.err)
						}
						return instead{}
					})
				})
			}
		}
	})
}

// TestInjectedBPF has each command of bpf(2) that a check gives fail: maps that are not made, programs that are not
// loaded or attached, counts that cannot be read.
func TestInjectedBPF(t *testing.T) {
	t.Parallel()
	node := newFaultLab(t, "stale-mac-rewrite", "StaleMACRewrite")
	given := map[uint64]int{}
	node.check(t, []int{unix.SYS_BPF}, func(c call) instead { given[c.args[0]]++; return instead{} })
	for _, command := range []uint64{unix.BPF_MAP_CREATE, unix.BPF_PROG_LOAD, unix.BPF_LINK_CREATE, unix.BPF_RAW_TRACEPOINT_OPEN} {
		if given[command] == 0 {
			t.Fatalf("a check gives these commands: %v", given)
		}
	}
	t.Logf("a check gives these commands: %v", given)
	t.Run("commands", func(t *testing.T) {
		for _, command := range few(slices.Sorted(maps.Keys(given)), 2) {
			for _, o := range occasions(t) {
				if o.first > given[command] {
					continue
				}
				t.Run(fmt.Sprintf("%d %s", command, o.text), func(t *testing.T) {
					t.Parallel()
					n := 0
					node.check(t, []int{unix.SYS_BPF}, func(c call) instead {
						if c.args[0] != command {
							return instead{}
						}
						if n++; !o.fails(n) {
							return instead{}
						}
						return refuse(model.Either(o.later, unix.EPERM, unix.ENOMEM))
					})
				})
			}
		}
	})
}

// TestInjectedDumps has each dump of a kernel's table that a check asks for fail, each time: by a buffer that
// overran, and by changes meanwhile. That is a gap, and makes no healthy node look broken.
func TestInjectedDumps(t *testing.T) {
	t.Parallel()
	for scenario, want := range map[string][]model.Code{"stale-mac-rewrite": {"StaleMACRewrite"}, "healthy-azure-tunnel": nil} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			node := newFaultLab(t, scenario, want...)
			numbers := []int{unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_CLOSE}
			seen := newNetlinkWatch(nil)
			node.check(t, numbers, seen.respond)
			if len(seen.dumps) < 10 {
				t.Fatalf("a check asks for %v", seen.dumps)
			}
			t.Run("dumps", func(t *testing.T) {
				for _, a := range few(slices.SortedFunc(maps.Keys(seen.dumps), func(a, b asked) int { return cmp.Compare(a.String(), b.String()) }), 1) {
					for name, reply := range map[string]func(call) instead{"overrun": overrun, "interrupted": interrupted} {
						t.Run(a.String()+" "+name, func(t *testing.T) {
							t.Parallel()
							w := newNetlinkWatch(func(c call, of asked) instead {
								if of == a {
									return reply(c)
								}
								return instead{}
							})
							if !node.check(t, numbers, w.respond) {
								t.Error("no gap is named")
							}
						})
					}
				}
			})
		})
	}
}

// attached is what hangs at the links of a namespace.
func attached(t *testing.T, node string) string {
	t.Helper()
	links, err := exec.Command("ip", "netns", "exec", node, "ls", "/sys/class/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, link := range strings.Fields(string(links)) {
		for _, hook := range []string{"ingress", "egress"} {
			filters, err := exec.Command("tc", "-n", node, "filter", "show", "dev", link, hook).Output()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%s %s %s", link, hook, filters)
		}
	}
	queues, err := exec.Command("tc", "-n", node, "qdisc", "show").Output()
	if err != nil {
		t.Fatal(err)
	}
	return out.String() + string(queues)
}
