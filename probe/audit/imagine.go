package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

const (
	// Each pair sends so many packets in a window of this length: enough for any kind of finding.
	imaginedPackets = 40
	imaginedWindow  = 20 * time.Second
	// mostCauses is how many causes are imagined: each is judged by itself.
	mostCauses = 16
	// most is how many pairs of a cause are imagined: the finding on them is the same.
	most = 64
)

// generic are the kinds that name no cause, or one for which real silence has to speak.
var generic = []model.Code{"NoReply", "PodNotReplying", "UnexplainedDrop", "MissingUDR"}

// beyond are those that name what dies beyond the tables.
var beyond = map[string][]model.Code{
	untranslated: {"MissingOutbound", "MissingMasquerade"}, foreign: {"ForeignSNAT"}, vacant: {"DeadBackend"},
	silentHop: {"UnansweredARP", "WrongNodeRoute"}, byDefault: {"MissingNodeRoute"}, emptied: {"MissingTableRoute"}, endless: {"StaleFDB"},
	masqueraded: {"UnexpectedMasquerade"}, byBridge: {"UnansweredARP", "ReversePathFilter"}, onLink: {"UnansweredARP", "WrongNodeRoute", "MissingNodeRoute"}, pastRules: {"BridgeNetfilterOff"},
	narrow: {"PathMTU"}, inCloud: {"NSGDrop", "NICAddress", "MissingOutbound"},
}

// imagined has the judge name what no finding on the state does: it is given the node as if the packets of these pairs had
// been sent, and died. What it says of counts is left out, since nothing was counted.
func (a *audit) imagined(g *group) (model.Finding, bool) {
	s := a.imagine(g)
	found := diagnose.Judge(s).Findings
	codes := beyond[g.reason]
	if g.kind != "" {
		p := path.Trace(s, found, g.deaths[0].ends)
		// A pod that does not learn its gateway dies before, of the same.
		for _, dead := range []*model.PathHop{a.ends(g, p), p.Dead()} {
			if dead != nil && !slices.Contains(generic, dead.Finding) {
				codes = append(codes, dead.Finding)
			}
		}
	}
	f := model.First(found, func(f *model.Finding) bool {
		return slices.Contains(codes, f.Code) && about(f, g) && model.First(a.state, f.Same) == nil
	})
	if f == nil {
		return model.Finding{}, false
	}
	out := *f
	out.Packets, out.Unseen, out.Surer, out.Evidence = 0, nil, nil, nil
	if out.Code == "BridgePortBlocked" && out.Severity == model.Warning {
		out.Severity = model.Info // Ports are isolated from each other on purpose.
	}
	out.Why = words.Text("audit/why", words.Facts{"decision": g.decision})
	if out.Verify = "lasthop audit"; g.kind == "" || a.MayRedirect() {
		out.Confidence = model.Likely
	} else {
		out.Alternatives, out.Confidence = nil, model.Proven
	}
	return out, true
}

