package join

import (
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// stretch makes a node's window longer.
func (m *machine) stretch(d time.Duration) { m.Window.End = m.Window.End.Add(d) }

// TestClocks has n1's pod ask a pod of n2 throughout n1's window, and nothing of that
// arrive. It means something if n2 was recorded then, by clocks that connections set.
func TestClocks(t *testing.T) {
	const likely, proven = "NoReply likely 10.2.2.10 on n1", "NoReply proven 10.2.2.10 on n1,n2"
	local := func(c *cluster, src, dst string) {
		for _, m := range c.nodes {
			port := c.now
			m.flows(c, addr(src), addr(dst), true, []uint16{10248, 10249, 10250, 10251})
			c.now = port
		}
	}
	tests := []struct {
		name string
		make func(*cluster)
		want string
	}{
		{"connections between the nodes tell that a clock is ahead", func(c *cluster) {
			c.flow("10.2.2.11", "10.2.1.11", fine, 80, 81, 82)
			c.nodes[1].shift(2 * time.Minute)
		}, proven},
		{"those within each node do not", func(c *cluster) {
			local(c, "127.0.0.1", "127.0.0.1")
			c.nodes[1].shift(2 * time.Minute)
		}, likely},
		{"nor those of networks that each node has for itself", func(c *cluster) {
			local(c, "172.17.0.1", "172.17.0.2")
			for _, m := range c.nodes {
				m.Links[1].Addresses = append(m.Links[1].Addresses, prefix("172.17.0.1/16"))
			}
			c.nodes[1].shift(2 * time.Minute)
		}, likely},
		{"nor a single one", func(c *cluster) {
			c.flow("10.2.2.11", "10.2.1.11", fine)
			c.nodes[1].shift(2 * time.Minute)
		}, likely},
		{"nor such as contradict each other", func(c *cluster) {
			c.flow("10.2.2.11", "10.2.1.11", fine, 80, 81, 82, 83)
			c.nodes[1].shift(2 * time.Minute)
			for i := range c.nodes[1].Flows {
				f := &c.nodes[1].Flows[i]
				f.Start = f.Start.Add(time.Duration(i) * time.Minute)
			}
		}, likely},
		{"a clock that is behind by less than the window", func(c *cluster) {
			// n1 asks before n2 is recorded.
			c.flow("10.2.2.11", "10.2.1.11", fine, 80, 81, 82)
			for _, m := range c.nodes {
				m.stretch(10 * time.Minute)
			}
			asker := &c.nodes[0].Traffic.Peers[len(c.nodes[0].Traffic.Peers)-2]
			asker.FirstOut, asker.LastOut = start.Add(time.Minute), start.Add(2*time.Minute)
			c.nodes[1].shift(-4 * time.Minute)
			c.nodes[1].Window.Start = start.Add(-time.Minute)
		}, likely},
		{"a node that is attached to for long lists many at once, later than the other", func(c *cluster) {
			c.flow("10.2.2.11", "10.2.1.11", fine, 80, 81, 82, 83)
			c.flow("10.2.1.11", "10.2.2.11", fine, 80, 81, 82)
			listed := []int{16, 16, 16, 16, 20, 20, 24}
			for _, m := range c.nodes {
				m.stretch(20 * time.Second)
				m.Flows = slices.DeleteFunc(m.Flows, func(f model.Flow) bool { return f.Original.Src == addr("10.2.1.10") })
			}
			for i, at := range listed {
				c.nodes[1].Flows[i].Start = start.Add(time.Duration(at) * time.Second)
				if at > 16 {
					c.nodes[0].Flows[i].Start = c.nodes[1].Flows[i].Start
				}
			}
			c.nodes[1].Window.Start = start.Add(15 * time.Second)
			asker := &c.nodes[0].Traffic.Peers[2]
			asker.FirstOut, asker.LastOut = start.Add(26*time.Second), start.Add(29*time.Second)
		}, proven},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(2)
			for _, m := range c.nodes {
				m.Flows = nil
			}
			c.flow("10.2.1.10", "10.2.2.10", lostThere)
			tt.make(c)
			r := Judge(c.sources())
			if got := brief(r.Findings); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("got %v, want %s", got, tt.want)
				for _, n := range r.Nodes {
					t.Log(n.Name, n.Window, n.Reason)
				}
			}
		})
	}
}

// TestOneList has connections of a busy node listed late: its clock is right.
func TestOneList(t *testing.T) {
	c := newCluster(2)
	c.flow("10.2.1.10", "10.2.2.10", lostThere)
	for f := range model.Each(c.nodes[1].Flows) {
		f.Start = c.nodes[1].Window.End
	}
	want := []string{"NoReply proven 10.2.2.10 on n1,n2"}
	if got := brief(Judge(c.sources()).Findings); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
