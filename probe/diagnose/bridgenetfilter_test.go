package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func TestBridgeNetfilterOff(t *testing.T) {
	const service, name = "10.0.0.10", "net.bridge.bridge-nf-call-iptables"
	// asked is a node whose service leads pod5 to pod6 on its bridge.
	asked := func(value string, flows int) *testNode {
		n := kubenet().with(model.SourceSysctl)
		if value != "" {
			n.sysctl(name, value)
		}
		for range flows {
			f := n.translated(pod5, service, pod6, pod5, false)
			f.Proto, f.State = tcp, "SYN_SENT"
		}
		n.passes(pod5, 10, model.Ingress, model.AsSource, 20, 1)
		return n
	}
	refusing := func(n *testNode) *testNode {
		n.Traffic.Hops[len(n.Traffic.Hops)-1].RST = 9
		return n
	}
	const want = "BridgeNetfilterOff proven 172.20.1.5 10.0.0.10 172.20.1.6"
	past := func(value string) *testNode {
		n := bridged().with(model.SourceSysctl)
		n.sysctl(name, value)
		n.natRules(model.PacketRule{Chain: "KUBE-SERVICES", Dst: model.AddrMatch{Prefix: netip.MustParsePrefix(service + "/32")}, Target: "KUBE-SVC-A"})
		n.silent("10.60.0.20", service)
		n.answered("10.60.0.20", "10.60.0.9")
		return n
	}
	check(t, []fixture{
		{"replies bypass the node", func() *testNode { return refusing(asked("0", 5)) }, []string{want}},
		{"the module is not loaded", func() *testNode { return refusing(asked("", 5)) }, []string{want}},
		{"the deduplicating chain drops", func() *testNode {
			n := asked("0", 5)
			n.refuse("nft_do_chain", pod5, pod6, 20)
			return n
		}, []string{want}},
		{"the chain drops as few as are a loss", func() *testNode {
			n := asked("0", 5)
			n.refuse("nft_do_chain", pod5, pod6, 3)
			return n
		}, []string{want}},
		{"bridged packets are filtered", func() *testNode { return refusing(asked("1", 5)) }, nil},
		{"nothing shows that replies came", func() *testNode { return asked("0", 5) }, nil},
		{"two flows", func() *testNode { return refusing(asked("0", 2)) }, nil},
		{"the backend replies to the node", func() *testNode {
			n := refusing(asked("0", 5))
			for i := range n.Flows {
				n.Flows[i].Reply.Dst = addr("10.50.0.4")
			}
			return n
		}, nil},
		{"settings are unread", func() *testNode {
			n := refusing(asked("0", 5))
			n.lose(model.SourceSysctl, model.Missing)
			return n
		}, nil},
		{"the bridge holds the NIC", func() *testNode { return past("0") }, []string{"BridgeNetfilterOff proven 10.60.0.20 10.0.0.10"}},
		{"the bridge holds the NIC, and netfilter sees it", func() *testNode { return past("1") }, []string{"NoReply likely 10.60.0.20 10.0.0.10"}},
	})
	f := Diagnose(&refusing(asked("0", 5)).Snapshot)[0]
	if i := slices.Index(f.Fix, "sysctl -w "+name+"=1"); i != 0 {
		t.Errorf("fix %q", f.Fix)
	}
}
