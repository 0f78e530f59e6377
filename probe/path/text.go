package path

import (
	"fmt"
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
