package fabric

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// NSGDrop reports rules of network security groups that deny what pods ask, where no reply comes.
var NSGDrop = fault.Kind{Code: "NSGDrop", Severity: model.Warning, Find: nsgDrop, Rests: fault.Sources{model.SourceTC},
	Ends: fault.Hops{model.HopBeyond}, Objects: fault.Objects{"group.ID rule.Name"}, Traits: model.Unheard, Else: fault.Else{"!effective"}}

// denied is what one rule denies.
type denied struct {
	*node.Ruling
	lost    node.Lost
	silent  []*model.Flow
	sources node.AddrSet
	ports   []string
}

func nsgDrop(v *fault.Input) {
	if !v.Told() || len(v.Cluster.Azure.Groups)+len(v.Cluster.Azure.Rules) == 0 {
		return
	}
	var byRule node.Groups[*model.SecurityRule, *denied]
	of := func(r *node.Ruling) *denied {
		d := byRule.Of(r.Rule)
		if *d == nil {
			*d = &denied{Ruling: r}
		}
		return *d
	}
	for p := range model.Each(v.Peers) {
		pods := v.Senders(p)
		if len(pods) == 0 || p.Out.Packets == 0 || !v.Elsewhere(p.Remote) || v.IsTunnel(p.IfIndex) || !node.Lasted(p) {
			continue
		}
		silent := !v.Answered(p)
		by := map[*denied]uint64{}
		for _, f := range v.FlowsOf(p).Silent {
			asks := f.Proto != model.UDP || v.DatagramAsks(f)
			late := f.Start.IsZero() && silent || model.Lasted(f.Start, v.Window.End)
			if r, _ := v.Ruled(node.LeavesAs(f)); r != nil && asks && late && pods[f.Original.Src] &&
				v.SilencedBy(f.Original.Src, model.Host(p.Remote), f) == "" {
				d := of(r)
				d.silent, by[d] = append(d.silent, f), by[d]+1
				d.sources.Add(p.Local)
				if f.Reply.SrcPort > 0 && f.Proto != model.ICMP && f.Proto != model.ICMPv6 {
					d.ports = model.With(d.ports, node.ProtoPort{Proto: f.Proto, Number: f.Reply.SrcPort}.String())
				}
			}
		}
		if r, _ := v.Ruled(node.SecurityPacket{Src: p.Local, Dst: p.Remote}); r != nil && silent &&
			len(v.FlowsOf(p).Silent) == 0 && !v.Silenced(p.Local, model.Host(p.Remote)) {
			d := of(r)
			d.sources.Add(p.Local)
			by[d] = v.Asked(p)
		}
		for d, n := range by {
			if q := *p; silent && len(by) == 1 {
				d.lost.AddPair(p, pods, max(n, v.Asked(p)))
			} else {
				q.Out.Packets = n
				d.lost.AddPair(&q, pods, n)
			}
		}
	}
	for _, d := range byRule.All() {
		if (*d).lost.Requests >= node.MinAsks && !contradicted(v.Index, (*d).Ruling) {
			v.Report((*d).finding(v.Index))
		}
	}
}

// contradicted reports whether what the rule should deny got a reply: a flow that began in the window or, where flows are not
// known, any. Then it is not known which rules apply. What was there before a rule goes on.
func contradicted(v *node.Index, by *node.Ruling) bool {
	for p := range model.Each(v.Peers) {
		if !v.FlowsOf(p).Known && v.Answered(p) && v.Elsewhere(p.Remote) {
			if r, _ := v.Ruled(node.SecurityPacket{Src: p.Local, Dst: p.Remote}); r != nil && r.Rule == by.Rule {
				return true
			}
		}
	}
	for f := range model.Each(v.Flows) {
		if f.Replied && !f.Start.IsZero() && v.Elsewhere(f.Reply.Src) {
			if r, _ := v.Ruled(node.LeavesAs(f)); r != nil && r.Rule == by.Rule {
				return true
			}
		}
	}
	return false
}

func (d *denied) finding(v *node.Index) fault.Fault {
	remotes := node.Sorted(d.lost.Peers)
	link := v.LinkName(d.lost.Link)
	var f fault.Fault
	f.Pods, f.Peers, f.Packets, f.LastHopAlive = node.Sorted(d.lost.Pods), model.Hosts(remotes), d.lost.Packets, v.Place(link, model.Egress)
	f.Facts = words.Facts{
		"group": d.Group, "rule": d.Rule, "nic": d.NIC, "outbound": d.Outbound, "effective": d.Effective, "link": link, "remotes": remotes,
		"asks": d.lost.Requests, "flows": len(d.silent), "ports": d.ports, "resource": model.ResourcePart(d.Group.ID, "resourceGroups"),
		"priority": node.FreePriority(d.Group, d.Rule), "from": permitted(v, node.Sorted(d.sources), d.Rule.From.Prefixes),
		"to": permitted(v, remotes, d.Rule.To.Prefixes), "protocol": model.Either(d.Rule.Protocol == 0, "*", protocols[d.Rule.Protocol]),
		"toPorts": d.Rule.To.Ports,
	}
	if len(d.silent) > 0 {
		rule := d.Rule
		f.Flows = func(f *model.Flow) bool {
			r, _ := v.Ruled(node.LeavesAs(f))
			return r != nil && r.Rule == rule
		}
	}
	return f
}

// protocols are Azure's names of those that a rule can match.
var protocols = map[uint8]string{1: "Icmp", 6: "Tcp", 17: "Udp", 50: "Esp", 51: "Ah"}

// permitted are the ranges that another rule should permit: the pod ranges of these addresses, or less where the rule denies less.
func permitted(v *node.Index, addrs []netip.Addr, ruled []netip.Prefix) (out []netip.Prefix) {
	for _, a := range addrs {
		p := v.Remote(a)
		for _, own := range v.OwnCIDRs() {
			if own.Contains(a) {
				p = own
			}
		}
		if !p.IsValid() {
			p = model.Host(a)
		}
		for _, r := range ruled {
			if r.Bits() > p.Bits() && r.Contains(a) {
				p = r
			}
		}
		out = model.With(out, p)
	}
	return out
}
