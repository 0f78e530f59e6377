package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// translateDestination is the hop of connection tracking: what a service's address
// becomes and, in replies, what the pod's address became.
func (j *journey) translateDestination(hook string) *step {
	s := j.add(model.PathHop{Kind: model.HopConntrack})
	if j.reply {
		if j.dst == j.ends.Pod {
			return s.say("no-translation", nil)
		}
		s.say("becomes", words.Facts{"from": j.dst, "to": j.ends.Pod, "again": true})
		j.dst = j.ends.Pod
		return s
	}
	in := model.Either(hook == "PREROUTING", j.inLink(), "")
	t := j.Tables()
	p := j.packet(in, "")
	j.untracked = slices.ContainsFunc(t.untracking, func(r *model.PacketRule) bool {
		return (r.Family == "inet" || (r.Family == "ip6") == isIPv6(j.dst)) && p.Fits(r) == Yes
	})
	if t.writes&t.translates != 0 {
		marked, _ := t.MarkedAt(p, hook)
		j.mark = marked.Mark
	}
	switch to, port, several := j.backendsByFlow(); {
	case !to.IsValid():
		j.translateByRules(s, t.destination(p, hook))
	case to == j.dst:
		j.untranslated(s)
	case j.outdated(hook, in):
		j.untranslated(s)
		s.say("outdated", words.Facts{"to": words.AddrPort(to, port)}).cut = true
		s.showFlows(j.flows)
	default:
		from := words.AddrPort(j.dst, j.dstPort)
		s.say("becomes", words.Facts{"from": from, "to": words.AddrPort(to, port), "several": several > 1, "n": several})
		s.cut = several > 1
		s.showFlows(j.flows)
		j.dst, j.dstPort = to, port
	}
	return s
}

// outdated reports whether flows translate the destination that no rule translates any more: all are from
// before the window, as those of a service that has lost its endpoints. IPVS translates without rules.
func (j *journey) outdated(hook, in string) bool {
	if !j.Has(model.SourceNAT) || j.Own[j.dst] != nil ||
		slices.ContainsFunc(j.flows, func(f *model.Flow) bool { return !f.Start.IsZero() }) {
		return false
	}
	t := j.Tables().destination(j.packet(in, ""), hook)
	return t.none()
}

// inLink is the link by which netfilter sees the packet come in, empty for none.
func (j *journey) inLink() string {
	for _, s := range slices.Backward(j.steps) {
		if s.direction == model.Ingress && (s.Kind == model.HopLink || s.Kind == model.HopBridge) {
			return s.Link
		}
	}
	return ""
}

// translateByRules takes what the nat tables say where there is no flow.
func (j *journey) translateByRules(s *step, t targets) {
	rules := t.rules
	if t.cutOff {
		rules = nil
	}
	for _, r := range rules {
		s.showRule(r)
	}
	switch {
	case len(rules) == 0 && !j.Has(model.SourceNAT):
		s.say("dnat-unknown", words.Facts{"why": "unread"})
	case t.cutOff:
		s.say("dnat-unknown", words.Facts{"why": "cut"}).cut = true
	case len(rules) == 0 && t.mapped:
		s.say("dnat-unknown", words.Facts{"why": "maps"}).cut = true
	case len(rules) == 0:
		j.untranslated(s)
	case (t.sure || t.service && sameTarget(rules)) && rules[0].To.Addr().IsValid():
		to := rules[0].To
		port := cmp.Or(to.Port(), j.dstPort)
		from := words.AddrPort(j.dst, j.dstPort)
		s.say("becomes", words.Facts{"from": from, "to": words.AddrPort(to.Addr(), port), "unsure": !t.sure}).cut = !t.sure
		j.dst, j.dstPort = to.Addr(), port
	case !t.service && (j.dstPort == 0 || j.ends.Proto == 0):
		s.say("by-port", words.Facts{"rules": len(rules)})
	default:
		// Only the packet itself decides which of them translates it.
		s.say("by-one-of", words.Facts{"from": words.AddrPort(j.dst, j.dstPort), "rules": len(rules)})
		s.ended, j.over = true, true
	}
}

// noDNAT is said where the destination stays as it is.
const noDNAT = "no-dnat"

// untranslated says that the destination stays as it is, and whether it looks like the address of a service.
func (j *journey) untranslated(s *step) {
	found, facts := j.Tables().Untranslated(j.packet("", "")), words.Facts{"dst": j.dst}
	switch {
	case len(found.Beside) > 0:
		facts["dst"], facts["rule"] = words.AddrPort(j.dst, j.dstPort), found.Beside[0]
		facts["proto"] = model.ProtoName(j.ends.Proto)
	case len(found.Others) > 0:
		facts["others"] = found.Others
	case len(found.Rules) == 0:
		s.say(noDNAT, nil)
		return
	}
	s.say("untranslated", facts)
}

