package diagnose

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestUndone: what was changed and undone between two readings of the state is the cause of what was dropped meanwhile, by
// the kernel's notifications; drops without such a change remain unexplained.
func TestUndone(t *testing.T) {
	by := []model.Process{{PID: 612, Name: "ip"}}
	route := model.Change{Kind: model.ChangedRoute, Deleted: true, Dst: prefix("10.50.0.20/32"), Table: 254, Type: "unicast", By: by}
	blackhole := model.Change{Kind: model.ChangedRoute, Dst: prefix("10.50.0.20/32"), Table: 254, Type: "blackhole", By: by}
	back, other := route, route
	back.Deleted, other.Dst = false, prefix("10.50.0.21/32")
	setting := func(name, value string) model.Change {
		return model.Change{Kind: model.ChangedSetting, Setting: name, Value: value, By: by}
	}
	// A rule of which the notification that it was deleted says what it counted.
	rule := func(text, dst string, packets uint64) []model.Change {
		c := model.Change{Kind: model.ChangedFilter, Family: "ip", Filter: "filter", Chain: "FORWARD", Handle: 9, By: by}
		gone := c
		gone.Deleted, gone.Packet = true, &model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD", Handle: 9,
			Text: text, Target: "DROP", Dst: model.AddrMatch{Prefix: prefix(dst)}, Counter: model.Counter{Packets: packets}}
		return []model.Change{c, gone}
	}
	policy := func(p string) model.Change {
		return model.Change{Kind: model.ChangedFilter, Family: "ip", Filter: "filter", Chain: "FORWARD", Policy: p, By: by}
	}
	link := model.Change{Kind: model.ChangedLink, Deleted: true, Link: 10, On: "veth10", By: by}
	prohibit := model.Change{Kind: model.ChangedRule, Dst: prefix("10.50.0.20/32"), Priority: 50, Type: "prohibit", By: by}
	marked := prohibit
	marked.Type = ""
	up := link
	up.Deleted = false
	for name, tt := range map[string]struct {
		changes []model.Change
		reason  model.Reason
		where   string
		want    model.Code
	}{
		"a pod's route":   {[]model.Change{route, back}, "IP_INNOROUTES", "ip_error", "MissingPodRoute"},
		"a blackhole":     {[]model.Change{blackhole, back}, "NOT_SPECIFIED", "ip_error", "BlackholeRoute"},
		"another's route": {[]model.Change{other}, "IP_INNOROUTES", "ip_error", "UnexplainedDrop"},
		"nothing":         {nil, "IP_INNOROUTES", "ip_error", "UnexplainedDrop"},
		"forwarding": {[]model.Change{setting("net.ipv4.ip_forward", "0"), setting("net.ipv4.ip_forward", "1")},
			"IP_INADDRERRORS", "ip_error", "ForwardingDisabled"},
		"a link's forwarding": {[]model.Change{setting("net.ipv4.conf.ens5.forwarding", "0"), setting("net.ipv4.conf.ens5.forwarding", "1")},
			"IP_INADDRERRORS", "ip_error", "ForwardingDisabled"},
		"another link's forwarding": {[]model.Change{setting("net.ipv4.conf.ens6.forwarding", "0"), setting("net.ipv4.conf.ens6.forwarding", "1")},
			"IP_INADDRERRORS", "ip_error", "UnexplainedDrop"},
		"a rule":                {rule("-d 10.50.0.20/32 -j DROP", "10.50.0.20/32", 40), "NETFILTER_DROP", "nft_do_chain", "PolicyDrop"},
		"a chain's policy":      {[]model.Change{policy("DROP"), policy("ACCEPT")}, "NETFILTER_DROP", "nf_hook_slow", "PolicyDrop"},
		"a rule that prohibits": {[]model.Change{prohibit}, "NOT_SPECIFIED", "ip_error", "BlackholeRoute"},
		"one for a mark":        {[]model.Change{marked}, "NOT_SPECIFIED", "ip_error", "UnexplainedDrop"},
		"a link":                {[]model.Change{link, up}, "QDISC_DROP", "__dev_queue_xmit", "PodLinkDown"},
	} {
		line := timeline.New(Judge, timeline.Short)
		at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
		var r model.Reading
		for _, second := range []int{0, 4, 8, 12, 16, 20} {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "1")
			n.sysctl("net.ipv4.conf.ens5.forwarding", "1")
			n.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "filter", Name: "FORWARD", Hook: "FORWARD", Policy: "ACCEPT"}}
			n.Rules = []model.RoutingRule{{Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
			n.with(model.SourceSysctl)
			n.Window.End = at(second)
			if second >= 12 {
				d := n.dropOn("ens5", tt.reason, tt.where, "203.0.113.9", "10.50.0.20", 40)
				d.First, d.Last, d.Netns = at(9), at(11), 1
				for _, c := range tt.changes {
					c.At = at(9)
					n.Changes = append(n.Changes, c)
				}
			}
			r = line.Add(model.Point{Snapshot: &n.Snapshot, Whole: true, Ready: at(second)})
			if second == 12 && r.Since.Causes[0].Code != tt.want {
				t.Errorf("%s: %s, want %s", name, r.Since.Causes[0].Code, tt.want)
			}
		}
		said := slices.ContainsFunc(r.Findings, func(x model.Tracked) bool { return x.Code == tt.want && strings.Contains(x.Why, "`ip` (pid 612)") })
		// Later judgements of the window put these drops down to nothing else.
		other := slices.ContainsFunc(r.Findings, func(x model.Tracked) bool { return x.Code != tt.want })
		if (tt.want != "UnexplainedDrop") != said || other {
			t.Errorf("%s: want %s alone: %+v", name, tt.want, r.Findings)
		}
	}
}
