package lab

import (
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/kind/scenario"
)

// proxyTable is what kube-proxy has in its mode nftables on a node without services.
const proxyTable = `
add table ip kube-proxy
add set ip kube-proxy cluster-ips { type ipv4_addr; }
add set ip kube-proxy nodeport-ips { type ipv4_addr; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict; }
add chain ip kube-proxy filter-input { type filter hook input priority filter; }
add chain ip kube-proxy filter-forward { type filter hook forward priority filter; }
add chain ip kube-proxy filter-output { type filter hook output priority filter; }
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority dstnat; }
add chain ip kube-proxy nat-output { type nat hook output priority -100; }
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority srcnat; }
add chain ip kube-proxy nodeport-endpoints-check
add chain ip kube-proxy service-endpoints-check
add chain ip kube-proxy cluster-ips-check
add chain ip kube-proxy services
add chain ip kube-proxy masquerading
add chain ip kube-proxy mark-for-masquerade
add chain ip kube-proxy reject-chain
add rule ip kube-proxy filter-input ct state new jump nodeport-endpoints-check
add rule ip kube-proxy filter-input ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump cluster-ips-check
add rule ip kube-proxy nat-prerouting jump services
add rule ip kube-proxy nat-output jump services
add rule ip kube-proxy nat-postrouting jump masquerading
add rule ip kube-proxy nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
add rule ip kube-proxy masquerading mark and 0x4000 == 0 return
add rule ip kube-proxy masquerading mark set mark xor 0x4000
add rule ip kube-proxy masquerading masquerade fully-random
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
add rule ip kube-proxy cluster-ips-check ip daddr { SERVICES } drop comment "Drop traffic to unallocated ClusterIPs"
add rule ip kube-proxy mark-for-masquerade mark set mark or 0x4000
add rule ip kube-proxy reject-chain reject
`

// proxyPorts are what a service has: each with an element of its own in the maps.
var proxyPorts = []string{"tcp . 80", "udp . 80"}

// proxyService makes the pod one more endpoint of a service, by the chains and maps of
// kube-proxy in its mode nftables.
func proxyService(x *target) error {
	if x.undo {
		return x.proxy("delete table ip kube-proxy")
	}
	var b strings.Builder
	if !x.proxied() {
		range16, err := x.Prefix.Addr().Prefix(16)
		if err != nil {
			return err
		}
		b.WriteString(strings.Replace(proxyTable, "SERVICES", range16.String(), 1))
	}
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("add element ip kube-proxy cluster-ips { %s }", x.Prefix.Addr())
	for _, port := range proxyPorts {
		proto, _, _ := strings.Cut(port, " ")
		service := fmt.Sprintf("service-2QRHZV4L-%s/%s/http", x.proxyName(), proto)
		var endpoints []string
		for _, p := range x.proxyEndpoints() {
			chain := fmt.Sprintf("endpoint-IEY327M4-%s/%s/http__%s/80", x.proxyName(), proto, p.IP)
			line("add chain ip kube-proxy %s", chain)
			line("flush chain ip kube-proxy %s", chain)
			line("add rule ip kube-proxy %s ip saddr %s jump mark-for-masquerade", chain, p.IP)
			line("add rule ip kube-proxy %s meta l4proto %s dnat to %s:80", chain, proto, p.IP)
			endpoints = append(endpoints, fmt.Sprintf("%d : goto %s", len(endpoints), chain))
		}
		line("add chain ip kube-proxy %s", service)
		line("flush chain ip kube-proxy %s", service)
		line("add rule ip kube-proxy %s numgen random mod %d vmap { %s }", service, len(endpoints), strings.Join(endpoints, ", "))
		line("add element ip kube-proxy service-ips { %s . %s : goto %s }", x.Prefix.Addr(), port, service)
	}
	return x.proxy(b.String())
}

// proxyName is that of the service with the fault's address.
func (x *target) proxyName() string {
	return "shop/s" + strings.ReplaceAll(x.Prefix.Addr().String(), ".", "-")
}

// proxied reports whether the node has the table.
func (x *target) proxied() bool {
	_, err := x.sp.pipe("", nft, "list", "table", "ip", "kube-proxy")
	return err == nil
}

// proxyEndpoints are the pods of the node that the scenario makes endpoints of the
// service.
func (x *target) proxyEndpoints() []*scenario.Pod {
	var out []*scenario.Pod
	for i := range x.node.Pods {
		p := &x.node.Pods[i]
		for _, f := range x.s.Faults {
			if f.Type == x.Type && f.Prefix == x.Prefix && f.Pod == x.node.Name+"/"+p.Name {
				out = append(out, p)
			}
		}
	}
	return out
}

// proxyWithoutEndpoints has the service refused, as once its last endpoint is gone.
func proxyWithoutEndpoints(x *target) error {
	var b strings.Builder
	for _, port := range proxyPorts {
		proto, _, _ := strings.Cut(port, " ")
		with := fmt.Sprintf("service-ips { %s . %s : goto service-2QRHZV4L-%s/%s/http }", x.Prefix.Addr(), port, x.proxyName(), proto)
		without := fmt.Sprintf("no-endpoint-services { %s . %s comment \"%s:http\" : goto reject-chain }", x.Prefix.Addr(), port, x.proxyName())
		if x.undo {
			with, without = without, with
		}
		fmt.Fprintf(&b, "delete element ip kube-proxy %s\nadd element ip kube-proxy %s\n", with, without)
	}
	return x.proxy(b.String())
}

// proxyRetired takes the service away, as when it was deleted.
func proxyRetired(x *target) error {
	op := map[bool]string{true: "add", false: "delete"}[x.undo]
	var b strings.Builder
	fmt.Fprintf(&b, "%s element ip kube-proxy cluster-ips { %s }\n", op, x.Prefix.Addr())
	for _, port := range proxyPorts {
		proto, _, _ := strings.Cut(port, " ")
		fmt.Fprintf(&b, "%s element ip kube-proxy service-ips { %s . %s : goto service-2QRHZV4L-%s/%s/http }\n", op, x.Prefix.Addr(), port, x.proxyName(), proto)
	}
	return x.proxy(b.String())
}

// proxy has nft do all lines at once, and forgets the flows, which keep what they were
// translated to.
func (x *target) proxy(lines string) error {
	if _, err := x.sp.pipe(lines, nft, "-f", "-"); err != nil {
		return err
	}
	return x.sp.forgetFlows()
}
