package path_test

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// node routes a pod's link and a default route, and blackholes one range.
func node() *model.Snapshot {
	pod, all := netip.MustParsePrefix("10.244.1.7/32"), netip.MustParsePrefix("0.0.0.0/0")
	gateway, router := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("10.0.0.1")
	return &model.Snapshot{
		Sources: []model.Source{{Name: model.SourceRoutes, Status: model.OK}},
		Links: []model.Link{
			{Index: 2, Name: "eth0", Role: model.RoleUplink, Up: true, Carrier: true},
			{Index: 5, Name: "veth7", Role: model.RolePodLink, Up: true, Carrier: true},
		},
		Pods: []model.Pod{{
			Namespace: "shop", Name: "cart", Addresses: []netip.Prefix{pod}, Link: "veth7", LinkIndex: 5, Up: true,
			Routes: []model.Route{{Table: 254, Dst: all, Gateway: gateway, Type: "unicast"}},
		}},
		Routes: []model.Route{
			{Table: 254, Dst: all, Gateway: router, IfIndex: 2, Link: "eth0", Type: "unicast"},
			{Table: 254, Dst: netip.MustParsePrefix("10.244.9.0/24"), Type: "blackhole"},
			{Table: 254, Dst: pod, IfIndex: 5, Link: "veth7", Type: "unicast"},
		},
	}
}

// Routing answers as `ip route get` does, from a snapshot.
func ExampleRouting_Lookup() {
	routing, pod := path.NewState(node()).Routing(), netip.MustParseAddr("10.244.1.7")
	for _, to := range []string{"192.0.2.1", "10.244.9.3"} {
		d := routing.Lookup(path.Query{Src: pod, Dst: netip.MustParseAddr(to), In: "veth7"})
		fmt.Println(to, d.Type, words.RouteText(d.Route, ""), d.Discards())
	}
	// Output:
	// 192.0.2.1 unicast default via 10.0.0.1 false
	// 10.244.9.3 blackhole blackhole 10.244.9.0/24 true
}

// Trace follows a pod's packets hop by hop. The first dead hop is where they end.
func ExampleTrace() {
	ends := path.Ends{Pod: netip.MustParseAddr("10.244.1.7"), To: netip.MustParseAddr("10.244.9.3")}
	p := path.Trace(node(), nil, ends)
	dead := p.Dead()
	fmt.Printf("hop %d, %s: %s\n", dead.N, dead.Name(), dead.Decision)
	// Output: hop 4, route: discarded: blackhole 10.244.9.0/24
}
