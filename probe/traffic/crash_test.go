package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// victimEnv makes the test binary a process that watches links of the namespace at
// descriptor 3 until it is killed: the mode to attach by, then their indices. With
// "rights" it tries to open an engine, with "beside" and an index it tells of the source
// tc at every SIGUSR1. janitorEnv makes it a janitor.
const (
	victimEnv  = "LASTHOP_TRAFFIC_VICTIM"
	janitorEnv = "LASTHOP_TRAFFIC_JANITOR"
)

func victim() {
	err := func() error {
		what := strings.Fields(os.Getenv(victimEnv))
		switch what[0] {
		case "rights":
			return fewRights()
		case "beside":
			return watchBeside(what[1])
		}
		ns, err := netns.Open("/proc/self/fd/3")
		if err != nil {
			return err
		}
		e, err := Open(Config{NS: ns, Attach: what[0], Janitor: newJanitor})
		if err != nil {
			return err
		}
		fmt.Println("open")
		var links []Link
		for _, text := range what[1:] {
			index, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			links = append(links, Link{Index: index, Name: "victim" + text})
			if err := e.Attach(links, time.Time{}); err != nil {
				return err
			}
			fmt.Println("attached", len(links))
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

func newJanitor() *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{"janitor"}, Env: append(os.Environ(), janitorEnv+"=1")}
}

func startVictim(t *testing.T, ns *netns.NS, what string, as *syscall.SysProcAttr) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+what)
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

// says waits until the victim says a line that begins so, and returns it.
func says(t *testing.T, out *bufio.Scanner, begins string) string {
	t.Helper()
	for out.Scan() {
		if strings.HasPrefix(out.Text(), begins) {
			return out.Text()
		}
		if !strings.HasPrefix(out.Text(), "open") && !strings.HasPrefix(out.Text(), "attached") {
			break
		}
	}
	t.Fatalf("the victim said %q, want %q", out.Text(), begins)
	return ""
}

// kill kills a process for good.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the victim ended well")
	}
}

