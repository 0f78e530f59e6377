package words

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"text/template"

	"github.com/lasthop/lasthop/probe/model"
)

// functions are those that pages call.
var functions = template.FuncMap{
	// {{count .n "packet"}}, {{plural .n "reply" "replies"}}
	"count":  func(n any, noun string) string { return Count(number(n), noun) },
	"plural": func(n any, one, many string) string { return Plural(number(n), one, many) },
	// {{few .list}}: the first few of many
	"few": few,
	// {{list .names}}: all of them
	"list": func(names []string) string { return strings.Join(names, ", ") },
	// {{addrs .prefixes}}: without their lengths
	"addrs": func(list []netip.Prefix) []netip.Addr { return mapped(list, netip.Prefix.Addr) },
	"pod":   PodName,
	"ttls":  TTLs,
	// {{request .addr}}: how the MAC of an address is asked for
	"request": Request,
	// {{family .addr}}: IPv4 or IPv6
	"family": func(a netip.Addr) string { return Family(a.Is6()) },
	// Parts of commands.
	"sh":       Quote,
	"ip":       IP,
	"iptables": IPTables,
	"inside":   Inside,
	"undo":     undo,
	"sysctl":   SetSysctl,
	// {{next}} begins another text of the same part.
	"next": func() string { return separator },
	"add":  func(a, b int) int { return a + b },
}

// mapped are what becomes of the elements of a list.
func mapped[T, U any](list []T, to func(T) U) []U {
	out := make([]U, len(list))
	for i, x := range list {
		out[i] = to(x)
	}
	return out
}

// number is a value of any type of integers.
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
func few(list any) string {
	v := reflect.ValueOf(list)
	words := make([]text, v.Len())
	for i := range words {
		words[i] = text(fmt.Sprint(v.Index(i)))
	}
	return Addrs(words)
}

type text string

func (t text) String() string { return string(t) }

// undo ends what a rule does.
func undo(rule any, chains ...string) (string, error) {
	switch r := rule.(type) {
	case *model.FrameRule:
		return UndoFrameRule(r, chains...), nil
	case *model.PacketRule:
		return UndoPacketRule(r, chains...), nil
	}
	return "", fmt.Errorf("undo %T: no rule", rule)
}
