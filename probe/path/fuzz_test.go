package path

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// harm spoils a snapshot at random: elements are lost, doubled and swapped,
// values become others or nothing.
func harm(g *rand.Rand, v reflect.Value, odds int) {
	if g.IntN(odds) == 0 {
		v.SetZero()
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		switch v.Interface().(type) {
		case netip.Addr:
			if g.IntN(odds) == 0 {
				v.Set(reflect.ValueOf(someAddr(g)))
			}
			return
		case netip.Prefix:
			if g.IntN(odds) == 0 {
				a := someAddr(g)
				v.Set(reflect.ValueOf(netip.PrefixFrom(a, g.IntN(a.BitLen()+1))))
			}
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				harm(g, v.Field(i), odds)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			harm(g, v.Index(i), odds)
		}
		if n := v.Len(); n > 1 && g.IntN(odds) < 2 {
			reflect.Swapper(v.Interface())(g.IntN(n), g.IntN(n))
			v.Set(reflect.Append(v, v.Index(g.IntN(n))))
		}
	case reflect.Bool:
		if g.IntN(odds) == 0 {
			v.SetBool(!v.Bool())
		}
	case reflect.Int:
		if g.IntN(odds) == 0 {
			v.SetInt(int64(g.IntN(10)))
		}
	case reflect.Uint64:
		if g.IntN(odds) == 0 {
			v.SetUint(g.Uint64N(50))
		}
	}
}

func someAddr(g *rand.Rand) netip.Addr {
	all := []netip.Addr{podA, podB, nodeIP, router, far, web, netip.MustParseAddr("fd00::7"), netip.MustParseAddr("172.30.4.1")}
	return all[g.IntN(len(all))]
}

// laden is a node with some of everything that decides or counts.
func laden(g *rand.Rand) *model.Snapshot {
	s := routedNode()
	if g.IntN(2) == 0 {
		s = bridgedNode()
	}
	addr := func() model.AddrMatch { return model.AddrMatch{Prefix: netip.PrefixFrom(someAddr(g), 32)} }
	targets := []string{"ACCEPT", "DROP", "RETURN", "DNAT", "MASQUERADE", "SNAT", "MARK", "A", "B"}
	for _, c := range []string{"PREROUTING", "FORWARD", "POSTROUTING", "INPUT", "OUTPUT", "A", "B"} {
		for _, table := range []string{"nat", "filter"} {
			hook := c
			if len(c) == 1 {
				hook = ""
			}
			s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: table, Name: c, Hook: hook, Policy: "ACCEPT", Priority: 100})
			s.PacketRules = append(s.PacketRules, model.PacketRule{
				Backend: model.NFT, Family: "ip", Table: table, Chain: c, Dst: addr(), Target: targets[g.IntN(len(targets))],
				To: netip.AddrPortFrom(someAddr(g), uint16(g.IntN(3))), Goto: g.IntN(4) == 0,
			})
		}
		for _, table := range []string{"nat", "filter", "broute"} {
			s.FrameRules = append(s.FrameRules, model.FrameRule{
				Backend: model.NFT, Table: table, Chain: c, IPDst: addr(), TargetName: "A", MAC: mac(byte(g.IntN(90))),
				Target: []model.FrameTarget{model.TargetDrop, model.TargetDNAT, model.TargetJump, model.TargetRedirect, model.TargetAccept}[g.IntN(5)],
			})
		}
	}
	for i := range s.PacketRules {
		if r := &s.PacketRules[i]; g.IntN(5) == 0 {
			key := []string{"ip daddr", "ip saddr", "th dport", "meta l4proto", "iifname", "numgen random mod 2", "ct state"}
			r.Lookups = []model.Lookup{{Set: "x", Key: key[g.IntN(len(key)):], Map: r.Target == "A", Not: g.IntN(2) == 0}}
			if r.Target == "A" {
				r.Target = ""
			}
		}
	}
	for _, table := range []string{"nat", "filter"} {
		x := model.Set{Family: "ip", Table: table, Name: "x"}
		for _, to := range []string{"jump A", "goto B", "drop", "accept", "172.30.4.9 . 80", "?"} {
			keys := []string{"80", "tcp", "pa", "*", "1-90", someAddr(g).String(), someAddr(g).String() + " . " + someAddr(g).String(), "172.30.0.0/16"}
			x.Elements = append(x.Elements, model.Element{Key: keys[g.IntN(len(keys))], Value: to})
		}
		s.Sets = append(s.Sets, x)
	}
	s.Sysctls = []model.Sysctl{{Name: "net.bridge.bridge-nf-call-iptables", Value: "1"}, {Name: "net.ipv4.conf.all.rp_filter", Value: "1"}}
	s.FDB = []model.FDBEntry{{MAC: mac(9), IfIndex: 2, Bridge: 8}}
	s.Flows = []model.Flow{{Proto: 6, Original: model.Tuple{Src: podA, Dst: web}, Reply: model.Tuple{Src: someAddr(g), Dst: nodeIP}}}
	s.Traffic.Drops = []model.Drop{{Src: podA, Dst: someAddr(g), Reason: "NETFILTER_DROP", Packets: 7, Link: "pa"}}
	s.Traffic.Peers = []model.Peer{{Local: podA, Remote: far, IfIndex: 2, Link: "enp1", In: model.PeerCount{Packets: 3}}}
	return look(s, row(podA, far, "pa", 5, model.Ingress, g.Uint64N(99)), row(podA, far, "enp1", 2, model.Egress, g.Uint64N(99)))
}

// FuzzTrace: whatever is missing from a snapshot or wrong in it, the path is
// told, twice the same, and no count contradicts itself.
func FuzzTrace(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint8(seed%7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, spoilt uint8) {
		g := rand.New(rand.NewPCG(seed, 1))
		s := laden(g)
		if spoilt > 0 {
			harm(g, reflect.ValueOf(s).Elem(), 3+int(spoilt)*20)
		}
		findings := []model.Finding{{Code: "MissingUDR", EndsAt: []model.HopKind{model.HopBeyond}, LastHopAlive: model.Place{Link: "enp1", Direction: model.Egress}}, {Code: "New", LastHopAlive: model.Place{Link: "pa", Direction: model.Ingress}}}
		e := Ends{Pod: someAddr(g), To: someAddr(g), Port: uint16(g.IntN(2)), Proto: uint8(6 * g.IntN(2))}
		if g.IntN(20) == 0 {
			e.To = netip.Addr{}
		}
		p := Trace(s, findings, e)
		if again := Trace(s, findings, e); !reflect.DeepEqual(p, again) {
			t.Errorf("told otherwise the second time:\n%+v\n%+v", p, again)
		}
		if len(p.Forward) == 0 || len(p.Return) == 0 {
			t.Errorf("no hops: %+v", p)
		}
		for _, h := range slices.Concat(p.Forward, p.Return) {
			if h.N == 0 || h.Kind == "" || h.Decision == "" || !h.In.Known && h.In.N > 0 || !h.Out.Known && h.Out.N > 0 || !h.Lost.Known && h.Lost.N > 0 {
				t.Errorf("hop %+v", h)
			}
		}
	})
}
