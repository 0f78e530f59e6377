package path

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// look has the pod's packets counted: rows of source, destination, link, index,
// direction and number.
func look(s *model.Snapshot, rows ...model.PairCount) *model.Snapshot {
	s.Traffic.PairAddrs = []netip.Addr{podA}
	s.Traffic.Pairs = rows
	return s
}

func row(src, dst netip.Addr, link string, index int, d model.Direction, n uint64) model.PairCount {
	return model.PairCount{Src: src, Dst: dst, Link: link, IfIndex: index, Direction: d, Packets: n}
}

// figures are the counts of the hops: in/out/lost, - where not known.
func figures(hops []model.PathHop) string {
	text := func(c model.Count) string {
		if !c.Known {
			return "-"
		}
		return fmt.Sprint(c.N)
	}
	out := ""
	for i, h := range hops {
		if i > 0 {
			out += " "
		}
		out += text(h.In) + "/" + text(h.Out) + "/" + text(h.Lost)
		if h.Dead {
			out += "X"
		}
		if h.Finding != "" {
			out += string(h.Finding)
		}
	}
	return out
}

func TestCounts(t *testing.T) {
	flow := func(src, dst netip.Addr) model.Flow {
		return model.Flow{Proto: 6, Original: model.Tuple{Src: src, Dst: dst, DstPort: 80}, Reply: model.Tuple{Src: dst, Dst: nodeIP, SrcPort: 80}}
	}
	drop := func(reason model.Reason, location string, n uint64) []model.Drop {
		return []model.Drop{{Src: podA, Dst: far, Reason: reason, Location: location, Netns: 1, Packets: n}}
	}
	in, out := model.Ingress, model.Egress
	noListener := []model.Finding{{
		Code: "NoListener", EndsAt: []model.HopKind{model.HopPod, model.HopLocal}, Severity: model.Info, Pods: []netip.Addr{podA}, Peers: []netip.Prefix{netip.PrefixFrom(far, 32)},
		LastHopAlive: model.Place{Link: "eth0", Role: model.RolePod, Direction: in},
	}}
	freed := func(location string) *model.Snapshot {
		s := look(routedNode(), row(podA, far, "pa", 5, in, 4), row(podA, far, "enp1", 2, out, 4), row(far, podA, "enp1", 2, in, 4), row(far, podA, "pa", 5, out, 4))
		s.Traffic.Drops = []model.Drop{{Src: far, Dst: podA, Reason: "NO_SOCKET", Location: location, Netns: 5, Packets: 4}}
		return s
	}
	tests := []struct {
		name     string
		to       netip.Addr
		s        func() *model.Snapshot
		findings []model.Finding
		out      string
		back     string
	}{
		{"all arrives", far, func() *model.Snapshot {
			return look(routedNode(), row(podA, far, "pa", 5, in, 40), row(podA, far, "enp1", 2, out, 40),
				row(far, podA, "enp1", 2, in, 39), row(far, podA, "pa", 5, out, 39))
		}, nil, "-/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/-/-", "-/39/- 39/39/0 39/39/0 39/39/0 39/39/0 39/39/0 39/39/0 39/-/0"},
		{"others' packets do not count", far, func() *model.Snapshot {
			return look(routedNode(), row(podA, far, "pa", 5, in, 40), row(podA, web, "pa", 5, in, 7), row(podA, far, "enp1", 2, out, 40))
		}, nil, "-/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/-/-", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"nothing came, and another pod's packets were not counted", far, func() *model.Snapshot {
			s := look(routedNode(), row(podA, far, "pa", 5, in, 40), row(podA, far, "enp1", 2, out, 40))
			s.Traffic.Lost = model.Lost{Counters: 9, Addrs: []model.AddrLoss{{Addr: web, Hops: 3, Peers: 2, Pairs: 2, Drops: 2}}}
			return s
		}, nil, "-/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/-/-", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"nothing came, and packets of the pod were not counted", far, func() *model.Snapshot {
			s := look(routedNode(), row(podA, far, "pa", 5, in, 40), row(podA, far, "enp1", 2, out, 40))
			s.Traffic.Lost = model.Lost{Counters: 2, Addrs: []model.AddrLoss{{Addr: podA, Pairs: 2}}}
			return s
		}, nil, "-/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/-/-", "-/-/- -/-/0 -/-/0 -/-/0 -/-/0 -/-/0 -/-/0 -/-/0"},
		{"netfilter drops", far, func() *model.Snapshot {
			s := look(routedNode(), row(podA, far, "pa", 5, in, 40))
			s.Traffic.Drops, s.Edges.StartAgain.Drops = drop("NETFILTER_DROP", "nft_do_chain", 53), drop("NETFILTER_DROP", "nft_do_chain", 13)
			return s
		}, []model.Finding{{Code: "PolicyDrop", EndsAt: []model.HopKind{model.HopPolicy, model.HopPod}, Pods: []netip.Addr{podA}, LastHopAlive: model.Place{Link: "pa", Role: model.RolePodLink, Direction: in}}},
			"-/40/0 40/40/0 40/40/0 40/0/40XPolicyDrop 0/0/0 0/0/0 0/0/0 0/-/-", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"lost, and nobody knows where", far, func() *model.Snapshot {
			return look(routedNode(), row(podA, far, "pa", 5, in, 40))
		}, nil, "-/40/0 40/-/- -/-/- -/-/- -/-/- -/0/- 0/0/0 0/-/-", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"the node's address instead of the pod's", web, func() *model.Snapshot {
			s := look(routedNode(), row(podA, web, "pa", 5, in, 9), row(nodeIP, web, "enp1", 2, out, 9), row(web, nodeIP, "enp1", 2, in, 8), row(web, podA, "pa", 5, out, 8))
			s.Flows = []model.Flow{flow(podA, web)}
			return s
		}, nil, "-/9/0 9/9/0 9/9/0 9/9/0 9/9/0 9/9/0 9/9/0 9/-/-", "-/8/- 8/8/0 8/8/0 8/8/0 8/8/0 8/8/0 8/8/0 8/-/0"},
		{"and another pod does so too", web, func() *model.Snapshot {
			s := look(routedNode(), row(podA, web, "pa", 5, in, 9), row(nodeIP, web, "enp1", 2, out, 12), row(web, podA, "pa", 5, out, 8))
			s.Flows = []model.Flow{flow(podA, web), flow(podB, web)}
			return s
		}, nil, "-/9/0 9/9/0 9/9/0 9/9/0 9/9/0 9/-/0 -/-/0 -/-/-", "-/-/- -/-/0 -/-/0 -/-/0 -/-/0 -/8/0 8/8/0 8/-/0"},
		{"not watched", far, func() *model.Snapshot {
			s := routedNode()
			s.Sources[8].Status, s.Sources[9].Status = model.Missing, model.Missing
			return s
		}, nil, "-/-/- -/-/- -/-/- -/-/- -/-/- -/-/- -/-/- -/-/-", "-/-/- -/-/- -/-/- -/-/- -/-/- -/-/- -/-/- -/-/-"},
		{"nothing returns", far, func() *model.Snapshot {
			return look(routedNode(), row(podA, far, "pa", 5, in, 40), row(podA, far, "enp1", 2, out, 40))
		}, []model.Finding{{
			Code: "MissingUDR", EndsAt: []model.HopKind{model.HopBeyond}, Pods: []netip.Addr{podA}, Peers: []netip.Prefix{pfx("172.30.8.0/24")},
			LastHopAlive: model.Place{Link: "enp1", Role: model.RoleUplink, Direction: out},
		}}, "-/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/40/0 40/-/-XMissingUDR", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"nobody answers for the next hop", far, func() *model.Snapshot {
			s := look(routedNode(), row(podA, far, "pa", 5, in, 6))
			s.Neighbors[0] = model.Neighbor{Addr: router, IfIndex: 2, Link: "enp1", State: "FAILED"}
			s.Traffic.Drops = drop("NEIGH_FAILED", "neigh_invalidate", 6)
			return s
		}, []model.Finding{{
			Code: "UnansweredARP", EndsAt: []model.HopKind{model.HopPod, model.HopNeighbor}, Pods: []netip.Addr{podA}, Peers: []netip.Prefix{netip.PrefixFrom(router, 32)},
			LastHopAlive: model.Place{Link: "enp1", Role: model.RoleUplink, Direction: out},
		}}, "-/6/0 6/6/0 6/6/0 6/6/0 6/6/0 6/0/6XUnansweredARP", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"a finding about other ends", far, func() *model.Snapshot {
			return look(routedNode(), row(podA, far, "pa", 5, in, 4), row(podA, far, "enp1", 2, out, 4))
		}, []model.Finding{
			{Code: "MissingUDR", EndsAt: []model.HopKind{model.HopBeyond}, Pods: []netip.Addr{podA}, Peers: []netip.Prefix{pfx("172.30.9.0/24")}, LastHopAlive: model.Place{Link: "enp1", Direction: out}},
			{Code: "MissingUDR", EndsAt: []model.HopKind{model.HopBeyond}, Pods: []netip.Addr{podB}, Peers: []netip.Prefix{pfx("172.30.8.0/24")}, LastHopAlive: model.Place{Link: "enp1", Direction: out}},
		}, "-/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/-/-", "-/0/- 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/0/0 0/-/0"},
		{"answers that a raw socket took, and nobody else asked for", far, func() *model.Snapshot { return freed("ping_rcv") },
			noListener, "-/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/-/-", "-/4/- 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/-/0NoListener"},
		{"answers to a closed port", far, func() *model.Snapshot { return freed("__udp4_lib_rcv") },
			noListener, "-/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/-/-", "-/4/- 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/4/0 4/-/4XNoListener"},
		{"a few late answers among many", far, func() *model.Snapshot {
			s := freed("__udp4_lib_rcv")
			for r := range model.Each(s.Traffic.Pairs) {
				r.Packets = 48
			}
			s.Traffic.Drops[0].Packets = 2
			return s
		}, noListener, "-/48/0 48/48/0 48/48/0 48/48/0 48/48/0 48/48/0 48/48/0 48/-/-", "-/48/- 48/48/0 48/48/0 48/48/0 48/48/0 48/48/0 48/48/0 48/-/2NoListener"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Trace(tt.s(), tt.findings, Ends{Pod: podA, To: tt.to, Proto: 6, Port: 80})
			if got := figures(p.Forward); got != tt.out {
				t.Errorf("out  %s\nwant %s", got, tt.out)
			}
			if got := figures(p.Return); got != tt.back {
				t.Errorf("back %s\nwant %s", got, tt.back)
			}
		})
	}
}

