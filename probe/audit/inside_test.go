package audit_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/model"
)

// inside gives the first pod rules of its own, and chains on the hooks that they are in.
func inside(n *model.Snapshot, rules ...model.PacketRule) *model.Inside {
	in := &model.Inside{}
	for i, r := range rules {
		r.Backend, r.Family, r.Table, r.Number = model.NFT, "ip", "filter", i+1
		in.PacketRules = append(in.PacketRules, r)
	}
	for _, hook := range []string{"INPUT", "OUTPUT"} {
		in.Chains = append(in.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: hook, Hook: hook, Policy: "ACCEPT"})
	}
	n.Pods[0].Inside = in
	return in
}

// TestInside gives one pod's own namespace one fault after the other, each with a twin that is healthy.
func TestInside(t *testing.T) {
	established := model.PacketRule{Chain: "INPUT", Target: "ACCEPT", Unknown: []string{"conntrack --ctstate RELATED,ESTABLISHED"}}
	for _, tt := range []struct {
		name        string
		make        func(*model.Snapshot)
		want        string
		cut, unsure int
	}{
		{"all that comes in is dropped", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "INPUT", Target: "DROP"})
		}, "warning proven PolicyDrop", 6, 0},
		{"only what is for a port is dropped", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "INPUT", Target: "DROP", Proto: model.TCP, DstPorts: []model.PortRange{{First: 22, Last: 22}}})
		}, "", 0, 6},
		{"what the pod sends is dropped", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "OUTPUT", Target: "DROP"})
		}, "warning proven PolicyDrop", 6, 0},
		{"the policy of OUTPUT is DROP, and a rule accepts all", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "OUTPUT", Target: "ACCEPT"}).Chains[1].Policy = "DROP"
		}, "", 0, 0},
		{"the policy of OUTPUT is DROP", func(n *model.Snapshot) { inside(n).Chains[1].Policy = "DROP" }, "warning proven PolicyDrop", 6, 0},
		{"the policy of INPUT is DROP", func(n *model.Snapshot) { inside(n).Chains[0].Policy = "DROP" }, "warning proven PolicyDrop", 6, 0},
		{"new connections alone are dropped", func(n *model.Snapshot) {
			inside(n, established, model.PacketRule{Chain: "INPUT", Target: "DROP"})
		}, "info proven PolicyDrop", 2, 0},
		{"another pod's address is dropped", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "OUTPUT", Target: "DROP", Dst: to("10.244.0.3/32")})
		}, "warning proven PolicyDrop", 2, 0},
		{"an address that nobody has is dropped", func(n *model.Snapshot) {
			inside(n, model.PacketRule{Chain: "OUTPUT", Target: "DROP", Dst: to("10.99.0.3/32")})
		}, "", 0, 0},
		{"what is for one protocol is rejected by a proxy's rules", func(n *model.Snapshot) {
			in := inside(n, model.PacketRule{Chain: "INPUT", Target: "DROP"})
			in.PacketRules = append(in.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "PREROUTING", Target: "REDIRECT"})
		}, "", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node3()
			tt.make(n)
			r := audit.Run(n, nil)
			var got string
			for _, f := range r.Findings {
				got += fmt.Sprint(f.Severity, " ", f.Confidence, " ", f.Code)
				if !slices.Equal(f.Pods, n.Pods[0].Known()) {
					t.Errorf("%s is about %v", f.Title, f.Pods)
				}
			}
			if got != tt.want || len(r.Audit.Cut) != tt.cut || len(r.Audit.Unsure) != tt.unsure {
				t.Errorf("%q, %d cut, %d unsure; want %q, %d, %d", got, len(r.Audit.Cut), len(r.Audit.Unsure), tt.want, tt.cut, tt.unsure)
			}
		})
	}
}
