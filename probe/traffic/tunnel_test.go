//go:build kernels

// Not every kernel has these tunnels: make test-kernels builds this and runs it where
// they are.

package traffic

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTunnels counts what comes out of ipip and sit tunnels and what goes in by the
// addresses inside, on every kernel.
func TestTunnels(t *testing.T) {
	for name, tt := range map[string]struct {
		link       func(name string, local, remote netip.Addr) netlink.Link
		near, away netip.Addr
		bits       int
	}{
		"ipip": {func(name string, local, remote netip.Addr) netlink.Link {
			return &netlink.Iptun{LinkAttrs: netlink.LinkAttrs{Name: name}, Local: local.AsSlice(), Remote: remote.AsSlice(), Ttl: 64}
		}, netip.MustParseAddr("10.78.0.1"), netip.MustParseAddr("10.78.0.2"), 24},
		"sit": {func(name string, local, remote netip.Addr) netlink.Link {
			return &netlink.Sittun{LinkAttrs: netlink.LinkAttrs{Name: name}, Local: local.AsSlice(), Remote: remote.AsSlice(), Ttl: 64}
		}, netip.MustParseAddr("fd00:78::1"), netip.MustParseAddr("fd00:78::2"), 64},
	} {
		t.Run(name, func(t *testing.T) {
			ends := newTwoEnds(t)
			l := Link{Name: "tun-" + name, NoEthernet: true, IPTunnel: true}
			inside(t, ends.node, func() error {
				tunnel := tt.link(l.Name, nodeIP, podIP)
				if err := netlink.LinkAdd(tunnel); err != nil {
					return err
				}
				made, err := netlink.LinkByName(l.Name)
				if err == nil {
					l.Index = made.Attrs().Index
				}
				return err
			})
			inside(t, ends.pod, func() error { return netlink.LinkAdd(tt.link(l.Name, podIP, nodeIP)) })
			config(t, ends.node, l.Name, fmt.Sprintf("%s/%d", tt.near, tt.bits))
			config(t, ends.pod, l.Name, fmt.Sprintf("%s/%d", tt.away, tt.bits))
			ends.nodeConn, ends.podConn = listen(t, ends.node, tt.near), listen(t, ends.pod, tt.away)
			e := open(t, Config{NS: ends.node})
			if err := e.SetLocal([]Local{{Addr: tt.away}, {Addr: podIP}}); err != nil {
				t.Fatal(err)
			}
			if err := e.Attach([]Link{l}, time.Time{}); err != nil {
				t.Fatal(err)
			}
			ends.between(t, 5, tt.near, tt.away)
			tr := poll(t, e)
			for d, side := range map[model.Direction]model.Side{model.Ingress: model.AsSource, model.Egress: model.AsDestination} {
				h := hopOf(tr, tt.away.String(), d, side)
				// UDP with up to 8 bytes of payload, and no outer header.
				if most := h.Packets * (40 + 8 + 8); h.Packets != 5 || h.Bytes > most {
					t.Errorf("%s: %d packets, %d bytes; want 5, at most %d", d, h.Packets, h.Bytes, most)
				}
				if h := hopOf(tr, podIP.String(), d, side); h.Packets != 0 {
					t.Errorf("%s: %d packets counted by the outer address", d, h.Packets)
				}
			}
			if tr.Lost.Malformed+tr.Lost.Unparsed != 0 {
				t.Errorf("lost %+v", tr.Lost)
			}
		})
	}
}
