package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/model"
)

func TestGrowth(t *testing.T) {
	for broken, want := range map[bool]func(scale int) int{
		false: func(int) int { return 0 },
		true:  func(scale int) int { return 50*scale + 2 },
	} {
		t.Run(fmt.Sprintf("broken=%v", broken), func(t *testing.T) {
			growth.Test(t, func(scale int) func() {
				n := large(scale, broken)
				return func() {
					if found := Diagnose(&n.Snapshot); len(found) != want(scale) {
						t.Errorf("%d findings at size %d, not %d", len(found), scale, want(scale))
					}
				}
			})
		})
	}
	t.Run("routes", func(t *testing.T) {
		growth.Test(t, func(scale int) func() {
			n := manyRoutes(scale*60, scale*1200)
			return func() {
				if found := Diagnose(&n.Snapshot); len(found) > 0 {
					t.Errorf("%d findings at size %d: %s", len(found), scale, brief(found[0]))
				}
			}
		})
	})
	services := func(name string, of func(scale int) *testNode, want int) {
		t.Run(name, func(t *testing.T) {
			growth.Test(t, func(scale int) func() {
				n := of(scale)
				return func() {
					if found := Diagnose(&n.Snapshot); len(found) != want*scale {
						t.Errorf("%d findings at size %d, not %d", len(found), scale, want*scale)
					}
				}
			})
		})
	}
	services("services by rules", func(scale int) *testNode { return byRules(scale).oldFlows(scale, false) }, 0)
	services("services by rules, asked before", func(scale int) *testNode { return byRules(scale).oldFlows(scale, true) }, manyServices)
	services("services by maps", func(scale int) *testNode { return byMaps(scale).oldFlows(scale, false) }, manyEmpty)
	services("services by maps, asked before", func(scale int) *testNode { return byMaps(scale).oldFlows(scale, true) }, manyServices+manyEmpty)
	t.Run("ranges", func(t *testing.T) {
		growth.Test(t, func(scale int) func() {
			n := large(scale, false)
			n.inCluster(scale * 250)
			return func() {
				if found := len(RemoteRanges(&n.Snapshot)); found < scale*250 {
					t.Errorf("%d ranges at size %d", found, scale)
				}
			}
		})
	})
}

const (
	manyServices = 2500
	manyAsked    = 12_500
	manyEmpty    = 25
)

// oldFlows are of a socket that asked each of many services before the window, and not one
// reply came: translated as the rules do it, or from before there were rules.
func (n *testNode) oldFlows(scale int, stale bool) *testNode {
	for i := range scale * manyAsked {
		service, end := nth("10.0.16.0", i%(scale*manyServices)).String(), nth("10.52.0.0", i%(scale*manyServices)).String()
		if stale {
			end = service
		}
		n.kept(pod5, service, end, pod5, 53, false, 29*time.Second)
		n.Sysctls = n.Sysctls[:2]
	}
	return n
}

// byRules has kube-proxy's rules for many services, byMaps those of its mode nftables, by
// which some services more, which a pod asks, have no endpoints.
func byRules(scale int) *testNode {
	n := serving(pod6)
	for i := range scale * manyServices {
		chain := fmt.Sprintf("KUBE-SVC-%d", i)
		n.natRules(
			model.PacketRule{Chain: "PREROUTING", Dst: to(nth("10.0.16.0", i).String() + "/32"), Proto: 17, DstPorts: onPort(53), Target: chain},
			model.PacketRule{Chain: chain, Proto: 17, Target: "DNAT", To: netip.AddrPortFrom(nth("10.52.0.0", i), 53)})
	}
	return n
}

func byMaps(scale int) *testNode {
	n := serving(pod6)
	rule := func(chain string, r model.PacketRule) {
		r.Backend, r.Family, r.Table, r.Chain, r.Native, r.Number = model.NFT, "ip", "kube-proxy", chain, true, 1
		n.PacketRules = append(n.PacketRules, r)
		if !slices.ContainsFunc(n.Chains[max(0, len(n.Chains)-1):], func(c model.Chain) bool { return c.Name == chain }) {
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "kube-proxy", Name: chain})
		}
	}
	lookup := func(set string, key ...string) []model.Lookup { return []model.Lookup{{Set: set, Key: key, Map: true}} }
	service := []string{"ip daddr", "meta l4proto", "th dport"}
	rule("nat-prerouting", model.PacketRule{Lookups: lookup("service-ips", service...)})
	n.Chains[len(n.Chains)-1].Hook, n.Chains[len(n.Chains)-1].Priority = "PREROUTING", -100
	rule("filter-forward", model.PacketRule{Lookups: lookup("no-endpoint-services", service...)})
	n.Chains[len(n.Chains)-1].Hook, n.Chains[len(n.Chains)-1].Policy = "FORWARD", "ACCEPT"
	rule("reject-chain", model.PacketRule{Target: "REJECT"})
	served := model.Set{Family: "ip", Table: "kube-proxy", Name: "service-ips"}
	refused := model.Set{Family: "ip", Table: "kube-proxy", Name: "no-endpoint-services"}
	for i := range scale * manyServices {
		of := fmt.Sprint("service-", i)
		goes := model.Set{Family: "ip", Table: "kube-proxy", Name: fmt.Sprint("__map", i), Anonymous: true}
		served.Elements = append(served.Elements, model.Element{Key: nth("10.0.16.0", i).String() + " . udp . 53", Value: "goto " + of, Comment: fmt.Sprint("shop/", i, ":dns")})
		rule(of, model.PacketRule{Lookups: lookup(goes.Name, "numgen random mod 3")})
		for k := range 3 {
			end := fmt.Sprint("endpoint-", i, "-", k)
			goes.Elements = append(goes.Elements, model.Element{Key: fmt.Sprint(k), Value: "goto " + end})
			rule(end, model.PacketRule{Proto: 17, Target: "DNAT", To: netip.AddrPortFrom(nth([]string{"10.52.0.0", "10.53.0.0", "10.54.0.0"}[k], i), 53)})
		}
		n.Sets = append(n.Sets, goes)
	}
	for i := range scale * manyEmpty {
		to := nth("10.0.2.0", i).String()
		refused.Elements = append(refused.Elements, model.Element{Key: to + " . tcp . 80", Value: "goto reject-chain", Comment: fmt.Sprint("shop/gone", i, ":http")})
		n.refuse("nft_do_chain", pod5, to, 9)
	}
	n.Sets = append(n.Sets, served, refused)
	return n
}
