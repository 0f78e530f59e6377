package report_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 250 * time.Millisecond: "250ms", 10 * time.Second: "10s", time.Minute: "1m", 90 * time.Second: "1m30s", 59*time.Minute + time.Second: "59m", 2 * time.Hour: "2h", 10*time.Second + 400*time.Millisecond: "10s", 1500 * time.Millisecond: "1.5s", 5*time.Minute + time.Second: "5m1s", 20 * time.Minute: "20m", 90 * time.Minute: "1h30m"} {
		if got := report.Duration(d); got != want {
			t.Errorf("report.Duration(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	for want, p := range map[string]model.Place{
		"unknown":       {},
		"a pod egress":  {Role: model.RolePod, Direction: model.Egress},
		"eth0 > fabric": {Link: "eth0", Role: model.RoleUplink, Direction: model.Egress},
		"fabric > eth0": {Link: "eth0", Role: model.RoleUplink, Direction: model.Ingress},
		"pod > veth0":   {Link: "veth0", Role: model.RolePodLink, Direction: model.Ingress},
		"veth0 > pod":   {Link: "veth0", Role: model.RolePodLink, Direction: model.Egress},
		"bridge cbr0":   {Link: "cbr0", Role: model.RoleBridge, Direction: model.Egress},
		"tun0 egress":   {Link: "tun0", Role: model.RoleTunnel, Direction: model.Egress},
		"lo":            {Link: "lo"},
	} {
		if got := report.Place(p); got != want {
			t.Errorf("place(%+v) = %q, want %q", p, got, want)
		}
	}
}

// TestProse puts names before whole addresses of pods and nodes, wherever these run.
func TestProse(t *testing.T) {
	addr := netip.MustParseAddr
	s := &model.Snapshot{
		Links: []model.Link{{Addresses: []netip.Prefix{netip.MustParsePrefix("10.240.0.4/16")}}},
		Pods: []model.Pod{
			{Namespace: "shop", Name: "cart", Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24"), netip.MustParsePrefix("fd00::5/64")}, Given: []netip.Addr{addr("10.244.0.6")}},
			{NetnsName: "/proc/17/ns/net", Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.9/24")}},
		},
		Cluster: model.Cluster{
			Pods: []model.ClusterPod{
				{Namespace: "shop", Name: "db", Addresses: []netip.Addr{addr("10.244.1.7")}},
				{Namespace: "shop", Name: "stale", Addresses: []netip.Addr{addr("10.244.0.5")}},
			},
			Nodes: []model.ClusterNode{
				{Name: "aks-1", Addresses: []netip.Addr{addr("10.240.0.4")}}, {Name: "aks-2", Addresses: []netip.Addr{addr("10.240.0.5")}},
				{Name: "node3", Addresses: []netip.Addr{addr("10.240.0.6")}},
			},
		},
	}
	names := report.Called(s)
	for text, want := range map[string]string{
		"no route to 10.244.0.5":                   "no route to shop/cart (10.244.0.5)",
		"10.244.0.6, which had an address":         "shop/cart (10.244.0.6), which had an address",
		"from fd00::5 to [fd00::5]:80.":            "from shop/cart (fd00::5) to shop/cart ([fd00::5]:80).",
		"goes out as 10.244.1.7:8080":              "goes out as shop/db (10.244.1.7:8080)",
		"nobody (10.244.1.7) replies; 10.240.0.5:": "nobody (shop/db (10.244.1.7)) replies; node aks-2 (10.240.0.5):",
		"default via 10.240.0.6 dev eth0":          "default via node3 (10.240.0.6) dev eth0",
		"shop/cart lost 10.244.0.5":                "shop/cart lost 10.244.0.5",
		"10.244.0.5/32 dev veth0":                  "10.244.0.5/32 dev veth0",
		"10.240.0.4 and 10.244.0.9 and 10.9.9.9":   "10.240.0.4 and 10.244.0.9 and 10.9.9.9",
		"-s ! 10.244.0.5 --ip-dst 10.244.0.5 drop": "-s ! 10.244.0.5 --ip-dst 10.244.0.5 drop",
		"ip saddr 10.244.0.5 drop":                 "ip saddr 10.244.0.5 drop",
		"":                                         "",
	} {
		if got := report.Prose(names, text); got != want {
			t.Errorf("%q\ngot  %q\nwant %q", text, got, want)
		}
	}
	if got := report.Brief(names, "no route to 10.244.0.5."); got != "no route to shop/cart." {
		t.Errorf("in brief: %q", got)
	}
	if here := report.Local(s); here[addr("10.244.1.7")] != (report.Name{}) || !names[addr("10.240.0.4")].Own {
		t.Errorf("what is elsewhere counts as here, or the node as another: %v", here)
	}
}
