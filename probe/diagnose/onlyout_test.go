package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestOnlyOut: connections that were open before send on after the way is lost, and no SYN tells of it.
func TestOnlyOut(t *testing.T) {
	sent := func(n uint64) model.PeerCount { return model.PeerCount{Packets: n, Replies: n} }
	open := func(back uint64, from string, to ...string) func() *testNode {
		return func() *testNode {
			n := three().live()
			n.answered("172.20.1.6", "10.50.0.6")
			for _, a := range to {
				n.peer(from, a, sent(9), sent(back))
				n.Flows = append(n.Flows, model.Flow{Proto: tcp, Replied: true, Assured: true, State: "ESTABLISHED",
					Original: model.Tuple{Src: addr(from), Dst: addr(a), SrcPort: 40000, DstPort: 8080},
					Reply:    model.Tuple{Src: addr(a), Dst: addr(from), SrcPort: 8080, DstPort: 40000}})
			}
			return n
		}
	}
	check(t, []fixture{
		{"to several pods of one node", open(0, "172.20.1.5", "172.20.3.9", "172.20.3.10"), []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"to pods outside any node's range", open(0, "172.20.1.5", "10.50.9.9", "10.50.9.10", "10.50.9.11"), []string{"NoReply likely 172.20.1.5 10.50.9.9 10.50.9.10 10.50.9.11"}},
		{"one connection", open(0, "172.20.1.5", "172.20.3.9"), []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"healthy: what is acknowledged", open(5, "172.20.1.5", "172.20.3.9", "172.20.3.10"), nil},
		{"healthy: one acknowledgement is enough", open(1, "172.20.1.5", "172.20.3.9"), nil},
	})
}
