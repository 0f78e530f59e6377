package reach

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/model"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end   = start.Add(30 * time.Second)
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func pod(a string) model.Pod {
	ip := addr(a)
	return model.Pod{Addresses: []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}}
}

// node is one of three, whose pods are 10.9.1.0/24 and fd00:9:1::/64.
func node(pods ...string) *model.Snapshot {
	s := &model.Snapshot{
		Node: model.Node{Name: "a"}, Window: model.Window{Start: start, End: end},
		Sources: []model.Source{{Name: model.SourceTC, Status: model.OK}, {Name: model.SourceConntrack, Status: model.OK}},
		Links: []model.Link{{
			Name: "eth7", Role: model.RoleUplink, Addresses: []netip.Prefix{netip.MustParsePrefix("10.77.0.4/22")},
		}},
		Cluster: model.Cluster{Nodes: []model.ClusterNode{
			{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.1.0/24"), netip.MustParsePrefix("fd00:9:1::/64")}},
			{Name: "b", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.2.0/24"), netip.MustParsePrefix("fd00:9:2::/64")}},
			{Name: "c", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.3.0/24")}},
		}},
	}
	for _, a := range pods {
		s.Pods = append(s.Pods, pod(a))
	}
	return s
}

// asks adds what a pod sent to a peer, and how many replies came.
func asks(s *model.Snapshot, pod, peer string, sent, replies uint64) {
	s.Traffic.Peers = append(s.Traffic.Peers, model.Peer{
		Local: addr(pod), Remote: addr(peer),
		Out: model.PeerCount{Packets: sent, Requests: sent}, In: model.PeerCount{Packets: replies, Replies: replies},
	})
}

func faults(code model.Code, pods ...string) []model.Finding {
	f := model.Finding{Code: code, Severity: model.Critical}
	for _, a := range pods {
		f.Pods = append(f.Pods, addr(a))
	}
	return []model.Finding{f}
}

func flow(src, dst, backend string, port uint16, proto uint8, replied bool) model.Flow {
	return model.Flow{
		Proto: proto, Replied: replied, Start: start.Add(time.Second),
		Original: model.Tuple{Src: addr(src), Dst: addr(dst), SrcPort: 40000, DstPort: port},
		Reply:    model.Tuple{Src: addr(backend), Dst: addr(src), SrcPort: port, DstPort: 40000},
	}
}

// cells are a row's cells by the kinds and names of their columns.
func cells(t *testing.T, m model.Matrix, pod string) map[string]model.Reach {
	t.Helper()
	out := map[string]model.Reach{}
	for _, r := range m.Rows {
		if r.Pod != addr(pod) {
			continue
		}
		for i, c := range r.Cells {
			if c != nil {
				out[string(m.Columns[i].Kind)+m.Columns[i].Name] = c.Reach
			}
		}
		return out
	}
	t.Fatalf("no row of %s in %+v", pod, m)
	return nil
}

func equal(t *testing.T, what string, got, want map[string]model.Reach) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for k, r := range want {
		if got[k] != r {
			t.Errorf("%s: %s is %q, want %q", what, k, got[k], r)
		}
	}
}

// A row that a route table lacks is a dead column; the others of the same pods are well.
func TestColumn(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6", "fd00:9:1::5")
	asks(s, "10.9.1.5", "10.9.2.8", 40, 40)
	asks(s, "10.9.1.5", "10.9.3.8", 12, 0)
	asks(s, "10.9.1.6", "10.9.3.9", 7, 0)
	asks(s, "10.9.1.6", "93.184.216.34", 5, 5)
	asks(s, "10.9.1.6", "10.77.1.1", 5, 5)
	asks(s, "fd00:9:1::5", "fd00:9:2::7", 5, 5)
	silences := []model.Silence{
		{Local: addr("10.9.1.5"), Remote: addr("10.9.3.8"), Packets: 12, Code: "MissingUDR"},
		{Local: addr("10.9.1.6"), Remote: addr("10.9.3.9"), Packets: 7, Code: "MissingUDR"},
	}
	m := Matrix(model.Verdict{On: s, Findings: faults("MissingUDR"), Silences: silences})
	equal(t, "first pod", cells(t, m, "10.9.1.5"), map[string]model.Reach{"nodeb": model.ReachWell, "nodec": model.ReachOneWay})
	equal(t, "second pod", cells(t, m, "10.9.1.6"), map[string]model.Reach{
		"nodec": model.ReachOneWay, "internet": model.ReachWell, "network": model.ReachWell,
	})
	equal(t, "by IPv6", cells(t, m, "fd00:9:1::5"), map[string]model.Reach{"nodeb": model.ReachWell})
	for i, d := range m.Columns {
		if got := column(m, i).Dead(); got != (d.Name == "c") {
			t.Errorf("column %+v is dead: %v", d, got)
		}
	}
	if m.Columns[0].Name != "c" || m.Rows[2].Pod != addr("fd00:9:1::5") {
		t.Errorf("not the worst first: %+v", m)
	}
	for _, r := range Matrix(model.Verdict{On: node("10.9.1.5")}).Rows {
		if r.Reach != model.ReachNone || !r.Whole {
			t.Errorf("without packets: %+v", r)
		}
	}
}

// A pod to which everything is dropped is a dead row, whoever asks it.
func TestRow(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6", "10.9.1.7")
	s.Flows = []model.Flow{
		flow("10.9.1.5", "10.9.1.6", "10.9.1.6", 80, 6, false),
		flow("10.9.1.7", "10.9.1.6", "10.9.1.6", 80, 6, false),
		flow("10.9.1.5", "10.9.1.7", "10.9.1.7", 80, 6, true),
	}
	s.Traffic.Drops = []model.Drop{
		{Src: addr("10.9.1.5"), Dst: addr("10.9.1.6"), Packets: 6},
		{Src: addr("10.9.1.7"), Dst: addr("10.9.1.6"), Packets: 3},
		{Src: addr("10.9.1.5"), Dst: addr("10.9.1.7"), Packets: 2},
	}
	m := Matrix(model.Verdict{On: s, Findings: faults("StaleFDB"), Causes: []model.DropCause{{Code: "StaleFDB"}, {Code: "StaleFDB"}, {Ordinary: model.ExcusedNoPod}}})
	if r := m.Rows[0]; r.Pod != addr("10.9.1.6") || r.Reach != model.ReachDead {
		t.Errorf("the first row is %+v", r)
	}
	for _, a := range []string{"10.9.1.5", "10.9.1.7"} {
		equal(t, a, cells(t, m, a), map[string]model.Reach{"pods": model.ReachLossy})
	}
	c := m.Rows[0].Cells[0]
	if c.Lost != 9 || len(c.Pairs) != 2 || c.Pairs[0].Lost != 6 || len(c.Codes()) != 1 {
		t.Errorf("cell %+v", c)
	}
}

// Where a bridge floods a request leaves again by the uplink, and is counted in both directions. What
// is behind a bridge with an uplink is the network.
func TestFlooded(t *testing.T) {
	s := node("10.77.0.9")
	s.Links = []model.Link{
		{Index: 2, Master: 3, Name: "eth7", Role: model.RoleUplink},
		{Index: 3, Name: "br7", Role: model.RoleBridge, Addresses: []netip.Prefix{netip.MustParsePrefix("10.77.0.4/22")}},
	}
	count := model.PeerCount{Packets: 8, Requests: 4, Other: 4}
	s.Traffic.Peers = []model.Peer{{Local: addr("10.77.0.9"), Remote: addr("10.77.1.7"), In: count, Out: count}}
	v := model.Verdict{On: s, Findings: faults("PodLinkDown", "10.77.0.9")}
	v.Silences = []model.Silence{{Local: addr("10.77.0.9"), Remote: addr("10.77.1.7"), Packets: 8, Code: "PodLinkDown"}}
	equal(t, "flooded", cells(t, Matrix(v), "10.77.0.9"), map[string]model.Reach{"network": model.ReachOneWay})
}

// A pod whose packets do not become pairs is a dead row; a finding explains the pairs that it names.
func TestFindings(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6", "10.9.1.7")
	asks(s, "10.9.1.6", "10.9.2.8", 4, 4)
	asks(s, "10.9.1.7", "10.9.3.8", 4, 0)
	found := faults("PodDefaultRoute", "10.9.1.5", "10.9.1.6")
	found = append(found, model.Finding{
		Code: "WrongUDR", Severity: model.Critical, Pods: []netip.Addr{addr("10.9.1.7")},
		Peers: []netip.Prefix{netip.MustParsePrefix("10.9.3.0/24")},
	})
	want := map[netip.Addr]model.Reach{
		addr("10.9.1.5"): model.ReachDead, addr("10.9.1.6"): model.ReachLossy, addr("10.9.1.7"): model.ReachOneWay,
	}
	for _, r := range Matrix(model.Verdict{On: s, Findings: found}).Rows {
		if r.Reach != want[r.Pod] {
			t.Errorf("%s: %s", r.Pod, r.Reach)
		}
	}
}

// Services and name servers are columns of their own; what leaves with the node's address is known
// by connection tracking.
func TestTranslated(t *testing.T) {
	s := node("10.9.1.5")
	dead := flow("10.9.1.5", "93.184.216.34", "93.184.216.34", 443, 6, false)
	dead.Reply.Dst = addr("10.77.0.4")
	s.Flows = []model.Flow{
		flow("10.9.1.5", "10.96.0.10", "10.9.2.53", 53, 17, true),
		flow("10.9.1.5", "10.96.3.3", "10.9.2.7", 80, 6, true),
		dead,
	}
	silence := model.Silence{Local: addr("10.77.0.4"), Remote: addr("93.184.216.34"), Packets: 3}
	for _, of := range []struct {
		code     model.Code
		ordinary model.Excuse
		want     model.Reach
	}{{"NoReply", "", model.ReachOneWay}, {"", model.ExcusedScan, model.ReachSilent}, {"", model.ExcusedFew, model.ReachUnclear}} {
		silence.Code, silence.Ordinary = of.code, of.ordinary
		equal(t, string(of.want), cells(t, Matrix(model.Verdict{On: s, Findings: faults("NoReply"), Silences: []model.Silence{silence}}), "10.9.1.5"), map[string]model.Reach{
			"dns": model.ReachWell, "services": model.ReachWell, "internet": of.want,
		})
	}
}

// Where packets were not counted, an empty cell is unknown.
func TestUnknown(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6")
	s.Traffic.Lost = model.Lost{Counters: 4, Addrs: []model.AddrLoss{{Addr: addr("10.9.1.5"), Peers: 4}}}
	for _, r := range Matrix(model.Verdict{On: s}).Rows {
		if r.Whole != (r.Pod == addr("10.9.1.6")) {
			t.Errorf("%+v", r)
		}
	}
	s = node("10.9.1.5")
	all := s.Sources
	for i := range all {
		s.Sources = all[i : i+1]
		for _, r := range Matrix(model.Verdict{On: s}).Rows {
			if r.Whole {
				t.Errorf("with %s alone: %+v", all[i].Name, r)
			}
		}
	}
}

// A connection that began a moment ago may still get its reply. What that is, the findings' clock says.
func TestSettled(t *testing.T) {
	for before, want := range map[time.Duration]map[string]model.Reach{
		749 * time.Millisecond: {}, 750 * time.Millisecond: {"pods": model.ReachUnclear},
	} {
		s := node("10.9.1.5", "10.9.1.6")
		f := flow("10.9.1.5", "10.9.1.6", "10.9.1.6", 80, 6, false)
		f.Start = end.Add(-before)
		s.Flows = []model.Flow{f}
		equal(t, before.String(), cells(t, Matrix(model.Verdict{On: s}), "10.9.1.5"), want)
	}
}

// A connection whose handshake does not end is no sign that packets pass both ways: neither what an
// uplink counts of it, nor connection tracking.
func TestHalfOpen(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6")
	s.Traffic.Peers = []model.Peer{{
		Local: addr("10.9.1.5"), Remote: addr("10.9.2.8"),
		In: model.PeerCount{Packets: 6, Requests: 6}, Out: model.PeerCount{Packets: 6, Replies: 6},
	}}
	f := flow("10.9.1.5", "10.9.1.6", "10.9.1.6", 80, 6, true)
	for state, want := range map[string]model.Reach{"SYN_RECV": model.ReachUnclear, "ESTABLISHED": model.ReachWell} {
		f.State = state
		s.Flows = []model.Flow{f}
		equal(t, state, cells(t, Matrix(model.Verdict{On: s}), "10.9.1.5"), map[string]model.Reach{"pods": want, "nodeb": model.ReachUnclear})
	}
}

// What only an information explains is no fault.
func TestInformation(t *testing.T) {
	s := node("10.9.1.5", "10.9.1.6")
	s.Traffic.Drops = []model.Drop{{Src: addr("10.9.1.5"), Dst: addr("10.9.1.6"), Packets: 2}}
	found := faults("UnexplainedDrop", "10.9.1.5")
	for severity, want := range map[model.Severity]model.Reach{model.Info: model.ReachUnclear, model.Warning: model.ReachDead} {
		found[0].Severity = severity
		v := model.Verdict{On: s, Findings: found, Causes: []model.DropCause{{Code: "UnexplainedDrop"}}}
		equal(t, string(severity), cells(t, Matrix(v), "10.9.1.5"), map[string]model.Reach{"pods": want})
	}
}

// TestGrowth sums up pods that each have packets with as many addresses as there are pods in another
// node, in twenty nodes, and of which some are lost.
func TestGrowth(t *testing.T) {
	growth.Test(t, func(scale int) func() {
		const pods, nodes = 30, 20
		s, v := node(), model.Verdict{}
		f := model.Finding{Code: "MissingUDR", Severity: model.Critical}
		for j := range nodes {
			cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(9 + j), 0}), 24)
			s.Cluster.Nodes = append(s.Cluster.Nodes, model.ClusterNode{Name: cidr.String(), PodCIDRs: []netip.Prefix{cidr}})
			f.Peers = []netip.Prefix{cidr}
		}
		for i := range pods * scale {
			a := netip.AddrFrom4([4]byte{10, 9, 1, byte(9 + i)}).String()
			s.Pods, f.Pods = append(s.Pods, pod(a)), append(f.Pods, addr(a))
			for j := range nodes {
				to := netip.AddrFrom4([4]byte{10, 9, byte(9 + j), byte(i)}).String()
				asks(s, a, to, 9, uint64(nodes-1-j))
				s.Flows = append(s.Flows, flow(a, to, to, 80, 6, j < nodes-1))
				s.Traffic.Drops = append(s.Traffic.Drops, model.Drop{Src: addr(a), Dst: addr(to), Packets: 1})
			}
			v.Silences = append(v.Silences, model.Silence{Local: addr(a), Remote: netip.AddrFrom4([4]byte{10, 9, 8 + nodes, byte(i)}), Code: f.Code})
		}
		v.On, v.Findings = s, []model.Finding{f}
		v.Causes = make([]model.DropCause, len(s.Traffic.Drops))
		return func() {
			m := Matrix(v)
			if len(m.Rows) != pods*scale || len(m.Columns) != nodes || !column(m, 0).Dead() {
				t.Errorf("%d rows, columns %+v", len(m.Rows), m.Columns)
			}
		}
	})
}

