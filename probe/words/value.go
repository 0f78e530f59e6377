package words

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Addrs lists addresses in words, the first few of many.
func Addrs[T fmt.Stringer](list []T) string {
	const most = 4
	return model.Some(model.Map(list, T.String), most, "more")
}

// AddrPort is an address with its port, where there is one.
func AddrPort(a netip.Addr, port uint16) string {
	return model.Either(port == 0, a.String(), netip.AddrPortFrom(a, port).String())
}

// TTLs says in words which TTLs were seen.
func TTLs(set uint64) string {
	return model.Quantity(bits.OnesCount64(set), "different TTL")
}

// IP is the tool for the address's family.
func IP(a netip.Addr) Command {
	return model.Either[Command](a.Is6(), "ip -6", "ip")
}

// IPTables is the tool for the address's family.
func IPTables(a netip.Addr) Command {
	return model.Either[Command](a.Is6(), "ip6tables", "iptables")
}

// Request is what asks for it.
func Request(a netip.Addr) string {
	return model.Either(a.Is6(), "neighbour solicitation", "ARP request")
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
	var words []string
	if r.Not {
		words = append(words, "not")
	}
	add := func(word string, value any) { words = append(words, word, string(quote(value))) }
	if r.From.IsValid() {
		add("from", r.From)
	} else if anywhere != "" {
		add("from", anywhere)
	}
	if r.To.IsValid() {
		add("to", r.To)
	}
	if r.Mask != 0 {
		add("fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.Mask))
	}
	if r.In != "" {
		add("iif", r.In)
	}
	if r.Out != "" {
		add("oif", r.Out)
	}
	if r.Proto != 0 {
		add("ipproto", model.ProtoName(r.Proto))
	}
	for i, ports := range []model.PortRange{r.SrcPorts, r.DstPorts} {
		if ports.Last != 0 {
			first, last := fmt.Sprint(ports.First), fmt.Sprint(ports.Last)
			add([]string{"sport", "dport"}[i], model.Either(first == last, first, first+"-"+last))
		}
	}
	switch r.Action {
	case "lookup":
		if add("lookup", r.Table); r.MinBits > 0 {
			add("suppress_prefixlength", r.MinBits-1)
		}
	case "goto":
		add("goto", r.Goto)
	default:
		words = append(words, string(quote(r.Action)))
	}
	return strings.Join(words, " ")
}

// RouteText is a route as ip(8) prints it, given the name of its link, which may be empty.
func RouteText(r *model.Route, link string) string {
	return routeWords(r, link, func(value any) string { return fmt.Sprint(value) })
}

// TypedRoute is a route as ip(8) takes it from a shell. One by a nexthop object has no type, gateway and link of its own.
func TypedRoute(r *model.Route, link string) Command {
	if r.Nexthop != 0 {
		r, link = &model.Route{Dst: r.Dst, Nexthop: r.Nexthop, Table: r.Table, Priority: r.Priority}, ""
	}
	return Command(routeWords(r, link, func(value any) string { return string(quote(value)) }))
}

func routeWords(r *model.Route, link string, say func(value any) string) string {
	var words []string
	if r.Type != "unicast" && r.Type != "" {
		words = append(words, say(r.Type))
	}
	if r.Dst.Bits() == 0 {
		words = append(words, "default")
	} else {
		words = append(words, strings.TrimSuffix(r.Dst.String(), fmt.Sprintf("/%d", r.Dst.Addr().BitLen())))
	}
	if r.Nexthop != 0 {
		words = append(words, "nhid", say(r.Nexthop))
	}
	if r.Gateway.IsValid() {
		words = append(words, "via", say(r.Gateway))
	}
	if link != "" {
		words = append(words, "dev", say(link))
	}
	if r.Table != mainTable && r.Table != 0 {
		words = append(words, "table", say(r.Table))
	}
	if r.Priority != 0 {
		words = append(words, "metric", say(r.Priority))
	}
	return strings.Join(words, " ")
}
