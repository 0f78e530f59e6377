package path

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

const layers, width = 12, 9

// layered makes chains each of whose rules leads to the whole of the next one,
// so that there are more ways through them than anybody can follow. The rules
// of the last have the given target.
func layered(s *model.Snapshot, table, hook, target string, priority int) {
	s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: table, Name: hook, Hook: hook, Priority: priority, Policy: "ACCEPT"})
	chain := hook
	for i := range layers {
		next := fmt.Sprintf("layer%d", i)
		if i == layers-1 {
			next = target
		}
		for k := range width {
			r := model.PacketRule{Backend: model.NFT, Family: "ip", Table: table, Chain: chain, Target: next, Number: k + 1}
			if k%2 == 0 && next == target {
				r.Unknown = []string{"-m set --match-set s src"}
			}
			if next == "DNAT" {
				r.To = netip.AddrPortFrom(podB, 80)
			}
			s.PacketRules = append(s.PacketRules, r)
		}
		chain = next
	}
}

// last appends a rule for everything to a hook's chain.
func last(s *model.Snapshot, table, hook, target string) {
	s.PacketRules = append(s.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: table, Chain: hook, Target: target, Number: width + 1})
}

func TestLayeredChains(t *testing.T) {
	tests := []struct {
		name     string
		with     func(*model.Snapshot)
		out      string
		decision string
	}{
		{"all return, and the last rule drops", func(s *model.Snapshot) {
			layered(s, "filter", "FORWARD", "RETURN", 0)
			last(s, "filter", "FORWARD", "DROP")
		}, "pod pa nat policyX", "dropped by filter FORWARD rule 10"},
		{"all mark, and nothing drops", func(s *model.Snapshot) {
			layered(s, "filter", "FORWARD", "MARK", 0)
		}, "pod pa nat policy route neighbor enp1 beyond", "accept"},
		{"a service behind layers", func(s *model.Snapshot) {
			layered(s, "nat", "PREROUTING", "DNAT", -100)
		}, "pod pa nat", "one of 2 rules"},
		{"layers that translate nothing", func(s *model.Snapshot) {
			layered(s, "nat", "PREROUTING", "RETURN", -100)
		}, "pod pa nat policy route neighbor enp1 beyond", "no translation"},
		{"masquerade behind layers", func(s *model.Snapshot) {
			layered(s, "nat", "POSTROUTING", "RETURN", 100)
			last(s, "nat", "POSTROUTING", "MASQUERADE")
		}, "pod pa nat policy route neighbor enp1 beyond", "source 172.30.4.7 becomes 192.168.7.3"},
		{"layers behind an exclusion", func(s *model.Snapshot) {
			layered(s, "nat", "POSTROUTING", "LOG", 100)
			s.PacketRules = slices.Insert(s.PacketRules, 0, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "POSTROUTING", Target: "ACCEPT"})
		}, "pod pa nat policy route neighbor enp1 beyond", "no translation"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := routedNode()
			tt.with(s)
			expect(t, s, far, tt.out, tt.decision)
		})
	}
}

