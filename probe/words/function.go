package words

import (
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"strings"
	"text/template"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// functions are those that pages call.
var functions = template.FuncMap{
	// {{count .n "packet"}}, {{plural .n "reply" "replies"}}
	"count": func(n any, noun string) string { return model.Quantity(number(n), noun) },
	// {{rate .n .window}}
	"rate":   rate,
	"plural": func(n any, one, many string) string { return model.Plural(number(n), one, many) },
	// {{few .list}}: the first few of many
	"few":  few,
	"pod":  PodName,
	"ttls": func(set uint64) string { return model.Quantity(bits.OnesCount64(set), "different TTL") },
	// {{join .list ", "}}
	"join": func(list any, sep string) string { return strings.Join(texts(list), sep) },
	// {{addrs .prefixes}}: without their lengths
	"addrs": func(list []netip.Prefix) []netip.Addr { return model.Map(list, netip.Prefix.Addr) },
	// {{addrPort .addr .port}}: without a port that is 0
	"addrPort": AddrPort,
	// {{request .addr}}: how the MAC of an address is asked for
	"request": func(a netip.Addr) string { return model.Either(a.Is6(), "neighbour solicitation", "ARP request") },
	// {{protocol .addr}}: what tells it
	"protocol": func(a netip.Addr) string { return model.Either(a.Is6(), "neighbour discovery", "ARP") },
	// {{family .addr}}: IPv4 or IPv6
	"family": func(a netip.Addr) string { return Family(a.Is6()) },
	// Parts of commands.
	"sh":       quote,
	"nft":      nftNames,
	"ip":       IP,
	"iptables": IPTables,
	"inside":   Inside,
	"undo":     undo,
	"undos":    undos,
	"renew":    func(engine string) Command { return renew[engine] },
	"replace":  ReplacePacketRule,
	"addRoute": AddRoute,
	"reroute":  ReplaceRoute,
	// {{tool .rule}}, {{frameTool .rule}}: the variant of iptables or ebtables that holds it
	"tool":      RuleTool,
	"frameTool": FrameRuleTool,
	"forget":    Forget,
	"keeper":    (*model.PacketRule).Keeper,
	"sysctl":    SetSysctl,
	// {{next}} begins another text of the same part.
	"next": func() Command { return separator },
	"add":  func(a, b int) int { return a + b },
}

// rate is a number of events in some time as one a second.
func rate(n uint64, in time.Duration) string {
	return model.Either(in <= 0, "at no known rate", fmt.Sprintf("%.3g a second", float64(n)/in.Seconds()))
}

func number(n any) uint64 {
	switch v := reflect.ValueOf(n); {
	case v.CanUint():
		return v.Uint()
	case v.CanInt():
		return uint64(v.Int())
	default:
		return uint64(v.Len())
	}
}

// few lists values of any type in words.
func few(list any) many { return texts(list) }

// many is a list of which the first few are shown.
type many []string

func (m many) String() string { return model.Some(m, 4, "more") }

func texts(list any) []string {
	v := reflect.ValueOf(list)
	out := make([]string, v.Len())
	for i := range out {
		out[i] = fmt.Sprint(v.Index(i))
	}
	return out
}

// undo ends what a rule or the policy of a chain does.
func undo(rule any, chains ...string) (Command, error) {
	switch r := rule.(type) {
	case *model.FrameRule:
		return UndoFrameRule(r, chains...), nil
	case *model.PacketRule:
		return UndoPacketRule(r, chains...), nil
	case *model.Chain:
		return AcceptPolicy(r), nil
	}
	return "", fmt.Errorf("undo %T: no rule", rule)
}

// undos are the commands that end what rules do, each once.
func undos(rules []*model.PacketRule) []Command {
	return model.With(nil, model.Map(rules, func(r *model.PacketRule) Command { return UndoPacketRule(r) })...)
}
