package join

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// situation is one of several nodes, which has a fault or is its healthy twin, with the verdict of who knows what was done.
type situation struct {
	name string
	make func(faulty bool) *cluster
	want []string
}

// TestSituations has each with and without its fault.
func TestSituations(t *testing.T) {
	for _, s := range []situation{
		{"a third node routes and drops what goes by it", func(faulty bool) *cluster {
			c := newCluster(3)
			c.keepRoutes()
			for r := range model.Each(c.nodes[0].Routes) {
				if r.Gateway == addr(nodeAddr(2)) {
					r.Gateway = addr(nodeAddr(3))
				}
			}
			c.ask(1, 3, fine)
			c.ask(1, 2, model.Either(faulty, lostThere, fine))
			if faulty {
				n3 := c.nodes[2]
				n3.policy("10.2.2.10", "10.2.1.10", 80)
				n3.Traffic.Drops = nil
				for _, src := range []string{"10.2.1.10", "10.2.1.11"} {
					n3.dropped(src, "10.2.2.10", "NETFILTER_DROP", 20)
					n3.dropped(src, "10.2.2.11", "NETFILTER_DROP", 20)
				}
			}
			return c
		}, []string{"WrongNodeRoute proven 10.2.2.0/24 on n1,n2", "PolicyDrop proven 10.2.2.10,10.2.2.11 on n3"}},
		{"a node's address changed, and the only other one still has the old one", func(faulty bool) *cluster {
			c := newCluster(2)
			c.keepRoutes()
			if faulty {
				c.nodes[0].Routes[3].Gateway = addr("10.1.0.77")
			}
			c.ask(1, 2, model.Either(faulty, lostThere, fine))
			c.flow("10.2.1.10", "10.1.7.7", fine)
			return c
		}, []string{"WrongNodeRoute likely 10.2.2.0/24 on n1,n2"}},
		{"replies of a name server are lost, all else between the pods is well", func(faulty bool) *cluster {
			c := newCluster(2)
			c.flow("10.2.1.10", "10.2.2.10", fine)
			c.speak("10.2.1.10", "10.2.2.10", well(model.TCP, 8080, 10), port{model.UDP, 53, 12, true, !faulty, true})
			return c
		}, []string{"NoReply proven 10.2.1.10 on n2,n1"}},
		{"the far node's firewall drops what pods ask of the node itself", func(faulty bool) *cluster {
			c := newCluster(2)
			c.ask(1, 2, fine)
			c.flow("10.2.1.10", nodeAddr(2), model.Either(faulty, deadThere, fine), 9100)
			if faulty {
				c.nodes[1].policy(nodeAddr(2), "10.2.1.10", 20)
				c.nodes[1].PacketRules[0].Chain, c.nodes[1].Chains[0].Name, c.nodes[1].Chains[0].Hook = "INPUT", "INPUT", "INPUT"
			}
			return c
		}, []string{"PolicyDrop proven 10.1.0.2 on n2,n1"}},
		{"half of all packets is lost one way; the twin was recorded for half the time", func(faulty bool) *cluster {
			c := newCluster(2)
			back := model.Either(faulty, uint64(100), 200)
			for _, a := range []string{"10.2.1.10", "10.2.1.11"} {
				c.nodes[0].peer(addr(a), addr("10.2.2.10"), model.PeerCount{Packets: 400, Requests: 200, Other: 200}, model.PeerCount{Packets: back, Replies: back})
				for i := range 100 {
					c.now++
					c.nodes[0].Flows = append(c.nodes[0].Flows, model.Flow{Proto: 6, Replied: true, Start: start.Add(time.Duration(1+i%8) * time.Second),
						Original: model.Tuple{Src: addr(a), Dst: addr("10.2.2.10"), SrcPort: c.now, DstPort: 80},
						Reply:    model.Tuple{Src: addr("10.2.2.10"), Dst: addr(a), SrcPort: 80, DstPort: c.now}})
				}
				c.nodes[1].peer(addr("10.2.2.10"), addr(a), model.PeerCount{Packets: 100, Replies: 100}, model.PeerCount{Packets: 200, Requests: 100, Other: 100})
			}
			if !faulty {
				c.nodes[1].Window.Start = c.nodes[1].Window.Start.Add(c.nodes[1].Window.Duration() / 2)
			}
			return c
		}, []string{"NoReply likely 10.2.2.10 on n1,n2"}},
		{"pods of two nodes have one address", func(faulty bool) *cluster {
			c := newCluster(3)
			c.ask(1, 2, fine)
			own := model.Either(faulty, "10.2.2.12", "10.2.3.12")
			c.nodes[1].pod("10.2.2.12")
			c.nodes[2].pod(own)
			asked, reply := model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{Packets: 20, Replies: 20}
			c.nodes[0].peer(addr("10.2.1.10"), addr(own), reply, asked)
			if faulty {
				c.nodes[2].peer(addr(own), addr("10.2.1.10"), asked, model.PeerCount{})
				c.nodes[1].peer(addr(own), addr("10.2.1.10"), model.PeerCount{}, reply)
			} else {
				c.nodes[2].peer(addr(own), addr("10.2.1.10"), asked, reply)
			}
			return c
		}, []string{"DuplicatePodIP proven 10.2.2.12 on n2,n3"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			judged(t, s.make(true), s.want...)
			judged(t, s.make(false))
		})
	}
}
