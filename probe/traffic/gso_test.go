package traffic

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestLargePackets sends a stream through a link that leaves it to the next one to
// cut it (GSO): packets of many segments are counted, with all their bytes.
func TestLargePackets(t *testing.T) {
	ends := newTwoEnds(t)
	e := ends.watched(t, Config{})
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	var server net.Listener
	inside(t, ends.node, func() (err error) {
		server, err = net.Listen("tcp", netip.AddrPortFrom(nodeIP, 0).String())
		return err
	})
	defer server.Close()
	const sent = 4 << 20
	wrote := make(chan error, 1)
	go func() {
		wrote <- ends.pod.Do(func() error {
			c, err := net.Dial("tcp", server.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(make([]byte, sent))
			return err
		})
	}()
	c, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n, err := io.Copy(io.Discard, c)
	if err != nil || n != sent {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	tr := poll(t, e)
	h := hopOf(tr, podIP.String(), model.Ingress, model.AsSource)
	const mtu = 1500
	if h.Bytes < sent || h.Packets >= sent/mtu {
		t.Errorf("%d bytes in %d packets, want at least %d bytes in fewer than %d", h.Bytes, h.Packets, sent, sent/mtu)
	}
	if tr.Lost.Unparsed+tr.Lost.Malformed+tr.Lost.Counters != 0 {
		t.Errorf("lost %+v", tr.Lost)
	}
}
