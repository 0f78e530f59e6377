package path

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// translateDestination is the hop of connection tracking: what a service's address
// becomes and, in replies, what the pod's address became.
func (j *journey) translateDestination(hook string) *step {
	s := j.add(model.PathHop{Kind: model.HopConntrack})
	if j.reply {
		s.Decision = "no translation"
		if j.dst != j.ends.Pod {
			s.Decision = fmt.Sprintf("%s becomes %s again", j.dst, j.ends.Pod)
			j.dst = j.ends.Pod
		}
		return s
	}
	in := ""
	if hook == "PREROUTING" {
		in = j.inLink()
	}
	to, ports, several := j.backendsByFlow()
	switch {
	case to.IsValid() && to != j.dst && j.outdated(hook, in):
		s.Decision = join(j.noTranslation(), fmt.Sprintf("only connections from before the window lead to %s still", endText(to, ports)))
		s.Rules, s.cut = append(s.Rules, j.flowTexts()...), true
		return s
	case to.IsValid() && to != j.dst:
		s.Decision = fmt.Sprintf("%s becomes %s", endText(j.dst, j.dstPort), endText(to, ports))
		if several > 1 {
			s.Decision += fmt.Sprintf(", one of %d", several)
		}
		s.Rules = append(s.Rules, j.flowTexts()...)
		s.cut = several > 1
		j.dst, j.dstPort = to, ports
		return s
	case to.IsValid():
		s.Decision = j.noTranslation()
		return s
	}
	j.translateByRules(s, j.tables.destination(j.packet(in, ""), hook))
	return s
}

// outdated reports whether flows translate the destination that no rule translates any
// more: all are from before the window, as those of a service that has lost its
// endpoints. IPVS translates without rules.
func (j *journey) outdated(hook, in string) bool {
	if !j.Has(model.SourceNAT) || j.Own[j.dst] != nil || slices.ContainsFunc(j.flows(), func(f *model.Flow) bool { return !f.Start.IsZero() }) {
		return false
	}
	t := j.tables.destination(j.packet(in, ""), hook)
	return len(t.rules) == 0 && !t.mapped && !t.cutOff
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
		s.Rules = append(s.Rules, packetRuleText(r))
	}
	switch {
	case len(rules) == 0 && !j.Has(model.SourceNAT):
		s.Decision = "unknown whether the destination is translated: the rules were not read whole"
	case t.cutOff:
		s.Decision, s.cut = "unknown whether the destination is translated: there are more rules than lasthop follows", true
	case len(rules) == 0 && t.mapped:
		s.Decision, s.cut = "unknown whether the destination is translated: maps of nft decide, and there is no flow", true
	case len(rules) == 0:
		s.Decision = j.noTranslation()
	case (t.sure || t.service && sameTarget(rules)) && rules[0].To.Addr().IsValid():
		to := rules[0].To
		port := to.Port()
		if port == 0 {
			port = j.dstPort
		}
		s.Decision = fmt.Sprintf("%s becomes %s", endText(j.dst, j.dstPort), endText(to.Addr(), port))
		if !t.sure {
			s.Decision += ", as far as a rule matches"
			s.cut = true
		}
		j.dst, j.dstPort = to.Addr(), port
	case !t.service && (j.dstPort == 0 || j.ends.Proto == 0):
		s.Decision = "may be translated, by port: " + model.Plural(len(rules), "rule")
	default:
		// Only the packet itself decides which of them translates it.
		s.Decision = fmt.Sprintf("%s is translated by one of %s; no flow of the window shows to which address",
			endText(j.dst, j.dstPort), model.Plural(len(rules), "rule"))
		s.ended, j.over = true, true
	}
}

// noTranslation says that the destination stays as it is, and whether it looks like
// the address of a service.
func (j *journey) noTranslation() string {
	switch found := j.tables.Untranslated(j.Snapshot, j.Routing(), j.packet("", "")); {
	case len(found.Beside) > 0:
		return fmt.Sprintf("no rule translates %s by %s, though rules translate it for other protocols or ports (%s)",
			endText(j.dst, j.dstPort), model.ProtoName(j.ends.Proto), packetRuleText(found.Beside[0]))
	case len(found.Others) > 0:
		return fmt.Sprintf("no rule translates %s, though rules translate others of its range (%s)", j.dst, addrsText(found.Others))
	case len(found.Rules) > 0:
		return fmt.Sprintf("no rule translates %s, though there are rules for it", j.dst)
	}
	return "no translation of the destination"
}

// sameTarget reports whether all rules lead to one address, whichever of them
// matches.
func sameTarget(rules []*model.PacketRule) bool {
	return !slices.ContainsFunc(rules, func(r *model.PacketRule) bool {
		return r.To.Addr() != rules[0].To.Addr()
	})
}

// flows are the entries of connection tracking for what the packet is of.
func (j *journey) flows() []*model.Flow {
	var out []*model.Flow
	for f := range model.Each(j.Flows) {
		if f.Original.Src == j.ends.Pod && f.Original.Dst == j.ends.To && (j.ends.Port == 0 || f.Original.DstPort == j.ends.Port) &&
			(j.ends.Proto == 0 || f.Proto == j.ends.Proto) {
			out = append(out, f)
		}
	}
	return out
}

