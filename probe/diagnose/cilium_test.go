package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// ciliumNode has Cilium's program at the egress of the first pod's link, and endpoints of both
// pods, whose identities its programs know with that of a pod elsewhere.
func ciliumNode() *testNode {
	n := kubenet().with(model.SourcePrograms, model.SourceCilium)
	n.Node.Netns = 1
	n.Cluster.PodCIDRs = []netip.Prefix{prefix("172.20.0.0/16")}
	n.Programs = []model.Program{{Kind: model.ProgramTC, ID: 5, Name: "cil_to_container-tap10", Filter: "bpf", Priority: 1, Handle: 1,
		Netns: 1, IfIndex: 10, Link: "tap10", Direction: model.Egress}}
	n.Cilium = model.Cilium{
		Endpoints: []model.CiliumEndpoint{
			{ID: 871, Identity: 3358, Labels: []string{"app=shop"}, Namespace: "default", Name: "shop", IfIndex: 10, Addresses: []netip.Addr{addr(pod5)}},
			{ID: 872, Identity: 9934, Labels: []string{"app=cart"}, Namespace: "default", Name: "cart", IfIndex: 11, Addresses: []netip.Addr{addr(pod6)}},
		},
		Known: []model.CiliumAddress{{Prefix: prefix("0.0.0.0/0"), Identity: 2}, {Prefix: prefix(pod5 + "/32"), Identity: 3358},
			{Prefix: prefix(pod6 + "/32"), Identity: 9934}, {Prefix: prefix(far + "/32"), Identity: 4711}},
		Counts: []model.CiliumCount{{Reason: model.CiliumPolicyDenied, Direction: model.Ingress, Packets: 40, Delta: 9}, {Reason: 139, Direction: model.Ingress, Packets: 4, Delta: 1}},
	}
	return n
}

// denied is a drop of Cilium's on the first pod's link, of what another sends to it.
func (n *testNode) denied(from string, reason model.CiliumReason, identity model.CiliumIdentity, packets uint64) *model.Drop {
	d := n.dropOn("tap10", "TC_EGRESS", "__dev_queue_xmit", from, pod5, packets)
	d.Netns, d.Proto = 1, tcp
	d.Cilium = model.CiliumDrop{Reason: reason, SrcIdentity: identity, DstIdentity: 3358, Endpoint: 871, File: 2, Line: 2205, Name: "bpf_lxc.c"}
	return d
}

// atService is a node whose first pod asks a port of a service's address: Cilium drops what is for others than the service's.
func atService(port uint16) *testNode {
	n := ciliumNode()
	n.Programs[0].Direction = model.Ingress
	n.Cilium.Services = []model.CiliumService{{Addr: netip.MustParseAddrPort(virtualIP + ":8080"), Proto: tcp, Backends: []netip.AddrPort{netip.MustParseAddrPort(pod6 + ":80")}}}
	d := n.denied(pod6, model.CiliumNoBackend, 3358, 9)
	d.Reason, d.Location, d.Src, d.Dst, d.Cilium.Endpoint = "TC_INGRESS", "__netif_receive_skb_core", addr(pod5), addr(virtualIP), 0
	n.sampled(d, head(tcp, port, 2))
	return n
}

