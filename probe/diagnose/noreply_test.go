package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNothingComesBack: where nobody beyond the uplink replies, to pods' addresses or to
// the node's, one cause may be behind it all.
func TestNothingComesBack(t *testing.T) {
	mute := func() *testNode {
		n := kubenet()
		n.silent(pod5, far)
		n.silent("10.50.0.4", "203.0.113.9")
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start,
			Original: model.Tuple{Src: addr(pod5), Dst: addr("203.0.113.9"), DstPort: 25},
			Reply:    model.Tuple{Src: addr("203.0.113.9"), Dst: addr("10.50.0.4"), SrcPort: 25}})
		return n
	}
	bare := mute()
	bare.silent(pod5, "172.20.3.9")
	bare.Links[0].Addresses = nil
	check(t, []fixture{
		{"all is silent", mute, []string{"NoReply possible 172.20.1.5 172.20.2.9 203.0.113.9"}},
		{"others reply", func() *testNode {
			n := mute()
			n.answered(pod5, "172.20.4.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9", "NoReply likely 172.20.1.5 203.0.113.9"}},
	})
	contested := func(n *testNode) func() *testNode {
		return func() *testNode {
			n.arp("10.50.0.4", 2, model.Ingress, true, "02:00:00:00:de:ad", 4)
			n.arp("10.50.0.7", 2, model.Ingress, true, "02:00:00:00:de:ad", 4)
			return n
		}
	}
	some := kubenet()
	some.answered(pod5, "172.20.4.9")
	some.silent("10.50.0.4", "203.0.113.9")
	some.Flows = mute().Flows
	check(t, []fixture{
		{"another machine has the node's address, and gets the replies", contested(mute()), []string{"DuplicatePodIP likely"}},
		{"and those to pods' own addresses come", contested(some), []string{"DuplicatePodIP likely"}},
	})
	led := mute()
	led.natRules(model.PacketRule{Chain: "PREROUTING", Number: 7, Target: "DNAT", To: netip.MustParseAddrPort(far + ":8080"),
		Dst: model.AddrMatch{Prefix: prefix("172.30.0.7/32")}, Text: "-d 172.30.0.7/32 -j DNAT --to-destination " + far + ":8080"})
	led.Flows = append(led.Flows, model.Flow{Proto: tcp, Start: start,
		Original: model.Tuple{Src: addr(pod5), Dst: addr("172.30.0.7"), DstPort: 80},
		Reply:    model.Tuple{Src: addr(far), Dst: addr(pod5), SrcPort: 8080}})
	for _, tt := range []struct {
		name string
		node *testNode
		want string
		is   bool
	}{
		{"the port that was asked", mute(), "UNREPLIED, to tcp/25", true},
		{"what translates to it", led, "PREROUTING rule 7", true},
		{"from where it is translated", led, "pods send to 172.30.0.7, which is translated to", true},
		{"nothing translates to it", mute(), "translated", false},
		{"where it is sent", mute(), "the lookup for 172.20.2.9 ends at", true},
		{"an uplink with an address", mute(), "no IPv4 address", false},
		{"an uplink that lost its address", bare, "ens5 has no IPv4 address", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Diagnose(&tt.node.Snapshot)[0]
			if slices.ContainsFunc(f.Evidence, func(e model.Evidence) bool { return strings.Contains(e.Text, tt.want) }) != tt.is {
				t.Errorf("evidence %+v: want %q: %v", f.Evidence, tt.want, tt.is)
			}
		})
	}
}

// TestSilenceBesideDrops: what the node drops of others is not what gets no reply, and it drops something.
func TestSilenceBesideDrops(t *testing.T) {
	check(t, []fixture{{"other packets are dropped", func() *testNode {
		n := filtered()
		n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Src: to(pod6 + "/32"), Target: "DROP"})
		n.refuse("nft_do_chain", pod6, far, 9)
		n.silent(pod5, "203.0.113.66")
		n.answered(pod5, out)
		return n
	}, []string{"PolicyDrop proven 172.20.1.6 172.20.2.9", "NoReply likely 172.20.1.5 203.0.113.66"}}})
}

// TestTranslatedByProgram: what a program behind lasthop's gives the node's address is replied
// to there, and no silence; what is silent at both addresses is.
func TestTranslatedByProgram(t *testing.T) {
	const self, outside, other = "10.60.0.4", "203.0.113.9", "203.0.113.66"
	masked := func(remotes ...string) *testNode {
		n := routedNode().with(model.SourcePrograms)
		n.Programs = []model.Program{{Kind: model.ProgramTCX, Name: "cil_to_netdev", ID: 9, IfIndex: 2, Link: "nic0", Direction: model.Egress}}
		for _, a := range remotes {
			n.silent("10.60.0.20", a)
			n.peer(self, a, none, synAck)
		}
		return n
	}
	// tracked is a flow of the node's own.
	tracked := func(n *testNode, remote string) *testNode {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: true,
			Original: model.Tuple{Src: addr(self), Dst: addr(remote), DstPort: 443}, Reply: model.Tuple{Src: addr(remote), Dst: addr(self), SrcPort: 443}})
		return n
	}
	silentToo := func(n *testNode) func() *testNode {
		return func() *testNode {
			n.silent("10.60.0.20", other)
			return n
		}
	}
	quiet := []string{"NoReply likely 10.60.0.20 203.0.113.66"}
	none := masked(outside)
	none.Programs = nil
	check(t, []fixture{
		{"replies to the node's address", func() *testNode { return masked(outside) }, nil},
		{"where the node asks the same peer", func() *testNode { return tracked(masked(outside, "203.0.113.10"), outside) }, nil},
		{"conntrack was not read", func() *testNode {
			n := tracked(masked(outside), outside)
			n.lose(model.SourceConntrack, model.Missing)
			return n
		}, nil},
		{"another peer replies to neither", silentToo(masked(outside)), quiet},
		{"the node's own flow is all that is replied to", func() *testNode { return tracked(masked(outside), outside) },
			[]string{"NoReply possible 10.60.0.20 203.0.113.9"}},
		{"no program", func() *testNode { return none }, []string{"NoReply possible 10.60.0.20 203.0.113.9"}},
	})
}