// TestPlaceByCounts: a finding has its place where the counts end, and not at a later hop that
// the tables would end at; of several pods it names one's link.
func TestPlaceByCounts(t *testing.T) {
	in, out := model.Ingress, model.Egress
	for _, arrives := range []uint64{0, 50} {
		s := bridgedNode()
		s.Pods[0].MAC = s.Pods[1].MAC
		s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: podA, MAC: s.Pods[1].MAC, IfIndex: 8, State: "REACHABLE"})
		s.FDB = []model.FDBEntry{{MAC: s.Pods[1].MAC, IfIndex: 6, Bridge: 8, Static: true}}
		look(s, row(far, podA, "enp1", 2, in, 50), row(far, podA, "kbr", 8, out, 50), row(far, podA, "pb", 6, out, arrives))
		p := Trace(s, []model.Finding{{
			Code: "DuplicateMAC", EndsAt: []model.HopKind{model.HopBridge, model.HopPod}, Pods: []netip.Addr{podA, podB},
			LastHopAlive: model.Place{Link: "kbr", Role: model.RoleBridge, Direction: out},
		}}, Ends{Pod: podA, To: far})
		at := slices.IndexFunc(p.Return, func(h model.PathHop) bool { return h.Finding != "" })
		if want := map[uint64]model.HopKind{0: model.HopBridge, 50: model.HopPod}[arrives]; at < 0 || p.Return[at].Kind != want || !p.Return[at].Dead {
			t.Errorf("%d arrive: %s, want the finding at the %s", arrives, figures(p.Return), want)
		}
	}
	s := routedNode()
	p := Trace(s, []model.Finding{{
		Code: "DeadBackend", EndsAt: []model.HopKind{model.HopNeighbor}, Pods: []netip.Addr{podB, podA},
		LastHopAlive: model.Place{Link: "pb", Role: model.RolePodLink, Direction: in},
	}}, Ends{Pod: podA, To: far})
	if !slices.ContainsFunc(p.Forward, func(h model.PathHop) bool { return h.Finding != "" && h.Kind == model.HopNeighbor }) {
		t.Errorf("the other pod's link: %s", figures(p.Forward))
	}
}