// imagine is the node as if a group's pairs had sent packets.
func (a *audit) imagine(g *group) *model.Snapshot {
	s := *a.Snapshot
	start := s.Window.Start
	s.Window.End = start.Add(imaginedWindow)
	s.Sources = append(slices.Clone(s.Sources), model.Source{Name: model.SourceTC, Status: model.OK},
		model.Source{Name: model.SourceDrops, Status: model.OK})
	var hits uint64
	for i, d := range g.deaths[:min(most, len(g.deaths))] {
		if g.kind == "" || d.pair.Kind == model.AuditService {
			s.Flows = append(s.Flows, flowsOf(&s, i, &d)...)
		}
		if g.kind == "" && d.fate.Exit != nil {
			s.Traffic.Peers = append(s.Traffic.Peers, silent(&s, d, d.ends.To))
			if g.reason == untranslated || g.reason == emptied {
				s.Traffic.Peers = append(s.Traffic.Peers, silent(&s, d, elsewhere(d.ends.To)))
			}
		}
		// So a pod refuses replies to nothing that it asked.
		s.Traffic.Hops = append(s.Traffic.Hops, model.HopCount{Addr: d.ends.Pod, Direction: model.Ingress, Side: model.AsSource,
			Packets: imaginedPackets, RST: imaginedPackets})
		if drop, is := a.drop(g, &d); is {
			lose(&s, drop, d.fate.Reply, 0)
			hits += drop.Packets
		}
		if g.reason == narrow {
			n, drop := d.fate.Narrow, model.Drop{Src: d.ends.Pod, Dst: d.fate.Dst, Proto: model.TCP, Netns: a.Node.Netns, Packets: imaginedPackets}
			if drop.IfIndex, drop.Link, drop.Reason, drop.Location = n.In.Index, n.In.Name, "PKT_TOO_BIG", "ip_forward"; n.By == nil {
				drop.IfIndex, drop.Link, drop.Reason, drop.Location = n.Out.Index, n.Out.Name, "NOT_SPECIFIED", "br_dev_queue_push_xmit"
			} else {
				told := model.Drop{Src: n.From, Dst: d.ends.Pod, Proto: model.Either[uint8](d.ends.Pod.Is4(), model.ICMP, model.ICMPv6), Netns: a.Node.Netns,
					Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Packets: imaginedPackets}
				lose(&s, told, false, 0)
				hits += told.Packets
			}
			lose(&s, drop, false, n.In.MTU)
		}
	}
	if n := g.deaths[0].fate.Silent; n != nil {
		s.Traffic.ARP = []model.ARPCount{{Addr: n.Addr, IfIndex: n.IfIndex, Direction: model.Egress, Packets: imaginedPackets}}
	}
	died := &g.deaths[0].fate
	count := func(rules *[]model.PacketRule, chains *[]model.Chain) {
		*rules = counted(*rules, hits, func(r *model.PacketRule) bool {
			return r == g.by || died.Reply && r.IsNotrack() && r.Concerns(died.Dst, died.Src)
		}, func(r *model.PacketRule) *model.Counter { return &r.Counter })
		*chains = counted(*chains, hits, func(c *model.Chain) bool { return c == g.by }, func(c *model.Chain) *model.Counter { return &c.Counter })
	}
	count(&s.PacketRules, &s.Chains)
	s.Pods = slices.Clone(s.Pods)
	for p := range model.Each(s.Pods) {
		if p.Netns == died.Netns && p.Inside != nil {
			in := *p.Inside
			count(&in.PacketRules, &in.Chains)
			p.Inside = &in
		}
	}
	s.FrameRules = counted(s.FrameRules, hits, func(r *model.FrameRule) bool { return r == g.by },
		func(r *model.FrameRule) *model.Counter { return &r.Counter })
	return &s
}

// lose adds a drop with the head of one of its packets, which is a reply to a request or goes on. The length is 0 for as long as its
// headers.
func lose(s *model.Snapshot, d model.Drop, reply bool, length int) {
	d.First, d.Last = s.Window.Start.Add(time.Second), s.Window.End.Add(-time.Second)
	s.Traffic.Drops = append(s.Traffic.Drops, d)
	head := slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, d.Proto, 64}, d.Src.AsSlice(), d.Dst.AsSlice())
	kind := uint16(0x86dd)
	if d.Src.Is4() {
		kind = 0x0800
		head = slices.Concat([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, d.Proto, 0, 0}, d.Src.AsSlice(), d.Dst.AsSlice())
	}
	head = append(head, 1, 187, 156, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, model.Either[byte](reply, 0x12, 0x10), 0, 0, 0, 0, 0, 0)
	s.Traffic.Samples = append(s.Traffic.Samples, model.Sample{Time: d.Last, Reason: d.Reason, Location: d.Location, IfIndex: d.IfIndex,
		Link: d.Link, Netns: d.Netns, Src: d.Src, Dst: d.Dst, Protocol: kind, Length: cmp.Or(length, len(head)), Head: head, Count: 1})
}

// flowsOf are connections of a pair that get no reply.
func flowsOf(s *model.Snapshot, i int, d *death) (out []model.Flow) {
	to, end := cmp.Or(d.ends.Port, 443), model.Either(d.fate.Reply, d.fate.Src, d.fate.Dst)
	for port := uint16(40000 + i*8); len(out) < 4; port++ {
		out = append(out, model.Flow{Proto: cmp.Or(d.ends.Proto, model.TCP), Start: s.Window.Start.Add(time.Second), State: "SYN_SENT",
			Original: model.Tuple{Src: d.ends.Pod, Dst: d.ends.To, SrcPort: port, DstPort: to},
			Reply:    model.Tuple{Src: end, Dst: d.fate.As, SrcPort: to, DstPort: port}})
	}
	return out
}

