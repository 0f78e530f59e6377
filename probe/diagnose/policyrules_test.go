package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// tooManyRules is what is not known where the search was cut off.
const tooManyRules = "the last rules that a packet passes: there are more than lasthop follows"

// TestLayeredChains has few rules and ways through them without number: each
// rule of a layer leads to the whole of the next.
func TestLayeredChains(t *testing.T) {
	const layers, width = 14, 9
	n := filtered()
	n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "layer0"})
	for i := range layers {
		name, to := fmt.Sprintf("layer%d", i), fmt.Sprintf("layer%d", i+1)
		if i == layers-1 {
			to = "DROP"
		}
		n.chain(model.NFT, "ip", "filter", name, "", "", 0)
		for k := range width {
			r := n.filter(model.NFT, name, uint64(40+k), model.PacketRule{Target: to, Unknown: []string{fmt.Sprintf("-m set --match-set s%d src", k)}})
			if i < layers-1 && k%2 == 0 {
				// The surest way to the end is by the last of them.
				r.Unknown, r.Counter.Delta = nil, 40
			}
		}
	}
	n.refuse("nf_hook_slow", pod5, far, 40)
	found := agreed(t, n)
	if len(found) != 1 || found[0].Code != "PolicyDrop" || found[0].Packets != 40 {
		t.Fatalf("want PolicyDrop of 40 packets alone: %+v", found)
	}
	if path := "FORWARD > layer0 > layer1 > "; !strings.Contains(found[0].Evidence[0].Text, path) {
		t.Errorf("want the way %s…: %s", path, found[0].Evidence[0].Text)
	}
	if slices.Contains(found[0].Unseen, tooManyRules) {
		t.Error("not every rule was searched")
	}
}

// TestTooManyRules is a table that is not searched to its end: what was found
// until there is not proven, and nothing found is not called unexplained.
func TestTooManyRules(t *testing.T) {
	for _, first := range []bool{true, false} {
		if testing.Short() && first {
			continue
		}
		n := filtered()
		if first {
			n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "DROP", Dst: to(far + "/32"), Unknown: []string{"-m set --match-set s src"}})
		}
		other := n.filter(model.NFT, "FORWARD", 3, model.PacketRule{Target: "DROP", Dst: to("192.0.2.7/32")})
		n.PacketRules = append(n.PacketRules, slices.Repeat([]model.PacketRule{*other}, path.MaxSteps)...)
		n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "DROP", Dst: to(far + "/32")})
		n.refuse("nf_hook_slow", pod5, far, 40)
		found := agreed(t, n)
		if len(found) != 1 || found[0].Code != "PolicyDrop" || found[0].Confidence != model.Likely || !slices.Contains(found[0].Unseen, tooManyRules) {
			t.Errorf("a rule that may have been it %v: want PolicyDrop, likely, that says what was not searched: %+v", first, found)
		}
	}
}

// TestMostDropped wants a row for each pair of ends, whatever protocols they
// spoke.
func TestMostDropped(t *testing.T) {
	n := kubenet()
	n.drop("NETFILTER_DROP", "nft_do_chain", pod5, far, 40).Proto = 6
	n.drop("NETFILTER_DROP", "nft_do_chain", pod5, far, 9).Proto = 17
	n.drop("NETFILTER_DROP", "nft_do_chain", pod6, far, 45).Proto = 6
	var got []string
	for _, e := range words.Say("drops", words.Facts{"lost": node.MostDropped([]*model.Drop{&n.Traffic.Drops[0], &n.Traffic.Drops[1], &n.Traffic.Drops[2]})}) {
		got = append(got, e.Text)
	}
	want := []string{pod5 + " to " + far + ": 49 packets dropped at nft_do_chain", pod6 + " to " + far + ": 45 packets dropped at nft_do_chain"}
	if !slices.Equal(got, want) || n.Traffic.Drops[0].Packets != 40 {
		t.Errorf("got %q, want %q", got, want)
	}
}