// TestRedirectedPast: what a program hands to the pod's own side is not seen at
// the host's, and none or fewer there is no loss.
func TestRedirectedPast(t *testing.T) {
	in, out := model.Ingress, model.Egress
	const exact = "-/90/- 90/90/0 90/90/0 90/90/0 90/0/90XForwardingDisabled 0/0/0 0/0/0 0/-/0"
	const unknown = "-/90/- 90/-/0 -/-/0 -/-/0 -/-/-XForwardingDisabled -/-/0 -/-/0 -/-/0"
	for _, tt := range []struct {
		name     string
		program  model.Program
		programs model.Status
		rows     []model.PairCount
		want     string
	}{
		{"no program", model.Program{}, model.OK, nil, exact},
		{"tc on the uplink", model.Program{Kind: model.ProgramTC, Netns: 1, IfIndex: 2, Direction: in}, model.OK, nil, unknown},
		{"tcx on another pod's link", model.Program{Kind: model.ProgramTCX, Netns: 1, IfIndex: 6, Direction: in}, model.OK, nil, unknown},
		{"xdp on the uplink", model.Program{Kind: model.ProgramXDP, Netns: 1, IfIndex: 2, Direction: in}, model.OK, nil, unknown},
		{"classic BPF", model.Program{Kind: model.ProgramTC, Netns: 1, IfIndex: 2, Direction: in, Classic: true}, model.OK, nil, exact},
		{"what leaves the uplink", model.Program{Kind: model.ProgramTCX, Netns: 1, IfIndex: 2, Direction: out}, model.OK, nil, exact},
		{"within a pod", model.Program{Kind: model.ProgramTCX, Netns: 51, IfIndex: 2, Direction: in}, model.OK, nil, exact},
		{"of a cgroup", model.Program{Kind: model.ProgramCgroup, Direction: in}, model.OK, nil, exact},
		{"not all read", model.Program{}, model.Partial, nil, unknown},
		{"not read", model.Program{}, model.Missing, nil, unknown},
		{"the stack's share", model.Program{Kind: model.ProgramTC, Netns: 1, IfIndex: 2, Direction: in}, model.OK, []model.PairCount{row(far, podA, "pa", 5, out, 1)}, "-/90/- 90/-/- -/-/- -/-/- -/-/-XForwardingDisabled -/1/- 1/1/0 1/-/0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := look(routedNode(), append(tt.rows, row(far, podA, "enp1", 2, in, 90))...)
			s.Node.Plugin = "elsewhere"
			s.Sources[len(s.Sources)-1].Status = tt.programs
			if tt.program.Kind != "" {
				s.Programs = []model.Program{tt.program}
			}
			dead := model.Finding{Code: "ForwardingDisabled", EndsAt: []model.HopKind{model.HopRoute}, Pods: []netip.Addr{podA}, LastHopAlive: model.Place{Link: "enp1", Role: model.RoleUplink, Direction: in}}
			if got := figures(Trace(s, []model.Finding{dead}, Ends{Pod: podA, To: far}).Return); got != tt.want {
				t.Errorf("back %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestApart: a finding about what two pods send each other has no place where one of
// them sends to somebody else.
func TestApart(t *testing.T) {
	s := bridgedNode()
	for i := range 2 {
		s.Links[1+i].Port = &model.BridgePort{State: model.PortForwarding, Isolated: true}
	}
	apart := []model.Finding{{
		Code: "BridgePortBlocked", EndsAt: []model.HopKind{model.HopBridge, model.HopLink}, Pods: []netip.Addr{podA, podB},
		Peers: []netip.Prefix{netip.PrefixFrom(podA, 32), netip.PrefixFrom(podB, 32)}, LastHopAlive: model.Place{Link: "pa", Direction: model.Ingress},
	}}
	for to, want := range map[netip.Addr]string{podB: "pod pa bridgeX", far: "pod pa bridge nat policy route neighbor enp1 beyond"} {
		p := Trace(s, apart, Ends{Pod: podA, To: to})
		if got := kinds(p.Forward); got != want {
			t.Errorf("to %s: %s, want %s", to, got, want)
		}
		marked := slices.ContainsFunc(slices.Concat(p.Forward, p.Return), func(h model.PathHop) bool { return h.Finding != "" })
		if marked != (to == podB) {
			t.Errorf("to %s: the finding has a place: %v", to, marked)
		}
	}
}

// TestReplies wants the end of a path to say what came back of the pair that the uplink counted, not of
// all that the pod receives.
func TestReplies(t *testing.T) {
	for _, tt := range []struct {
		out, in model.PeerCount
		want    string
	}{
		{model.PeerCount{Packets: 9, Requests: 9}, model.PeerCount{}, "no reply to 9 packets; not visible from this node"},
		{model.PeerCount{Packets: 9, Replies: 9}, model.PeerCount{Packets: 4, Requests: 4}, "no reply to 9 packets; not visible from this node"},
		{model.PeerCount{Packets: 9, Requests: 9}, model.PeerCount{Packets: 8, Replies: 8}, "9 packets left for it, 8 came from there; not visible from this node"},
	} {
		s := routedNode()
		s.Traffic.Hops = []model.HopCount{
			{Addr: podA, IfIndex: 2, Link: "enp1", Direction: model.Egress, Side: model.AsSource, Packets: 70},
			{Addr: podA, IfIndex: 2, Link: "enp1", Direction: model.Ingress, Side: model.AsDestination, Packets: 60},
		}
		s.Traffic.Peers = []model.Peer{
			{Local: podA, Remote: far, IfIndex: 2, Link: "enp1", Out: tt.out, In: tt.in},
			{Local: podA, Remote: web, IfIndex: 2, Link: "enp1", Out: model.PeerCount{Packets: 61}, In: model.PeerCount{Packets: 60}},
		}
		p := Trace(s, nil, Ends{Pod: podA, To: far, Proto: 6, Port: 80})
		if got := p.Forward[len(p.Forward)-1].Decision; got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