// TestKeptReplies: replies to the node's address that connection tracking does not give to the pods that asked.
func TestKeptReplies(t *testing.T) {
	const own, outside = "10.50.0.4", "203.0.113.9"
	flow := func(n *testNode, pod string, replied bool) {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: replied,
			Original: model.Tuple{Src: addr(pod), Dst: addr(outside), SrcPort: uint16(len(n.Flows)), DstPort: 443},
			Reply:    model.Tuple{Src: addr(outside), Dst: addr(own), SrcPort: 443, DstPort: uint16(len(n.Flows))}})
	}
	kept := func(change func(*testNode)) func() *testNode {
		return func() *testNode {
			n := kubenet()
			n.answered(own, outside)
			for range 3 {
				flow(n, pod5, false)
			}
			change(n)
			return n
		}
	}
	raw := func(n *testNode, r model.PacketRule) {
		n.filter(model.NFT, "PREROUTING", 9, r).Table = "raw"
	}
	zone := model.PacketRule{Src: to(pod5 + "/32"), Target: "CT", Text: "-s 172.20.1.5/32 -j CT --zone 7"}
	// named has the pod ask for names, from a second of the window on, while datagrams come from there.
	named := func(second int) func() *testNode {
		return func() *testNode {
			n := kubenet()
			n.peer(own, outside, model.PeerCount{Packets: 9, Other: 9}, model.PeerCount{Packets: 9, Other: 9})
			for range 3 {
				flow(n, pod5, false)
				f := &n.Flows[len(n.Flows)-1]
				f.Proto, f.Original.DstPort, f.Reply.SrcPort, f.Start = udp, 53, 53, start.Add(time.Duration(second)*time.Second)
			}
			raw(n, model.PacketRule{Proto: udp, SrcPorts: []model.PortRange{{First: 53, Last: 53}}, Target: "NOTRACK", Text: "-p udp --sport 53 -j NOTRACK"})
			return n
		}
	}
	check(t, []fixture{
		{"none gets one", kept(func(*testNode) {}), []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"a rule excludes the replies", kept(func(n *testNode) {
			raw(n, model.PacketRule{Src: to(outside + "/32"), Target: "NOTRACK", Text: "-s 203.0.113.9/32 -j NOTRACK"})
		}), []string{"NoReply proven 172.20.1.5 203.0.113.9"}},
		{"another pod gets its own", kept(func(n *testNode) { flow(n, "172.20.1.6", true) }), nil},
		{"and a rule has another zone for this one", kept(func(n *testNode) {
			flow(n, "172.20.1.6", true)
			raw(n, zone)
		}), []string{"NoReply proven 172.20.1.5 203.0.113.9"}},
		{"and a rule has another zone for other ports", kept(func(n *testNode) {
			flow(n, "172.20.1.6", true)
			r := zone
			r.Proto, r.DstPorts = udp, []model.PortRange{{First: 4789, Last: 4789}}
			raw(n, r)
		}), nil},
		{"this one gets its own at another port, and a rule has another zone for the port", kept(func(n *testNode) {
			flow(n, pod5, true)
			n.Flows[len(n.Flows)-1].Original.DstPort, n.Flows[len(n.Flows)-1].Reply.SrcPort = 80, 80
			r := zone
			r.Proto, r.DstPorts = tcp, []model.PortRange{{First: 443, Last: 443}}
			raw(n, r)
		}), []string{"NoReply proven 172.20.1.5 203.0.113.9"}},
		{"and a rule has one for the other port", kept(func(n *testNode) {
			flow(n, pod5, true)
			n.Flows[len(n.Flows)-1].Original.DstPort, n.Flows[len(n.Flows)-1].Reply.SrcPort = 80, 80
			r := zone
			r.Proto, r.DstPorts = tcp, []model.PortRange{{First: 80, Last: 80}}
			raw(n, r)
		}), nil},
		{"a rule excludes the replies to questions", named(3), []string{"NoReply proven 172.20.1.5 203.0.113.9"}},
		{"healthy: such a rule, and questions that had no time for a reply", named(9), nil},
		{"the node itself asked", kept(func(n *testNode) {
			n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start,
				Original: model.Tuple{Src: addr(own), Dst: addr(outside), DstPort: 443},
				Reply:    model.Tuple{Src: addr(outside), Dst: addr(own), SrcPort: 443}})
		}), nil},
	})
}