// janitorOf finds the janitor that a process started.
func janitorOf(t *testing.T, parent int) *os.Process {
	t.Helper()
	var children []byte
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		more, err := os.ReadFile(task)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		children = append(children, more...)
	}
	var pid int
	if _, err := fmt.Sscan(string(children), &pid); err != nil {
		t.Fatalf("the victim has no janitor: %v", err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKilled kills a process at every stage, alone and with its janitor. At
// most a filter is left that does nothing, and the next start removes it. Packets
// pass all the while.
func TestKilled(t *testing.T) {
	for _, mode := range modes(t) {
		for _, at := range []string{"open", "attached 1", "ready"} {
			for _, who := range []string{"main", "both", "namespace"} {
				if who != "main" && (mode != AttachClsact || at == "open") {
					continue // there is no janitor
				}
				if testing.Short() && (at == "open" || who == "both") {
					continue
				}
				t.Run(mode+"/"+at+"/"+who, func(t *testing.T) { testKilled(t, mode, at, who) })
			}
		}
	}
}

func testKilled(t *testing.T, mode, at, who string) {
	ends := newTwoEnds(t)
	// To make a clsact qdisc loses packets.
	clsactOf(t, ends.node, ends.nodeLink)
	what := []string{mode, strconv.Itoa(ends.nodeLink.Index)}
	links := []Link{ends.nodeLink}
	for i := range 5 {
		l, _ := veth(t, ends.node, fmt.Sprintf("host%d", i+1), "", ends.pod, fmt.Sprintf("pod%d", i+1), "")
		what, links = append(what, strconv.Itoa(l.Index)), append(links, l)
	}
	var as *syscall.SysProcAttr
	if who == "namespace" {
		// The first process of a namespace takes all others with it.
		as = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	}
	cmd, out := startVictim(t, ends.node, strings.Join(what, " "), as)
	line := says(t, out, at)
	ends.exchange(t, 20)
	var tracepoint link.ID
	if at == "ready" {
		if _, err := fmt.Sscanf(line, "ready %d", &tracepoint); err != nil {
			t.Fatal(err)
		}
		if n := programsOn(t, ends.node, ends.nodeLink.Index); n != 2 {
			t.Errorf("%d programs while it lives, want 2", n)
		}
		if l, err := link.NewFromID(tracepoint); err != nil || l.Close() != nil {
			t.Fatalf("tracepoint while it lives: %v", err)
		}
	}
	if who == "both" {
		j := janitorOf(t, cmd.Process.Pid)
		if err := j.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, cmd)
	ends.exchange(t, 20)
	if tracepoint != 0 {
		await(t, "the tracepoint is gone", func() bool {
			l, err := link.NewFromID(tracepoint)
			if err == nil {
				l.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
	none := func() bool {
		for _, l := range links {
			if programsOn(t, ends.node, l.Index) != 0 {
				return false
			}
		}
		return true
	}
	if who == "main" {
		await(t, "everything is removed", none)
	} else {
		for h := range allFilters(t, ends.node) {
			inert(t, &h)
		}
	}
	// The number is free when nobody acts in its name any more.
	await(t, "the next start finds nobody", func() bool {
		n, err := bindNumber(ends.node, 1)
		return err == nil && n.socket.Close() == nil
	})
	if n := leftBehind(ends.node); (n.Status == model.OK) != none() || n.Status == model.Missing {
		t.Errorf("told of what is left: %+v", n)
	}
	if left := !none(); left {
		e := ends.watched(t, Config{KeepLeftovers: true})
		if err := e.Close(); err != nil || none() {
			t.Errorf("what was to be kept is gone (%v)", err)
		}
	}
	e := ends.watched(t, Config{Attach: AttachClsact})
	if !none() {
		t.Error("the next start left something behind")
	}
	ends.exchange(t, 20)
	if err := e.Attach(links, time.Time{}); err != nil {
		t.Fatal(err)
	}
	countsAll(t, ends, e, 20)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	r := rtnlIn(t, ends.node)
	kinds, err := r.qdiscs()
	if err != nil {
		t.Fatal(err)
	}
	most := 1
	if at == "attached 1" && who != "main" {
		// If both are killed between making a qdisc and its filter, an empty qdisc
		// remains. Nothing says whose it is.
		most = 2
	}
	if len(kinds) > most || kinds[ends.nodeLink.Index] != "clsact" {
		t.Errorf("qdiscs at the end: %v, want the one that was there", kinds)
	}
}

// allFilters are the filters of a node.
func allFilters(t *testing.T, ns *netns.NS) iter.Seq[filter] {
	t.Helper()
	all, err := rtnlIn(t, ns).all()
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(filter) bool) {
		for _, h := range all {
			h.any(func(f filter) bool { return !yield(f) })
		}
	}
}

// inert wants a filter's program to call nothing: the kernel has cleared the array.
func inert(t *testing.T, f *filter) {
	t.Helper()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(f.Program))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		t.Fatalf("the filter's program holds maps %v, want the array alone", ids)
	}
	entries, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	await(t, "the array is empty", func() bool {
		var key, id uint32
		return !entries.Iterate().Next(&key, &id)
	})
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
			cmd, out := startVictim(t, newNS(t), "rights", &syscall.SysProcAttr{
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

// watchBeside watches a link of the present namespace.
func watchBeside(index string) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGUSR1)
	i, err := strconv.Atoi(index)
	if err != nil {
		return err
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	e, err := Open(Config{NS: ns, Attach: AttachTCX})
	if err != nil {
		return err
	}
	if err := e.Attach([]Link{{Index: i, Name: "victim"}}, time.Time{}); err != nil {
		return err
	}
	fmt.Println("ready")
	for range asked {
		if err := e.Poll(time.Now()); err != nil {
			return err
		}
		fmt.Println(e.Sources()[0].Status, e.Sources()[0].Detail)
	}
	return nil
}

// TestBeside: who has not the right to read the names of programs knows those of
// another lasthop all the same, and tells of those of others.
func TestBeside(t *testing.T) {
	if len(modes(t)) < 2 {
		t.Log("this kernel has no tcx")
		return
	}
	ends := newTwoEnds(t)
	var cmd *exec.Cmd
	var out *bufio.Scanner
	inside(t, ends.node, func() error {
		const nobody = 65534
		cmd, out = startVictim(t, ends.node, fmt.Sprintf("beside %d", ends.nodeLink.Index), &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
			AmbientCaps: []uintptr{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN},
		})
		return nil
	})
	defer kill(t, cmd)
	says(t, out, "ready")
	tells := func(want string) {
		t.Helper()
		if err := cmd.Process.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		says(t, out, want)
	}
	if err := ends.watched(t, Config{Attach: AttachTCX}).Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	tells("ok tcx on 1 link")
	p, _ := counting(t, verdicts[0])
	foreignTCX(t, ends, p, link.Head())
	tells("partial tcx on 1 link; on victim from ")
}
