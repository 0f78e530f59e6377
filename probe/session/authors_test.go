package session_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestAuthors: of each change it is known who made it, or said that it is not.
func TestAuthors(t *testing.T) {
	t.Parallel()
	n := nstest.Named(t, "authors")
	n.Run(
		"ip link set lo up", "ip link add up0 type veth peer name far0", "ip addr add 192.0.2.1/24 dev up0", "ip link set up0 up",
		"for i in 1 2 3 4 5 6 7; do ip route add 10.9.$i.0/24 via 192.0.2.9; done",
		"ip route add 2001:db8:9::/48 dev up0", "ip addr add 192.0.2.77/32 dev up0",
		"ip rule add from 10.9.1.0/24 to 10.8.0.0/16 lookup 100", "ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev up0",
		"nft add table ip own", "nft add chain ip own guard", "nft add chain ip own podded", "nft add chain ip own player", "iptables-nft -P FORWARD ACCEPT", "ebtables-nft -P FORWARD ACCEPT",
	)
	const uid = "3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"
	root := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(root, "var/log/pods/kube-system_agent-x_"+uid), 0o700))
	s, err := session.Open(t.Context(), session.Options{Options: collect.Options{NS: n.NS, HostRoot: root}, For: timeline.Short, Diagnose: diagnose.Judge})
	check(t, err)
	defer s.Close()
	within := func(command ...string) *exec.Cmd {
		return exec.Command("nsenter", append([]string{"--net=" + n.Path()}, command...)...)
	}
	script := filepath.Join(t.TempDir(), "cut-route")
	check(t, os.WriteFile(script, []byte("#!/bin/sh\nip route del 10.9.3.0/24\nip rule del from 10.9.1.0/24\n"), 0o700))
	run := func(c *exec.Cmd) {
		t.Helper()
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
	var last []model.Change
	// known waits until a change is told of: later processes did not make it, whatever their numbers.
	known := func(is func(*model.Change) bool) {
		t.Helper()
		for r := range s.Readings() {
			last = r.Point.Snapshot.Changes
			if slices.ContainsFunc(last, func(c model.Change) bool { return is(&c) }) {
				if src := model.Find(r.Point.Snapshot.Sources, func(s model.Source) bool { return s.Name == model.SourceChanges }); src.Status != model.OK {
					t.Errorf("source %+v", src)
				}
				return
			}
		}
	}
	// In the cgroup of a pod's container that shares the node's network, and in one of no pod, which is named alike.
	top := filepath.Dir(newCgroup(t).Name())
	inGroup := func(dir, command string) {
		dir = filepath.Join(top, dir)
		check(t, os.MkdirAll(dir, 0o700))
		t.Cleanup(func() { check(t, errors.Join(os.Remove(dir), os.Remove(filepath.Dir(dir)))) })
		run(within("sh", "-c", "echo 0 >"+dir+"/cgroup.procs; "+command+"; true"))
	}
	inGroup("kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice/cri-containerd-5a1c.scope", "nft add rule ip own podded drop")
	inGroup("podcasts.slice/player.scope", "nft add rule ip own player drop")
	run(within("ip", "route", "del", "10.9.1.0/24"))
	run(exec.Command("ip", "-n", n.Name, "route", "replace", "blackhole", "10.9.2.0/24"))
	run(exec.Command("ip", "-n", n.Name, "-6", "route", "del", "2001:db8:9::/48"))
	run(within(script))
	run(within("unshare", "--pid", "--fork", "sh", "-c", "ip neigh del 192.0.2.9 dev up0; true"))
	known(deleted(model.ChangedNeighbor, "192.0.2.9/32"))
	run(within("unshare", "--pid", "--fork", "sh", "-c", "(ip route del 10.9.4.0/24; true); true"))
	known(deleted(model.ChangedRoute, "10.9.4.0/24"))
	run(within("ip", "addr", "del", "192.0.2.77/32", "dev", "up0"))
	run(within("nft", "add", "rule", "ip", "own", "guard", "drop"))
	run(within("unshare", "--pid", "--fork", "sh", "-c", "iptables-nft -A FORWARD -s 10.9.5.0/24 -j DROP; true"))
	run(within("ebtables-nft", "-A", "FORWARD", "-j", "DROP"))
	// Another process has the same number in a PID namespace of its own, in the same network namespace.
	other := exec.Command("nsenter", "--net="+n.Path(), "unshare", "--pid", "--fork", "sh", "-c", "(true; (cat; true); true); true")
	stdin, err := other.StdinPipe()
	check(t, err)
	stdout, err := other.StdoutPipe()
	check(t, err)
	check(t, other.Start())
	_, err = fmt.Fprintln(stdin)
	check(t, err)
	_, err = stdout.Read(make([]byte, 1)) // it runs
	check(t, err)
	run(within("unshare", "--pid", "--fork", "sh", "-c", "(true; (ip route del 10.9.5.0/24; true); true); true"))
	stdin.Close()
	check(t, other.Wait())
	// This process has many sockets, and its own network namespace is another: who has a socket still is known.
	for _, to := range []string{"10.9.6.0/24", "10.9.7.0/24"} {
		_, dst, err := net.ParseCIDR(to)
		check(t, err)
		check(t, handle(t, n.NS).RouteDel(&netlink.Route{Dst: dst}))
	}

	self := filepath.Base(os.Args[0])
	self = self[:min(len(self), 15)]
	parent, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	check(t, err)
	own := self + " by " + strings.TrimSpace(string(parent))
	wants := []struct {
		what string
		is   func(*model.Change) bool
		by   []string
	}{
		{"a command of the host", deleted(model.ChangedRoute, "10.9.1.0/24"), []string{"ip by " + self}},
		{"a command that enters the node", func(c *model.Change) bool { return c.Type == "blackhole" && !c.Deleted }, []string{"ip by " + self}},
		{"IPv6", deleted(model.ChangedRoute, "2001:db8:9::/48"), []string{"ip by " + self}},
		{"a script", deleted(model.ChangedRoute, "10.9.3.0/24"), []string{"ip by cut-route"}},
		{"a container", ruleIn("ip own podded"), []string{"nft by sh in kube-system/agent-x"}},
		{"a cgroup of no pod", ruleIn("ip own player"), []string{"nft by sh"}},
		{"a rule, by a script", deleted(model.ChangedRule, "10.8.0.0/16"), []string{"ip by cut-route"}},
		{"a neighbor, by a process with its own PID namespace", deleted(model.ChangedNeighbor, "192.0.2.9/32"), []string{"ip by sh"}},
		{"a shell in its own PID namespace", deleted(model.ChangedRoute, "10.9.4.0/24"), []string{"ip by sh"}},
		{"an address", deleted(model.ChangedAddress, "192.0.2.77/32"), []string{"ip by " + self}},
		{"nft", ruleIn("ip own guard"), []string{"nft by " + self}},
		{"iptables-nft with its own PID namespace", ruleIn("ip filter FORWARD"), []string{"iptables-nft by sh"}},
		{"ebtables-nft", ruleIn("bridge filter FORWARD"), []string{"ebtables-nft by " + self}},
		{"one of two", deleted(model.ChangedRoute, "10.9.5.0/24"), []string{"cat by sh", "ip by sh"}},
		{"a process elsewhere", deleted(model.ChangedRoute, "10.9.6.0/24"), []string{own}},
		{"another socket", deleted(model.ChangedRoute, "10.9.7.0/24"), []string{own}},
	}
	known(wants[len(wants)-1].is)
	for _, w := range wants {
		c := model.First(last, w.is)
		if c == nil {
			t.Errorf("%s: not notified", w.what)
			continue
		}
		by := model.Map(c.By, func(p model.Process) string {
			return p.Name + " by " + p.ParentName + model.Either(p.Pod == "", "", " in "+p.Namespace+"/"+p.Pod)
		})
		slices.Sort(by)
		if !slices.Equal(by, w.by) || slices.ContainsFunc(c.By, func(p model.Process) bool { return p.PID == 0 || p.Parent == 0 }) {
			t.Errorf("%s: %q, want %q; %v", w.what, by, w.by, c)
		}
		if time.Since(c.At) > time.Minute {
			t.Errorf("%s: at %v", w.what, c.At)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(model.Map(last, func(c model.Change) string { return c.String() }), "\n"))
	}
}