// sameTarget reports whether all rules lead to one address, whichever of them matches.
func sameTarget(rules []*model.PacketRule) bool {
	return !slices.ContainsFunc(rules, func(r *model.PacketRule) bool { return r.To.Addr() != rules[0].To.Addr() })
}

// askedAddress is the address that the destination asked for in all of the flows that
// it began, not valid where the pod began some, or they differ.
func (j *journey) askedAddress() netip.Addr {
	if len(j.served) == 0 || len(j.flows) > 0 || slices.ContainsFunc(j.served, func(f *model.Flow) bool {
		return f.Original.Dst != j.served[0].Original.Dst || f.Original.Src != j.served[0].Reply.Dst
	}) {
		return netip.Addr{}
	}
	return j.served[0].Original.Dst
}

// backendsByFlow is the address that the most flows lead to, with its port, and
// how many there are. It is not valid where there is no flow.
func (j *journey) backendsByFlow() (to netip.Addr, port uint16, several int) {
	count := map[netip.Addr]int{}
	for _, f := range j.flows {
		count[f.Reply.Src]++
	}
	for a, n := range count {
		if n > count[to] || n == count[to] && a.Less(to) {
			to = a
		}
	}
	port = j.dstPort
	for _, f := range j.flows {
		if f.Reply.Src == to && (j.dstPort != 0 || to != j.dst) && f.Reply.SrcPort != 0 {
			port = f.Reply.SrcPort
			break
		}
	}
	return to, port, len(count)
}

// translateSource ends the hop of the translation with what becomes of the source as the packet leaves by a link.
func (j *journey) translateSource(s *step, out string) {
	if j.reply {
		if j.src != j.ends.To {
			s.say("becomes", words.Facts{"from": j.src, "to": j.ends.To, "again": true})
			j.src = j.ends.To
		}
		return
	}
	before, whole, known := j.src, true, j.sourceByFlow()
	asked := j.askedAddress()
	switch {
	case known.IsValid():
		j.src = known
	case asked.IsValid():
		j.src = asked
	default:
		whole = j.sourceByRules(s, out)
	}
	if j.src != before && s.isSaid(noDNAT) {
		s.says = nil
	}
	switch {
	case asked.IsValid() && j.src == asked && asked != before:
		s.say("source", words.Facts{"from": before, "to": asked, "asker": j.dst})
		s.showFlows(j.served)
	case j.src != before:
		s.say("source", words.Facts{"from": before, "to": j.src})
	case !whole:
		s.say("snat-unknown", words.Facts{"why": "cut"}).cut = true
	case !j.Has(model.SourceNAT) && !known.IsValid():
		s.say("snat-unknown", words.Facts{"why": "unread"})
	case s.isSaid(noDNAT):
		s.instead("no-translation", nil)
	default:
		s.say("no-snat", nil)
	}
}

// mayMask reports whether the source may have been translated where it was taken not to be.
func (j *journey) mayMask() bool {
	return slices.ContainsFunc(j.steps, func(s *step) bool {
		return slices.ContainsFunc(s.says, func(x said) bool { return x.name == "snat-may" || x.name == "snat-unknown" })
	})
}

func (j *journey) sourceByFlow() netip.Addr {
	var out netip.Addr
	for _, f := range j.flows {
		if f.Reply.Src == j.dst && (!out.IsValid() || f.Reply.Dst.Less(out)) {
			out = f.Reply.Dst
		}
	}
	return out
}

// sourceByRules asks the nat tables, and reports whether they were followed to their end.
func (j *journey) sourceByRules(s *step, out string) (whole bool) {
	p := j.packet("", out)
	p.Mark = j.mark
	d := j.Tables().Source(p)
	if d.Rule != nil {
		s.showRule(d.Rule)
	}
	for _, r := range d.Unsure {
		s.showRule(r)
	}
	if len(d.Unsure) > 0 {
		s.say("snat-may", nil).cut = true
	}
	if d.CutOff || !d.Translated {
		return !d.CutOff
	}
	if a := d.Rule.To.Addr(); a.IsValid() {
		j.src = a
	} else if a := j.addressOf(out); a.IsValid() {
		j.src = a
	}
	return true
}

// addressOf is the address with which the node sends by a link.
func (j *journey) addressOf(link string) netip.Addr {
	d := j.Routing().Lookup(Query{Dst: j.dst})
	if d.Route != nil && d.Route.Src.IsValid() {
		return d.Route.Src
	}
	l := j.LinkByName[link]
	if l == nil {
		return netip.Addr{}
	}
	of := func(l *model.Link) netip.Addr {
		return model.Find(l.Addresses, func(a netip.Prefix) bool { return isIPv6(a.Addr()) == isIPv6(j.dst) && a.Addr().IsGlobalUnicast() }).Addr()
	}
	for other := range model.Each(j.Links) {
		if of(l).IsValid() {
			break
		}
		// From a link without an address, the kernel sends with that of another (inet_select_addr).
		l = other
	}
	return of(l)
}
