package path

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestSets: how surely a packet is in a set, and where a map sends it.
func TestSets(t *testing.T) {
	packet := Packet{Src: netip.MustParseAddr("10.1.2.3"), Dst: netip.MustParseAddr("10.96.0.9"), Proto: 6, DstPort: 80, In: []string{"veth1"}}
	for _, tt := range []struct {
		name string
		key  []string
		list []model.Element
		set  Fit
		maps string
	}{
		{"an address", []string{"ip daddr"}, []model.Element{{Key: "10.96.0.8", Value: "drop"}, {Key: "10.96.0.9", Value: "goto a"}}, Yes, "a"},
		{"another address", []string{"ip daddr"}, []model.Element{{Key: "10.96.0.8", Value: "drop"}}, No, ""},
		{"nothing", []string{"ip daddr"}, nil, No, ""},
		{"a prefix", []string{"ip saddr"}, []model.Element{{Key: "10.1.0.0/16", Value: "drop"}}, Yes, "DROP"},
		{"another prefix", []string{"ip saddr"}, []model.Element{{Key: "10.2.0.0/16", Value: "drop"}}, No, ""},
		{"a range", []string{"ip saddr"}, []model.Element{{Key: "10.1.2.0-10.1.2.9", Value: "accept"}}, Yes, "ACCEPT"},
		{"another range", []string{"ip saddr"}, []model.Element{{Key: "10.1.2.4-10.1.2.9", Value: "accept"}}, No, ""},
		{"a range behind", []string{"th dport", "ip saddr"}, []model.Element{{Key: "80 . 10.1.2.4-10.1.2.9", Value: "accept"}}, No, ""},
		{"ports", []string{"meta l4proto", "th dport"}, []model.Element{{Key: "tcp . 70-90", Value: "jump a"}}, Yes, "a"},
		{"another protocol", []string{"meta l4proto", "th dport"}, []model.Element{{Key: "udp . 80", Value: "jump a"}}, No, ""},
		{"links", []string{"iifname"}, []model.Element{{Key: "eth0", Value: "drop"}, {Key: "veth*", Value: "jump a"}}, Yes, "a"},
		{"a link that is not known", []string{"oifname"}, []model.Element{{Key: "eth0", Value: "drop"}}, Maybe, "DROP"},
		{"what was not decoded", []string{"ip daddr", "@th,0,8"}, []model.Element{{Key: "10.96.0.9 . ?", Value: "drop"}}, Maybe, "DROP"},
		{"all others", []string{"th dport"}, []model.Element{{Key: "81", Value: "accept"}, {Key: "*", Value: "drop"}}, Maybe, "DROP"},
		{"not all others", []string{"th dport"}, []model.Element{{Key: "80", Value: "accept"}, {Key: "*", Value: "drop"}}, Yes, "ACCEPT"},
		{"a state", []string{"ct state"}, []model.Element{{Key: "established", Value: "accept"}}, Maybe, "ACCEPT"},
		{"one of all", []string{"numgen random mod 2"}, []model.Element{{Key: "0", Value: "goto a"}, {Key: "1", Value: "goto b"}}, Yes, "a b"},
		{"one of some", []string{"numgen random mod 3"}, []model.Element{{Key: "0", Value: "goto a"}, {Key: "1", Value: "goto b"}}, Maybe, "a b"},
		{"a verdict that is none", []string{"ip daddr"}, []model.Element{{Key: "10.96.0.9", Value: "continue"}}, Yes, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := packet
			p.Sets = NewState(&model.Snapshot{Sets: []model.Set{{Family: "ip", Table: "t", Name: "s", Elements: tt.list}}}).Tables().Sets
			r := model.PacketRule{Family: "ip", Table: "t", Lookups: []model.Lookup{{Set: "s", Key: tt.key}}}
			if got := p.Fits(&r); got != tt.set {
				t.Errorf("in the set: %d, want %d", got, tt.set)
			}
			r.Lookups[0].Not = true
			if got, want := p.Fits(&r), map[Fit]Fit{No: Yes, Maybe: Maybe, Yes: No}[tt.set]; got != want {
				t.Errorf("not in the set: %d, want %d", got, want)
			}
			r.Lookups[0] = model.Lookup{Set: "s", Key: tt.key, Map: true}
			maps := ""
			for range 2 { // the second time as it was kept
				maps = ""
				for _, c := range p.Choices(&r) {
					if c.Target != "" && maps != "" {
						maps += " "
					}
					maps += c.Target
				}
			}
			if maps != tt.maps {
				t.Errorf("the map leads to %q, want %q", maps, tt.maps)
			}
		})
	}
	unread := model.PacketRule{Family: "ip", Table: "t", Lookups: []model.Lookup{{Set: "other", Key: []string{"ip daddr"}, Map: true}}}
	if got := packet.Choices(&unread); len(got) != 1 || got[0].Map != "other" {
		t.Errorf("a map that was not read: %+v", got)
	}
}

// TestSampled: what other packets than the sample may match is unlikely, and never sure.
func TestSampled(t *testing.T) {
	rule := model.PacketRule{DstPorts: []model.PortRange{{First: 80, Last: 90}}}
	for port, want := range map[uint16]Fit{0: Maybe, 85: Maybe, 91: Unlikely} {
		p := Packet{DstPort: port, Sampled: true}
		if got := p.Fits(&rule); got != want {
			t.Errorf("a sample to port %d, a rule for 80 to 90: %d, want %d", port, got, want)
		}
	}
}
