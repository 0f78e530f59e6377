package redact_test

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/redact"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func mac(s string) model.MAC {
	m, err := model.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// common is how many leading bits two addresses share.
func common(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range 8 * len(x) {
		if (x[i/8]^y[i/8])&(0x80>>(i%8)) != 0 {
			return i
		}
	}
	return 8 * len(x)
}

var plain = []string{
	"10.244.0.5", "10.244.0.6", "10.244.1.5", "10.240.0.4", "10.0.0.10", "172.16.5.1", "172.31.0.9", "192.168.1.1", "192.168.2.1",
	"100.64.0.3", "169.254.23.1", "8.8.8.8", "203.0.113.10", "20.1.2.3", "192.0.2.7", "1.1.1.1", "191.255.0.1",
	"fd00:10:244::5", "fd00:10:244:1::5", "2001:db8::1", "2603:1020::9", "fc00::a:1",
}

func TestAddr(t *testing.T) {
	r := redact.New("")
	kind := func(a netip.Addr) string {
		for name, is := range map[string]bool{
			"private": a.IsPrivate(), "link-local": a.IsLinkLocalUnicast(), "shared": netip.MustParsePrefix("100.64.0.0/10").Contains(a),
			"loopback": a.IsLoopback(), "multicast": a.IsMulticast(),
		} {
			if is {
				return name
			}
		}
		return "public"
	}
	for _, s := range plain {
		a := addr(s)
		got := r.Addr(a)
		if got == a {
			t.Errorf("%s stays as it was", a)
		}
		if kind(got) != kind(a) || got.Is4() != a.Is4() {
			t.Errorf("%s, %s, became %s, %s", a, kind(a), got, kind(got))
		}
		if got != redact.New("").Addr(a) {
			t.Errorf("%s is not the same each time", a)
		}
		if a.Is4() && got.As4()[3] != a.As4()[3] {
			t.Errorf("%s became %s, with another end", a, got)
		}
		for _, other := range plain {
			if b := addr(other); a.Is4() == b.Is4() && common(a, b) != common(got, r.Addr(b)) {
				t.Errorf("%s and %s share %d bits, %s and %s %d", a, b, common(a, b), got, r.Addr(b), common(got, r.Addr(b)))
			}
		}
	}
	for _, s := range []string{
		"0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1", "255.255.0.0", "168.63.129.16", "169.254.169.254", "169.254.1.1", "::", "::1", "ff02::1", "fe80::1",
	} {
		if got := r.Addr(addr(s)); got != addr(s) {
			t.Errorf("%s became %s", s, got)
		}
	}
	if got := r.Addr(addr("fe80::858:aff:fef4:5")); got == addr("fe80::858:aff:fef4:5") || !got.IsLinkLocalUnicast() {
		t.Errorf("a link-local address with a MAC in it became %s", got)
	}
	if got := r.Addr(addr("::ffff:10.1.2.3")); got.Unmap() != r.Addr(addr("10.1.2.3")) || !got.Is4In6() {
		t.Errorf("a mapped address became %s", got)
	}
	if redact.New("other").Addr(addr("10.244.1.5")) == r.Addr(addr("10.244.1.5")) {
		t.Error("the key makes no difference")
	}
}

func TestPrefix(t *testing.T) {
	r := redact.New("k")
	for _, s := range []string{"10.0.0.0/8", "0.0.0.0/0", "::/0", "172.16.0.0/12"} {
		if p := netip.MustParsePrefix(s); r.Prefix(p) != p {
			t.Errorf("%s became %s", p, r.Prefix(p))
		}
	}
	for _, s := range []string{"10.244.0.0/16", "10.244.3.0/24", "10.240.16.0/20", "203.0.113.0/26", "fd00:10:244::/56", "10.244.3.9/32"} {
		p := netip.MustParsePrefix(s)
		got := r.Prefix(p)
		if got == p || got != got.Masked() || got.Bits() != p.Bits() {
			t.Errorf("%s became %s", p, got)
		}
		for _, a := range plain {
			if p.Contains(addr(a)) != got.Contains(r.Addr(addr(a))) {
				t.Errorf("%s in %s, and %s in %s", a, p, r.Addr(addr(a)), got)
			}
		}
	}
	if got := r.Prefix(netip.MustParsePrefix("10.244.3.9/24")); got.Addr() != r.Addr(addr("10.244.3.9")) {
		t.Errorf("an interface's address became %s", got)
	}
}

