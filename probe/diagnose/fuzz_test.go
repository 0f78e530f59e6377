package diagnose

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
)

// FuzzDiagnose: whatever a snapshot holds, as one from a file may, judging it
// ends, says the same twice, and every finding is in the catalogue.
func FuzzDiagnose(f *testing.F) {
	racing := racing(9)
	racing.lost("nf_hook_slow", pod5, pod6, 53, 9)
	policy := filtered()
	policy.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to(pod5 + "/32"), Target: "DROP"})
	policy.refuse("nft_do_chain", far, pod5, 9)
	astray := routed()
	astray.unroute("10.50.0.20/32")
	stale := bridged()
	stale.dnat("10.60.0.20", deadMAC).Counter.Delta = 9
	missing := three()
	missing.silent("172.20.1.5", "172.20.3.9")
	missing.table(rightRows[:2], subnetA)
	for _, n := range []*testNode{racing, policy, astray, stale, missing} {
		text, err := json.Marshal(n.Snapshot)
		if err != nil {
			f.Fatal(err)
		}
		var back model.Snapshot
		if err := json.Unmarshal(text, &back); err != nil || len(Diagnose(&back)) != len(Diagnose(&n.Snapshot)) {
			f.Fatalf("the seed is another when read back: %v", err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"Pods": [{}], "Links": [{"Role": "uplink"}], "Routes": [{"NextHops": [{}]}], "Flows": [{}], "FrameRules": [{}]}`))
	pages := Kinds()
	f.Fuzz(func(t *testing.T, text []byte) {
		var s model.Snapshot
		if json.Unmarshal(text, &s) != nil {
			return
		}
		v := Judge(&s)
		found := v.Findings
		if u := agree.Unaccounted(&s, v); len(u) > 0 {
			t.Errorf("no name for %q", u)
		}
		if again := Diagnose(&s); !reflect.DeepEqual(found, again) {
			t.Errorf("judged twice, found %+v and %+v", found, again)
		}
		for _, x := range found {
			if !slices.ContainsFunc(pages, func(p fault.Kind) bool { return p.Code == x.Code }) || x.Title == "" || x.Confidence.Rank() < 0 {
				t.Errorf("finding %+v", x)
			}
		}
	})
}
