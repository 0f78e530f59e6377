package lab

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestReleasedPort takes a source port again while another process, for which a
// copied descriptor stands, still has the socket that had it.
func TestReleasedPort(t *testing.T) {
	here := nstest.New(t)
	here.Run("ip link set lo up")
	var tcp net.Listener
	var udp net.PacketConn
	err := here.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", "127.0.0.1:8080"); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", "127.0.0.1:8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	defer udp.Close()
	const from = 19999
	for proto, to := range map[scenario.Proto]net.Addr{scenario.TCP: tcp.Addr(), scenario.UDP: udp.LocalAddr()} {
		for range 3 {
			c, err := connect(here.NS, proto, from, netip.MustParseAddrPort(to.String()))
			if err != nil {
				t.Fatalf("%s: %v", proto, err)
			}
			if err := connected(c); err != nil && proto == scenario.TCP {
				t.Fatal(err)
			}
			copied, err := unix.Dup(int(c.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(copied)
			if err := release(c, from); err != nil {
				t.Fatalf("%s: %v", proto, err)
			}
		}
	}
}
