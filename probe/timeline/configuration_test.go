package timeline

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func TestSetup(t *testing.T) {
	node := func() *model.Snapshot {
		return &model.Snapshot{
			Links:       []model.Link{{Index: 2, Name: "up0", Up: true}, {Index: 7, Name: "pod.7", Up: true}},
			Routes:      []model.Route{{Dst: netip.MustParsePrefix("10.77.1.9/32"), IfIndex: 7}, {Dst: netip.MustParsePrefix("0.0.0.0/0"), IfIndex: 2}},
			Sysctls:     []model.Sysctl{{Name: "net.ipv4.ip_forward", Value: "1"}, {Name: "net.ipv4.conf.pod/7.rp_filter", Value: "0"}, {Name: connections, Value: "5"}},
			FrameRules:  []model.FrameRule{rule("-j DROP", 4)},
			PacketRules: []model.PacketRule{{Chain: "FORWARD", Text: "-j ACCEPT"}},
			Chains:      []model.Chain{{Name: "FORWARD", Policy: "ACCEPT"}},
			Neighbors:   []model.Neighbor{{Addr: pod, IfIndex: 7, State: "PERMANENT"}, {Addr: peer, IfIndex: 2, State: "STALE"}},
		}
	}
	for name, tt := range map[string]struct {
		change func(*model.Snapshot)
		same   bool
	}{
		"nothing":            {func(*model.Snapshot) {}, true},
		"counts":             {func(s *model.Snapshot) { s.FrameRules[0].Counter.Packets++; s.Sysctls[2].Value = "6" }, true},
		"another order":      {func(s *model.Snapshot) { s.Routes[0], s.Routes[1] = s.Routes[1], s.Routes[0] }, true},
		"a neighbour learnt": {func(s *model.Snapshot) { s.Neighbors[1].State = "REACHABLE" }, true},
		"a pod that went": {func(s *model.Snapshot) {
			s.Links, s.Routes, s.Sysctls, s.Neighbors = s.Links[:1], s.Routes[1:], s.Sysctls[:1], s.Neighbors[1:]
		}, true},
		"a route that went":  {func(s *model.Snapshot) { s.Routes = s.Routes[1:] }, false},
		"a setting":          {func(s *model.Snapshot) { s.Sysctls[0].Value = "0" }, false},
		"a link's setting":   {func(s *model.Snapshot) { s.Sysctls[1].Value = "1" }, false},
		"a link's state":     {func(s *model.Snapshot) { s.Links[1].Up = false }, false},
		"a fixed neighbour":  {func(s *model.Snapshot) { s.Neighbors[0].MAC = model.MAC{2} }, false},
		"a policy":           {func(s *model.Snapshot) { s.Chains[0].Policy = "DROP" }, false},
		"a rule more":        {func(s *model.Snapshot) { s.PacketRules = append(s.PacketRules, s.PacketRules[0]) }, false},
		"a frame rule fewer": {func(s *model.Snapshot) { s.FrameRules = nil }, false},
		"a routing rule":     {func(s *model.Snapshot) { s.Rules = append(s.Rules, model.RoutingRule{Priority: 5}) }, false},
	} {
		s := node()
		tt.change(s)
		if a, b := newSetup(node(), new(keeper)), newSetup(s, new(keeper)); a.same(b) != tt.same || b.same(a) != tt.same {
			t.Errorf("%s: want it to be the same %v", name, tt.same)
		}
	}
}
