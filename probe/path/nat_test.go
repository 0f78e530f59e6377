package path

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// table is a node with these rules in its nat table.
func table(rules ...model.PacketRule) *model.Snapshot {
	s := &model.Snapshot{
		Links:  []model.Link{{Name: "ens5", Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.4/16")}}},
		Chains: []model.Chain{{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100}},
	}
	for _, r := range rules {
		r.Backend, r.Family, r.Table = model.NFT, "ip", "nat"
		s.PacketRules = append(s.PacketRules, r)
	}
	return s
}

func to(p string) model.AddrMatch { return model.AddrMatch{Prefix: netip.MustParsePrefix(p)} }

func notTo(p string) model.AddrMatch {
	return model.AddrMatch{Prefix: netip.MustParsePrefix(p), Not: true}
}

func TestSource(t *testing.T) {
	unsure := model.PacketRule{Chain: "POSTROUTING", Target: "RETURN", Text: "unsure", Unknown: []string{"set"}}
	unsure.Counter.Delta = 1
	tests := []struct {
		name       string
		rules      []model.PacketRule
		dst        string
		translated bool
		rule       string // Text of the deciding rule
		unsure     int
	}{
		{"no rules", nil, "203.0.113.9", false, "", 0},
		{"a plain masquerade", []model.PacketRule{
			{Chain: "POSTROUTING", Dst: notTo("172.20.0.0/16"), Target: "MASQUERADE", Text: "masq"},
		}, "203.0.113.9", true, "masq", 0},
		{"a plain masquerade that does not match", []model.PacketRule{
			{Chain: "POSTROUTING", Dst: notTo("172.20.0.0/16"), Target: "MASQUERADE", Text: "masq"},
		}, "172.20.9.9", false, "", 0},
		{"through a chain", []model.PacketRule{
			{Chain: "POSTROUTING", DstLocal: -1, Target: "AGENT"},
			{Chain: "AGENT", Dst: to("10.0.0.0/8"), Target: "RETURN", Text: "excluded"},
			{Chain: "AGENT", Target: "MASQUERADE", Text: "masq"},
		}, "203.0.113.9", true, "masq", 0},
		{"an exclusion of that chain", []model.PacketRule{
			{Chain: "POSTROUTING", DstLocal: -1, Target: "AGENT"},
			{Chain: "AGENT", Dst: to("10.0.0.0/8"), Target: "RETURN", Text: "excluded"},
			{Chain: "AGENT", Target: "MASQUERADE", Text: "masq"},
		}, "10.9.9.9", false, "excluded", 0},
		{"the node's own address is local", []model.PacketRule{
			{Chain: "POSTROUTING", DstLocal: -1, Target: "AGENT"},
			{Chain: "AGENT", Target: "MASQUERADE", Text: "masq"},
		}, "10.50.0.4", false, "", 0},
		{"a return that hides nothing is not to blame", []model.PacketRule{
			{Chain: "POSTROUTING", Target: "KUBE"},
			{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
			{Chain: "KUBE", Mark: model.MarkMatch{Value: 0x4000, Mask: 0x4000, Set: true, Not: true}, Target: "RETURN", Text: "unmarked"},
			{Chain: "KUBE", Target: "MASQUERADE", Text: "kube"},
		}, "203.0.113.9", true, "masq", 0},
		{"accept ends the search", []model.PacketRule{
			{Chain: "POSTROUTING", Dst: to("203.0.113.0/24"), Target: "ACCEPT", Text: "accept"},
			{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
		}, "203.0.113.9", false, "accept", 0},
		{"a match that was not read", []model.PacketRule{
			unsure,
			{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
		}, "203.0.113.9", true, "masq", 1},
		{"goto does not come back", []model.PacketRule{
			{Chain: "POSTROUTING", Target: "SIDE", Goto: true},
			{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
			{Chain: "SIDE", Dst: to("10.0.0.0/8"), Target: "RETURN"},
		}, "203.0.113.9", false, "", 0},
		{"nor from a chain without rules", []model.PacketRule{
			{Chain: "POSTROUTING", Target: "EMPTY", Goto: true},
			{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
		}, "203.0.113.9", false, "", 0},
		{"chains that jump to each other end", []model.PacketRule{
			{Chain: "POSTROUTING", Target: "A"},
			{Chain: "A", Target: "B"},
			{Chain: "B", Target: "A"},
		}, "203.0.113.9", false, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := NewState(table(tt.rules...)).Tables().Source(Packet{
				Src: netip.MustParseAddr("172.20.1.5"), Dst: netip.MustParseAddr(tt.dst), Out: []string{"ens5"},
			})
			text := ""
			if got.Rule != nil {
				text = got.Rule.Text
			}
			if got.Translated != tt.translated || text != tt.rule || len(got.Unsure) != tt.unsure {
				t.Errorf("translated %v by %q, %d unsure; want %v by %q, %d",
					got.Translated, text, len(got.Unsure), tt.translated, tt.rule, tt.unsure)
			}
			if (got.Missed != nil) != (!tt.translated && tt.rule != "") {
				t.Errorf("missed %+v", got.Missed)
			}
		})
	}
}

// TestSourceOfTuple: a rule for one protocol tells nothing of another, and one that may match
// is not sure. What it counted tells of flows that began in the window.
func TestSourceOfTuple(t *testing.T) {
	s := table(
		model.PacketRule{
			Chain: "POSTROUTING", Target: "RETURN", Text: "set", Unknown: []string{"set"}, Counter: model.Counter{Packets: 5},
		},
		model.PacketRule{Chain: "POSTROUTING", Proto: 6, Target: "TCP", Text: "jump"},
		model.PacketRule{Chain: "TCP", Target: "MASQUERADE", Text: "masq"},
	)
	s.Traffic.Hops = []model.HopCount{{Packets: 1}}
	for _, tt := range []struct {
		name       string
		proto      uint8
		began      bool
		translated bool
		unsure     int
	}{
		{"TCP of the window", 6, true, true, 0},
		{"older TCP, which the set may have held", 6, false, true, 1},
		{"UDP", 17, true, false, 0},
		{"unknown", 0, true, false, 1},
	} {
		got := NewState(s).Tables().Source(Packet{Src: netip.MustParseAddr("172.20.1.5"), Dst: netip.MustParseAddr("10.9.9.9"), Proto: tt.proto, New: tt.began})
		if got.Translated != tt.translated || len(got.Unsure) != tt.unsure {
			t.Errorf("%s: translated %v, unsure %v", tt.name, got.Translated, got.Unsure)
		}
	}
}

// TestUnusedChain: where a rule that matches all counted nothing, no packet of the window came, and what later rules have
// not counted tells nothing of the packet.
func TestUnusedChain(t *testing.T) {
	rules := []model.PacketRule{
		{Chain: "POSTROUTING", Target: "", Text: "all", Counter: model.Counter{Packets: 5}},
		{Chain: "POSTROUTING", Target: "RETURN", Text: "set", Unknown: []string{"set"}, Counter: model.Counter{Packets: 5}},
		{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "masq"},
	}
	for delta, unsure := range map[uint64]int{0: 1, 3: 0} {
		rules[0].Counter.Delta = delta
		s := table(rules...)
		s.Traffic.Hops = []model.HopCount{{Packets: 1}}
		got := NewState(s).Tables().Source(Packet{Src: netip.MustParseAddr("172.20.1.5"), Dst: netip.MustParseAddr("10.9.9.9"), Proto: 6, New: true})
		if !got.Translated || len(got.Unsure) != unsure {
			t.Errorf("the first rule counted %d: translated %v, unsure %v", delta, got.Translated, got.Unsure)
		}
	}
}
