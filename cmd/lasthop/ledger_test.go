package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/ledger"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/session"
)

// The ports of what the ledger's tests ask: a server that returns what it is
// sent, and one that keeps it.
const (
	ledgerTCP = 7007
	ledgerUDP = 7009
)

// sender is a pod of a lab, or a node, that sends packets and counts them.
type sender struct {
	ns   *netns.NS
	sent map[string]uint64 // by destination
}

// ledgerLab is a lab without traffic of its own.
type ledgerLab struct {
	*lab.Lab
	t    *testing.T
	node string // its namespace's name
}

func newLedgerLab(t *testing.T, topology, faults string) *ledgerLab {
	t.Helper()
	s, err := scenario.Parse("ledger.yaml", []byte("topology:\n"+topology+"traffic: [{from: left/a, to: left/b, proto: icmp}]\n"+faults))
	if err != nil {
		t.Fatal(err)
	}
	l := upScenario(t, s)
	return &ledgerLab{Lab: l, t: t, node: l.Nodes()[0].Netns}
}

// open opens the namespace of "node", "node/pod" or "outside".
func (l *ledgerLab) open(place string) *netns.NS {
	l.t.Helper()
	node, pod, _ := strings.Cut(place, "/")
	name := strings.TrimSuffix(l.node, l.Nodes()[0].Name) + node
	if pod != "" {
		name += "." + pod
	}
	ns, err := netns.Named(name)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ns.Close() })
	return ns
}

func (l *ledgerLab) addr(place string) netip.Addr {
	l.t.Helper()
	e, err := l.Scenario().Topology.Resolve(place)
	if err != nil {
		l.t.Fatal(err)
	}
	return e.Addr
}