// elsewhere is another address outside.
func elsewhere(a netip.Addr) netip.Addr {
	return model.Either(a.Is4(), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:ffff::1"))
}

// silent is what an uplink would count of a pair without a reply.
func silent(s *model.Snapshot, d death, to netip.Addr) model.Peer {
	return model.Peer{
		Local: d.ends.Pod, Remote: to, IfIndex: d.fate.Exit.Index, Link: d.fate.Exit.Name,
		Out:      model.PeerCount{Packets: imaginedPackets, Requests: imaginedPackets},
		FirstOut: s.Window.Start.Add(time.Second), LastOut: s.Window.End.Add(-time.Second),
	}
}

// counted are rules or chains of which those that packets met count more.
func counted[T any](list []T, n uint64, met func(*T) bool, counter func(*T) *model.Counter) []T {
	var out []T
	for i := range list {
		if !met(&list[i]) {
			continue
		}
		if out == nil {
			out = slices.Clone(list)
		}
		c := counter(&out[i])
		c.Delta, c.Packets = c.Delta+n, c.Packets+n
	}
	return model.Either(out == nil, list, out)
}

// kernel is how it frees what ends for a reason, by the version of IP.
var kernel = map[string][2][2]string{
	"discarded":      {{"NOT_SPECIFIED", "ip_error"}, {"NOT_SPECIFIED", "ip6_pkt_discard"}},
	"no-route":       {{"IP_INNOROUTES", "ip_error"}, {"NOT_SPECIFIED", "ip6_pkt_discard"}},
	"not-forwarding": {{"IP_INADDRERRORS", "ip_error"}, {"IP_INADDRERRORS", "ip6_forward"}},
	"reverse-path":   {{"IP_RPFILTER", "ip_rcv_finish_core"}, {"IP_RPFILTER", "ip_rcv_finish_core"}},
	"bridge-rule":    {{"NETFILTER_DROP", "nf_hook_slow"}, {"NETFILTER_DROP", "nf_hook_slow"}},
	"filter-rule":    {{"NETFILTER_DROP", "nf_hook_slow"}, {"NETFILTER_DROP", "nf_hook_slow"}},
	"isolated":       {{"NOT_SPECIFIED", "br_forward"}, {"NOT_SPECIFIED", "br_forward"}},
	endless:          {{"NO_TX_TARGET", "vxlan_xmit"}, {"NO_TX_TARGET", "vxlan_xmit"}},
	silentHop:        {{"NEIGH_FAILED", "neigh_invalidate"}, {"NEIGH_FAILED", "neigh_invalidate"}},
	vacant:           {{"NEIGH_FAILED", "neigh_invalidate"}, {"NEIGH_FAILED", "neigh_invalidate"}},
	onLink:           {{"NEIGH_FAILED", "neigh_invalidate"}, {"NEIGH_FAILED", "neigh_invalidate"}},
	byBridge:         {{"NEIGH_FAILED", "neigh_invalidate"}, {"NEIGH_FAILED", "neigh_invalidate"}},
	"no-hairpin":     {{"NOT_SPECIFIED", "br_forward"}, {"NOT_SPECIFIED", "br_forward"}},
	"own-source":     {{"IP_LOCAL_SOURCE", "ip_rcv_finish_core"}, {"IP_LOCAL_SOURCE", "ip_rcv_finish_core"}},
}

// drop is what the kernel would report of a pair's packets; false where it would report nothing, or that is not known.
func (a *audit) drop(g *group, d *death) (model.Drop, bool) {
	f := &d.fate
	by, known := kernel[g.reason]
	text := by[model.Either(f.Dst.Is6(), 1, 0)]
	out := model.Drop{Src: f.Src, Dst: f.Dst, Proto: cmp.Or(d.ends.Proto, model.TCP), Reason: model.Reason(text[0]), Location: text[1],
		Netns: a.Node.Netns, Packets: imaginedPackets}
	if f.Netns != 0 {
		out.Netns = f.Netns
	}
	if g.reason == "no-hairpin" {
		out.Src = out.Dst
	}
	if n := f.Silent; n != nil && f.Exit == nil {
		out.Src, out.Dst, out.IfIndex, out.Link = d.ends.Pod, n.Addr, n.IfIndex, n.Link
	} else if g.kind == "" && f.Exit != nil {
		out.Src, out.Dst, out.IfIndex, out.Link = d.ends.Pod, d.ends.To, f.Exit.Index, f.Exit.Name
	} else if f.In != nil {
		out.IfIndex, out.Link = f.In.Index, f.In.Name
	}
	return out, known
}
