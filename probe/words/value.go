package words

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// AddrPort is an address with its port, where there is one.
func AddrPort(a netip.Addr, port uint16) string {
	return model.Either(port == 0, a.String(), netip.AddrPortFrom(a, port).String())
}

// IP is the tool for the address's family.
func IP(a netip.Addr) Command {
	return model.Either[Command](a.Is6(), "ip -6", "ip")
}

// IPTables is the tool for the address's family.
func IPTables(a netip.Addr) Command {
	return model.Either[Command](a.Is6(), "ip6tables", "iptables")
}

// PodName is how a pod is called in a sentence.
func PodName(p *model.Pod) string {
	switch {
	case p.Name != "" && p.Namespace != "":
		return p.Namespace + "/" + p.Name
	case p.Name != "":
		return p.Name
	}
	return model.Either(p.Engine == "", "the pod", p.Engine+"'s container") + " behind " + p.Link
}

// Family names the version of IP.
func Family(isIPv6 bool) string {
	return model.Either(isIPv6, "IPv6", "IPv4")
}

// RoutingRule is a routing rule as ip(8) takes it from a shell.
func RoutingRule(r *model.RoutingRule) Command {
	return Command(ruleWords(r, "") + " priority " + strconv.Itoa(r.Priority))
}

// RoutingRuleText is a routing rule as ip(8) prints it.
func RoutingRuleText(r *model.RoutingRule) string {
	return strconv.Itoa(r.Priority) + ": " + ruleWords(r, "all")
}

// ruleWords are what a rule selects and does. A rule for all sources is from anywhere, which may be empty.
func ruleWords(r *model.RoutingRule, anywhere string) string {
	var line Command
	add := func(is bool, word string, value any) { line += when(is, " "+word+" %s", value) }
	add(r.From.IsValid(), "from", r.From)
	add(!r.From.IsValid() && anywhere != "", "from", anywhere)
	add(r.To.IsValid(), "to", r.To)
	add(r.Mask != 0, "fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.Mask))
	add(r.In != "", "iif", r.In)
	add(r.Out != "", "oif", r.Out)
	add(r.Proto != 0, "ipproto", model.ProtoName(r.Proto))
	add(r.SrcPorts.Last != 0, "sport", r.SrcPorts)
	add(r.DstPorts.Last != 0, "dport", r.DstPorts)
	add(r.Action == "lookup", "lookup", r.Table)
	add(r.Action == "lookup" && r.MinBits > 0, "suppress_prefixlength", r.MinBits-1)
	add(r.Action == "goto", "goto", r.Goto)
	line += when(r.Action != "lookup" && r.Action != "goto", " %s", r.Action)
	return string(when(r.Not, "not ")) + strings.TrimPrefix(string(line), " ")
}

// RouteText is a route as ip(8) prints it, given the name of its link, which may be empty.
func RouteText(r *model.Route, link string) string {
	return routeWords(r, link, func(value any) Command { return Command(fmt.Sprint(value)) })
}

// TypedRoute is a route as ip(8) takes it from a shell. One by a nexthop object has no type, gateway and link of its own.
func TypedRoute(r *model.Route, link string) Command {
	if r.Nexthop != 0 {
		r, link = &model.Route{Dst: r.Dst, Nexthop: r.Nexthop, Table: r.Table, Priority: r.Priority}, ""
	}
	return Command(routeWords(r, link, quote))
}

func routeWords(r *model.Route, link string, say func(value any) Command) string {
	var line Command
	add := func(is bool, word Command, value any) {
		if is {
			line += " " + word + say(value)
		}
	}
	add(r.Type != "unicast" && r.Type != "", "", r.Type)
	add(true, "", destination(r))
	add(r.Nexthop != 0, "nhid ", r.Nexthop)
	add(r.Gateway.IsValid(), "via ", r.Gateway)
	add(link != "", "dev ", link)
	add(r.Table != mainTable && r.Table != 0, "table ", r.Table)
	add(r.Priority != 0, "metric ", r.Priority)
	return string(line[1:])
}

// destination is a route's, in the shortest form.
func destination(r *model.Route) Command {
	if r.Dst.Bits() == 0 {
		return "default"
	}
	return Command(strings.TrimSuffix(r.Dst.String(), fmt.Sprintf("/%d", r.Dst.Addr().BitLen())))
}
