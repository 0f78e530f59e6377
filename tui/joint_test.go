package tui

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// farPod is the pod of the other node.
var farPod = addr("10.244.3.21")

// twoNodes are recordings of two nodes, judged together, and one that could not be read.
func twoNodes() model.Reading {
	near := kubenetNode(4).Snapshot
	near.Traffic.PairAddrs = []netip.Addr{podAddr(0)}
	far := &model.Snapshot{
		Node:    model.Node{Name: "aks", Plugin: "cilium", Engine: "tc", Attach: "clsact", Uplinks: []string{"eth0"}},
		Window:  model.Window{Start: noon.Add(-50 * time.Second), End: noon.Add(-2 * time.Second)},
		Sources: []model.Source{{Name: model.SourceTC, Status: model.OK}, {Name: model.SourceDrops, Status: model.OK}, {Name: model.SourceEbtables, Status: model.Missing, Detail: "needs NET_ADMIN"}},
		Links: []model.Link{
			{Index: 2, Name: "eth0", Up: true, Carrier: true, Role: model.RoleUplink, Addresses: []netip.Prefix{prefix("10.240.0.7/16")}},
			{Index: 77, Name: "lxc5", Kind: "veth", Up: true, Carrier: true, Role: model.RolePodLink},
		},
		Pods: []model.Pod{{Namespace: "payments", Name: "api-0", Addresses: []netip.Prefix{netip.PrefixFrom(farPod, 24)}, Link: "lxc5", LinkIndex: 77, Up: true}},
		Traffic: model.Traffic{
			Hops:  []model.HopCount{{Addr: farPod, IfIndex: 77, Link: "lxc5", Direction: model.Ingress, Side: model.AsSource, Packets: 90}},
			Drops: []model.Drop{{Src: farPod, Dst: addr("10.240.0.9"), Proto: 17, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", IfIndex: 77, Link: "lxc5", Packets: 5, Last: noon.Add(-4 * time.Second)}},
		},
	}
	f := kubenetFindings(4)[0].Finding
	f.Confidence, f.Nodes = model.Proven, []string{"aks-np1-vmss02", "aks-np1-vmss04"}
	f.Evidence[0].Node, f.Evidence[1].Node, f.Evidence[2].Node = f.Nodes[0], f.Nodes[0], f.Nodes[1]
	seen := func(name string, s *model.Snapshot) model.NodeReading {
		return model.NodeReading{Snapshot: s, NodeSeen: model.NodeSeen{
			Name: name, Recording: name + ".rec", Node: s.Node, Window: s.Window, Sources: s.Sources, Lost: s.Traffic.Lost, Pods: len(s.Pods),
		}}
	}
	return model.Reading{
		At: noon, Judged: noon, Replay: true, Findings: []model.Tracked{{Finding: f, ID: 1}},
		Nodes: []model.NodeReading{seen(f.Nodes[0], near), seen(f.Nodes[1], far), {NodeSeen: model.NodeSeen{Name: "c.rec", Recording: "c.rec", Reason: "its recording is truncated", Failed: true}}},
	}
}

// TestJointEvents: what one node drops of another's pods has their names.
func TestJointEvents(t *testing.T) {
	r := twoNodes()
	far := r.Nodes[1].Snapshot
	drop := far.Traffic.Drops[0]
	for _, dst := range []netip.Addr{podAddr(0), addr("10.240.0.5")} {
		far.Traffic.Samples = append(far.Traffic.Samples, model.Sample{Time: noon, Src: drop.Src, Dst: dst, Reason: drop.Reason})
	}
	s := opened(t, Options{Env: utf8Env, Trace: throughBoth}, 160, 50, r)
	press(t, s, "4")
	got := ansi.Strip(frame(s))
	for _, want := range []string{"payments/api-0 > shop/cart-7d9f,", "payments/api-0 > node aks-np1-vmss02,"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

// TestJointSeen: what came and went is told once, with no time made up for what was there
// before, and no list with it says that nothing was seen.
func TestJointSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		first time.Time
		want  string
	}{
		"came and went":    {noon.Add(-40 * time.Second), "2 times, from "},
		"was there before": {time.Time{}, "2 times, until "},
	} {
		t.Run(name, func(t *testing.T) {
			r := twoNodes()
			f := &r.Findings[0]
			f.Opened, f.Finding.Closed, f.Times = tt.first, noon, 2
			f.First, f.Last, f.Closed = tt.first, noon, true
			s := opened(t, Options{Env: utf8Env, Trace: throughBoth}, 200, 50, r)
			if got := ansi.Strip(frame(s)); strings.Contains(got, "NONE") {
				t.Errorf("the list says that nothing was seen:\n%s", got)
			}
			press(t, s, "enter")
			if got := ansi.Strip(frame(s)); strings.Count(got, tt.want) != 1 || strings.Count(got, "2 times") != 1 {
				t.Errorf("want %q once in\n%s", tt.want, got)
			}
		})
	}
}

// throughBoth is a path through those nodes, on which packets end between them.
func throughBoth(r model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path {
	one := kubenetPath(r, nil, pod, to)
	if to != farPod {
		return one
	}
	n := model.Counted
	p := model.Path{Pod: pod, To: to}
	add := func(list []model.PathHop, node string, hops ...model.PathHop) []model.PathHop {
		for _, h := range hops {
			h.Node, h.N = node, len(list)+1
			list = append(list, h)
		}
		return list
	}
	near, far := r.Nodes[0].Name, r.Nodes[1].Name
	gap := model.PathHop{Kind: model.HopBetween, In: n(412), Out: n(0), Lost: n(412), Dead: true, Decision: "of this pair only: left " + near + ", arrived at " + far}
	if len(findings) > 0 {
		gap.Finding = findings[0].Code
	}
	p.Forward = add(add(add(nil, near, one.Forward[:7]...), "", gap), far,
		model.PathHop{Kind: model.HopLink, Role: model.RoleUplink, Link: "eth0", In: n(0), Out: n(0), Lost: n(0), Decision: "comes in"},
		model.PathHop{Kind: model.HopLink, Role: model.RolePodLink, Link: "lxc5", In: n(0), Out: n(0), Lost: n(0), Decision: "goes out"})
	p.Return = add(add(add(nil, far, model.PathHop{Kind: model.HopPod, Link: "eth0", Out: n(90), Lost: n(0), Decision: "default via 10.244.3.1"}), "",
		model.PathHop{Kind: model.HopBetween, In: n(90), Out: n(88), Decision: "of this pair only: left " + far + ", arrived at " + near}), near, one.Return[1:]...)
	return p
}

func TestJointFrames(t *testing.T) {
	for _, shot := range []struct{ name, keys string }{
		{"findings", ""}, {"finding", "enter"}, {"pods", "2"}, {"path", "3"}, {"path-reverse", "3 r"}, {"hop", "3 end enter"}, {"events", "4"}, {"node", "5"},
	} {
		for _, size := range [][2]int{{80, 24}, {160, 50}, {40, 12}} {
			if size[0] != 80 && !slices.Contains([]string{"findings", "pods", "path"}, shot.name) {
				continue
			}
			name := fmt.Sprintf("joint-%s-%dx%d", shot.name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				s := opened(t, Options{Env: utf8Env, Trace: throughBoth}, size[0], size[1], twoNodes())
				press(t, s, shot.keys)
				got := frame(s)
				fits(t, got, size[0], size[1])
				golden(t, name, ansi.Strip(got))
			})
		}
	}
}

// TestJoint: what the screen says of several nodes, and which keys it has not.
func TestJoint(t *testing.T) {
	s := opened(t, Options{Env: utf8Env, Trace: throughBoth}, 80, 24, twoNodes())
	for keys, want := range map[string]string{
		"1":                     "c.rec is not compared: its recording is truncated",
		"!":                     "needs NET_ADMIN",
		"2":                     "payments/api-0",
		"3 home down":           "of this pair only",
		"3 end":                 "of all the pod's packets",
		"3 end enter":           "Node      aks-np1-vmss04",
		"2 / v m s s 0 4 enter": "payments/api-0",
	} {
		press(t, s, keys)
		if got := ansi.Strip(frame(s)); !strings.Contains(got, want) {
			t.Errorf("%s: want %q in\n%s", keys, want, got)
		}
		press(t, s, "esc esc esc 1 home")
	}
	press(t, s, "2 / v m s s 0 4 enter")
	if got := ansi.Strip(frame(s)); strings.Contains(got, "shop/cart") {
		t.Errorf("the pods of the other node pass the filter:\n%s", got)
	}
	press(t, s, "esc 1 ?")
	if got := ansi.Strip(frame(s)); strings.Contains(got, "rescan") || strings.Contains(got, "pause") || !strings.Contains(got, "RECORDED 12:04:07") {
		t.Errorf("recordings can neither be read again nor paused:\n%s", got)
	}
	none := twoNodes()
	none.Findings = nil
	send(s, readingMsg{none})
	press(t, s, "esc 1")
	if got := ansi.Strip(frame(s)); !strings.Contains(got, "no loss seen on 2 nodes or between them; 1 other node") {
		t.Errorf("without findings:\n%s", got)
	}
}