// serve answers TCP and takes UDP at a place.
func (l *ledgerLab) serve(place string) {
	l.t.Helper()
	a := l.addr(place)
	var tcp net.Listener
	var udp net.PacketConn
	err := l.open(place).Do(func() (err error) {
		if tcp, err = net.Listen("tcp", netip.AddrPortFrom(a, ledgerTCP).String()); err != nil {
			return err
		}
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			// No datagram may be lost for want of room.
			var set error
			err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
			return errors.Join(err, set)
		}}
		udp, err = config.ListenPacket(l.t.Context(), "udp", netip.AddrPortFrom(a, ledgerUDP).String())
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	go func() {
		buf := make([]byte, 2048)
		for {
			if _, _, err := udp.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
}

// some is how many packets of a kind a sender sends to one destination.
func some() int { return 100 + rand.IntN(300) }

// udp sends datagrams that nobody answers.
func (s *sender) udp(to netip.Addr) error {
	var c net.Conn
	err := s.ns.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(to, ledgerUDP).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return s.write(c, to, some(), []byte("datagram"))
}

func (s *sender) write(c net.Conn, to netip.Addr, n int, packet []byte) error {
	for range n {
		if _, err := c.Write(packet); err != nil {
			return err
		}
		s.sent[to.String()]++
	}
	return nil
}

// icmp sends echo requests.
func (s *sender) icmp(to netip.Addr) error {
	var c net.Conn
	err := s.ns.Do(func() (err error) {
		c, err = net.Dial("ip4:icmp", to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	buf := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 7, Seq: 1}, gopacket.Payload("echo"))
	if err != nil {
		return err
	}
	return s.write(c, to, some(), buf.Bytes())
}

// tcp has a conversation, and asks the socket how many segments it sent.
func (s *sender) tcp(to netip.Addr) error {
	var c net.Conn
	err := s.ns.Do(func() (err error) {
		c, err = net.Dial("tcp", netip.AddrPortFrom(to, ledgerTCP).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	conn, buf := c.(*net.TCPConn), make([]byte, 16)
	for range some() {
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var asked error
	err = raw.Control(func(fd uintptr) { info, asked = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, asked); err != nil {
		return err
	}
	s.sent[to.String()] += uint64(info.Segs_out)
	return nil
}

// observe has the node watched while send runs, and gives the ledger's rows by
// pod and direction. All is sent within the window.
func (l *ledgerLab) observe(send func() error) map[string]model.LedgerRow {
	l.t.Helper()
	ns, err := netns.Named(l.node)
	if err != nil {
		l.t.Fatal(err)
	}
	defer ns.Close()
	attached := make(chan struct{})
	sent := make(chan error, 1)
	var ended time.Time
	go func() {
		<-attached
		err := send()
		ended = time.Now()
		sent <- err
	}()
	once := false
	s, err := session.Observe(l.t.Context(), session.Options{
		Options: collect.Options{NS: ns, HostRoot: l.t.TempDir()}, For: 40 * time.Second, // far more than sending takes
		Progress: func(model.Window, time.Time) {
			if !once {
				once = true
				close(attached)
			}
		},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := <-sent; err != nil {
		l.t.Fatal(err)
	}
	if !ended.Before(s.Window.End) {
		l.t.Fatalf("sending went on until %v after the window", ended.Sub(s.Window.End))
	}
	causes := diagnose.Judge(s).Causes
	rows := map[string]model.LedgerRow{}
	for _, r := range ledger.Balance(s, causes) {
		rows[r.Addrs[0].String()+" "+string(r.Direction)] = r
		l.t.Logf("%+v", r)
	}
	return rows
}

// exact wants a row in which nothing is unexplained.
func exact(t *testing.T, r model.LedgerRow) {
	t.Helper()
	if u := r.Unexplained(); !u.Known || u.N != 0 || r.In.N != r.Out.N+r.Dropped || !r.In.Known || !r.Out.Known || r.Edge > 0 {
		t.Errorf("%v %s: in %+v, out %+v, dropped %d, unexplained %d to %+v, edge %d: %q",
			r.Addrs, r.Direction, r.In, r.Out, r.Dropped, r.Least, r.Most, r.Edge, r.Why)
	}
}

func parts(r model.LedgerRow) map[model.LedgerPlace]uint64 {
	m := map[model.LedgerPlace]uint64{}
	for _, p := range r.Parts {
		m[p.Place] = p.Packets
	}
	return m
}

const twoNodes = `  plugin: %s
  nodes:
    - {name: left, pods: [a, b, c]}
    - {name: right, pods: [x]}
`

// TestLedgerBalances sends as many packets as the sender counts, by each
// protocol, to another pod of the node, to one of another node, outside and to
// the node itself, while the node and a third pod talk as well. Each packet
// must be where it went. Where the node talks with the outside too, by the same
// address, what comes back from there cannot be told apart.
func TestLedgerBalances(t *testing.T) {
	t.Parallel()
	shared := map[string]bool{
		"kubenet": true, "azure-bridge": false, "azure-transparent": true, "cilium": false, "calico": false, "kindnet": true,
	}
	for _, plugin := range few(slices.Sorted(maps.Keys(shared)), 3) {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			l := newLedgerLab(t, fmt.Sprintf(twoNodes, plugin), "")
			places := []string{"left/b", "right/x", "outside", "left"}
			for _, place := range append([]string{"left/a"}, places...) {
				l.serve(place)
			}
			a := &sender{l.open("left/a"), map[string]uint64{}}
			others := []*sender{{l.open("left/c"), map[string]uint64{}}, {l.open("left"), map[string]uint64{}}, {l.open("right/x"), map[string]uint64{}}}
			rows := l.observe(func() error {
				for _, place := range places {
					to := l.addr(place)
					if err := errors.Join(a.udp(to), a.icmp(to), a.tcp(to)); err != nil {
						return fmt.Errorf("to %s: %w", place, err)
					}
				}
				b, out := l.addr("left/b"), l.addr("outside")
				if shared[plugin] {
					if err := others[1].tcp(out); err != nil {
						return err
					}
				}
				return errors.Join(others[0].tcp(out), others[0].udp(b), others[1].tcp(b), others[1].udp(l.addr("left/a")),
					others[2].tcp(b), others[2].udp(l.addr("left/a")))
			})
			from := rows[l.addr("left/a").String()+" fromPod"]
			exact(t, from)
			want := map[model.LedgerPlace]uint64{
				model.PlacePods: a.sent[l.addr("left/b").String()], model.PlaceNode: a.sent[l.addr("left").String()],
				model.PlaceOutside: a.sent[l.addr("right/x").String()], model.PlaceTranslated: a.sent[l.addr("outside").String()],
			}
			got := parts(from)
			var total uint64
			for place, n := range want {
				total += n
				if got[place] != n {
					t.Errorf("to %s: %d packets, sent %d", place, got[place], n)
				}
			}
			if from.In.N != total || len(got) != len(want) {
				t.Errorf("in %d, want %d; parts %v", from.In.N, total, got)
			}
			for key, r := range rows {
				switch outside := r.Direction == model.ToPod && r.Addrs[0] != l.addr("left/b"); {
				case !shared[plugin] || !outside:
					exact(t, r)
				case r.Least != 0 || r.Unexplained().Known || len(r.Why) == 0:
					t.Errorf("%s: %d to %+v unexplained: %q", key, r.Least, r.Most, r.Why)
				}
			}
		})
	}
}

// TestLedgerExplains has a rule drop what goes to one pod: just these packets
// are dropped, and the finding on the rule accounts for them.
func TestLedgerExplains(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"kubenet", "calico"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			l := newLedgerLab(t, fmt.Sprintf(twoNodes, plugin), "faults: [{type: drop-forward, pod: left/b}]\n")
			l.serve("right/x")
			a := &sender{l.open("left/a"), map[string]uint64{}}
			b, x := l.addr("left/b"), l.addr("right/x")
			rows := l.observe(func() error { return errors.Join(a.udp(b), a.tcp(x), a.udp(x)) })
			from, to := rows[l.addr("left/a").String()+" fromPod"], rows[b.String()+" toPod"]
			exact(t, from)
			exact(t, to)
			n := a.sent[b.String()]
			for _, r := range []model.LedgerRow{from, to} {
				if r.Dropped != n || len(r.Drops) != 1 || r.Drops[0].Code != "PolicyDrop" {
					t.Errorf("%s: dropped %+v, want %d by PolicyDrop", r.Direction, r.Drops, n)
				}
			}
			if to.Out.N != 0 || from.Out.N != a.sent[x.String()] {
				t.Errorf("out %d and %d, want 0 and %d", to.Out.N, from.Out.N, a.sent[x.String()])
			}
		})
	}
}

// TestLedgerMisses has a program on the pod's link take datagrams away without
// a word: the kernel counts no drop, so that just these are unexplained.
func TestLedgerMisses(t *testing.T) {
	t.Parallel()
	l := newLedgerLab(t, fmt.Sprintf(twoNodes, "kindnet"), "")
	for _, place := range []string{"left/b", "right/x", "outside"} {
		l.serve(place)
	}
	link := ""
	ns := l.open("left")
	b, x, out := l.addr("left/b"), l.addr("right/x"), l.addr("outside")
	err := ns.Do(func() error {
		route, err := exec.Command("ip", "-o", "route", "get", l.addr("left/a").String()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, route)
		}
		_, rest, _ := strings.Cut(string(route), " dev ")
		link = strings.Fields(rest)[0]
		for _, args := range [][]string{
			{"qdisc", "add", "dev", link, "clsact"},
			// UDP: TC_ACT_STOLEN; anything else: TC_ACT_UNSPEC.
			{"filter", "add", "dev", link, "ingress", "protocol", "ip", "bpf", "da", "bytecode", "4,48 0 0 23,21 0 1 17,6 0 0 4,6 0 0 4294967295,"},
		} {
			if text, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("tc %v: %w: %s", args, err, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	a, lost := &sender{l.open("left/a"), map[string]uint64{}}, &sender{l.open("left/a"), map[string]uint64{}}
	rows := l.observe(func() error {
		return errors.Join(a.tcp(b), a.icmp(x), a.tcp(out), lost.udp(b), lost.udp(x), lost.udp(out))
	})
	var kept, gone uint64
	for _, n := range a.sent {
		kept += n
	}
	for _, n := range lost.sent {
		gone += n
	}
	from := rows[l.addr("left/a").String()+" fromPod"]
	if u := from.Unexplained(); u != model.Counted(gone) || from.In.N != kept+gone || from.Out.N != kept || from.Dropped != 0 {
		t.Errorf("in %d, out %d, dropped %d, unexplained %d to %+v; want %d, %d, 0, %d", from.In.N, from.Out.N, from.Dropped, from.Least, from.Most, kept+gone, kept, gone)
	}
}