// TestCutOff is of tables that are not followed to their end: what they do is
// then not known, and never "accept".
func TestCutOff(t *testing.T) {
	const way = "pod pa nat policy route neighbor enp1 beyond"
	priorities := map[string]int{"PREROUTING": -100, "POSTROUTING": 100}
	many := func(table, chain, target string) func(*model.Snapshot) {
		return func(s *model.Snapshot) {
			s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: table, Name: chain, Hook: chain, Priority: priorities[chain], Policy: "ACCEPT"})
			other := model.PacketRule{Backend: model.NFT, Family: "ip", Table: table, Chain: chain, Target: target, Proto: 17}
			s.PacketRules = slices.Repeat([]model.PacketRule{other}, MaxSteps)
			last(s, table, chain, target)
		}
	}
	// deep makes a chain that only more jumps than a walk follows lead to.
	deep := func(table, chain, target string) func(*model.Snapshot) {
		return func(s *model.Snapshot) {
			s.Chains = append(s.Chains, model.Chain{Backend: model.Legacy, Family: "ip", Table: table, Name: chain, Hook: chain, Priority: priorities[chain], Policy: "ACCEPT"})
			s.PacketRules = nil
			from := chain
			for i := range 2 * MaxDepth {
				next := fmt.Sprintf("deep%d", i)
				if i == 2*MaxDepth-1 {
					next = target
				}
				s.PacketRules = append(s.PacketRules, model.PacketRule{Backend: model.Legacy, Family: "ip", Table: table, Chain: from, Target: next})
				from = next
			}
		}
	}
	for _, tt := range []struct {
		name     string
		with     func(*model.Snapshot)
		decision string
	}{
		{"a filter", many("filter", "FORWARD", "DROP"), "unknown: there are more rules than lasthop follows"},
		{"translation", many("nat", "PREROUTING", "DNAT"), "unknown whether the destination is translated: there are more rules"},
		{"source translation", many("nat", "POSTROUTING", "MASQUERADE"), "unknown whether the source is translated: there are more rules"},
		{"a deep filter", deep("filter", "FORWARD", "DROP"), "unknown: there are more rules than lasthop follows"},
		{"deep translation", deep("nat", "PREROUTING", "DNAT"), "unknown whether the destination is translated: there are more rules"},
		{"deep source translation", deep("nat", "POSTROUTING", "MASQUERADE"), "unknown whether the source is translated: there are more rules"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := routedNode()
			tt.with(s)
			expect(t, s, far, way, tt.decision)
		})
	}
	t.Run("a bridge", func(t *testing.T) {
		s := bridgedNode()
		other := model.FrameRule{Backend: model.NFT, Table: "filter", Chain: "FORWARD", EtherType: etherARP, Target: model.TargetDrop}
		s.FrameRules = slices.Repeat([]model.FrameRule{other}, MaxSteps)
		s.FrameRules = append(s.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: "FORWARD", Target: model.TargetDrop})
		expect(t, s, podB, "pod pa bridge pb pod", "unknown: there are more bridge rules than lasthop follows")
	})
	t.Run("a deep bridge", func(t *testing.T) {
		s := bridgedNode()
		from := "FORWARD"
		for i := range 2 * MaxDepth {
			to := fmt.Sprintf("deep%d", i)
			s.FrameRules = append(s.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: from, Target: model.TargetJump, TargetName: to})
			from = to
		}
		s.FrameRules = append(s.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: from, Target: model.TargetDrop})
		expect(t, s, podB, "pod pa bridge pb pod", "unknown: there are more bridge rules than lasthop follows")
	})
}

// TestCyclicChains is of chains that jump to one another, which the kernel
// refuses: a walk passes each once, and what stands behind decides.
func TestCyclicChains(t *testing.T) {
	const way = "pod pa nat policy route neighbor enp1 beyond"
	cycle := func(s *model.Snapshot, table, hook string, priority int) {
		s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: table, Name: hook, Hook: hook, Priority: priority, Policy: "ACCEPT"})
		for _, jump := range [][2]string{{hook, "A"}, {"A", "B"}, {"A", "A"}, {"B", "A"}, {"B", hook}} {
			s.PacketRules = append(s.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: table, Chain: jump[0], Target: jump[1]})
		}
	}
	for _, tt := range []struct {
		table, hook, target string
		priority            int
		out, decision       string
	}{
		{"filter", "FORWARD", "DROP", 0, "pod pa nat policyX", "dropped by filter FORWARD rule 10"},
		{"nat", "POSTROUTING", "MASQUERADE", 100, way, "source 172.30.4.7 becomes 192.168.7.3"},
		{"nat", "PREROUTING", "ACCEPT", -100, way, "no translation"},
	} {
		s := routedNode()
		cycle(s, tt.table, tt.hook, tt.priority)
		last(s, tt.table, tt.hook, tt.target)
		expect(t, s, far, tt.out, tt.decision)
	}
	s := bridgedNode()
	for _, jump := range [][2]string{{"FORWARD", "A"}, {"A", "B"}, {"B", "A"}} {
		s.FrameRules = append(s.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: jump[0], Target: model.TargetJump, TargetName: jump[1]})
	}
	s.FrameRules = append(s.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: "FORWARD", Number: 2, Target: model.TargetDrop})
	expect(t, s, podB, "pod pa bridgeX", "dropped by filter FORWARD rule 2 of the bridge")
}

