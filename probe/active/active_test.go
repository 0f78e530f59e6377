package active

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is a namespace that lives as long as its test.
type machine struct {
	*netns.NS
	*netlink.Handle
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	home, err := netns.Current()
	check(t, err)
	defer home.Close()
	m := &machine{}
	check(t, home.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
			return err
		}
		m.NS, err = netns.Current()
		return err
	}))
	t.Cleanup(func() { m.NS.Close() })
	m.Handle, err = netlink.NewHandleAt(vnetns.NsHandle(m.FD()))
	check(t, err)
	t.Cleanup(m.Close)
	return m
}

func (m *machine) Close() { m.Handle.Close() }

// plug connects a machine to the node's bridge and gives it an address.
func (m *machine) plug(t *testing.T, node *machine, bridge netlink.Link, name, address string) model.MAC {
	t.Helper()
	check(t, node.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(m.FD()),
	}))
	port, err := node.LinkByName(name)
	check(t, err)
	check(t, node.LinkSetUp(port))
	mac := m.address(t, "eth0", address)
	node.awaitUp(t, name)
	return mac
}

// awaitUp waits until the link has its carrier, which the kernel notices a while
// after both ends are up: until then a bridge sends nothing to the port.
func (m *machine) awaitUp(t *testing.T, name string) {
	t.Helper()
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	handle := vnetns.NsHandle(m.FD())
	check(t, netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: &handle, ListExisting: true}))
	for u := range updates {
		if a := u.Attrs(); a.Name == name && a.OperState == netlink.OperUp {
			go func() {
				for range updates { // until done is closed
				}
			}()
			return
		}
	}
	t.Fatalf("%s did not come up", name)
}

func (m *machine) address(t *testing.T, link, address string) model.MAC {
	t.Helper()
	l, err := m.LinkByName(link)
	check(t, err)
	a, err := netlink.ParseAddr(address)
	check(t, err)
	check(t, m.AddrAdd(l, a))
	check(t, m.LinkSetUp(l))
	return model.MACFrom(l.Attrs().HardwareAddr)
}

// addIPv6 adds an IPv6 address to a machine's link, without duplicate address
// detection.
func (m *machine) addIPv6(t *testing.T, link string, a netip.Addr) {
	t.Helper()
	check(t, m.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("0"), 0)
	}))
	l, err := m.LinkByName(link)
	check(t, err)
	check(t, m.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}))
}

// knows reports whether the machine holds a neighbour entry for the address.
func (m *machine) knows(t *testing.T, a netip.Addr) bool {
	t.Helper()
	list, err := m.NeighList(0, unix.AF_INET)
	check(t, err)
	return slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(a.AsSlice()) })
}

// pin makes the machine know a neighbour's MAC without asking for it.
func (m *machine) pin(t *testing.T, a netip.Addr, mac model.MAC) {
	t.Helper()
	l, err := m.LinkByName("eth0")
	check(t, err)
	check(t, m.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]}))
}

// room is a node with a bridge, br9, and machines on it; two have one address.
type room struct {
	node            *machine
	link            netlink.Link
	self            model.MAC
	alone, one, two model.MAC
}

var (
	nodeAddr  = netip.MustParseAddr("198.18.7.1")
	aloneAddr = netip.MustParseAddr("198.18.7.21")
	twiceAddr = netip.MustParseAddr("198.18.7.22")
	emptyAddr = netip.MustParseAddr("198.18.7.23")
)