func TestCiliumDrop(t *testing.T) {
	const beforeAll = "BPFDrop proven 172.20.1.5 "
	none := func(n *testNode) *testNode { return n }
	for _, tt := range []struct {
		name      string
		node      func() *testNode
		verdict   []string
		says, not []string
	}{
		{"healthy", func() *testNode { return none(ciliumNode()) }, nil, nil, nil},
		{"one that a packet or two met", func() *testNode { n := ciliumNode(); n.denied(pod6, 133, 9934, 2); return n }, nil, nil, nil},
		{"no policy allows", func() *testNode {
			n := ciliumNode()
			n.sampled(n.denied(pod6, 133, 9934, 9), head(tcp, 8080, 2))
			return n
		}, []string{beforeAll + pod6}, []string{
			"Cilium drops packets to 172.20.1.5: policy denied", "no policy allows these packets",
			"drops: Cilium's reason: policy denied (133), identity 9934 (app=cart) → identity 3358 (app=shop), ingress of endpoint 871 (default/shop), tcp/8080: 9 packets, at bpf_lxc.c:2205",
			"cilium: its own count on this node: 9 packets dropped on ingress in the window, policy denied",
			"cilium-dbg bpf policy get 871",
		}, []string{"world", "139"}},
		{"a rule denies", func() *testNode { n := ciliumNode(); n.denied(pod6, 181, 9934, 9); return n }, []string{beforeAll + pod6},
			[]string{"policy denied by denylist", "a rule that denies these packets"}, []string{"no policy allows"}},
		{"an identity that is not known", func() *testNode {
			n := ciliumNode()
			n.Cilium.Known = n.Cilium.Known[:3]
			n.denied(far, 133, 2, 9)
			return n
		}, []string{beforeAll + far}, []string{"172.20.2.9 has the identity world", "ipcache has no entry for 172.20.2.9", "identity 2 (world)",
			"cilium: the ipcache has no entry for 172.20.2.9", "ciliumendpoints -A -o wide | grep -wF 172.20.2.9"}, nil},
		{"one that it knows by now", func() *testNode { n := ciliumNode(); n.denied(far, 133, 2, 9); return n }, []string{beforeAll + far},
			[]string{"172.20.2.9 has the identity world (outside the cluster), not that of a pod"}, []string{"ipcache"}},
		{"what is outside of the cluster", func() *testNode { n := ciliumNode(); n.denied(out, 133, 2, 9); return n }, []string{beforeAll + out},
			[]string{"identity 2 (world)", "no policy allows these packets"}, []string{"has the identity world", "ipcache"}},
		{"an address of which nobody knows whose it is", func() *testNode {
			n := ciliumNode()
			n.Cluster.PodCIDRs = nil
			n.denied("172.20.9.9", 133, 2, 9)
			return n
		}, []string{beforeAll + "172.20.9.9"}, []string{"whether 172.20.9.9 is a pod: Cilium gives it the identity world"}, []string{"ipcache"}},
		{"a pod that it does not manage", func() *testNode {
			n := ciliumNode()
			n.Cilium.Endpoints, n.Cilium.Known = n.Cilium.Endpoints[:1], n.Cilium.Known[:2]
			n.denied(pod6, 133, 2, 9)
			return n
		}, []string{beforeAll + pod6}, []string{"Cilium does not manage the pod, and has no endpoint behind tap11", "delete pod"}, []string{"ipcache"}},
		{"whether it manages it is not known", func() *testNode {
			n := ciliumNode()
			n.Cilium.Endpoints, n.Cilium.Known = n.Cilium.Endpoints[:1], nil
			n.lose(model.SourceCilium, model.Partial)
			n.denied(pod6, 133, 2, 9)
			return n
		}, []string{beforeAll + pod6}, []string{"172.20.1.6 has the identity world (outside the cluster), not that of a pod"}, []string{"manage", "ipcache"}},
		{"two reasons", func() *testNode {
			n := ciliumNode()
			n.denied(pod6, 133, 9934, 9)
			n.denied(pod6, 210, 9934, 8).Cilium.Error = -22
			return n
		}, []string{beforeAll + pod6, beforeAll + pod6}, []string{"to 172.20.1.5: policy denied", "to 172.20.1.5: reason 210", "reason 210 (210), error -22"}, nil},
		{"a full table", func() *testNode { n := ciliumNode(); n.denied(pod6, 155, 9934, 9); return n }, []string{beforeAll + pod6},
			[]string{"CT: map insertion failed", "connection tracking map is full", "bpf-ct-global-tcp-max"}, []string{"bpf policy get"}},
		{"a port that no service has, of an address that one has", func() *testNode { return atService(8081) }, []string{beforeAll + virtualIP},
			[]string{"No service has " + virtualIP + ":8081.", "cilium: the address has the service " + virtualIP + ":8080/tcp, with 1 backend", "kubectl get services -A | grep -wF " + virtualIP},
			[]string{"no ready backend", "endpointslices"}},
		{"a port whose service has no backend", func() *testNode { return atService(8080) }, []string{beforeAll + virtualIP},
			[]string{"The service has no ready backend."}, []string{"No service has"}},
		{"another's program is there", func() *testNode {
			n := ciliumNode()
			n.Programs[0].Name = "tail"
			n.denied(pod6, 133, 9934, 9)
			return n
		}, []string{beforeAll + pod6}, []string{"a BPF program on tap10 drops packets of 172.20.1.5"}, []string{"Cilium"}},
		{"the program is gone by now", func() *testNode {
			n := ciliumNode()
			n.Programs = nil
			n.denied(pod6, 133, 9934, 9)
			return n
		}, []string{beforeAll + pod6}, []string{"Cilium drops packets to 172.20.1.5: policy denied"}, nil},
		{"Cilium did not say why", func() *testNode {
			n := ciliumNode()
			n.denied(pod6, 0, 0, 9).Cilium = model.CiliumDrop{}
			return n
		}, []string{beforeAll + pod6}, []string{"a BPF program on tap10 drops packets of 172.20.1.5", "owner: Cilium", "9 packets dropped on ingress in the window, policy denied"}, []string{"identity", "why Cilium"}},
		{"it may not say why", func() *testNode {
			n := ciliumNode()
			n.Cilium.Endpoints[0].Quiet = true
			n.denied(pod6, 0, 0, 9).Cilium = model.CiliumDrop{}
			return n
		}, []string{beforeAll + pod6}, []string{"why Cilium dropped them: its programs report no reason"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node()
			verdicts(t, n, tt.verdict)
			said := sentences(n)
			for _, w := range tt.says {
				if !strings.Contains(said, w) {
					t.Errorf("no %q in\n%s", w, said)
				}
			}
			for _, w := range tt.not {
				if strings.Contains(said, w) {
					t.Errorf("%q in\n%s", w, said)
				}
			}
		})
	}
}

