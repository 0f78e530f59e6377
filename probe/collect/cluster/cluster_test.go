package cluster

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

const twoNodes = `{
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "aks-1", "labels": {"kubernetes.io/os": "linux"}},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:1::/64"], "providerID": "azure:///x"},
            "status": {"addresses": [
                {"address": "10.240.0.4", "type": "InternalIP"},
                {"address": "52.1.1.1", "type": "ExternalIP"},
                {"address": "aks-1", "type": "Hostname"}
            ], "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "message": "RouteController failed"}
            ]}
        },
        {"kind": "Node", "metadata": {"name": "aks-2"}, "spec": {"podCIDR": "10.244.1.0/24"}, "status": {}}
    ]
}`

func TestNodes(t *testing.T) {
	got, err := DecodeNodes("nodes.json", []byte(twoNodes))
	if err != nil {
		t.Fatal(err)
	}
	want := []model.ClusterNode{
		{
			Name: "aks-1", Addresses: []netip.Addr{netip.MustParseAddr("10.240.0.4"), netip.MustParseAddr("52.1.1.1")},
			External: []netip.Addr{netip.MustParseAddr("52.1.1.1")}, NoRoute: "NoRouteCreated: RouteController failed",
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		},
		{Name: "aks-2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestBadNodes(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "f:1:1: unexpected end of JSON input: want the output of `kubectl get nodes -o json`"},
		{"no JSON", "NAME STATUS\naks-1 Ready", "f:1:1: invalid character 'N'"},
		{"cut", twoNodes[:100], "f:6:29: unexpected end"},
		{"another kind", `{"kind": "PodList", "items": []}`, `f:1:10: kind is "PodList"`},
		{"items of another kind", `{"kind": "List", "items": [{"kind": "Pod"}]}`, `f:1:37: items[0] is a "Pod"`},
		{"no object", `[]`, "f:1:1: found array: want an object"},
		{"range", strings.Replace(twoNodes, "10.244.1.0/24", "10.244.1.0", 1), "f:18:"},
		{"address", strings.Replace(twoNodes, "10.240.0.4", "10.240.0", 1), "f:10:29: node aks-1: ParseAddr"},
		{"type", strings.Replace(twoNodes, `"10.244.1.0/24"`, "7", 1), "found number: want a string at \"podCIDR\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeNodes("f", []byte(tt.text))
			var bad *files.Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

const somePods = `{"kind": "List", "apiVersion": "v1", "items": [
 {"kind": "Pod", "metadata": {"namespace": "shop", "name": "cart-7d9f", "uid": "u-1", "labels": {"app": "cart"}},
  "spec": {"nodeName": "aks-1", "containers": [{"name": "c", "env": [{"name": "TOKEN", "value": "secret"}]}]},
  "status": {"phase": "Running", "podIP": "10.244.0.2", "podIPs": [{"ip": "10.244.0.2"}, {"ip": "fd00::2"}]}},
 {"kind": "Pod", "metadata": {"namespace": "kube-system", "name": "proxy"}, "spec": {"hostNetwork": true}, "status": {"podIP": "10.240.0.4"}},
 {"kind": "Pod", "metadata": {"namespace": "shop", "name": "done"}, "status": {"phase": "Succeeded", "podIP": "10.244.0.3"}},
 {"kind": "Pod", "metadata": {"namespace": "shop", "name": "waits"}, "status": {"phase": "Pending"}},
 {"kind": "Pod", "metadata": {"namespace": "shop", "name": "old"}, "status": {"podIP": "10.244.0.4"}}]}`

// Pods have an address of their own; nothing but names, UID and labels is kept.
func TestPods(t *testing.T) {
	got, err := DecodePods("f", []byte(somePods))
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, uid string, labels map[string]string, addrs ...string) Pod {
		p := Pod{ClusterPod: model.ClusterPod{Namespace: "shop", Name: name}, UID: uid, Labels: labels}
		for _, a := range addrs {
			p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
		}
		return p
	}
	want := []Pod{
		pod("cart-7d9f", "u-1", map[string]string{"app": "cart"}, "10.244.0.2", "fd00::2"),
		pod("old", "", map[string]string{}, "10.244.0.4"),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestBadPods(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "f:1:1: unexpected end of JSON input: want the output of `kubectl get pods -A -o json`"},
		{"nodes", twoNodes, `f:6:41: items[0] is a "Node"`},
		{"another kind", `{"kind": "Secret"}`, `f:1:10: kind is "Secret"`},
		{"escape codes", strings.Replace(somePods, "cart-7d9f", `\u001b[2J`, 1), `items[0]: "\x1b[2J" is not a valid pod name`},
		{"no namespace", `{"kind": "Pod", "metadata": {"name": "a"}}`, `items[0]: "" is not a valid namespace name`},
		{"address", strings.Replace(somePods, `"fd00::2"`, `"fd00::2::"`, 1), "f:4:97: pod shop/cart-7d9f: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodePods("f", []byte(tt.text))
			var bad *files.Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzPods(f *testing.F) {
	f.Add([]byte(somePods))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := DecodePods("f", text)
		var bad *files.Error
		if err != nil && (!errors.As(err, &bad) || bad.Want == "") {
			t.Errorf("error without what was expected: %v", err)
		}
	})
}

func FuzzNodes(f *testing.F) {
	f.Add([]byte(twoNodes))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := DecodeNodes("f", text)
		var bad *files.Error
		if err != nil && (!errors.As(err, &bad) || bad.Want == "") {
			t.Errorf("error without what was expected: %v", err)
		}
	})
}

// TestRanges gives the rules that plugins and kube-proxy write.
func TestRanges(t *testing.T) {
	match := func(s string, not bool) model.AddrMatch {
		return model.AddrMatch{Prefix: netip.MustParsePrefix(s), Not: not}
	}
	node := model.Snapshot{
		Node: model.Node{Uplinks: []string{"nic"}},
		Links: []model.Link{
			{Index: 1, Name: "nic", Role: model.RoleUplink, Addresses: []netip.Prefix{netip.MustParsePrefix("172.20.1.4/16")}},
			{Index: 2, Name: "pods", Role: model.RoleBridge, Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.3.1/24")}},
		},
		Pods: []model.Pod{{Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.3.7/24")}}},
	}
	nat := func(chain, target string, src, dst model.AddrMatch) model.PacketRule {
		return model.PacketRule{Table: "nat", Chain: chain, Number: 1, Target: target, Src: src, Dst: dst}
	}
	native := func(table, dst string) model.PacketRule {
		return model.PacketRule{Native: true, Table: table, Chain: "leaving", Number: 1, Target: "MASQUERADE", Dst: match(dst, true)}
	}
	none := model.AddrMatch{}
	for _, tt := range []struct {
		name  string
		rules []model.PacketRule
		want  []string
	}{
		{"none", nil, nil},
		{"kube-proxy", []model.PacketRule{nat("KUBE-SERVICES", "KUBE-MARK-MASQ", match("10.8.0.0/16", true), match("10.0.0.10/32", false))}, []string{"10.8.0.0/16"}},
		{"kube-proxy, hairpin", []model.PacketRule{nat("KUBE-SEP-X", "KUBE-MARK-MASQ", match("10.8.3.7/32", false), none)}, nil},
		{"dockershim", []model.PacketRule{nat("POSTROUTING", "MASQUERADE", none, match("10.0.0.0/8", true))}, []string{"10.0.0.0/8"}},
		{"dockershim, the network within", []model.PacketRule{nat("POSTROUTING", "MASQUERADE", none, match("0.0.0.0/0", true))}, nil},
		{
			"agent",
			[]model.PacketRule{
				nat("AGENT", "RETURN", none, match("10.8.0.0/16", false)), nat("AGENT", "RETURN", none, match("172.16.0.0/12", false)),
				nat("AGENT", "RETURN", none, match("192.168.0.0/16", false)), nat("AGENT", "MASQUERADE", none, none),
			},
			[]string{"10.8.0.0/16"},
		},
		{"a site's table, wider than any cluster", []model.PacketRule{native("site", "10.0.0.0/8")}, nil},
		{"a site's table, as wide as a cluster", []model.PacketRule{native("site", "10.8.0.0/16")}, []string{"10.8.0.0/16"}},
		{"a site's table beside the agent's", []model.PacketRule{native("site", "10.8.0.0/12"), nat("POSTROUTING", "MASQUERADE", none, match("10.8.0.0/16", true))}, []string{"10.8.0.0/16"}},
		{"an agent's table", []model.PacketRule{native("kindnet-masquerade", "10.0.0.0/8")}, []string{"10.0.0.0/8"}},
		{"a return without masquerading", []model.PacketRule{nat("OTHER", "RETURN", none, match("10.8.0.0/16", false))}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := node
			s.PacketRules = tt.rules
			var got []string
			for _, r := range Ranges(&s) {
				got = append(got, r.Prefix.String())
				if !strings.Contains(r.By, "rule 1") {
					t.Errorf("learned from %q", r.By)
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
