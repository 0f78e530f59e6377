package session_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/session"
)

// TestCgroupProgram has a program on a cgroup's egress drop what a pod sends,
// and wants it named.
func TestCgroupProgram(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.populate(t)
	group := newCgroup(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSKB, Name: "group_guard", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	check(t, err)
	defer p.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: group.Name(), Attach: ebpf.AttachCGroupInetEgress, Program: p})
	check(t, err)
	defer l.Close()
	info, err := p.Info()
	check(t, err)
	id, _ := info.ID()

	var once sync.Once
	s, err := session.Observe(t.Context(), session.Options{Options: collect.Options{NS: n.ns, HostRoot: "/"}, For: 2 * time.Second,
		Progress: func(model.Window, time.Time) { once.Do(func() { n.sendFrom(t, group) }) }})
	check(t, err)
	want := fmt.Sprintf("cgroup program group_guard, id %d, on %s", id, "/"+filepath.Base(group.Name()))
	for _, f := range diagnose.Judge(s).Findings {
		for _, e := range f.Evidence {
			if f.Code == "BPFDrop" && strings.Contains(e.Text, want) {
				return
			}
		}
	}
	t.Errorf("no BPFDrop with %q in\n%+v\ndrops %+v", want, diagnose.Judge(s).Findings, s.Traffic.Drops)
}

// populate has a process live in the pod's namespace, which is found by that.
func (n *node) populate(t *testing.T) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+n.pod.Path(), "cat")
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		check(t, cmd.Wait())
	})
	// What comes back says that it is there.
	_, err = fmt.Fprintln(stdin)
	check(t, err)
	_, err = bufio.NewReader(stdout).ReadString('\n')
	check(t, err)
}

// newCgroup makes a cgroup that is removed with the test.
func newCgroup(t *testing.T) *os.File {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "unified")
	}
	dir, err := os.MkdirTemp(root, "lasthop-session-")
	check(t, err)
	t.Cleanup(func() { check(t, os.Remove(dir)) })
	f, err := os.Open(dir)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// sendFrom sends some datagrams from the pod, by a process in the cgroup. All
// of them fail.
func (n *node) sendFrom(t *testing.T, group *os.File) {
	cmd := exec.Command("nsenter", "--net="+n.pod.Path(), "bash", "-c",
		fmt.Sprintf("for i in 1 2 3 4 5 6 7 8; do echo x > /dev/udp/%s/%d; done", n.peerAddr, port))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Operation not permitted") {
		t.Errorf("sending: %v, want every datagram refused:\n%s", err, out)
	}
}
