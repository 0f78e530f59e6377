package audit

import (
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
		switch g.reason {
		case byDefault:
			s.Traffic.Peers = append(s.Traffic.Peers, silent(&s, d, d.ends.To))
		case untranslated, emptied:
			s.Traffic.Peers = append(s.Traffic.Peers, silent(&s, d, d.ends.To), silent(&s, d, elsewhere(d.ends.To)))
		case foreign:
			for n := range uint16(4) {
				port := uint16(40000+i*8) + n
				s.Flows = append(s.Flows, model.Flow{Proto: model.TCP, Start: start.Add(time.Second), State: "SYN_SENT",
					Original: model.Tuple{Src: d.ends.Pod, Dst: d.ends.To, SrcPort: port, DstPort: 443},
					Reply:    model.Tuple{Src: d.ends.To, Dst: d.fate.As, SrcPort: 443, DstPort: port}})
			}
			s.Traffic.Peers = append(s.Traffic.Peers, silent(&s, d, d.ends.To))
		default:
			if drop, is := a.drop(g, &d); is {
				drop.First, drop.Last = start.Add(time.Second), s.Window.End.Add(-time.Second)
				s.Traffic.Drops, hits = append(s.Traffic.Drops, drop), hits+drop.Packets
			}
		}
	}
	if n := g.deaths[0].fate.Silent; g.reason == silentHop {
		s.Traffic.ARP = []model.ARPCount{{Addr: n.Addr, IfIndex: n.IfIndex, Direction: model.Egress, Packets: imaginedPackets}}
	}
	s.PacketRules = counted(s.PacketRules, g.by, hits, func(r *model.PacketRule) *model.Counter { return &r.Counter })
	s.Chains = counted(s.Chains, g.by, hits, func(c *model.Chain) *model.Counter { return &c.Counter })
	s.FrameRules = counted(s.FrameRules, g.by, hits, func(r *model.FrameRule) *model.Counter { return &r.Counter })
	return &s
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

// counted are rules or chains of which the one by which they died counts more.
func counted[T any](list []T, by any, n uint64, counter func(*T) *model.Counter) []T {
	of, _ := by.(*T)
	for i := range list {
		if &list[i] == of {
			list = slices.Clone(list)
			c := counter(&list[i])
			c.Delta, c.Packets = c.Delta+n, c.Packets+n
			break
		}
	}
	return list
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
}

// drop is what the kernel would report of a pair's packets; false where it would report nothing, or that is not known.
func (a *audit) drop(g *group, d *death) (model.Drop, bool) {
	f := &d.fate
	by, known := kernel[g.reason]
	text := by[model.Either(f.Dst.Is6(), 1, 0)]
	out := model.Drop{Src: f.Src, Dst: f.Dst, Proto: d.ends.Proto, Reason: model.Reason(text[0]), Location: text[1],
		Netns: a.Node.Netns, Packets: imaginedPackets}
	if out.Proto == 0 {
		out.Proto = model.TCP
	}
	if f.Netns != 0 {
		out.Netns = f.Netns
	}
	if g.kind == "" && f.Exit != nil {
		out.Src, out.Dst, out.IfIndex, out.Link = d.ends.Pod, d.ends.To, f.Exit.Index, f.Exit.Name
	} else if f.In != nil {
		out.IfIndex, out.Link = f.In.Index, f.In.Name
	}
	return out, known
}
