package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingMasquerade is the code of this finding.
const MissingMasquerade model.Code = "MissingMasquerade"

var missingMasquerade = kind{
	code:     MissingMasquerade,
	severity: model.Critical,
	find:     findMissingMasquerade,
	ends:     []model.HopKind{model.HopBeyond},
}

// synRetries is how often Linux repeats a SYN (net.ipv4.tcp_syn_retries, tcp(7)).
const synRetries = 6

// rawGroup is the traffic that left untranslated for the same reason.
type rawGroup struct {
	nat     path.SourceNAT
	silent  []*model.Peer
	answers bool
}

func findMissingMasquerade(v *view) []finding {
	tables := path.NewTables(v.Snapshot)
	groups := map[*model.PacketRule]*rawGroup{}
	var order []*rawGroup
	reflected := v.reflected()
	for p := range model.Each(v.peers) {
		if len(v.pods[p.Local]) == 0 || !outside(v, p.Remote) || p.Out.Packets == 0 {
			continue
		}
		for _, leaves := range v.leaving(p) {
			nat := tables.Source(leaves)
			if nat.Translated && reflected[p.Local] {
				// What came for the pod, and leaves again.
				continue
			}
			g := groups[nat.Rule]
			if g == nil {
				g = &rawGroup{nat: nat}
				groups[nat.Rule] = g
				order = append(order, g)
			}
			g.answers = g.answers || v.answered(p)
			if v.unanswered(p) && !v.swept[pair{p.Local, p.Remote}] && startedHere(p) && !v.sentAstray(p) &&
				!slices.Contains(g.silent, p) && !v.silenced(p.Local, host(p.Remote)) {
				g.silent = append(g.silent, p)
			}
		}
	}
	var out []finding
	for _, g := range order {
		if len(g.silent) > 0 && !g.answers && shouldMasquerade(v, g) {
			out = append(out, unmasqueraded(v, g))
		}
	}
	return out
}

// leaving are the packets of a pair as POSTROUTING sees them first, one for each protocol
// and port that its flows without a reply are to. Where there is no such flow, neither is
// known.
func (v *view) leaving(p *model.Peer) []path.Packet {
	seen := map[protoPort]bool{}
	var out []path.Packet
	for _, f := range v.flowsOf(p).silent {
		if k := (protoPort{f.Proto, f.Reply.SrcPort}); !seen[k] {
			seen[k] = true
			out = append(out, v.leavingPacket(f))
		}
	}
	if len(out) == 0 {
		out = []path.Packet{{Src: p.Local, Dst: p.Remote}}
	}
	for i := range out {
		out[i].Out = []string{v.natLink(p.IfIndex)}
	}
	return out
}

// outside reports whether an address is neither of this node, of its subnet,
// nor a pod's, and can be a target at all.
func outside(v *view, a netip.Addr) bool {
	return a.IsGlobalUnicast() && a != loss.WireServer && !v.nodeAddrs[a] && len(v.pods[a]) == 0 && !v.past[a] &&
		!inAny(v.onLink, a) && !inAny(v.ranges.local, a) && !inAny(v.ranges.cluster, a) && !v.remote(a).IsValid()
}

// startedHere reports whether the pod began the exchange. An answer to a
// stranger's question goes out with the address that was asked.
func startedHere(p *model.Peer) bool { return p.In.Packets <= p.In.ICMPErrors }

// shouldMasquerade reports whether the node is meant to translate such packets,
// as far as silence shows it. Networks that know the pods' range are kept from
// translation on purpose, by exclusions; what does not answer there may be down,
// and so may be one public address. Pods whose addresses are of the virtual
// network need no translation at all.
func shouldMasquerade(v *view, g *rawGroup) bool {
	targets, public := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, p := range g.silent {
		targets[p.Remote] = true
		if isPublic(p.Remote) {
			public[p.Remote] = true
		}
	}
	several, own := len(public) > 1, !v.routable(g.silent[0].Local)
	switch x := g.nat.Rule; {
	case !v.Has(model.SourceNAT) || g.nat.CutOff:
		return several && own
	case g.nat.Translated:
		// An agent that writes its rules anew leaves a gap. Of the flows that began in
		// it, a connection attempt is sent again a few times, and ends.
		return own && v.sumPeers(g.silent).packets > synRetries &&
			slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return v.lately(p.LastOut) })
	case x != nil && (x.Dst.IsZero() || !x.Dst.Not && x.Dst.Prefix.Bits() == 0):
		return several || own && len(public) > 0
	case x != nil:
		return several
	case strings.HasSuffix(v.Node.Plugin, "cilium"):
		// Its programs translate, and no rule shows it.
		return false
	}
	return own && (several || v.Node.Plugin != "calico" && (len(public) > 0 || len(targets) > 1))
}

