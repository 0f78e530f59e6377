package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
)

// watchClosely brings a scenario up, and returns what was seen of its node while
// its traffic ran and every pod was looked at closely.
func watchClosely(t *testing.T, name string) *model.Snapshot {
	t.Helper()
	l := upLab(t, name)
	node, err := observed(l)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Named(node.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	o := (&observing{Observing: flags.Observing{HostRoot: t.TempDir(), Window: flags.Window(4 * time.Second)}}).session(ns, node.Name)
	o.CountPairs = func(s *model.Snapshot) ([]netip.Addr, error) {
		var all []netip.Addr
		for _, p := range s.Pods {
			for _, a := range p.Addresses {
				all = append(all, a.Addr())
			}
		}
		return all, nil
	}
	a := &app{stderr: io.Discard}
	snapshot, err := a.observe(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	inTurn(func() { checkAgreed(t, snapshot) })
	return snapshot
}

// questions are paths worth asking for: from each pod to whom it sent, to the
// other pods, to the node and to the outside.
func questions(s *model.Snapshot) []path.Ends {
	var out []path.Ends
	add := func(e path.Ends) {
		if e.Pod != e.To && e.Pod.Is4() == e.To.Is4() && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	for _, p := range s.Pods {
		for _, prefix := range p.Addresses {
			pod := prefix.Addr()
			for _, e := range joint.Busiest(s, []netip.Addr{pod}) {
				add(e)
			}
			for _, q := range s.Pods {
				for _, a := range q.Addresses {
					add(path.Ends{Pod: pod, To: a.Addr()})
				}
			}
			for _, l := range s.Links {
				for _, a := range l.Addresses {
					if l.Role == model.RoleUplink {
						add(path.Ends{Pod: pod, To: a.Addr()})
					}
				}
			}
			add(path.Ends{Pod: pod, To: joint.Outside4})
		}
	}
	return out
}

// told is a path as the command prints it.
func told(t *testing.T, s *model.Snapshot, p model.Path) string {
	t.Helper()
	var b strings.Builder
	if err := report.Write(&b, report.Path{Snapshot: s, Path: p}, report.Text, report.Style{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestExplainHealthy: on a healthy node of any plugin no path has a dead hop, no
// hop has lost a packet, and what was counted at both ends of a way is the same.
func TestExplainHealthy(t *testing.T) {
	t.Parallel()
	for _, name := range few(healthyScenarios(), 2) {
		// These two differ from another in what no packet meets.
		if name == "healthy-kubenet-files" || name == "healthy-kubenet-dockershim" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := watchClosely(t, name)
			findings := diagnose.Judge(s).Findings
			whole := 0
			for _, e := range questions(s) {
				p := path.Trace(s, findings, e)
				if p.Dead() != nil {
					t.Errorf("dead:\n%s", told(t, s, p))
				}
				for _, way := range [][]model.PathHop{p.Forward, p.Return} {
					if lossless(t, way) {
						whole++
					} else {
						t.Errorf("lost:\n%s", told(t, s, p))
					}
				}
			}
			if whole == 0 {
				t.Error("no path was asked for")
			}
			checkAudited(t, s)
			if a := audit.Run(s, nil).Audit; a.Pairs == 0 || len(a.Cut)+len(a.Denied) > 0 {
				t.Errorf("audit: of %d pairs %+v die, %+v are denied", a.Pairs, a.Cut, a.Denied)
			}
		})
	}
}

// lossless reports whether no hop has lost a packet and none has seen fewer than
// came in, but for the few that were between two hops as counting began or
// ended. Where a service has several endpoints, only some packets go on to one.
func lossless(t *testing.T, way []model.PathHop) bool {
	t.Helper()
	const between = 2
	least, most := ^uint64(0), uint64(0)
	for _, h := range way {
		if h.Lost.Known && h.Lost.N > 0 {
			return false
		}
		if strings.Contains(h.Decision, ", one of ") {
			least, most = ^uint64(0), 0
			continue
		}
		for _, c := range []model.Count{h.In, h.Out} {
			if c.Known {
				least, most = min(least, c.N), max(most, c.N)
			}
		}
	}
	return most == 0 || most-least <= between
}

// TestExplainBroken: the hop where packets die carries the finding, whatever
// kind of fault it is.
func TestExplainBroken(t *testing.T) {
	t.Parallel()
	for _, tt := range few([]struct {
		scenario string
		code     model.Code
		kinds    []model.HopKind
	}{
		{"missing-udr-one", "MissingUDR", []model.HopKind{model.HopBeyond}},
		{"stale-mac-rewrite", "StaleMACRewrite", []model.HopKind{model.HopBridge}},
		{"missing-table-route", "MissingTableRoute", []model.HopKind{model.HopBeyond}},
		{"stale-arpreply", "StaleARPReply", []model.HopKind{model.HopBridge}},
		{"bridge-rule-drop", "BridgeRuleDrop", []model.HopKind{model.HopBridge}},
		// A pod that hears nobody waits for the MAC of its gateway; off its bridge, the
		// node takes what it sends for forged.
		{"bridge-port-blocked", "BridgePortBlocked", []model.HopKind{model.HopBridge, model.HopLink, model.HopPod}},
		{"nic-off-bridge", "BridgePortBlocked", []model.HopKind{model.HopBridge, model.HopPod}},
		{"bridge-ports-isolated", "BridgePortBlocked", []model.HopKind{model.HopBridge, model.HopPod}},
		{"pod-link-off-bridge", "PodLinkOffBridge", []model.HopKind{model.HopBridge, model.HopLink, model.HopPod, model.HopNeighbor, model.HopRoute}},
		{"policy-drop", "PolicyDrop", []model.HopKind{model.HopPolicy}},
		{"missing-pod-route", "MissingPodRoute", []model.HopKind{model.HopRoute}},
		{"dead-backend", "DeadBackend", []model.HopKind{model.HopNeighbor}},
		{"unanswered-gateway", "UnansweredARP", []model.HopKind{model.HopPod}},
		{"no-listener", "NoListener", []model.HopKind{model.HopPod}},
		{"pod-link-down-routed", "PodLinkDown", []model.HopKind{model.HopLink, model.HopRoute}},
	}, 3) {
		t.Run(tt.scenario, func(t *testing.T) {
			t.Parallel()
			s := watchClosely(t, tt.scenario)
			findings := diagnose.Judge(s).Findings
			dead := 0
			for _, e := range questions(s) {
				p := path.Trace(s, findings, e)
				for _, h := range slices.Concat(p.Forward, p.Return) {
					if h.Finding != tt.code {
						continue
					}
					dead++
					if !h.Dead || !slices.Contains(tt.kinds, h.Kind) {
						t.Errorf("the finding is at hop %d, %s:\n%s", h.N, h.Name(), told(t, s, p))
					}
				}
			}
			if dead == 0 {
				t.Errorf("no path has the finding; there are %+v", findings)
			}
			// Of some the tables say nothing: another machine decides, or the pod.
			silent := slices.Contains([]model.Code{"MissingUDR", "NoListener"}, tt.code)
			found := audit.Run(s, nil).Findings
			if slices.ContainsFunc(found, func(f model.Finding) bool { return f.Code == tt.code }) == silent {
				t.Errorf("audit: %+v", found)
			}
		})
	}
}

// TestPastPeer: what was counted of a pod that is gone by the window's end counts.
func TestPastPeer(t *testing.T) {
	s := someNode()
	gone, peer := netip.MustParseAddr("10.1.0.6"), netip.MustParseAddr("10.9.0.1")
	s.PastPods[0].Link = "veth6"
	s.Traffic.Pairs = []model.PairCount{{Src: gone, Dst: peer, Link: "veth6", Direction: model.Ingress, Packets: 7}}
	if e, how := joint.ChoosePeer(s, []netip.Addr{gone}, nil); e.To != peer {
		t.Errorf("to %s: %s", e.To, how)
	}
}

// TestChoosePeer: the output says how the destination was chosen, and does not
// call what is only remembered traffic of the window.
func TestChoosePeer(t *testing.T) {
	pod, peer, other := netip.MustParseAddr("10.9.1.4"), netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.8")
	flow := model.Flow{Proto: 6, Original: model.Tuple{Src: pod, Dst: other, SrcPort: 4000, DstPort: 443}}
	s := &model.Snapshot{Pods: []model.Pod{{Addresses: []netip.Prefix{netip.PrefixFrom(pod, 32)}, Link: "p1"}}}
	for _, want := range []struct {
		with   func()
		to     netip.Addr
		choice string
	}{
		{func() {}, joint.Outside4, "no packet of the pod was seen"},
		{func() { s.Flows = append(s.Flows, flow) }, other, "no packet of the pod in the window"},
		{func() {
			s.Traffic.Pairs = []model.PairCount{{Src: pod, Dst: peer, Link: "p1", Direction: model.Ingress, Packets: 3}}
		}, peer, "busiest peer in the window"},
	} {
		want.with()
		e, choice := joint.ChoosePeer(s, []netip.Addr{pod}, nil)
		if e.To != want.to || !strings.Contains(choice, want.choice) {
			t.Errorf("got %s, %q; want %s, %q", e.To, choice, want.to, want.choice)
		}
	}
}

// TestChoosePeerOfFinding: a finding that names no peer is about those on whose path it
// has its place, however little is sent to them.
func TestChoosePeerOfFinding(t *testing.T) {
	pod, near, far := netip.MustParseAddr("10.9.1.4"), netip.MustParseAddr("10.9.1.5"), netip.MustParseAddr("203.0.113.7")
	host := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, 32)} }
	s := &model.Snapshot{
		Pods: []model.Pod{{Addresses: host(pod), Link: "p1", LinkIndex: 2, Up: true}, {Addresses: host(near), Link: "p2", LinkIndex: 3, Up: true}},
		Links: []model.Link{
			{Index: 2, Name: "p1", Role: model.RolePodLink, Up: true, Carrier: true}, {Index: 3, Name: "p2", Role: model.RolePodLink, Up: true, Carrier: true},
			{Index: 4, Name: "up0", Role: model.RoleUplink, Up: true, Carrier: true},
		},
		Routes: []model.Route{
			{Table: 254, Dst: host(near)[0], IfIndex: 3, Link: "p2", Type: "unicast"},
			{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), IfIndex: 4, Link: "up0", Type: "unicast"},
		},
	}
	for to, n := range map[netip.Addr]uint64{near: 500, far: 3} {
		s.Traffic.Pairs = append(s.Traffic.Pairs, model.PairCount{Src: pod, Dst: to, Link: "p1", Direction: model.Ingress, Packets: n})
	}
	f := model.Finding{
		Code: "MissingUDR", EndsAt: []model.HopKind{model.HopBeyond}, Pods: []netip.Addr{pod},
		LastHopAlive: model.Place{Link: "up0", Role: model.RoleUplink, Direction: model.Egress},
	}
	if e, how := joint.ChoosePeer(s, []netip.Addr{pod}, []model.Finding{f}); e.To != far || !strings.Contains(how, string(f.Code)) {
		t.Errorf("to %s: %s", e.To, how)
	}
}

// TestEndOfOneNode: of two recordings of the pod's node the later one counts; another node
// that has the pod is an error.
func TestEndOfOneNode(t *testing.T) {
	at := func(name string, second int64) *model.Snapshot {
		s := someNode()
		s.Node.Name, s.Window.End = name, time.Unix(second, 0)
		return s
	}
	for _, order := range [][]int64{{100, 160}, {160, 100}} {
		e := &end{pod: "shop/cart"}
		for _, second := range order {
			s := at("aks-1", second)
			e.look(fmt.Sprint(second), "", s, s)
		}
		if err := e.found(); err != nil || e.Name != "160" {
			t.Errorf("in the order %v: recording %s, %v", order, e.Name, err)
		}
		other := at("aks-2", 120)
		e.look("120", "", other, other)
		if err := e.found(); err == nil || !strings.Contains(err.Error(), "aks-1 and aks-2") {
			t.Errorf("on two nodes: %v", err)
		}
	}
}
