package path

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// RouteText is a route as ip(8) prints it, given the name of its link, which may
// be empty.
func RouteText(r *model.Route, link string) string {
	var b strings.Builder
	if r.Type != "unicast" && r.Type != "" {
		b.WriteString(r.Type + " ")
	}
	if r.Dst.Bits() == 0 {
		b.WriteString("default")
	} else {
		b.WriteString(strings.TrimSuffix(r.Dst.String(), fmt.Sprintf("/%d", r.Dst.Addr().BitLen())))
	}
	if r.Gateway.IsValid() {
		b.WriteString(" via " + r.Gateway.String())
	}
	if link != "" {
		b.WriteString(" dev " + link)
	}
	if r.Table != tableMain && r.Table != 0 {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	if r.Priority != 0 {
		fmt.Fprintf(&b, " metric %d", r.Priority)
	}
	return b.String()
}

// RoutingRuleText is a routing rule as ip(8) prints it.
func RoutingRuleText(r *model.RoutingRule) string {
	words := []string{fmt.Sprintf("%d:", r.Priority)}
	if r.Not {
		words = append(words, "not")
	}
	from := "all"
	if r.From.IsValid() {
		from = r.From.String()
	}
	words = append(words, "from", from)
	if r.To.IsValid() {
		words = append(words, "to", r.To.String())
	}
	if r.In != "" {
		words = append(words, "iif", r.In)
	}
	words = append(words, r.Action)
	if r.Action == "lookup" {
		words = append(words, fmt.Sprint(r.Table))
	}
	return strings.Join(words, " ")
}

// neighborText is an entry as ip(8) prints it.
func neighborText(n *model.Neighbor) string {
	text := n.Addr.String()
	if n.Link != "" {
		text += " dev " + n.Link
	}
	if !n.MAC.IsZero() {
		text += " lladdr " + n.MAC.String()
	}
	return strings.TrimSpace(text + " " + n.State)
}

func frameRuleText(r *model.FrameRule) string {
	return fmt.Sprintf("ebtables %s %s %d (%s): %s", r.Table, r.Chain, r.Number, r.Backend, r.Text) + counted(r.Counter)
}

func packetRuleText(r *model.PacketRule) string {
	return fmt.Sprintf("%s %s %d (%s): %s", r.Table, r.Chain, r.Number, r.Backend, r.Text) + counted(r.Counter)
}

func counted(c model.Counter) string {
	if c.Delta == 0 {
		return ""
	}
	return fmt.Sprintf(" [%d in the window]", c.Delta)
}

func flowText(f *model.Flow) string {
	replied := ""
	if !f.Replied {
		replied = " UNREPLIED"
	}
	return fmt.Sprintf("flow %s > %s, answers %s > %s%s",
		endText(f.Original.Src, f.Original.SrcPort), endText(f.Original.Dst, f.Original.DstPort),
		endText(f.Reply.Src, f.Reply.SrcPort), endText(f.Reply.Dst, f.Reply.DstPort), replied)
}

// endText is an address with its port, where there is one.
func endText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

func addrsText(list []netip.Addr) string {
	var words []string
	for _, a := range list {
		words = append(words, a.String())
	}
	return strings.Join(words, ", ")
}
