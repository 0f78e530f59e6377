package path

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// ciliumNode routes all pods' addresses to a link of Cilium's, whose program at the pods' links
// has them delivered.
func ciliumNode() *model.Snapshot {
	s := routedNode()
	s.Links = append(s.Links,
		model.Link{Index: 30, Name: "cilium_net", Kind: "veth", Peer: 31, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter},
		model.Link{Index: 31, Name: "cilium_host", Kind: "veth", Peer: 30, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter})
	s.Routes = append([]model.Route{route("172.30.4.0/24", "cilium_host", 31, netip.Addr{}), route("172.30.8.0/24", "cilium_host", 31, netip.Addr{})},
		s.Routes[0], s.Routes[1], s.Routes[4])
	for i, p := range s.Pods {
		s.Programs = append(s.Programs, model.Program{Kind: model.ProgramTCX, ID: uint32(i), Name: "cil_from_contai", Netns: 1, IfIndex: p.LinkIndex, Link: p.Link, Direction: model.Ingress})
		s.Cilium.Endpoints = append(s.Cilium.Endpoints, model.CiliumEndpoint{ID: uint16(70 + i), Identity: 3000, Labels: []string{"app=cart"}, Namespace: "shop", Name: "p",
			IfIndex: p.LinkIndex, Addresses: []netip.Addr{p.Addresses[0].Addr()}})
		s.Cilium.Local = append(s.Cilium.Local, model.CiliumAddress{Prefix: p.Addresses[0], IfIndex: p.LinkIndex})
	}
	s.Cilium.Services = []model.CiliumService{
		{Addr: netip.AddrPortFrom(web, 80), Proto: 6},
		{Addr: netip.AddrPortFrom(web, 81), Proto: 6, Backends: []netip.AddrPort{netip.AddrPortFrom(podB, 8081)}},
		{Addr: netip.AddrPortFrom(web, 82), Proto: 6, Backends: []netip.AddrPort{netip.AddrPortFrom(far, 8082), netip.AddrPortFrom(podB, 8082)}},
	}
	return s
}

func TestCilium(t *testing.T) {
	drop := model.Drop{Src: podA, Dst: podB, Reason: "TC_INGRESS", Location: "__netif_receive_skb_core", IfIndex: 5, Link: "pa", Netns: 1, Proto: 6, Packets: 9,
		Cilium: model.CiliumDrop{Reason: model.CiliumPolicyDenied}}
	for _, tt := range []struct {
		name      string
		to        netip.Addr
		port      uint16
		change    func(*model.Snapshot)
		hops      string
		says, not []string
	}{
		{"to another pod", podB, 0, func(*model.Snapshot) {}, "pod pa pb pod",
			[]string{"up; Cilium: endpoint 70 (shop/p), identity 3000 (app=cart); Cilium's program delivers it to pb"}, []string{"dropped"}},
		{"dropped", podB, 0, func(s *model.Snapshot) { s.Traffic.Drops = []model.Drop{drop} }, "pod pa pb pod",
			[]string{"Cilium's program dropped 9 packets: policy denied"}, nil},
		{"to another node", far, 0, func(*model.Snapshot) {}, "pod pa beyond", []string{"sends it to another node", "leaves encapsulated in the node's own packets"}, nil},
		{"to what is outside", netip.MustParseAddr("8.8.8.8"), 0, func(*model.Snapshot) {}, "pod pa nat policy route neighbor enp1 beyond", nil, []string{"hands", "sends"}},
		{"a pod that it does not know", podB, 0, func(s *model.Snapshot) { s.Cilium.Local = s.Cilium.Local[:1] }, "", nil, []string{"delivers it to pb", "sends"}},
		{"what it knows was not read", far, 0, func(s *model.Snapshot) { s.Cilium = model.Cilium{} }, "", nil, []string{"hands", "sends"}},
		{"its program is not there", podB, 0, func(s *model.Snapshot) { s.Programs = nil }, "", nil, []string{"Cilium"}},
		{"a service without a backend", web, 80, func(*model.Snapshot) {}, "podX", []string{"Cilium has no backend for the service 198.51.100.20:80"}, nil},
		{"a service", web, 81, func(*model.Snapshot) {}, "pod pa pb pod", []string{"Cilium translates connections to 198.51.100.20:81 to " + podB.String() + ":8081; ", "the process sees 198.51.100.20:81 as the sender"}, []string{"one of"}},
		{"one of two backends", web, 82, func(*model.Snapshot) {}, "pod pa beyond", []string{"198.51.100.20:82 to " + far.String() + ":8082, one of 2 backends"}, nil},
		{"the one that is asked", web, 82, func(s *model.Snapshot) {
			s.Traffic.Pairs = []model.PairCount{{Src: podA, Dst: podB, IfIndex: 5, Link: "pa", Direction: model.Ingress, Packets: 9}}
		}, "pod pa pb pod", []string{"198.51.100.20:82 to " + podB.String() + ":8082, one of 2 backends"}, nil},
		{"a program at the link translates", web, 82, func(s *model.Snapshot) {
			s.Traffic.Pairs = []model.PairCount{{Src: podA, Dst: web, IfIndex: 5, Link: "pa", Direction: model.Ingress, Packets: 9}}
		}, "pod pa", []string{"Cilium's program sends it to one of 2 backends of the service 198.51.100.20:82/tcp"}, []string{"leads"}},
		{"it has none to translate to", web, 80, func(s *model.Snapshot) {
			s.Traffic.Pairs = []model.PairCount{{Src: podA, Dst: web, IfIndex: 5, Link: "pa", Direction: model.Ingress, Packets: 9}}
		}, "pod pa", []string{"Cilium's program sends it to no backend: the service 198.51.100.20:80/tcp has none"}, []string{"connecting"}},
		{"another port of it", web, 443, func(*model.Snapshot) {}, "pod pa nat policy route neighbor enp1 beyond", nil, []string{"backend"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := ciliumNode()
			tt.change(s)
			p := Trace(s, nil, Ends{Pod: podA, To: tt.to, Port: tt.port, Proto: 6})
			if tt.to != p.To || tt.port != p.Port {
				t.Errorf("the path is to %v, port %d", p.To, p.Port)
			}
			var said []string
			for _, h := range slices.Concat(p.Forward, p.Return) {
				said = append(said, h.Decision)
			}
			all := strings.Join(said, "\n")
			if got := kinds(p.Forward); tt.hops != "" && got != tt.hops {
				t.Errorf("hops %s, want %s\n%s", got, tt.hops, all)
			}
			for _, w := range tt.says {
				if !strings.Contains(all, w) {
					t.Errorf("no %q in\n%s", w, all)
				}
			}
			for _, w := range tt.not {
				if strings.Contains(all, w) {
					t.Errorf("%q in\n%s", w, all)
				}
			}
		})
	}
}