// sharedAddresses are those of carriers' translators (RFC 6598). Clouds and
// overlays use them as private ones.
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// isPublic reports whether an address is outside every private range.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedAddresses.Contains(a)
}

// routable reports whether the network beyond the node knows a pod's address by
// itself: it is of the node's subnet, or of another of the virtual network.
func (v *view) routable(pod netip.Addr) bool {
	switch v.Node.Plugin {
	case "azure-bridge", "azure-tunnel", "azure-transparent", "azure-podsubnet":
		return true
	}
	return inAny(v.onLink, pod)
}

func unmasqueraded(v *view, g *rawGroup) finding {
	x := v.sumPeers(g.silent)
	link, remotes := v.linkName(g.silent[0].IfIndex), sorted(x.remotes)
	f := model.Finding{Confidence: model.Likely, Pods: sorted(x.pods), Peers: hosts(remotes), Packets: x.packets}
	f.LastHopAlive = v.place(link, model.Egress)
	f.Title = fmt.Sprintf("pods are not masqueraded towards %s", words.Addrs(remotes))
	f.Evidence = []model.Evidence{seen(model.SourceTC,
		"%s egress: %s with a pod's source address (%s) to %s; ingress: no reply", link, words.Count(f.Packets, "packet"), words.Addrs(f.Pods), words.Addrs(remotes))}
	f.Evidence = append(f.Evidence, untranslated(v, g)...)
	if why := v.cannotReturn(g); len(why) > 0 {
		f.Confidence = model.Proven
		f.Evidence = append(f.Evidence, why...)
	} else {
		f.Unseen = append(f.Unseen, "whether the targets can answer a pod's address: that shows only beyond the node")
		f.Alternatives = append(f.Alternatives, "the network beyond knows the pods' range or translates it, and the targets do not answer")
	}
	judgeRules(v, g, &f)
	if slices.ContainsFunc(remotes, func(a netip.Addr) bool { return !isPublic(a) }) {
		f.Alternatives = append(f.Alternatives, "the target is another node's pod and the route table lacks it (give --pod-cidr or --nodes)")
	}
	return finding{Finding: f}
}

// cannotReturn is what shows that nobody out there can answer the pods' own
// addresses: routers that refuse all of the packets, or files by which these go
// straight to the internet, where the cloud translates no address that is not of
// its network.
func (v *view) cannotReturn(g *rawGroup) []model.Evidence {
	if x := v.sumPeers(g.silent); len(x.remotes) > 1 && !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return !v.refused(p) }) {
		return []model.Evidence{seen(model.SourceTC, "%s ingress: %s about these packets", v.linkName(x.link), words.Count(x.errors, "ICMP error"))}
	}
	if !v.Has(model.SourceCloud) {
		return nil
	}
	straight := func(e *model.EffectiveRoutes, p *model.Peer) bool {
		hop, known := "", false
		best := -1
		for _, r := range e.Routes {
			for _, cidr := range r.Prefixes {
				known = known || r.Active && strings.EqualFold(r.Type, "VnetLocal") && cidr.Contains(p.Local)
				if r.Active && cidr.Contains(p.Remote) && cidr.Bits() > best {
					best, hop = cidr.Bits(), r.Type
				}
			}
		}
		return !known && strings.EqualFold(hop, "Internet")
	}
	for e := range model.Each(v.Cluster.Azure.Effective) {
		if !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return !straight(e, p) }) {
			return []model.Evidence{seen(model.SourceCloud, "%s: the route to there has next hop type Internet, and no row makes %s part of the virtual network",
				e.File, g.silent[0].Local)}
		}
	}
	return nil
}

// untranslated shows connection tracking's view: the reply is expected at the
// pod's own address.
func untranslated(v *view, g *rawGroup) []model.Evidence {
	for _, p := range g.silent {
		for _, f := range v.flowsOf(p).silent {
			if f.Original.Src == p.Local {
				return []model.Evidence{seen(model.SourceConntrack, "%s to %s UNREPLIED, the reply is expected at %s: no translation", p.Local, f.Original.Dst, f.Reply.Dst)}
			}
		}
	}
	return nil
}