// Of many nodes the worst have columns, the others one together.
func TestFold(t *testing.T) {
	s := node("10.9.1.5")
	var silences []model.Silence
	for i := range 100 {
		n := byte(i + 10)
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, n, 0}), 24)
		s.Cluster.Nodes = append(s.Cluster.Nodes, model.ClusterNode{Name: cidr.String(), PodCIDRs: []netip.Prefix{cidr}})
		peer := netip.AddrFrom4([4]byte{10, 9, n, 9})
		asks(s, "10.9.1.5", peer.String(), 5, uint64(5*min(1, i%50)))
		if i%50 == 0 {
			silences = append(silences, model.Silence{Local: addr("10.9.1.5"), Remote: peer, Packets: 5, Code: "MissingUDR"})
		}
	}
	m := Matrix(model.Verdict{On: s, Findings: faults("MissingUDR"), Silences: silences}).Fold(4)
	if len(m.Columns) != 4 || m.Columns[3].Name != "97 more" {
		t.Fatalf("columns %+v", m.Columns)
	}
	want := []model.Reach{model.ReachOneWay, model.ReachOneWay, model.ReachWell, model.ReachWell}
	for i, c := range m.Rows[0].Cells {
		if c.Reach != want[i] {
			t.Errorf("%s is %s", m.Columns[i].Name, c.Reach)
		}
	}
	if c := m.Rows[0].Cells[3]; len(c.Pairs) != 97 || c.Sent != 97*5 {
		t.Errorf("the rest: %d pairs, %d sent", len(c.Pairs), c.Sent)
	}
}

// column is the reach of all pods together to a destination.
func column(m model.Matrix, i int) model.Reach {
	out := model.ReachNone
	for _, r := range m.Rows {
		if r.Cells[i] != nil {
			out = out.Join(r.Cells[i].Reach)
		}
	}
	return out
}
