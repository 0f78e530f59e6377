package report_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestJointSilence says nothing of nodes that were not compared.
func TestJointSilence(t *testing.T) {
	none := model.NodeSeen{Name: "node-2", Reason: "its recording is truncated"}
	for _, c := range []struct {
		nodes []model.NodeSeen
		want  string
	}{
		{[]model.NodeSeen{{}, {}}, "no loss seen on 2 nodes or between them"},
		{[]model.NodeSeen{{}, none}, "no loss seen on 1 node; 1 other node not compared (see below)"},
		{[]model.NodeSeen{none, none}, "no finding, but none of these nodes was watched completely (see below)"},
	} {
		if got := (report.Joint{Nodes: c.nodes}).Silence(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// joint is a report on two nodes and a recording that could not be read.
func joint() report.Joint {
	s := node()
	near := model.NodeSeen{Name: "node-1", Recording: "a.rec", Node: s.Node, Window: s.Window, Sources: s.Sources, Pods: 2}
	far := near
	far.Name, far.Recording, far.Reason = "node-2", "b\x1b[2J.rec", "its recording is truncated"
	far.Node.Name = "node-2"
	return report.Joint{
		Nodes: []model.NodeSeen{{Name: "c.rec", Recording: "c.rec", Reason: "no recording", Failed: true}, near, far},
		Names: report.Names{cart: {Namespace: "shop", Pod: "cart-7d9f"}},
		Findings: []model.Finding{{
			Code: "MissingUDR", Severity: model.Critical, Confidence: model.Proven, Pods: []netip.Addr{cart}, Peers: []netip.Prefix{remote},
			LastHopAlive: model.Place{Link: "nic0", Role: model.RoleUplink, Direction: model.Egress}, Title: "no route to 10.61.1.0/24", Why: "The row is missing.",
			Evidence: []model.Evidence{{Source: "tc", Text: "nic0 egress: 40 packets from 10.60.0.32", Node: "node-1"}, {Source: "tc", Text: "nic0 ingress: none", Node: "node-2"}},
			Fix:      []string{"az network route-table route create"}, Verify: "lasthop check --only MissingUDR", Packets: 40, Nodes: []string{"node-1", "node-2"},
		}},
	}
}

func TestJointGolden(t *testing.T) {
	silent := joint()
	silent.Findings = nil
	for name, r := range map[string]report.Joint{"joint": joint(), "joint-silent": silent} {
		for _, format := range report.Formats() {
			if format == report.HTML || format == report.SVG {
				continue // TestBars and TestPagesAreInert look at these
			}
			path := filepath.Join("testdata", name+"."+string(format))
			var b strings.Builder
			if err := report.Write(&b, r, format, report.Style{}); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(b.String(), "\x1b") {
				t.Errorf("%s: an escape sequence from outside", path)
			}
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				continue
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s differs from what is written (go test -update, then review):\n%s", path, b.String())
			}
		}
	}
}