func newRoom(t *testing.T) *room {
	t.Helper()
	r := &room{node: newMachine(t)}
	check(t, r.node.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br9"}}))
	var err error
	r.link, err = r.node.LinkByName("br9")
	check(t, err)
	first := newMachine(t)
	r.alone = first.plug(t, r.node, r.link, "p1", aloneAddr.String()+"/24")
	r.one = newMachine(t).plug(t, r.node, r.link, "p2", twiceAddr.String()+"/24")
	r.two = newMachine(t).plug(t, r.node, r.link, "p3", twiceAddr.String()+"/24")
	r.node.address(t, "br9", nodeAddr.String()+"/24")
	// It takes the MAC of a port.
	r.link, err = r.node.LinkByName("br9")
	check(t, err)
	r.self = model.MACFrom(r.link.Attrs().HardwareAddr)
	first.pin(t, nodeAddr, r.self)
	return r
}

func (r *room) echo(to netip.Addr, mac model.MAC) model.Probe {
	return model.Probe{Kind: model.ProbeEcho, IfIndex: r.link.Attrs().Index, Link: "br9", From: nodeAddr, To: to, SrcMAC: r.self, DstMAC: mac}
}

func (r *room) arp(to netip.Addr) model.Probe {
	p := r.echo(to, model.Broadcast)
	p.Kind = model.ProbeARP
	return p
}

// TestSend asks real kernels, which answer only what has the right checksums.
func TestSend(t *testing.T) {
	r := newRoom(t)
	plan := []model.Probe{
		r.echo(aloneAddr, r.alone), r.echo(emptyAddr, r.alone), r.arp(aloneAddr), r.arp(twiceAddr), r.arp(emptyAddr),
	}
	got, err := Send(t.Context(), r.node.NS, plan)
	check(t, err)
	if len(got) != len(plan) {
		t.Fatalf("%d of %d probes were sent", len(got), len(plan))
	}
	for i, want := range []struct {
		answered bool
		macs     []model.MAC
	}{{true, nil}, {false, nil}, {true, []model.MAC{r.alone}}, {true, []model.MAC{r.one, r.two}}, {false, nil}} {
		p := got[i]
		sent := 2
		if want.answered {
			sent = 1
		}
		if p.Answered != want.answered || (p.RTT > 0) != want.answered || p.Sent != sent && !want.answered || p.Sent < 1 {
			t.Errorf("%s to %s: answered %v after %v, sent %d times", p.Kind, p.To, p.Answered, p.RTT, p.Sent)
		}
		if len(p.MACs) == 2 && p.MACs[0] == r.two {
			p.MACs[0], p.MACs[1] = p.MACs[1], p.MACs[0]
		}
		if !reflect.DeepEqual(p.MACs, want.macs) {
			t.Errorf("%s to %s: answered by %v, want %v", p.Kind, p.To, p.MACs, want.macs)
		}
		if r.node.knows(t, p.To) {
			t.Errorf("the node has a neighbour entry for %s, which it had not", p.To)
		}
	}
}

// TestSend6 asks by IPv6: a checksum over the wrong header is not answered.
func TestSend6(t *testing.T) {
	r := newRoom(t)
	other := newMachine(t)
	from, to := netip.MustParseAddr("fd00:9:7::1"), netip.MustParseAddr("fd00:9:7::21")
	mac := other.plug(t, r.node, r.link, "p4", "198.18.7.24/24")
	other.addIPv6(t, "eth0", to)
	r.node.addIPv6(t, "br9", from)
	other.pin(t, from, r.self)
	ask := func(a netip.Addr) model.Probe {
		p := r.echo(a, mac)
		p.From = from
		return p
	}
	got, err := Send(t.Context(), r.node.NS, []model.Probe{ask(to), ask(to.Next()), r.echo(aloneAddr, r.alone)})
	check(t, err)
	if len(got) != 3 || !got[0].Answered || got[0].RTT <= 0 || got[1].Answered || !got[2].Answered {
		t.Errorf("got %+v", got)
	}
}

func TestSendNothing(t *testing.T) {
	r := newRoom(t)
	got, err := Send(t.Context(), r.node.NS, nil)
	if len(got) != 0 || err != nil {
		t.Errorf("got %v, %v of an empty plan", got, err)
	}
	if _, err := Send(t.Context(), r.node.NS, make([]model.Probe, Most+1)); err == nil {
		t.Error("a plan beyond the bound was sent")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Send(ctx, r.node.NS, []model.Probe{r.echo(emptyAddr, r.alone)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after the context had ended", err)
	}
}

// TestNotSent plans probes that cannot be sent: the error names them, and the rest
// are sent.
func TestNotSent(t *testing.T) {
	r := newRoom(t)
	gone := r.echo(aloneAddr, r.alone)
	gone.IfIndex, gone.Link = 9999, "gone0"
	strange := r.arp(aloneAddr)
	strange.Kind = "traceroute"
	ipv6Probe := r.echo(netip.MustParseAddr("fd00::1"), r.alone)
	got, err := Send(t.Context(), r.node.NS, []model.Probe{gone, strange, ipv6Probe, r.echo(aloneAddr, r.alone)})
	if len(got) != 1 || !got[0].Answered || got[0].To != aloneAddr {
		t.Errorf("sent %v", got)
	}
	if err == nil || !strings.Contains(err.Error(), "gone0: ") || !strings.Contains(err.Error(), "traceroute") || !strings.Contains(err.Error(), "fd00::1") {
		t.Errorf("got %v, want all three named", err)
	}
	check(t, r.node.LinkSetDown(r.link))
	got, err = Send(t.Context(), r.node.NS, []model.Probe{r.echo(aloneAddr, r.alone)})
	if len(got) != 0 || err == nil || !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("got %v, %v from a link that is down", got, err)
	}
}

// frames are what decode is given in earnest, and how it can be cut or wrong.
var frames = map[string]string{
	"echo reply": "0a0000000001020000000002" + "0800" + "45000020000100004001b6fec6120715c6120701" + "0000abcd12340007" + "6c617374686f70",
	"arp reply":  "0a0000000001020000000002" + "0806" + "0001080006040002" + "020000000002c6120715" + "0a0000000001c6120701",
	"ICMPv6 echo reply": "0a0000000001020000000002" + "86dd" + "60000000000f3a40" + "fd000009000000000000000000000001" + "fd000009000000000000000000000002" +
		"8100abcd12340007" + "6c617374686f70",
	"ICMPv6 echo reply in IPv4": "0a0000000001020000000002" + "0800" + "4500002000010000403ab6fec6120715c6120701" + "8100abcd12340007" + "6c617374686f70",
}

func TestDecode(t *testing.T) {
	echo := reply{kind: model.ProbeEcho, from: aloneAddr, to: nodeAddr, id: 0x1234, seq: 7}
	echo6 := reply{kind: model.ProbeEcho, from: netip.MustParseAddr("fd00:9::1"), to: netip.MustParseAddr("fd00:9::2"), id: 0x1234, seq: 7}
	arp := reply{kind: model.ProbeARP, from: aloneAddr, to: nodeAddr, mac: model.MAC{2, 0, 0, 0, 0, 2}}
	edit := func(name string, at int, with byte) string {
		b, err := hex.DecodeString(frames[name])
		check(t, err)
		b[at] = with
		return hex.EncodeToString(b)
	}
	tests := []struct {
		name, frame string
		want        reply
	}{
		{"echo reply", frames["echo reply"], echo},
		{"arp reply", frames["arp reply"], arp},
		{"padded", frames["arp reply"] + strings.Repeat("00", 18), arp},
		{"echo request", edit("echo reply", 34, 8), reply{}},
		{"arp request", edit("arp reply", 21, 1), reply{}},
		{"unreachable", edit("echo reply", 34, 3), reply{}},
		{"a later fragment", edit("echo reply", 21, 1), reply{}},
		{"ICMPv6 echo reply", frames["ICMPv6 echo reply"], echo6},
		{"ICMPv6 in IPv4 after an ICMPv6 echo reply", frames["ICMPv6 echo reply in IPv4"], reply{}},
		{"another protocol", edit("echo reply", 23, 17), reply{}},
		{"another hardware", edit("arp reply", 18, 8), reply{}},
		{"cut in the IP header", frames["echo reply"][:40], reply{}},
		{"cut in ARP", frames["arp reply"][:60], reply{}},
		{"nothing", "", reply{}},
	}
	ipv6Probe := model.Probe{Kind: model.ProbeEcho, From: netip.MustParseAddr("fd00:9::1"), To: netip.MustParseAddr("fd00:9::2")}
	question, err := craft(&ipv6Probe, 0x1234, 7)
	check(t, err)
	if got, ok := decode(question); ok {
		t.Errorf("an ICMPv6 question: got %+v", got)
	}
	const echoReply = 129
	question[14+40] = echoReply
	if got, _ := decode(question); got != (reply{kind: model.ProbeEcho, from: ipv6Probe.From, to: ipv6Probe.To, id: 0x1234, seq: 7}) {
		t.Errorf("an ICMPv6 answer: got %+v", got)
	}
	if got, ok := decode(question[:14+40+6]); ok {
		t.Errorf("an ICMPv6 answer that is cut short: got %+v", got)
	}
	for _, tt := range tests {
		b, err := hex.DecodeString(tt.frame)
		check(t, err)
		if got, ok := decode(b); got != tt.want || ok != (tt.want != reply{}) {
			t.Errorf("%s: got %+v, %v; want %+v", tt.name, got, ok, tt.want)
		}
	}
}

// FuzzDecode wants no frame to stop the reader.
func FuzzDecode(f *testing.F) {
	for _, s := range frames {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		got, ok := decode(frame)
		if ok && (!got.from.IsValid() || got.from.Is4() != got.to.Is4()) {
			t.Errorf("%x: %+v wants two addresses of one family", frame, got)
		}
	})
}
