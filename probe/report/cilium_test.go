package report_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestCiliumDrop: every form of a report has why Cilium's program dropped.
func TestCiliumDrop(t *testing.T) {
	pod, peer := netip.MustParseAddr("10.66.0.9"), netip.MustParseAddr("10.67.0.1")
	s := &model.Snapshot{
		Sources: []model.Source{{Name: model.SourceDrops, Status: model.OK}},
		Pods:    []model.Pod{{Addresses: []netip.Prefix{netip.PrefixFrom(pod, 24)}}},
		Traffic: model.Traffic{Drops: []model.Drop{{
			Src: peer, Dst: pod, Reason: "TC_EGRESS", Location: "__dev_queue_xmit", Link: "lxc5", IfIndex: 5, Proto: 6, Packets: 9,
			Cilium: model.CiliumDrop{Reason: 169, Error: -14, SrcIdentity: 2, DstIdentity: 3358, Endpoint: 871, File: 200, Line: 12},
		}}},
	}
	r := report.Report{Snapshot: s}
	for form, want := range map[report.Format]string{
		report.Text: "TC_EGRESS (Cilium: FIB lookup failed) at __dev_queue_xmit",
		report.Wide: "TC_EGRESS (Cilium: FIB lookup failed)",
		report.JSON: `"cilium": {
        "reason": "FIB lookup failed",
        "code": 169,
        "error": -14,
        "sourceIdentity": 2,
        "destinationIdentity": 3358,
        "endpoint": 871,
        "source": "file 200:12"
      }`,
	} {
		var b strings.Builder
		if err := report.Write(&b, r, form, report.Style{}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
		if form == report.JSON {
			if err := schema(t, true).Validate(fromJSON(t, []byte(b.String()))); err != nil {
				t.Error(err)
			}
		}
	}
}