// served are the flows that the destination began towards the pod, by an address that
// is translated to the pod's, such as a service's. What the pod sends are their replies.
func (j *journey) served() []*model.Flow {
	var out []*model.Flow
	for f := range model.Each(j.Flows) {
		if f.Reply.Src == j.ends.Pod && f.Reply.Dst == j.ends.To && f.Original.Dst != j.ends.Pod && (j.ends.Port == 0 || f.Reply.DstPort == j.ends.Port) &&
			(j.ends.Proto == 0 || f.Proto == j.ends.Proto) {
			out = append(out, f)
		}
	}
	return out
}

// askedAddress is the address that the destination asked for in all of the flows that
// it began, not valid where the pod began some, or they differ.
func (j *journey) askedAddress() netip.Addr {
	served := j.served()
	if len(served) == 0 || len(j.flows()) > 0 || slices.ContainsFunc(served, func(f *model.Flow) bool {
		return f.Original.Dst != served[0].Original.Dst || f.Original.Src != served[0].Reply.Dst
	}) {
		return netip.Addr{}
	}
	return served[0].Original.Dst
}

func (j *journey) flowTexts() []string { return textsOf(j.flows()) }

// textsOf shows the first few flows.
func textsOf(flows []*model.Flow) []string {
	const most = 3
	var out []string
	for _, f := range flows[:min(most, len(flows))] {
		out = append(out, flowText(f))
	}
	return out
}

// backendsByFlow is the address that the most flows lead to, with its port, and
// how many there are. It is not valid where there is no flow.
func (j *journey) backendsByFlow() (to netip.Addr, port uint16, several int) {
	count := map[netip.Addr]int{}
	var order []netip.Addr
	for _, f := range j.flows() {
		a := f.Reply.Src
		if count[a] == 0 {
			order = append(order, a)
		}
		count[a]++
	}
	slices.SortFunc(order, netip.Addr.Compare)
	for _, a := range order {
		if !to.IsValid() || count[a] > count[to] {
			to = a
		}
	}
	port = j.dstPort
	for _, f := range j.flows() {
		if f.Reply.Src == to && (j.dstPort != 0 || to != j.dst) && f.Reply.SrcPort != 0 {
			port = f.Reply.SrcPort
			break
		}
	}
	return to, port, len(order)
}

// translateSource ends the hop of the translation with what becomes of the
// source as the packet leaves by a link.
func (j *journey) translateSource(s *step, out string) {
	if j.reply {
		if j.src != j.ends.To {
			s.Decision = join(s.Decision, fmt.Sprintf("%s becomes %s again", j.src, j.ends.To))
			j.src = j.ends.To
		}
		return
	}
	before, whole := j.src, true
	known := j.sourceByFlow()
	asked := j.askedAddress()
	switch {
	case known.IsValid():
		j.src = known
	case asked.IsValid():
		j.src = asked
	default:
		whole = j.sourceByRules(s, out)
	}
	switch {
	case asked.IsValid() && j.src == asked && asked != before:
		if s.Decision == "no translation of the destination" {
			s.Decision = ""
		}
		s.Decision = join(s.Decision, fmt.Sprintf("source %s becomes %s, which %s asks for", before, asked, j.dst))
		s.Rules = append(s.Rules, textsOf(j.served())...)
	case j.src != before:
		s.Decision = join(s.Decision, fmt.Sprintf("source %s becomes %s", before, j.src))
	case !whole:
		s.Decision, s.cut = join(s.Decision, "unknown whether the source is translated: there are more rules than lasthop follows"), true
	case !j.Has(model.SourceNAT) && !known.IsValid():
		s.Decision = join(s.Decision, "unknown whether the source is translated: the rules were not read whole")
	default:
		s.Decision = join(s.Decision, "no SNAT")
	}
	if s.Decision == "no translation of the destination; no SNAT" {
		s.Decision = "no translation"
	}
}

// sourceByFlow is the source that flows to the same backend leave with.
func (j *journey) sourceByFlow() netip.Addr {
	var out netip.Addr
	for _, f := range j.flows() {
		if f.Reply.Src == j.dst && (!out.IsValid() || f.Reply.Dst.Less(out)) {
			out = f.Reply.Dst
		}
	}
	return out
}

// sourceByRules asks the nat tables, and reports whether they were followed to
// their end.
func (j *journey) sourceByRules(s *step, out string) (whole bool) {
	d := j.tables.Source(j.packet("", out))
	if d.Rule != nil {
		s.Rules = append(s.Rules, packetRuleText(d.Rule))
	}
	for _, r := range d.Unsure {
		s.Rules = append(s.Rules, packetRuleText(r))
	}
	if len(d.Unsure) > 0 {
		s.Decision = join(s.Decision, "a rule that may match may decide over the source")
		s.cut = true
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
	for i := range j.Links {
		if j.Links[i].Name != link {
			continue
		}
		for _, a := range j.Links[i].Addresses {
			if isIPv6(a.Addr()) == isIPv6(j.dst) && !a.Addr().IsLinkLocalUnicast() {
				return a.Addr()
			}
		}
	}
	return netip.Addr{}
}
