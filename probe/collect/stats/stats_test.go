package stats

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// proc has files of /proc/net.
func proc(t testing.TB, files map[string]string) procfs.FS {
	t.Helper()
	dir := t.TempDir()
	err := os.Mkdir(filepath.Join(dir, "net"), 0o700)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "net", name), []byte(text), 0o600))
	}
	fs, failed := procfs.NewFS(dir)
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestSoftnet(t *testing.T) {
	for name, want := range map[string][]model.Softnet{
		"softnet_stat-5.10": {{CPU: 0, Processed: 0x2fd, Dropped: 0xf5}, {CPU: 1, Processed: 0x146, Dropped: 0x67, Squeezed: 1}},
		"softnet_stat-6.18": {{CPU: 0, Processed: 0x07bd33be, Dropped: 0x151e1, Squeezed: 0xf}, {CPU: 1, Processed: 0x0809afe5, Dropped: 0xf40d, Squeezed: 0x14}},
	} {
		if got, err := softnet(proc(t, map[string]string{"softnet_stat": recorded(t, name)})); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{"1 2", "x y z", "000000001 2 fffffffff"} {
		if got, err := softnet(proc(t, map[string]string{"softnet_stat": text})); err == nil {
			t.Errorf("%q: %+v without an error", text, got)
		}
	}
}

func TestNeighborTable(t *testing.T) {
	for name, want := range map[string]model.NeighborTable{
		"arp_cache-5.10":   {Name: model.NeighborTable4, Entries: 12, Fulls: 0xc3 + 0x10c},
		"arp_cache-6.18":   {Name: model.NeighborTable4, Entries: 0x31, Fulls: 0x5cd4b + 0x43b01},
		"ndisc_cache-6.18": {Name: model.NeighborTable6, Entries: 8},
	} {
		if got, err := decodeTable(want.Name, recorded(t, name)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{"", "entries\n1\n", "entries table_fulls\n1\n", "entries table_fulls\n1 z\n"} {
		if got, err := decodeTable("arp_cache", text); err == nil {
			t.Errorf("%q: %+v without an error", text, got)
		}
	}
}

func TestSockets(t *testing.T) {
	const text = "sockets: used 15\nTCP: inuse 1 orphan 38 tw 5 alloc 86 mem 101\nUDP: inuse 0 mem 7\nUDPLITE: inuse 0\nFRAG: inuse 0 memory 0\n"
	limits := map[string]string{"udp_mem": "2326\t3103\t4652\n", "tcp_max_orphans": "16384\n"}
	want := []model.SocketLimit{{Name: "tcp_max_orphans", Used: 38, Limit: 16384}, {Name: "udp_mem", Used: 7, Limit: 4652}}
	if got, err := sockets(proc(t, map[string]string{"sockstat": text}), func(name string) string { return limits[name] }); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := sockets(proc(t, map[string]string{"sockstat": text}), func(string) string { return "" }); err != nil || got != nil {
		t.Errorf("of another namespace: %+v, %v", got, err)
	}
	if got, err := sockets(proc(t, map[string]string{"sockstat": "UDP: mem x"}), func(string) string { return "1 2 3" }); err == nil {
		t.Errorf("%+v without an error", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add(recorded(f, "arp_cache-6.18"))
	f.Fuzz(func(_ *testing.T, text string) { _, _ = decodeTable("arp_cache", text) })
}

// counters are names and values as a driver gives them.
func counters(list ...any) map[string]uint64 {
	out := map[string]uint64{}
	for i := 0; i < len(list); i += 2 {
		out[list[i].(string)] = uint64(list[i+1].(int))
	}
	return out
}

// TestCounters: what drivers of clouds call what they lost.
func TestCounters(t *testing.T) {
	for _, tt := range []struct {
		driver string
		list   []any
		want   []model.DeviceLoss
		vf     uint64
	}{
		{"ena", []any{"tx_timeout", 1, "bw_in_allowance_exceeded", 2, "conntrack_allowance_exceeded", 3, "conntrack_allowance_available", 9, "queue_0_tx_cnt", 7}, []model.DeviceLoss{
			{Name: "bw_in_allowance_exceeded", Kind: model.LossAllowance, Total: 2}, {Name: "conntrack_allowance_exceeded", Kind: model.LossAllowance, Total: 3},
			{Name: "tx_timeout", Kind: model.LossTimeout, Total: 1},
		}, 0},
		{"hv_netvsc", []any{"tx_no_space", 4, "vf_rx_packets", 100, "vf_tx_packets", 10, "vf_tx_dropped", 2, "cpu0_vf_rx_packets", 60}, []model.DeviceLoss{
			{Name: "tx_no_space", Kind: model.LossSent, Total: 4}, {Name: "vf_tx_dropped", Kind: model.LossSent, Total: 2},
		}, 110},
		{"virtio_net", []any{"rx0_drops", 3, "rx12_drops", 4, "rx0_xdp_drops", 5, "rx0_packets", 6}, []model.DeviceLoss{
			{Name: "rx*_drops", Kind: model.LossNoBuffer, Total: 7},
		}, 0},
		{"vmxnet3", []any{"Rx Queue#", 0, "  pkts rx OOB", 5}, []model.DeviceLoss{{Name: "pkts rx OOB", Kind: model.LossNoBuffer, Total: 5}}, 0},
		// One that the link has too.
		{"hostile", []any{"rx_out_of_buffer", 1, "\x1b[31m", 2, "rx_missed_errors", 8, "", 5}, []model.DeviceLoss{
			{Name: "rx_missed_errors", Kind: model.LossNoBuffer}, {Name: "rx_out_of_buffer", Kind: model.LossNoBuffer, Total: 1},
		}, 0},
	} {
		var d model.Device
		if tt.driver == "hostile" {
			d.Losses = []model.DeviceLoss{{Name: "rx_missed_errors", Kind: model.LossNoBuffer}}
		}
		addCounters(&d, counters(tt.list...))
		sortLosses(&d)
		if !reflect.DeepEqual(d.Losses, tt.want) || d.VF != tt.vf {
			t.Errorf("%s: %+v, VF %d", tt.driver, d.Losses, d.VF)
		}
	}
}

func FuzzCounters(f *testing.F) {
	f.Add("rx_queue_0_drops", uint64(3))
	f.Add("pps_allowance_exceeded", uint64(4))
	f.Fuzz(func(t *testing.T, name string, value uint64) {
		var d model.Device
		addCounters(&d, map[string]uint64{name: value})
		for _, l := range d.Losses {
			if l.Kind == "" || strings.ContainsAny(l.Name, "\x00\x1b\n") {
				t.Errorf("counter %+v", l)
			}
		}
	})
}

// uplink is a namespace whose link is an uplink; the other end takes no packet of more than
// 600 bytes. Neither has IPv6, whose own packets would be counted between two readings.
func uplink(t testing.TB) *nstest.NS {
	t.Helper()
	node, fabric := nstest.Named(t, "node"), nstest.Named(t, "fabric")
	for _, ns := range []*nstest.NS{node, fabric} {
		ns.Run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
	}
	node.Run(
		"ip link add up0 type veth peer name f0 netns "+fabric.Name, "ip addr add 10.9.0.1/24 dev up0", "ip link set up0 up",
		"ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev up0",
	)
	fabric.Run("ip link set f0 mtu 600", "ip link set f0 up")
	return node
}

func readUplink(t testing.TB, node *nstest.NS) Statistics {
	t.Helper()
	conn, handle, err := dump.Route(node.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer handle.Close()
	table, err := link.Read(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	for l := range model.Each(table.Links) {
		if l.Name == "up0" {
			l.Role = model.RoleUplink
		}
	}
	got, err := Read(node.NS, table.Links, table.Counts)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestRead: the driver of a veth drops what its other end does not take.
func TestRead(t *testing.T) {
	node := uplink(t)
	before := readUplink(t, node)
	if len(before.Devices) != 1 || before.Devices[0].Driver != "veth" || len(before.Softnet) == 0 || len(before.Tables) > 0 {
		t.Fatalf("%+v", before)
	}
	err := node.Do(func() error {
		c, err := net.Dial("udp", "10.9.0.2:9")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 5 {
			if _, err := c.Write(make([]byte, 1000)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(vnetns.NsHandle(node.FD()))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	l, err := h.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	after := readUplink(t, node).Devices[0]
	names := map[string]uint64{}
	for i, x := range after.Losses {
		names[x.Name] = x.Total - before.Devices[0].Losses[i].Total
	}
	if names["tx_dropped"] != 5 || after.Sent != l.Attrs().Statistics.TxPackets || after.Received != l.Attrs().Statistics.RxPackets {
		t.Errorf("%+v, and %+v", after, l.Attrs().Statistics)
	}
	if n, has := names["rx_queue_*_drops"]; !has || n != 0 {
		t.Errorf("the driver's counters: %v", names)
	}
}

// BenchmarkRead has one uplink.
func BenchmarkRead(b *testing.B) {
	node := uplink(b)
	conn, handle, err := dump.Route(node.NS)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	defer handle.Close()
	table, err := link.Read(b.Context(), conn)
	if err != nil {
		b.Fatal(err)
	}
	for l := range model.Each(table.Links) {
		if l.Name == "up0" {
			l.Role = model.RoleUplink
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(node.NS, table.Links, table.Counts); err != nil {
			b.Fatal(err)
		}
	}
}
