package report_test

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestNext: what would make a finding surer follows from what it left open and what the
// observation lacked.
func TestNext(t *testing.T) {
	ok := func(sources ...string) *model.Snapshot {
		s := &model.Snapshot{Node: model.Node{Name: "aks-1"}}
		for _, name := range sources {
			s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK})
		}
		s.Cluster.Nodes = []model.ClusterNode{
			{Name: "aks-2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
			{Name: "$(reboot)", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}},
		}
		return s
	}
	names := report.Names{netip.MustParseAddr("10.244.1.7"): {Namespace: "shop", Pod: "cart"}, netip.MustParseAddr("10.244.2.7"): {Namespace: "web", Pod: "front"}}
	of := func(c model.Confidence, peer string, means ...model.Means) *model.Finding {
		return &model.Finding{
			Code: "NoReply", Confidence: c, Surer: means, Packets: 3,
			Pods: []netip.Addr{netip.MustParseAddr("10.244.1.7")}, Peers: []netip.Prefix{netip.MustParsePrefix(peer)},
		}
	}
	joint := of(model.Likely, "10.244.2.7/32", model.Active)
	joint.Nodes = []string{"aks-2", "aks-1"}
	idle := of(model.Possible, "10.244.2.0/24")
	idle.Packets = 0
	const peer = "10.244.2.7/32"
	for name, c := range map[string]struct {
		s    *model.Snapshot
		f    *model.Finding
		want []string
	}{
		"proven":           {ok(), of(model.Proven, peer, model.Active), nil},
		"probes":           {ok(), of(model.Likely, peer, model.Active), []string{"lasthop check --only NoReply --active"}},
		"probes were sent": {ok(model.SourceProbes), of(model.Likely, peer, model.Active), nil},
		"routes": {ok(), of(model.Likely, peer, model.Routes), []string{
			"az network route-table list -o json >routes.json && lasthop check --only NoReply --routes routes.json"}},
		"routes were given": {ok(model.SourceCloud), of(model.Likely, peer, model.Routes), nil},
		"the other end":     {ok(), of(model.Likely, peer, model.Watch), []string{"kubectl lasthop check aks-1 aks-2"}},
		"nobody's address":  {ok(), of(model.Likely, "192.0.2.1/32", model.Watch), nil},
		"a hostile name":    {ok(), of(model.Likely, "10.244.3.7/32", model.Watch), nil},
		"policies": {ok(), of(model.Likely, peer, model.Policies), []string{
			"kubectl get networkpolicies -n shop; kubectl get networkpolicies -n web"}},
		"several nodes": {ok(), joint, []string{"kubectl lasthop check aks-2 --only NoReply --active"}},
		"no traffic":    {ok(), idle, []string{"lasthop check --only NoReply --for 1m"}},
		"a table was not read": {
			&model.Snapshot{Sources: []model.Source{{Name: model.SourceEbtables, Status: model.Partial}}}, of(model.Likely, peer), []string{"lasthop doctor"}},
	} {
		var got []string
		for _, step := range report.Next(c.s, names, c.f) {
			got = append(got, step.Command)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		for format, wants := range map[report.Format]int{report.Text: 1, report.Wide: len(c.want), report.JSON: len(c.want)} {
			var out bytes.Buffer
			if err := report.Write(&out, report.Report{Snapshot: c.s, Findings: []model.Finding{*c.f}}, format, report.Style{}); err != nil {
				t.Fatal(err)
			}
			for i, step := range report.Next(c.s, report.Called(c.s), c.f) {
				if strings.Contains(out.String(), step.Command) != (i < wants) {
					t.Errorf("%s: %s as %s: %s", name, step.Command, format, &out)
				}
			}
		}
	}
}