// endless makes chains of POSTROUTING that no walk follows to their end.
func endless(n *testNode, shape string) {
	jump := func(from, to string) {
		n.natRules(model.PacketRule{Chain: from, Target: to})
	}
	n.PacketRules = nil
	switch shape {
	case "deep":
		for i, from := 0, "POSTROUTING"; i <= path.MaxDepth+1; i++ {
			to := fmt.Sprintf("deep%d", i)
			jump(from, to)
			from = to
		}
		n.natRules(model.PacketRule{Chain: fmt.Sprintf("deep%d", path.MaxDepth+1), Target: "ACCEPT"})
	case "many":
		other := model.PacketRule{Chain: "POSTROUTING", Target: "ACCEPT", Dst: to("192.0.2.0/24")}
		n.natRules(slices.Repeat([]model.PacketRule{other}, path.MaxSteps)...)
	}
	n.natRules(model.PacketRule{Chain: "POSTROUTING", Target: "MASQUERADE", ToPorts: model.PortRange{First: 40000, Last: 40003}})
}

// TestCutOffTranslation: where the nat rules are not followed to their end, no
// finding says what they do.
func TestCutOffTranslation(t *testing.T) {
	const unseen = "the nat rules: there are more than lasthop follows"
	for _, shape := range []string{"deep", "many"} {
		if testing.Short() && shape == "many" {
			continue
		}
		for _, tt := range []struct {
			code    model.Code
			happens func(*testNode)
		}{
			{"MissingMasquerade", func(n *testNode) { n.silent(pod5, out); n.silent(pod5, "203.0.113.10") }},
			{"UnexpectedMasquerade", func(n *testNode) { n.translated(pod5, far, far, "10.50.0.4", true) }},
		} {
			n := kubenet()
			endless(n, shape)
			tt.happens(n)
			f := Diagnose(&n.Snapshot)[0]
			if f.Code != tt.code || f.Confidence != model.Likely || !slices.Contains(f.Unseen, unseen) {
				t.Errorf("%s chains: want %s, likely, that says what was not followed: %+v", shape, tt.code, f)
			}
		}
		n := kubenet()
		endless(n, shape)
		for range 4 {
			n.translated(pod5, out, out, "10.50.0.4", true)
		}
		n.Conntrack.InsertFailed = 9
		for _, f := range Diagnose(&n.Snapshot) {
			if f.Code == "SNATPortExhaustion" {
				t.Errorf("%s chains: the range of a rule that may not decide is taken for whole: %+v", shape, f)
			}
		}
	}
}

// TestDeepChains: a rule deeper than the kernel allows chains to be is not found,
// and the one that is found is then not proven, whatever order chains and rules
// are in.
func TestDeepChains(t *testing.T) {
	for _, cyclic := range []bool{false, true} {
		n := filtered()
		from := "FORWARD"
		for i := range path.MaxDepth + 2 {
			to := fmt.Sprintf("deep%d", i)
			n.chain(model.NFT, "ip", "filter", to, "", "", 0)
			n.filter(model.NFT, from, 40, model.PacketRule{Target: to})
			if cyclic {
				n.filter(model.NFT, to, 40, model.PacketRule{Target: "deep0"})
			}
			from = to
		}
		n.filter(model.NFT, from, 40, model.PacketRule{Target: "DROP"})
		n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Target: "DROP", Dst: to(far + "/32"), Unknown: []string{"-m set --match-set s src"}})
		n.refuse("nf_hook_slow", pod5, far, 40)
		verdicts(t, n, []string{"PolicyDrop likely 172.20.1.5 172.20.2.9"})
		if f := Diagnose(&n.Snapshot)[0]; !slices.Contains(f.Unseen, tooManyRules) {
			t.Errorf("cyclic %v: want what was not searched: %+v", cyclic, f)
		}
	}
}

// TestCyclicChains: chains that jump to one another lead to the same rule each
// time, wherever in the cycle it is.
func TestCyclicChains(t *testing.T) {
	for range 50 {
		n := filtered()
		for _, c := range []string{"A", "B", "C"} {
			n.chain(model.NFT, "ip", "filter", c, "", "", 0)
		}
		for _, jump := range [][2]string{{"FORWARD", "A"}, {"A", "B"}, {"B", "C"}, {"C", "B"}, {"C", "A"}, {"B", "A"}} {
			n.filter(model.NFT, jump[0], 9, model.PacketRule{Target: jump[1]})
		}
		n.filter(model.NFT, "A", 9, model.PacketRule{Target: "DROP"})
		n.refuse("nft_do_chain", far, pod5, 9)
		if found := agreed(t, n); len(found) != 1 || brief(found[0]) != "PolicyDrop proven 172.20.1.5 172.20.2.9" {
			t.Fatalf("got %+v", found)
		}
	}
}
