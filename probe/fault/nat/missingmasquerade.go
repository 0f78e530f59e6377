package nat

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// synRetries is how often Linux repeats a SYN (net.ipv4.tcp_syn_retries, tcp(7)).
const synRetries = 6

// rawGroup is the traffic that left untranslated for the same reason.
type rawGroup struct {
	nat    *path.SourceNAT // of the first packet
	silent []*model.Peer
	// answers are the links by which a public target replied, private those by which another one did.
	answers, private map[int]bool
}

// unlike are the silent peers without those like which others reply: a private network may know the pods' range, while
// what the internet replies to it replies to all.
func (g *rawGroup) unlike() []*model.Peer {
	return model.Filter(g.silent, func(p *model.Peer) bool {
		return !g.answers[p.IfIndex] && (model.Public(p.Remote) || !g.private[p.IfIndex])
	})
}

// MissingMasquerade reports packets that leave with a pod's address for networks that do not know it.
var MissingMasquerade = fault.Kind{Code: "MissingMasquerade", Severity: model.Critical, Find: missingMasquerade,
	Ends: fault.Hops{model.HopBeyond}}

func missingMasquerade(v *fault.Input) {
	if v.Node.PassedBy {
		return // Programs behind ours translate, and no rule does.
	}
	var byRule node.Groups[*model.PacketRule, rawGroup]
	reflected := v.Reflected()
	for p := range model.Each(v.Peers) {
		if len(v.Owners[p.Local]) == 0 || !node.Outside(v.Index, p.Remote) && v.Owners[p.Local][0].Engine == "" || p.Out.Packets == 0 ||
			v.Cilium.Service(p.Remote, 0, 0) != nil {
			continue // No network beyond the node has a service's address.
		}
		for _, leaves := range v.Leaving(p) {
			nat := v.Tables().Source(leaves)
			if nat.Translated && reflected[p.Local] {
				// What came for the pod, and leaves again.
				continue
			} else if leaves.New {
				nat = nat.Untranslated()
			}
			g := byRule.Of(nat.Rule)
			if g.nat == nil {
				g.nat, g.answers, g.private = &nat, map[int]bool{}, map[int]bool{}
			}
			if v.Answered(p) {
				model.Either(model.Public(p.Remote), g.answers, g.private)[p.IfIndex] = true
			}
			// An answer to a stranger's question goes out with the address that was asked.
			began := p.In.Packets <= p.In.ICMPErrors
			if (v.Unanswered(p) || leaks(v.Index, p, &nat)) && !v.Swept[node.Pair{Local: p.Local, Remote: p.Remote}] &&
				began && !v.LeftWithWrongMAC(p) &&
				!slices.Contains(g.silent, p) && !v.Silenced(p.Local, model.Host(p.Remote)) {
				g.silent = append(g.silent, p)
			}
		}
	}
	for _, g := range byRule.All() {
		if g.silent = g.unlike(); len(g.silent) > 0 && shouldMasquerade(v.Index, g) {
			v.Report(unmasqueraded(v.Index, g))
		}
	}
}

// leaks reports whether a pair's packets, which need not want a reply, go on with the pod's address although a rule
// translates such packets. Of a connection that is closed a few late segments do, too.
func leaks(v *node.Index, p *model.Peer, nat *path.SourceNAT) bool {
	st := v.FlowsOf(p)
	begun := !st.Known || len(st.Silent) > 0 && st.Silent[0].Original.Src == p.Local
	return nat.Translated && len(nat.Unsure) == 0 && begun && p.In.Packets == 0 && p.Out.Packets >= node.ManyRefused && node.Lasted(p) &&
		v.Has(model.SourceConntrack, model.SourceNAT) && !v.ProgramBehind() && v.Traffic.Lost.Of(p.Local).Peers == 0 && !v.FoldedReply(p)
}