// TestLayeredFrameRules is the same for a bridge: the rewritten MAC stays so in
// whatever order the layers are met.
func TestLayeredFrameRules(t *testing.T) {
	s := bridgedNode()
	add := func(chain string, r model.FrameRule) {
		r.Backend, r.Table, r.Chain, r.Number = model.NFT, "nat", chain, len(s.FrameRules)+1
		s.FrameRules = append(s.FrameRules, r)
	}
	chain := "PREROUTING"
	for i := range layers {
		next := fmt.Sprintf("layer%d", i)
		for range width {
			add(chain, model.FrameRule{Target: model.TargetJump, TargetName: next})
		}
		chain = next
	}
	add(chain, model.FrameRule{Target: model.TargetDNAT, MAC: mac(99), Verdict: model.TargetContinue})
	expect(t, s, podB, "pod pa bridgeX", "which is behind no port; the pod has "+mac(61).String())
}

// expect traces podA's packets and compares the way out; one of its hops must
// say the decision.
func expect(t *testing.T, s *model.Snapshot, dst netip.Addr, out, decision string) {
	t.Helper()
	p := Trace(s, nil, Ends{Pod: podA, To: dst, Proto: 6, Port: 80})
	if again := Trace(s, nil, Ends{Pod: podA, To: dst, Proto: 6, Port: 80}); !reflect.DeepEqual(p, again) {
		t.Errorf("another answer the second time:\n%+v\n%+v", p, again)
	}
	if got := kinds(p.Forward); got != out {
		t.Errorf("out  %s\nwant %s", got, out)
	}
	if !slices.ContainsFunc(p.Forward, func(h model.PathHop) bool { return strings.Contains(h.Decision, decision) }) {
		t.Errorf("no hop says %q: %+v", decision, p.Forward)
	}
}

// TestFirst: of a long chain each rule is met that the destination matches, in order, and
// none that is for another destination alone.
func TestFirst(t *testing.T) {
	s := &model.Snapshot{}
	var want []int
	for i := range 60 {
		r := model.PacketRule{Chain: "services", Number: i}
		switch i % 4 {
		case 0:
			r.Dst.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i % 3)}), 32)
		case 1:
			r.Dst = model.AddrMatch{Prefix: netip.MustParsePrefix("10.96.0.2/32"), Not: true}
		case 2:
			r.Dst.Prefix = netip.MustParsePrefix("10.96.0.0/24")
		}
		if r.Dst.Matches(netip.MustParseAddr("10.96.0.1")) {
			want = append(want, i)
		}
		s.PacketRules = append(s.PacketRules, r)
	}
	meets := func(dst netip.Addr) (met []int) {
		w := NewState(s).Tables().walk(Packet{Dst: dst})
		w.Meet = func(_ ChainKey, i int, _ *model.PacketRule) Action {
			met = append(met, i)
			return Next
		}
		w.Chain(ChainKey{Chain: "services"})
		return met
	}
	if got := meets(netip.MustParseAddr("10.96.0.1")); !slices.Equal(got, want) {
		t.Errorf("met %v, want %v", got, want)
	}
	if got := meets(netip.Addr{}); len(got) != len(s.PacketRules) {
		t.Errorf("%d rules are met where the destination is not known", len(got))
	}
}