func deleted(kind model.ChangeKind, dst string) func(*model.Change) bool {
	p := netip.MustParsePrefix(dst)
	return func(c *model.Change) bool { return c.Kind == kind && c.Deleted && c.Dst == p }
}

func ruleIn(chain string) func(*model.Change) bool {
	return func(c *model.Change) bool { return c.Handle != 0 && c.Family+" "+c.Filter+" "+c.Chain == chain }
}

// TestAuthorOfFinding: a finding begins with who made what it is about.
func TestAuthorOfFinding(t *testing.T) {
	t.Parallel()
	l := upWithTraffic(t, `
topology:
  plugin: cilium
  nodes: [{name: left, pods: [one, two]}, {name: right, pods: [far]}]
traffic:
  - {from: [left/one, left/two, right/far], to: [left/one, left/two, right/far], proto: [udp, icmp], rate: 10}
`)
	s := stream(t, l, timeline.Short)
	nodes := l.Nodes()
	node := nodes[slices.IndexFunc(nodes, func(n lab.Node) bool { return n.Observed })].Netns
	var w watcher
	// Each fault is of another pod than the one before, whose drops the window still has.
	var pods, links []string
	w.until(t, s, "quiet", func(r model.Reading) bool {
		pods, links = nil, nil
		for p := range model.Each(r.Point.Snapshot.Pods) {
			own := func(x model.Route) bool { return x.Dst == model.Host(p.Addresses[0].Addr()) && x.Table == 254 }
			if x := model.Find(r.Point.Snapshot.Routes, own); x.Dst.IsValid() {
				pods, links = append(pods, x.Dst.String()), append(links, x.Link)
			}
		}
		return !r.Judged.IsZero() && len(pods) == 2
	})
	for _, tt := range []struct {
		code                 model.Code
		command, undo, wants string
	}{
		{"MissingPodRoute", "ip route del " + pods[0], "ip route add " + pods[0] + " dev " + links[0],
			"`ip` (pid %d, started by sh %d) deleted the route to " + pods[0]},
		{"BlackholeRoute", "ip route replace blackhole " + pods[1], "ip route replace " + pods[1] + " dev " + links[1],
			"`ip` (pid %d, started by sh %d) set the blackhole route to " + pods[1]},
		{"PolicyDrop", "iptables-nft -I FORWARD -s " + pods[0] + " -j DROP", "iptables-nft -D FORWARD -s " + pods[0] + " -j DROP",
			"`iptables-nft` (pid %d, started by sh %d) set a rule in ip filter FORWARD"},
	} {
		run := func(script string) {
			out, err := exec.Command("ip", "netns", "exec", node, "sh", "-c", script+"; true").CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
		}
		run(tt.command)
		w.until(t, s, string(tt.code), func(model.Reading) bool { return w.alone(tt.code) })
		for _, f := range w.open {
			said := model.Find(f.Evidence, func(e model.Evidence) bool { return e.Source == model.SourceChanges })
			var pid, parent int
			_, rest, _ := strings.Cut(said.Text, " ")
			if n, _ := fmt.Sscanf(rest, tt.wants, &pid, &parent); n != 2 || !strings.HasPrefix(f.Why, said.Text) {
				t.Errorf("%s: %q in %q, want %q", tt.code, said.Text, f.Why, tt.wants)
			}
			t.Log(f.Why)
		}
		run(tt.undo)
		w.until(t, s, string(tt.code)+" closing", func(model.Reading) bool { return len(w.open) == 0 })
	}
}