// shouldMasquerade reports whether the node is meant to translate such packets, as far as silence shows it. Networks
// that know the pods' range are kept from translation on purpose, by exclusions; what does not answer there may be
// down, and so may be one public address. Pods whose addresses are of the virtual network need no translation at all.
func shouldMasquerade(v *node.Index, g *rawGroup) bool {
	sent := v.SumPeers(g.silent)
	public := slices.DeleteFunc(node.Sorted(sent.Peers), func(a netip.Addr) bool { return !model.Public(a) })
	several, own, x := len(public) > 1, !routable(v, g.silent[0].Local), g.nat.Rule
	undecided := x != nil && slices.Contains(g.nat.Unsure, x)
	switch {
	case !v.Has(model.SourceNAT) || g.nat.CutOff:
		return several && own
	case undecided && !several && len(public) == 0:
		return false
	case g.nat.Translated, undecided:
		// An agent that writes its rules anew leaves a gap. Of the flows that began in
		// it, a connection attempt is sent again a few times, and ends.
		return own && sent.Packets > synRetries &&
			slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return v.Lately(p.LastOut) })
	case x != nil && node.Overlay(v.Node.Plugin):
		// Beside the pods' own range, nothing that a rule could exclude knows the pods. Where Cilium's programs translate, no
		// packet meets the rule.
		return own && (v.Node.Plugin == "azure-overlay" || x.Counter.Delta > 0)
	case x != nil && (x.Dst.IsZero() || !x.Dst.Not && x.Dst.Prefix.Bits() == 0):
		return several || own && len(public) > 0
	case x != nil:
		return several
	case v.Owners[g.silent[0].Local][0].Engine != "":
		return own // What it sends is for no network that knows its address.
	case strings.HasSuffix(v.Node.Plugin, "cilium") && !ciliumOff(v, g.silent[0].Local):
		// Its programs translate, and no rule shows it.
		return false
	}
	return own && (several || v.Node.Plugin != "calico" && (len(public) > 0 || len(sent.Peers) > 1))
}

// ciliumOff reports whether Cilium's configuration leaves a pod's packets as they are: then rules must translate them.
func ciliumOff(v *node.Index, pod netip.Addr) bool {
	return slices.Contains(v.Cilium.Untranslated, model.Either(pod.Is4(), 4, 6))
}

// routable reports whether the network beyond the node knows a pod's address by
// itself: it is of the node's subnet, or of another of the virtual network.
func routable(v *node.Index, pod netip.Addr) bool {
	switch v.Node.Plugin {
	case "azure-bridge", "azure-tunnel", "azure-transparent", "azure-podsubnet":
		return true
	}
	return model.InAny(v.OnLink, pod)
}

func unmasqueraded(v *node.Index, g *rawGroup) fault.Fault {
	x, nat, first, untracked := v.SumPeers(g.silent), g.nat, g.silent[0], untracked(v, g)
	link, remotes := v.LinkName(first.IfIndex), node.Sorted(x.Peers)
	f := fault.Fault{Lost: x, Facts: words.Facts{
		"link": link, "remotes": remotes, "local": first.Local, "pod": v.Owners[first.Local][0],
		"flow": g.flow(v), "read": v.Has(model.SourceNAT),
		"untracks": untracked, "unsure": nat.Unsure, "rule": nat.Rule, "missed": nat.Missed,
		"private": slices.ContainsFunc(remotes, func(a netip.Addr) bool { return !model.Public(a) }),
	}}
	f.LastHopAlive = v.Place(link, model.Egress)
	// Routers may refuse all of the packets, or files tell where they go.
	refused := len(remotes) > 1 && !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return !v.Refused(p) })
	straight := straightOut(v, g)
	if refused {
		f.Facts["errors"], f.Facts["errorsAt"] = x.Errors, v.LinkName(x.Link)
	} else {
		f.Facts["straight"] = straight
	}
	why := "none"
	switch {
	case !v.Has(model.SourceNAT) || nat.CutOff:
		why = "unread"
	case nat.Translated && untracked != nil:
		why = "untracked"
	case nat.Translated && !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return v.FlowsOf(p).Known || p.Out.Requests > 0 }):
		why = "forgotten"
	case nat.Translated:
		why = "older"
	case nat.Rule != nil:
		why = "excluded"
	default:
		if r := model.Find(nat.Unsure, func(r *model.PacketRule) bool { return r.Target == "MASQUERADE" || r.Target == "SNAT" }); r != nil {
			why, f.Facts["rule"] = "unmatched", r
		}
	}
	f.Facts[why], f.Confidence = true, model.Likely
	// A network may know the range of containers that are not to be masqueraded.
	if v.Owners[first.Local][0].Engine != "" || !slices.ContainsFunc(g.silent, v.Unanswered) {
		f.Severity = model.Warning
	}
	if why == "older" {
		f.Confidence = model.Possible
	} else if (refused || straight != nil) && why != "unread" && len(nat.Unsure) == 0 {
		f.Confidence = model.Proven
	}
	if why == "unread" || why == "none" {
		// At the end of the chain that exists for it, or one of its own.
		f.Facts["chain"], f.Facts["out"] = masqueradeChain(v, first.Local), v.NatLink(first.IfIndex)
		f.Facts["engine"], f.Facts["absent"] = v.Owners[first.Local][0].Engine, forAbsent(v, first)
		if f.Facts["cluster"], f.Facts["off"] = rangeIn(v.Ranges.Cluster, first.Local), ciliumOff(v, first.Local); f.Facts["off"] != true {
			f.Facts["source"] = rangeIn(v.Ranges.Own, first.Local)
		}
	}
	var forget []words.Command
	for _, p := range g.silent {
		flows := v.FlowsOf(p).Silent
		if !nat.Translated {
			// Clients that keep their socket go on with the entries that they have.
			flows = slices.DeleteFunc(slices.Clone(flows), func(f *model.Flow) bool {
				passed, _ := v.Passed(f)
				return !f.Start.IsZero() || !passed
			})
		}
		if !nat.Translated || why == "older" {
			forget = append(forget, words.Forget(flows)...)
		}
	}
	f.Facts["forget"] = forget
	return f
}

