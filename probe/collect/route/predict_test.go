package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
	"github.com/lasthop/lasthop/probe/path"
)

// TestPrediction compares the predicted lookup with the kernel's own, for
// random packets over random tables and rules: there may be no disagreement.
func TestPrediction(t *testing.T) {
	const seeds, packets = 12, 250
	for seed := range uint64(seeds) {
		if testing.Short() && seed%4 != 1 {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := &generator{rand.New(rand.NewPCG(seed, 1))}
			ns := nstest.New(t)
			ns.Run(
				"echo 1 > /proc/sys/net/ipv4/ip_forward",
				fmt.Sprintf("for c in all default; do echo %d > /proc/sys/net/ipv4/conf/$c/rp_filter; done", seed%2),
			)
			ns.Run(g.links()...)
			ns.Run(g.routes()...)
			if seed%3 != 0 {
				ns.Run(g.rules()...)
			}
			c, h, err := dump.Route(ns.NS)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer h.Close()
			r := path.NewState(snapshot(t, c, h)).Routing()
			for range packets {
				q := g.query()
				got, want := predict(r, q, seed%2 == 1), kernel(t, h, q)
				if !slices.Contains(got, want) {
					t.Errorf("%+v:\npredicted %+v\n   kernel %+v\n%s", q, got, want, ns.Output("ip rule", "ip route show table all"))
					return
				}
			}
		})
	}
}

func snapshot(t *testing.T, c *dump.Conn, h *netlink.Handle) *model.Snapshot {
	t.Helper()
	var s model.Snapshot
	links, err := link.Read(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.Links = links.Links
	if s.Routes, err = Read(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	if s.Rules, err = Rules(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	return &s
}

// generator makes small random networks below 10.0.0.0/8, so that prefixes
// meet often.
type generator struct{ *rand.Rand }

const devices = 4

// links makes devices with networks of their own.
func (g *generator) links() []string {
	var out []string
	for i := range devices {
		out = append(out, fmt.Sprintf("ip link add d%d type veth peer name e%d", i, i), fmt.Sprintf("ip link set d%d up", i), fmt.Sprintf("ip link set e%d up", i),
			fmt.Sprintf("ip addr add 10.%d.0.1/16 dev d%d", i, i))
	}
	return out
}

func (g *generator) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(g.IntN(devices + 3)), byte(g.IntN(3)), byte(2 + g.IntN(4))})
}

func (g *generator) prefix() netip.Prefix {
	p, _ := g.addr().Prefix([]int{0, 8, 13, 16, 23, 24, 30, 31, 32}[g.IntN(9)])
	return p
}

func (g *generator) routes() []string {
	var out []string
	seen := map[string]bool{}
	for range 30 {
		key := fmt.Sprintf("%s table %d metric %d", g.prefix(), []int{254, 254, 254, 100, 101, 253}[g.IntN(6)], 10+g.IntN(3)*10)
		if seen[key] {
			continue
		}
		seen[key] = true
		hop := func() string {
			i := g.IntN(devices)
			return fmt.Sprintf("via 10.%d.0.%d dev d%d onlink", i, 100+g.IntN(100), i)
		}
		words := []string{"ip route add", key}
		switch g.IntN(9) {
		case 0:
			words = []string{"ip route add", []string{"blackhole", "unreachable", "prohibit", "throw"}[g.IntN(4)], key}
		case 1:
			words = append(words, "nexthop", hop(), "nexthop", hop())
		case 2:
			words = append(words, fmt.Sprintf("dev d%d", g.IntN(devices)))
		default:
			words = append(words, hop())
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func (g *generator) rules() []string {
	var out []string
	for i := range 8 {
		words := []string{"ip rule add", fmt.Sprintf("prio %d", 100+10*i)}
		if g.IntN(4) == 0 {
			words = append(words[:1], "not", words[1])
		}
		conditions := []string{"to " + g.prefix().String(), "from " + g.prefix().String(), fmt.Sprintf("iif d%d", g.IntN(devices)), "iif lo", "fwmark 0x1/0x3"}
		for _, k := range g.Perm(len(conditions))[:1+g.IntN(2)] {
			if !strings.HasPrefix(conditions[k], "iif") || !strings.Contains(strings.Join(words, " "), "iif") {
				words = append(words, conditions[k])
			}
		}
		words = append(words, []string{"lookup 100", "lookup 101", "lookup main", fmt.Sprintf("goto %d", 110+10*i), "blackhole", "prohibit", "unreachable"}[g.IntN(7)])
		if i == 7 {
			words[len(words)-1] = "lookup 100"
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

// query is a packet that arrives on a device, for another machine or for the
// node itself. Broadcasts, which are never forwarded, are left out.
func (g *generator) query() path.Query {
	q := path.Query{Src: g.addr(), Dst: g.addr(), Mark: path.Mark{Value: uint32(g.IntN(3))}}
	if g.IntN(8) == 0 {
		q.Dst = netip.AddrFrom4([4]byte{10, byte(g.IntN(devices)), 0, 1})
	}
	q.In = fmt.Sprintf("d%d", g.IntN(devices))
	return q
}

// answer is what a lookup comes to: an error's name, or the device and next
// hop.
type answer struct{ Failed, Type, Hop string }

// predict lists what the kernel may answer: there are several next hops to
// choose from.
func predict(r *path.Routing, q path.Query, strict bool) []answer {
	d := r.Lookup(q)
	switch d.Type {
	case "":
		return []answer{{Failed: "no route"}}
	case "blackhole":
		return []answer{{Failed: "invalid"}}
	case "unreachable":
		// A rule's is told apart from a route's, and is like no route.
		if d.Route == nil {
			return []answer{{Failed: "no route"}}
		}
		return []answer{{Failed: "unreachable"}}
	case "prohibit":
		return []answer{{Failed: "prohibited"}}
	}
	hops := d.Hops
	if d.Type != "unicast" {
		// Delivered here; the filter knows no link by which it leaves.
		hops = []path.NextHop{{}}
	}
	var out []answer
	for _, h := range hops {
		back := r.Lookup(path.Query{Src: q.Dst, Dst: q.Src, In: h.Link})
		passes := slices.ContainsFunc(back.Hops, func(h path.NextHop) bool { return h.Link == q.In })
		switch {
		case strict && (back.Type != "unicast" || !passes):
			out = append(out, answer{Failed: "invalid"})
		case d.Type == "unicast":
			out = append(out, answer{Type: d.Type, Hop: fmt.Sprint(h.IfIndex, h.Gateway)})
		default:
			out = append(out, answer{Type: d.Type})
		}
	}
	return out
}

func kernel(t *testing.T, h *netlink.Handle, q path.Query) answer {
	t.Helper()
	got, err := h.RouteGetWithOptions(net.IP(q.Dst.AsSlice()), &netlink.RouteGetOptions{Iif: q.In, SrcAddr: q.Src.AsSlice(), Mark: q.Mark.Value})
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return answer{Failed: "no route"}
	case errors.Is(err, unix.EHOSTUNREACH):
		return answer{Failed: "unreachable"}
	case errors.Is(err, unix.EACCES):
		return answer{Failed: "prohibited"}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV):
		return answer{Failed: "invalid"}
	case err != nil || len(got) != 1:
		t.Fatalf("look up %+v: %v, %v", q, got, err)
	}
	r := answer{Type: typeNames[got[0].Type]}
	if r.Type == "unicast" {
		gateway, _ := netip.AddrFromSlice(got[0].Gw)
		r.Hop = fmt.Sprint(got[0].LinkIndex, gateway.Unmap())
	}
	return r
}