// TestCiliumSender has a program drop what a pod sends: there is no endpoint that it was for.
func TestCiliumSender(t *testing.T) {
	n := ciliumNode()
	n.Programs[0].Direction = model.Ingress
	d := n.denied(pod6, 132, 3358, 9)
	d.Reason, d.Location, d.Src, d.Dst = "TC_INGRESS", "__netif_receive_skb_core", addr(pod5), addr(far)
	d.Cilium.DstIdentity, d.Cilium.Endpoint = 0, 0
	said := sentences(n)
	for _, w := range []string{"Cilium drops packets from 172.20.1.5: invalid source IP", "identity 3358 (app=shop) → an unknown one, egress of endpoint 871 (default/shop)"} {
		if !strings.Contains(said, w) {
			t.Errorf("no %q in\n%s", w, said)
		}
	}
}

// TestCiliumOtherPort: what leaves the node for a service's address is for a port that Cilium does not translate.
func TestCiliumOtherPort(t *testing.T) {
	for _, served := range []string{virtualIP, "10.0.0.77"} {
		n := ciliumNode()
		n.Cilium.Services = []model.CiliumService{{Addr: netip.AddrPortFrom(addr(served), 8080), Proto: tcp, Backends: []netip.AddrPort{netip.MustParseAddrPort(pod6 + ":80")}}}
		n.answered(pod5, out)
		n.silent(pod5, virtualIP)
		if served == virtualIP { // which an agent's rule excludes, as AKS' do
			n.Node.Plugin = "azure-cilium"
			n.exclude("10.0.0.0/16")
		}
		verdicts(t, n, []string{"NoReply likely 172.20.1.5 " + virtualIP})
		const why = "is the address of a service that Cilium translates, but not on the port that pods use"
		if said := sentences(n); strings.Contains(said, why) != (served == virtualIP) ||
			strings.Contains(said, "az network") == (served == virtualIP) {
			t.Errorf("service at %s:\n%s", served, said)
		}
	}
}