// forAbsent is a rule that would translate a pair's packets, did they leave by a link that the node does not have: it was
// renamed, or is gone. It is nil where there is none.
func forAbsent(v *node.Index, p *model.Peer) *model.PacketRule {
	return model.First(v.PacketRules, func(r *model.PacketRule) bool {
		x := path.Packet{Src: p.Local, Dst: p.Remote, Out: []string{r.Out.Name}}
		return (r.Target == "MASQUERADE" || r.Target == "SNAT") && r.Out.Name != "" && !r.Out.Not &&
			!slices.ContainsFunc(v.Links, func(l model.Link) bool { return r.Out.Matches(l.Name) }) && x.Fits(r) >= path.Maybe
	})
}

// straightOut are the routes of a file by which all packets go straight to the internet,
// where the cloud translates no address that is not of its network; nil where there are none.
func straightOut(v *node.Index, g *rawGroup) *model.EffectiveRoutes {
	straight := func(e *model.EffectiveRoutes, p *model.Peer) bool {
		known := slices.ContainsFunc(e.Routes, func(r model.UDR) bool {
			return r.Active && strings.EqualFold(r.Type, "VnetLocal") && model.InAny(r.Prefixes, p.Local)
		})
		return !known && strings.EqualFold(node.HopType(e.Routes, p.Remote), "Internet")
	}
	return model.First(v.Cluster.Azure.Effective, func(e *model.EffectiveRoutes) bool {
		return v.Told() && !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return !straight(e, p) })
	})
}

// flow is one of the packets: its reply is expected at the pod's own address.
func (g *rawGroup) flow(v *node.Index) *model.Flow {
	for _, p := range g.silent {
		if i := slices.IndexFunc(v.FlowsOf(p).Silent, func(f *model.Flow) bool { return f.Original.Src == p.Local }); i >= 0 {
			return v.FlowsOf(p).Silent[i]
		}
	}
	return nil
}

// untracked is a rule that excludes the group's packets from connection tracking; nil where none does.
func untracked(v *node.Index, g *rawGroup) *model.PacketRule {
	return model.Find(v.Untracking(), func(r *model.PacketRule) bool {
		return r.IsNotrack() && !slices.ContainsFunc(g.silent,
			func(p *model.Peer) bool { return !r.Src.Matches(p.Local) || !r.Dst.Matches(p.Remote) })
	})
}

// rangeIn is the last of some ranges that an address is in, or the address alone.
func rangeIn(list []netip.Prefix, a netip.Addr) netip.Prefix {
	list = slices.Clone(list)
	slices.Reverse(list)
	return model.Find(append(list, model.Host(a)), func(p netip.Prefix) bool { return p.Contains(a) })
}

// masqueradeChain finds the chain that POSTROUTING sends pods through and that holds nothing but exclusions: an
// ip-masq-agent's chain whose end is gone. It returns a rule of that chain.
func masqueradeChain(v *node.Index, pod netip.Addr) *model.PacketRule {
	family, jumped, only := model.Either(pod.Is6(), "ip6", "ip"), map[string]bool{}, map[string]*model.PacketRule{}
	other := map[string]bool{}
	for r := range model.Each(v.PacketRules) {
		if r.Table != "nat" || r.Family != family {
			continue
		}
		if r.Chain == "POSTROUTING" {
			jumped[r.Target] = true
		}
		if r.Target == "RETURN" && !r.Dst.IsZero() && !r.Dst.Not && r.Src.IsZero() {
			only[r.Chain] = r
		} else {
			other[r.Chain] = true
		}
	}
	return only[model.Find(slices.Sorted(maps.Keys(only)), func(chain string) bool { return jumped[chain] && !other[chain] })]
}