// judgeRules says which rule is to blame, how sure that is, and what mends it.
func judgeRules(v *view, g *rawGroup, f *model.Finding) {
	nat := g.nat
	switch {
	case !v.Has(model.SourceNAT) || nat.CutOff:
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Unseen = append(f.Unseen, v.natUnseen())
		f.Why = "Packets leave with the pod's address and nothing returns."
		f.Fix = []string{masqueradeFix(v, g)}
	case nat.Translated && v.untracked(g) != nil:
		r := v.untracked(g)
		f.Evidence = append(f.Evidence, packetRuleEvidence("this rule excludes them from connection tracking", r),
			packetRuleEvidence("this one would translate them", nat.Rule))
		f.Why = "A rule excludes these packets from connection tracking, and what is not tracked is not translated: they leave with the pod's address, and nobody out there answers it."
		f.Fix = []string{words.UndoPacketRule(r)}
	case nat.Translated:
		f.Confidence = model.Possible
		f.Evidence = append(f.Evidence, packetRuleEvidence("this rule would translate them now", nat.Rule))
		f.Why = "Packets leave with the pod's address although a rule translates them: their flows are older than the rule, or another program sends them past it."
		for _, p := range g.silent {
			f.Fix = append(f.Fix, words.Forget(v.flowsOf(p).silent)...)
		}
		if len(f.Fix) == 0 {
			f.Fix = []string{fmt.Sprintf("conntrack -L --orig-src %s # delete those of the entries that are never replied to", f.Pods[0])}
		}
	case nat.Rule != nil:
		f.Evidence = append(f.Evidence,
			packetRuleEvidence("this rule lets them through untranslated", nat.Rule),
			packetRuleEvidence("in front of", nat.Missed))
		f.Why = "An exclusion in front of the MASQUERADE rule lets packets to these targets leave with the pod's address, and nobody out there answers it."
		f.Fix = undoExclusion(nat.Rule)
	default:
		observe(f, model.SourceNAT, "no rule of nat POSTROUTING translates such a packet")
		f.Why = "No MASQUERADE rule is left for packets to targets outside the cluster: they leave with the pod's address, and nobody out there answers it."
		f.Fix = []string{masqueradeFix(v, g)}
	}
	if !nat.Translated {
		// Clients that keep their socket go on with the entries that they have.
		for _, p := range g.silent {
			f.Fix = append(f.Fix, words.Forget(slices.DeleteFunc(slices.Clone(v.flowsOf(p).silent), func(f *model.Flow) bool {
				passed, _ := v.passed(f)
				return !f.Start.IsZero() || !passed
			}))...)
		}
	}
	for _, r := range nat.Unsure {
		f.Confidence = weaker(f.Confidence, model.Likely)
		why := strings.Join(r.Unknown, ", ")
		f.Unseen = append(f.Unseen, fmt.Sprintf("whether %s %s matched: %s", r.Chain, r.Text, cmp.Or(why, "the packets' protocol or ports are not known")))
	}
}

// untracked is a rule that excludes the group's packets from connection tracking; nil
// where none does.
func (v *view) untracked(g *rawGroup) *model.PacketRule {
	for r := range model.Each(v.PacketRules) {
		if untracks(r) && !slices.ContainsFunc(g.silent, func(p *model.Peer) bool { return !r.Src.Matches(p.Local) || !r.Dst.Matches(p.Remote) }) {
			return r
		}
	}
	return nil
}

// undoExclusion ends an exclusion, once it was found out whether that is meant.
func undoExclusion(r *model.PacketRule) []string {
	undo := words.UndoPacketRule(r)
	if words.Maker([]string{r.Chain}, r.Comment, r.Table) != "" {
		return []string{undo}
	}
	return []string{"ask who wrote the exclusion: no program known has such a rule", "if this exclusion is not meant:", undo}
}

// natUnseen says why the nat rules were not followed to their end.
func (v *view) natUnseen() string {
	if v.Has(model.SourceNAT) {
		return "the nat rules: there are more than lasthop follows"
	}
	return "the nat rules: that source could not be read whole"
}

// masqueradeFix is the rule that is missing: at the end of the chain that
// exists for it, or one of its own.
func masqueradeFix(v *view, g *rawGroup) string {
	pod := g.silent[0].Local
	tool := words.IPTables(pod)
	if chain := masqueradeChain(v, pod); chain != nil {
		return fmt.Sprintf("%s -t nat -A %s -j MASQUERADE", words.RuleTool(chain), words.Quote(chain.Chain))
	}
	src, cluster := host(pod), host(pod)
	for _, p := range v.ranges.local {
		if p.Contains(pod) {
			src = p
		}
	}
	for _, p := range v.ranges.cluster {
		if p.Contains(pod) {
			cluster = p
		}
	}
	return fmt.Sprintf("%s -t nat -A POSTROUTING -s %s ! -d %s -o %s -j MASQUERADE", tool, src, cluster, words.Quote(v.natLink(g.silent[0].IfIndex)))
}

// masqueradeChain finds the chain that POSTROUTING sends pods through and that
// holds nothing but exclusions: an ip-masq-agent's chain whose end is gone. It
// returns a rule of that chain.
func masqueradeChain(v *view, pod netip.Addr) *model.PacketRule {
	family := "ip"
	if pod.Is6() {
		family = "ip6"
	}
	jumped := map[string]bool{}
	only := map[string]*model.PacketRule{}
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
	for _, chain := range slices.Sorted(maps.Keys(only)) {
		if jumped[chain] && !other[chain] {
			return only[chain]
		}
	}
	return nil
}
