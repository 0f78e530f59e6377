package iptables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// BenchmarkServices reads what kube-proxy has in its mode nftables for many services of
// three endpoints: for the first time, and after something changed.
func BenchmarkServices(b *testing.B) {
	for _, services := range []int{1000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			ns := nstest.New(b)
			ns.Feed(manyServices(services), "nft", "-f", "-")
			b.ReportAllocs()
			for b.Loop() {
				t := read(b, ns)
				if len(t.Sets) != services+1 || len(t.Rules) != 7*services+1 {
					b.Fatalf("%d sets, %d rules", len(t.Sets), len(t.Rules))
				}
			}
		})
		b.Run(fmt.Sprint(services, " changed"), func(b *testing.B) {
			ns := nstest.New(b)
			ns.Feed(manyServices(services), "nft", "-f", "-")
			kernel := kmod.New("/")
			c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
			defer c.Close()
			var r Reader
			for b.Loop() {
				b.StopTimer()
				ns.Run("nft add element ip kube-proxy service-ips { 10.97.0.1 . tcp . 80 : drop }", "nft delete element ip kube-proxy service-ips { 10.97.0.1 . tcp . 80 }")
				b.StartTimer()
				if t, _, err := r.Read(context.Background(), ns.NS, kernel, c); err != nil || len(t.Sets) != services+1 {
					b.Fatalf("%d sets: %v", len(t.Sets), err)
				}
			}
		})
	}
}

func manyServices(n int) string {
	var s strings.Builder
	fmt.Fprint(&s, "table ip kube-proxy {\nmap service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n"+
		"chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }\n")
	for i := range n {
		var goes []string
		for k := range 3 {
			fmt.Fprintf(&s, "chain endpoint-IEY327M4-shop/s%d/tcp/http__10.244.%d.%d/80 { ip saddr 10.244.%d.%d continue; meta l4proto tcp dnat to 10.244.%d.%d:80; }\n",
				i, k, i%250, k, i%250, k, i%250)
			goes = append(goes, fmt.Sprintf("%d : goto endpoint-IEY327M4-shop/s%d/tcp/http__10.244.%d.%d/80", k, i, k, i%250))
		}
		fmt.Fprintf(&s, "chain service-2QRHZV4L-shop/s%d/tcp/http { numgen random mod 3 vmap { %s }; }\n", i, strings.Join(goes, ", "))
	}
	fmt.Fprint(&s, "}\nadd element ip kube-proxy service-ips {\n")
	for i := range n {
		fmt.Fprintf(&s, "10.96.%d.%d . tcp . 80 : goto service-2QRHZV4L-shop/s%d/tcp/http,\n", i/250, i%250, i)
	}
	fmt.Fprint(&s, "}\n")
	return s.String()
}
