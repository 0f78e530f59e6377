package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/model"
)

// checkMACs compares the pairs of MACs of each hop with its packets.
func checkMACs(t *testing.T, tr model.Traffic) {
	t.Helper()
	type hop struct {
		addr      netip.Addr
		link      string
		direction model.Direction
		side      model.Side
	}
	packets := map[hop]uint64{}
	for _, p := range tr.MACs {
		packets[hop{p.Addr, p.Link, p.Direction, p.Side}] += p.Packets
	}
	for _, h := range tr.Hops {
		if n := packets[hop{h.Addr, h.Link, h.Direction, h.Side}]; n != h.Packets {
			t.Errorf("%s as %s on %s %s: %d packets with known MACs, want %d", h.Addr, h.Side, h.Link, h.Direction, n, h.Packets)
		}
	}
	if len(tr.Hops) == 0 || tr.Lost.MACs != 0 || len(lostOf(tr)) > 0 {
		t.Errorf("%d hops, lost %q", len(tr.Hops), tr.Lost.Detail)
	}
}

// TestManyClientsOnBridge has more clients ask one pod over a bridge than a hop
// counter has room for MACs.
func TestManyClientsOnBridge(t *testing.T) {
	const clients = 13
	ns := newNS(t)
	inside(t, ns, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}})
	})
	config(t, ns, "br0", "")
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 78, 0, byte(i + 1)}) }
	var links []Link
	var local []Local
	var conns []*net.UDPConn
	for i := range clients + 1 {
		pod := newNS(t)
		port, _ := veth(t, ns, fmt.Sprintf("port%d", i), "", pod, "eth0", at(i).String()+"/24")
		inside(t, ns, func() error {
			bridge, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMasterByIndex(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: port.Index}}, bridge.Attrs().Index)
		})
		links, local, conns = append(links, port), append(local, Local{Addr: at(i)}), append(conns, listen(t, pod, at(i)))
	}
	e := open(t, Config{NS: ns})
	if err := e.SetLocal(local); err != nil {
		t.Fatal(err)
	}
	if err := e.Attach(links, time.Time{}); err != nil {
		t.Fatal(err)
	}
	service := conns[0]
	b := make([]byte, 10)
	for i := 1; i <= clients; i++ {
		for range i {
			if _, err := conns[i].WriteToUDPAddrPort([]byte("ask"), netip.AddrPortFrom(at(0), 7000)); err != nil {
				t.Fatal(err)
			}
			_, from, err := service.ReadFromUDPAddrPort(b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := service.WriteToUDPAddrPort([]byte("answer"), from); err != nil {
				t.Fatal(err)
			}
			if _, err := conns[i].Read(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr := poll(t, e)
	checkMACs(t, tr)
	from := map[model.MAC]uint64{}
	for _, p := range tr.MACs {
		if p.Addr == at(0) && p.Link == links[0].Name && p.Direction == model.Egress && p.Side == model.AsDestination {
			from[p.Src] += p.Packets
		}
	}
	if len(from) != clients {
		t.Errorf("%d clients by MAC at the service's port, want %d: %v", len(from), clients, from)
	}
}

// TestMACsOfManyPods has 110 pods of one bridge talk with ten others each and with
// the gateway.
func TestMACsOfManyPods(t *testing.T) {
	const pods, others = 110, 10
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 9, byte(i%pods + 1)}) }
	mac := func(p []byte, i int) { binary.BigEndian.PutUint32(p, 0x0a580000+uint32(i%pods)) }
	var local []Local
	for i := range pods {
		local = append(local, Local{Addr: at(i)})
	}
	b := bench{open(t, Config{NS: newNS(t)}), t}
	if err := b.setLink(Link{Index: loopback, Name: "lo"}); err != nil {
		t.Fatal(err)
	}
	if err := b.SetLocal(local); err != nil {
		t.Fatal(err)
	}
	p, up := udpPacket(t, pod, pod2), udpPacket(t, pod, other)
	for i := range pods {
		src := at(i).As4()
		for k := 1; k <= others; k++ {
			dst := at(i + k*7).As4()
			copy(p[14+12:], src[:])
			copy(p[14+16:], dst[:])
			mac(p[2:], i+k*7)
			mac(p[8:], i)
			b.run(model.Ingress, p)
			b.run(model.Egress, p)
		}
		copy(up[14+12:], src[:])
		mac(up[8:], i)
		b.run(model.Ingress, up)
	}
	tr := b.traffic()
	checkMACs(t, tr)
	if want := pods*others*4 + pods; len(tr.MACs) != want {
		t.Errorf("%d pairs of MACs, want %d", len(tr.MACs), want)
	}
}

// TestMACsOverflow sends with more pairs of MACs than there is room for: what is
// not kept is counted, at the hop that it is missing of. Pairs that are not seen any
// more make room.
func TestMACsOverflow(t *testing.T) {
	const sent = 2 * maxMACs
	b := newBench(t, Link{})
	p := udpPacket(t, pod, other)
	for i := range uint32(sent) {
		binary.BigEndian.PutUint32(p[2:], i)
		if _, _, err := b.program(model.Egress).Test(p); err != nil {
			t.Fatal(err)
		}
	}
	at := func(seconds int) model.Traffic {
		if err := b.Poll(epoch(seconds)); err != nil {
			t.Fatal(err)
		}
		return b.Traffic()
	}
	tr := at(1)
	if n := uint64(len(tr.MACs)); n < maxMACs/2 || n+tr.Lost.MACs != sent {
		t.Errorf("%d pairs and %d lost, want %d in all", n, tr.Lost.MACs, sent)
	}
	if err := b.MakeRoom(epoch(10), false); err != nil {
		t.Fatal(err)
	}
	at(11)
	tr = at(12)
	before := tr.Lost.MACs
	for i := range uint32(1000) {
		binary.BigEndian.PutUint32(p[2:], 1<<31+i)
		b.run(model.Egress, p)
	}
	if tr = at(13); tr.Lost.MACs != before || len(tr.MACs) < 1000 {
		t.Errorf("%d pairs, %d more lost; want room for 1000", len(tr.MACs), tr.Lost.MACs-before)
	}
}