// TestBroadcast: the last address of a link's range is that of the range it becomes.
func TestBroadcast(t *testing.T) {
	r := redact.New("")
	s := &model.Snapshot{Links: []model.Link{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.240.16.5/20")}}}}
	own := r.Snapshot(s).Links[0].Addresses[0]
	last := r.Addr(addr("10.240.31.255"))
	if !own.Contains(last) || own.Contains(last.Next()) {
		t.Errorf("the broadcast address of %s is %s", own, last)
	}
}

func TestMAC(t *testing.T) {
	r := redact.New("")
	seen := map[model.MAC]bool{}
	for _, s := range []string{"0a:58:0a:f4:00:05", "0a:58:0a:f4:00:06", "00:0d:3a:00:00:01", "12:34:56:78:9a:bd", "33:33:ff:f4:00:05"} {
		got := r.MAC(mac(s))
		if got == mac(s) || got[0] != mac(s)[0] || seen[got] || got != redact.New("").MAC(mac(s)) {
			t.Errorf("%s became %s", s, got)
		}
		seen[got] = true
	}
	for _, s := range []string{"ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "12:34:56:78:9a:bc", "00:00:00:00:00:00"} {
		if got := r.MAC(mac(s)); got != mac(s) {
			t.Errorf("%s became %s", s, got)
		}
	}
}

// rich is a snapshot with a name or an address in every field that can hold one. Each
// name holds the word secret, and each address 77.
func rich() *model.Snapshot {
	pod := netip.MustParsePrefix("10.77.1.5/24")
	id := "/subscriptions/5ec2e700-0000-4000-8000-00000secret0/resourceGroups/MC_secret/providers/Microsoft.Network/routeTables/secret-table"
	s := &model.Snapshot{
		Node:   model.Node{Name: "aks-secret-1", Plugin: "kubenet", PluginBy: []string{"aks-secret-1 has vethsecret0"}, Uplinks: []string{"eth0"}},
		Window: model.Window{Start: time.Unix(1, 0), End: time.Unix(11, 0)},
		Sources: []model.Source{
			{Name: "nodes", Status: model.OK, Detail: "3 nodes from /home/secret/nodes.json"},
			{Name: "names", Status: model.Partial, Detail: "read /var/lib/cni/results/secret-db-of-another-node: permission denied"},
			{Name: "links", Status: model.OK},
		},
		Links:   []model.Link{{Index: 2, Name: "eth0"}, {Index: 7, Name: "vethsecret0", Addresses: []netip.Prefix{pod}, MAC: mac("0a:77:0a:f4:00:05")}},
		Sysctls: []model.Sysctl{{Name: "net.ipv4.conf.vethsecret0.rp_filter", Value: "1"}, {Name: "net.ipv4.conf.eth0/77.rp_filter", Value: "0"}},
		Pods: []model.Pod{{
			Namespace: "secret-ns", Name: "secret-pod", UID: "5ec2e777-aaaa-bbbb-cccc-dddddddddddd", Labels: map[string]string{"app": "secret"}, Addresses: []netip.Prefix{pod},
			Given: []netip.Addr{addr("10.77.9.9")}, Link: "vethsecret0", Interface: "eth0", NetnsName: "/run/netns/cni-secret",
			Gateways: []model.Neighbor{{Addr: addr("10.77.1.1"), Link: "eth0"}}, Routes: []model.Route{{Dst: netip.MustParsePrefix("10.77.0.0/16"), Gateway: addr("10.77.1.1")}},
			Resolver: &model.Resolver{Servers: []netip.Addr{addr("10.77.0.10")}, By: model.ResolverCluster},
			Backlog:  &model.Backlog{Waiting: []model.Listener{{Addr: netip.MustParseAddrPort("10.77.1.5:80")}}},
		}},
		FrameRules: []model.FrameRule{{Table: "nat", Chain: "PREROUTING", Text: "-i vethsecret0 --ip-dst 10.77.1.5 -j dnat --to-dst 0a:77:0a:f4:00:05", In: model.IfMatch{Name: "vethsecret+"},
			DstMAC: model.MACMatch{Addr: mac("0a:77:00:00:00:00"), Mask: mac("ff:ff:00:00:00:00"), Set: true}, IPDst: model.AddrMatch{Prefix: pod.Masked()}, MAC: mac("0a:77:0a:f4:00:05")}},
		PacketRules: []model.PacketRule{{
			Table: "nat", Chain: "cali-tw-vethsecret0", Target: "cali-fw-vethsecret0", Comment: "secret-space/secret-service:http has no endpoints",
			Text: `-d 10.77.0.10/32 -m comment --comment "secret-space/secret-service:http has no endpoints" -j REJECT`, To: netip.MustParseAddrPort("10.77.1.5:8080"),
		}, {Comment: "secret-pod to 10.77.2.9:53"}, {Comment: "secret-ns/secret-pod of aks-secret-2 at 10.77.2.1, fd77::9 and 0a:77:0a:f4:00:05."}},
		Chains: []model.Chain{{Table: "nat", Name: "cali-tw-vethsecret0", Devices: "lo,vethsecret0"}, {Table: "kube-proxy", Name: secretChain}},
		Sets: []model.Set{{Family: "ip", Table: "kube-proxy", Name: "affinity-2QRHZV4L-secret-space/secret-service/tcp/http__10.77.1.5/8080", Elements: []model.Element{
			{Key: "10.77.0.10 . tcp . 443", Value: "goto " + secretChain, Comment: "secret-space/secret-service:http"},
			{Key: "10.77.0.10-10.77.0.19"}, {Key: "vethsecret0", Value: "10.77.1.5 . 8080"},
		}}},
		Flows:    []model.Flow{{Original: model.Tuple{Src: pod.Addr(), Dst: addr("10.77.2.9")}}},
		Programs: []model.Program{{Link: "vethsecret0", Cgroup: "/kubepods/pod5ec2e777_aaaa_bbbb_cccc_dddddddddddd/cri-0123456789abcdef77"}},
		Cilium: model.Cilium{
			Endpoints: []model.CiliumEndpoint{{ID: 9, Labels: []string{"app=secret"}, Namespace: "secret-ns", Name: "secret-pod", Addresses: []netip.Addr{pod.Addr()}}},
			Local:     []model.CiliumAddress{{Prefix: netip.MustParsePrefix("10.77.1.5/32"), Endpoint: 9}},
			Known:     []model.CiliumAddress{{Prefix: netip.MustParsePrefix("10.77.2.9/32")}},
			Services:  []model.CiliumService{{Addr: netip.MustParseAddrPort("10.77.0.10:80"), Backends: []netip.AddrPort{netip.MustParseAddrPort("10.77.0.11:80")}}},
		},
		Cluster: model.Cluster{
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")},
			Nodes:    []model.ClusterNode{{Name: "aks-secret-2", Addresses: []netip.Addr{addr("10.77.200.4")}}},
			Pods:     []model.ClusterPod{{Namespace: "secret-ns", Name: "secret-db", Addresses: []netip.Addr{addr("10.77.2.9")}}},
			Azure: model.Azure{
				Node:   model.AzureNode{SubscriptionID: "5ec2e700-0000-4000-8000-000000000000", ResourceGroup: "mc_SECRET", VNet: "secret-vnet", Subnet: "secret-subnet"},
				Tables: []model.RouteTable{{ID: id, Subnets: []string{strings.Replace(id, "routeTables", "subnets", 1)}, File: "/home/secret/secret.json", Routes: []model.UDR{{Name: "secret-route", NextHops: []netip.Addr{addr("10.77.200.4")}}}}},
				NICs:   []model.NIC{{ID: id, SecurityGroup: id, File: "secret.json", Addresses: []netip.Addr{addr("10.77.200.4")}}},
				Rules: []model.EffectiveRules{{NIC: id, File: "secret.json", Groups: []model.SecurityGroup{{ID: id, File: "secret.json", Rules: []model.SecurityRule{
					{Name: "secret-rule", To: model.SecurityEnd{Names: []string{id}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.77.2.9/32")}}},
				}}}}},
			},
		},
	}
	s.Traffic.Lost.Detail = []model.Uncounted{{Packets: 3, Why: "packets on links that were not known yet"}}
	s.Traffic.Hops = []model.HopCount{{Addr: pod.Addr(), Link: "vethsecret0"}}
	s.Traffic.Samples = []model.Sample{{Src: pod.Addr(), Dst: addr("10.77.2.9"), Link: "vethsecret0", Protocol: 0x0800, Head: packet("secret payload")}}
	return s
}

const secretChain = "endpoint-2QRHZV4L-secret-space/secret-service/tcp/http__10.77.1.5/8080"

func packet(payload string) []byte {
	b := make([]byte, 28)
	b[0], b[9] = 0x45, 17
	copy(b[12:], addr("10.77.1.5").AsSlice())
	copy(b[16:], addr("10.77.2.9").AsSlice())
	binary.BigEndian.PutUint16(b[20:], 4077)
	binary.BigEndian.PutUint16(b[26:], 0xbeef)
	return append(b, payload...)
}

// strings are all texts and addresses in a value.
func stringsIn(v reflect.Value, visit func(string)) {
	switch x := v.Interface().(type) {
	case interface{ String() string }:
		visit(x.String())
		return
	case []byte:
		visit(string(x))
		return
	}
	switch v.Kind() {
	case reflect.String:
		visit(v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			stringsIn(v.Field(i), visit)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			stringsIn(v.Index(i), visit)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			stringsIn(v.Elem(), visit)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			visit(k.String() + v.MapIndex(k).String())
		}
	}
}

func revealing(s string) bool {
	s = strings.ToLower(s)
	return strings.Contains(s, "secret") || strings.Contains(s, ".77.") || strings.Contains(s, "77::") || strings.Contains(s, ":77:") || strings.Contains(s, "5ec2e7")
}

func TestSnapshotRevealsNothing(t *testing.T) {
	before := rich()
	got := redact.New("").Snapshot(before)
	stringsIn(reflect.ValueOf(*got), func(s string) {
		if revealing(s) {
			t.Errorf("%q", s)
		}
	})
	if !reflect.DeepEqual(before, rich()) {
		t.Error("the snapshot itself was changed")
	}
	if again := redact.New("").Snapshot(rich()); !reflect.DeepEqual(got, again) {
		t.Error("it is not the same each time")
	}
	// What belongs together still does.
	p, table := got.Pods[0], got.Cluster.Azure.Tables[0]
	rule := got.PacketRules[0]
	for what, same := range map[string]bool{
		"an element's chain":     got.Sets[0].Elements[0].Value == "goto "+got.Chains[1].Name && strings.HasPrefix(got.Chains[1].Name, "endpoint-"),
		"an element's address":   strings.HasSuffix(got.Chains[1].Name, "__"+p.Addresses[0].Addr().String()+"/8080") && got.Sets[0].Elements[2].Value == p.Addresses[0].Addr().String()+" . 8080",
		"an element's link":      got.Sets[0].Elements[2].Key == p.Link,
		"a pod's link":           p.Link == got.Links[1].Name && p.Link == got.Traffic.Hops[0].Link && p.Link != "vethsecret0" && strings.HasPrefix(p.Link, "veth"),
		"a wildcard":             strings.HasPrefix(p.Link, strings.TrimSuffix(got.FrameRules[0].In.Name, "+")),
		"a link's setting":       got.Sysctls[0].Name == "net.ipv4.conf."+p.Link+".rp_filter",
		"a VLAN's setting":       got.Sysctls[1].Name == "net.ipv4.conf.eth0/77.rp_filter",
		"a hook's link":          got.Chains[0].Devices == "lo,"+p.Link,
		"a link's chain":         rule.Chain == "cali-tw-"+p.Link && rule.Chain == got.Chains[0].Name,
		"a rule's text":          strings.Contains(got.FrameRules[0].Text, "--ip-dst "+p.Addresses[0].Addr().String()+" ") && strings.Contains(got.FrameRules[0].Text, got.Links[1].MAC.String()),
		"a masked MAC":           got.FrameRules[0].DstMAC.Matches(got.FrameRules[0].MAC),
		"a comment":              strings.HasSuffix(rule.Comment, ":http has no endpoints") && strings.Contains(rule.Text, rule.Comment),
		"a namespace":            p.Namespace == got.Cluster.Pods[0].Namespace,
		"an endpoint":            got.Cilium.Endpoints[0].Namespace+got.Cilium.Endpoints[0].Name == p.Namespace+p.Name && got.Cilium.Endpoints[0].Addresses[0] == p.Addresses[0].Addr(),
		"a pod's UID":            strings.Contains(got.Programs[0].Cgroup, strings.ReplaceAll(p.UID, "-", "_")),
		"a resource group":       model.ResourcePart(table.ID, "resourceGroups") == got.Cluster.Azure.Node.ResourceGroup,
		"what is not a name":     got.Links[0].Name == "eth0" && p.Interface == "eth0" && got.Node.Plugin == "kubenet" && strings.Contains(table.ID, "/providers/Microsoft.Network/"),
		"an end of a sentence":   strings.HasSuffix(got.PacketRules[2].Comment, got.Links[1].MAC.String()+"."),
		"a node in a sentence":   strings.Contains(got.PacketRules[2].Comment, got.Cluster.Nodes[0].Name),
		"a port in a sentence":   strings.Contains(got.PacketRules[1].Comment, got.Flows[0].Original.Dst.String()+":53"),
		"whether there is more":  got.Sources[0].Detail == "redacted" && got.Sources[2].Detail == "" && got.Sources[1].Status == model.Partial,
		"what lasthop lost":      got.Traffic.Lost.Detail[0] == before.Traffic.Lost.Detail[0],
		"a pool of pods' ranges": got.Cluster.PodCIDRs[0].Contains(p.Addresses[0].Addr()),
	} {
		if !same {
			t.Errorf("%s: no longer so", what)
		}
	}
	head := got.Traffic.Samples[0].Head
	if len(head) != 28 || binary.BigEndian.Uint16(head[20:]) != 4077 || binary.BigEndian.Uint16(head[26:]) != 0 {
		t.Errorf("a sample's head is % x", head)
	}
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(head[i:]))
	}
	if sum&0xffff+sum>>16 != 0xffff {
		t.Errorf("the IP header of % x has a wrong checksum", head)
	}
}

func TestReadingRevealsNothing(t *testing.T) {
	s := rich()
	x := model.Reading{Snapshot: s, Point: model.Point{Snapshot: s}}
	x.Findings = []model.Tracked{{ID: 3}}
	r := redact.New("")
	got := r.Reading(x)
	stringsIn(reflect.ValueOf(got), func(s string) {
		if revealing(s) {
			t.Errorf("%q", s)
		}
	})
	if len(got.Findings) != 1 || got.Findings[0].ID != 3 {
		t.Errorf("%+v", got)
	}
	// A pod that is gone is remembered.
	if text := r.Text("secret-ns/secret-pod sends to aks-secret-2, and 10.77.2.9 is silent"); revealing(text) {
		t.Errorf("%q", text)
	}
}

func TestText(t *testing.T) {
	r := redact.New("")
	r.Snapshot(&model.Snapshot{Pods: []model.Pod{{Namespace: "default", Name: "cart"}, {Namespace: "shop", Name: "node"}}})
	for _, same := range []string{
		"", "default via the gateway", "the node's rules", "tcp dport 80", "25/hour", "--mark 0x4000/0x4000", "6.12.3", "12:34", "dead beef cafe:", "255.255.255.0", "carts and cartels", "a::b::c",
	} {
		if got := r.Text(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
	}
	for _, other := range []string{"default/cart", "cart", "shop/node", "10.1.2.3", "10.1.2.3/24", "10.1.2.3:80", "[fd00::1]:80", "x10.1.2.3,", "0a:58:0a:f4:00:05"} {
		if got := r.Text(other); got == other {
			t.Errorf("%q stays", other)
		}
	}
}

// TestEveryFieldIsThoughtOf: whoever adds a text to the model says what becomes of it.
func TestEveryFieldIsThoughtOf(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(typ.Elem())
		case reflect.Struct:
			if seen[typ] || typ == reflect.TypeFor[model.Finding]() || typ.PkgPath() != reflect.TypeFor[model.Snapshot]().PkgPath() {
				return
			}
			seen[typ] = true
			for i := range typ.NumField() {
				f := typ.Field(i)
				if plain := f.Type == reflect.TypeFor[string]() || f.Type == reflect.TypeFor[[]string](); plain && f.Tag.Get("redact") == "" {
					t.Errorf("%s.%s has no treatment", typ.Name(), f.Name)
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[model.Reading]())
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"10.77.1.5", "secret-ns/secret-pod", "fd77::1/64", "0a:77:00:00:00:01", "::ffff:10.77.0.1", "\xff[10.77.1.1]:80", "5ec2e777-aaaa-bbbb-cccc-dddddddddddd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := redact.New("")
		r.Snapshot(rich())
		if got := r.Text(s); got != r.Text(s) {
			t.Errorf("%q is not the same each time: %q", s, got)
		}
		head := []byte(s)
		for _, protocol := range []uint16{0x0800, 0x0806, 0x86dd, 0} {
			if got := r.Samples([]model.Sample{{Protocol: protocol, Head: head}})[0].Head; len(got) > len(head) {
				t.Errorf("the head grew from % x to % x", head, got)
			}
		}
	})
}
