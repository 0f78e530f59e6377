package join

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
)

// FuzzJudge: whatever the recordings of three nodes hold, as files from anywhere may,
// judging them together ends and is sound.
func FuzzJudge(f *testing.F) {
	for _, c := range []*cluster{newCluster(3), clusterOf([]byte{1, 4, 1, 9, 1, 0, 5, 60, 0}), clusterOf([]byte{3, 4, 3, 9, 3, 0, 22, 8, 9, 7, 1, 30})} {
		var seed [3][]byte
		for i, m := range c.nodes[:3] {
			text, err := json.Marshal(m.Snapshot)
			if err != nil {
				f.Fatal(err)
			}
			seed[i] = text
		}
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Add([]byte(`{}`), []byte(`{"Traffic": {"Peers": [{}]}}`), []byte(`{"Flows": [{}], "Links": [{"Role": "uplink"}]}`))
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		var sources []Source
		for i, text := range [][]byte{a, b, c} {
			s := &model.Snapshot{}
			err := json.Unmarshal(text, s)
			sources = append(sources, Source{Name: fmt.Sprint(i), Read: func() (*model.Snapshot, error) { return s, err }})
		}
		sound(t, sources)
	})
}

// FuzzCluster: whatever three nodes ask each other, whatever becomes of it, and however
// they were recorded, the verdict is sound.
func FuzzCluster(f *testing.F) {
	f.Add([]byte{1, 4, 1, 9, 1, 0, 5, 60, 0})
	f.Add([]byte{3, 4, 3, 9, 3, 0, 22, 8, 9, 7, 1, 30})
	r := rand.New(rand.NewPCG(1, 1))
	for range 16 {
		ops := make([]byte, 120)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		sound(t, clusterOf(ops[:min(len(ops), 300)]).sources())
	})
}

// clusterOf reads bytes by threes: what is done to three nodes, and with what.
func clusterOf(ops []byte) *cluster {
	c := newCluster(3)
	for ; len(ops) >= 3; ops = ops[3:] {
		op, x, y := ops[0], int(ops[1]), int(ops[2])
		m := c.nodes[x%3]
		switch op % 18 {
		case 0, 1, 2, 3, 4, 5:
			ports := [][]uint16{nil, {80}, {443, 8443}}[x%3]
			c.flow(end(x), end(y), fate(int(op)%5), ports...)
		case 6:
			c.data(fmt.Sprintf("10.2.%d.10", x%3+1), fmt.Sprintf("10.2.%d.11", y%3+1), uint64(x), uint64(10*y), uint64(x)*uint64(y)/256, uint64(x+y))
		case 7:
			m.policy(end(x), end(y), uint64(y))
		case 8:
			m.returned(fmt.Sprintf("10.2.%d.0/24", y%4+1), []model.Side{model.AsSource, model.AsDestination}[y%2])
		case 9:
			m.source(m.Sources[y%len(m.Sources)].Name, []model.Status{model.OK, model.Partial, model.Missing}[y%3])
		case 10:
			m.shift(time.Duration(y-128) * 10 * time.Second)
		case 11:
			m.cut = []string{"", "cut"}[y%2]
		case 12:
			m.pod(end(y))
		case 13:
			m.Pods[y%len(m.Pods)].Since = m.Window.Start.Add(time.Duration(y) * time.Second / 10)
		case 14:
			m.Traffic.Lost = model.Lost{Gaps: uint64(y % 2), Counters: uint64(y)}
		case 15:
			m.Node.Name = []string{"n1", "", m.name}[y%3]
		case 16:
			c.gone(end(y), time.Duration(x)*time.Second/10)
		case 17:
			m.tunnel(c, end(x), end(y), uint64(x))
		}
	}
	return c
}

// tunnel has a node give packets for a pod to a VXLAN, and those that arrive come out of
// one elsewhere.
func (m *machine) tunnel(c *cluster, src, dst string, arrive uint64) {
	for _, n := range c.nodes {
		if !slices.ContainsFunc(n.Links, func(l model.Link) bool { return l.Index == 9 }) {
			n.Links = append(n.Links, model.Link{Index: 9, Name: "vx", Kind: "vxlan", MAC: model.MAC{14, 0, 0, 0, 0, byte(n.n)}, Up: true, Carrier: true, Role: model.RoleTunnel})
		}
	}
	to := netip.PrefixFrom(addr(dst), 24).Masked()
	m.Routes = append(m.Routes, model.Route{Table: 254, Dst: to, IfIndex: 9, Link: "vx", Type: "unicast"})
	m.Traffic.Hops = append(m.Traffic.Hops, model.HopCount{Prefix: to, IfIndex: 9, Link: "vx", Direction: model.Egress, Side: model.AsDestination, Packets: 20})
	m.flows(c, addr(src), addr(dst), false, []uint16{80, 81, 82})
	if far := c.has(addr(dst)); far != nil && arrive > 0 {
		far.Traffic.Hops = append(far.Traffic.Hops, model.HopCount{Addr: addr(dst), IfIndex: 9, Link: "vx", Direction: model.Ingress, Side: model.AsDestination, Packets: arrive})
	}
}

// end is an address: of a pod that there is or not, of a node, or outside.
func end(x int) string {
	switch x % 8 {
	case 0:
		return nodeAddr(x/8%4 + 1)
	case 1:
		return fmt.Sprintf("203.0.113.%d", x/8%2)
	}
	return fmt.Sprintf("10.2.%d.%d", x/8%4+1, 9+x%8/2)
}

// sound wants of a verdict that it is the same twice and in any order of the sources,
// and that each finding says what it is, whose, and what shows it.
func sound(t *testing.T, sources []Source) {
	t.Helper()
	want := Judge(sources)
	for range sources {
		sources = append(sources[1:], sources[0])
		if got := Judge(sources); !reflect.DeepEqual(got, want) {
			t.Errorf("in another order: got\n%+v\nwant\n%+v", got, want)
		}
	}
	pages := diagnose.Kinds()
	for _, f := range want.Findings {
		known := slices.ContainsFunc(pages, func(p faults.Kind) bool { return p.Code == f.Code })
		if !known || f.Title == "" || f.Confidence.Rank() < 0 || f.Severity.Rank() < 0 || len(f.Nodes) == 0 || len(f.Evidence) == 0 {
			t.Errorf("finding %+v", f)
		}
		names := slices.Clone(f.Nodes)
		if slices.Sort(names); len(slices.Compact(names)) != len(f.Nodes) {
			t.Errorf("%s names a node twice: %q", f.Code, f.Nodes)
		}
	}
}
