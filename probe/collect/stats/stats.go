// Package stats reads what the kernel, drivers and NICs count of packets that die below IP:
// NICs by ioctl (SIOCETHTOOL), softirqs and tables of neighbours from /proc/net. The links'
// own statistics come with their dump (package link).
//
// No capability is needed, but to enter the namespace. What a kernel, a driver or a namespace does not have is no
// gap: tables of neighbours are counted in the machine's first network namespace alone.
package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Statistics are totals; differences are for who has two readings.
type Statistics struct {
	Devices []model.Device
	Softnet []model.Softnet
	Tables  []model.NeighborTable
	Sockets []model.SocketLimit
}

// Read reads the statistics of the namespace's NICs, among its links, and of the machine. Counts
// are the links' own, by index. With an error, what could be read is returned too.
func Read(ns *netns.NS, links []model.Link, counts map[int]link.Counts) (out Statistics, err error) {
	err = ns.Do(func() error {
		var errs []error
		if e, err := ethtool.NewEthtool(); err != nil {
			errs = append(errs, err)
		} else {
			defer e.Close()
			for l := range model.Each(links) {
				if IsNIC(l) {
					d, err := device(e, l, counts[l.Index])
					out.Devices = append(out.Devices, d)
					errs = append(errs, err)
				}
			}
		}
		// That of the thread, which is in the namespace.
		proc, err := procfs.NewFS("/proc/thread-self")
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		out.Softnet, err = softnet(proc)
		errs = append(errs, unlessAbsent(err))
		out.Sockets, err = sockets(proc, func(name string) string {
			b, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
			return string(b)
		})
		errs = append(errs, unlessAbsent(err))
		for _, name := range []string{model.NeighborTable4, model.NeighborTable6} {
			text, err := os.ReadFile("/proc/thread-self/net/stat/" + name)
			if err == nil {
				var t model.NeighborTable
				if t, err = decodeTable(name, string(text)); err == nil {
					out.Tables = append(out.Tables, t)
				}
			}
			errs = append(errs, unlessAbsent(err))
		}
		return errors.Join(errs...)
	})
	return out, err
}

// unlessAbsent is the error of a file that is there: one that is not has nothing.
func unlessAbsent(err error) error { return model.Unless(err, fs.ErrNotExist) }

// IsNIC reports whether a link leads off the node: an uplink, or hardware, such as a port of a
// bond, a virtual function, or a NIC that pods' packets leave by.
func IsNIC(l *model.Link) bool {
	return l.Role == model.RoleUplink || l.Kind == "" && l.Up && l.Name != "lo"
}

// softnet are the CPUs that are online.
func softnet(proc procfs.FS) (out []model.Softnet, err error) {
	list, err := proc.NetSoftnetStat()
	for _, c := range list {
		out = append(out, model.Softnet{
			CPU: int(c.Index), Processed: uint64(c.Processed), Dropped: uint64(c.Dropped), Squeezed: uint64(c.TimeSqueezed),
		})
	}
	return out, err
}

// decodeTable decodes /proc/net/stat/arp_cache or ndisc_cache: names, then a line of hexadecimal
// numbers for each CPU. The entries are the table's on every line.
func decodeTable(name, text string) (model.NeighborTable, error) {
	t := model.NeighborTable{Name: name}
	head, rows, _ := strings.Cut(text, "\n")
	names := strings.Fields(head)
	entries, fulls := slices.Index(names, "entries"), slices.Index(names, "table_fulls")
	if entries < 0 || fulls < 0 {
		return t, fmt.Errorf("read %s: no column entries or table_fulls", name)
	}
	for line := range strings.Lines(rows) {
		fields := append(strings.Fields(line), make([]string, len(names))...) // a column that is missing is no number
		n, err := strconv.ParseUint(fields[entries], 16, 32)
		full, failed := strconv.ParseUint(fields[fulls], 16, 32)
		if err := errors.Join(err, failed); err != nil {
			return t, fmt.Errorf("read %s: %w", name, err)
		}
		t.Entries, t.Fulls = n, t.Fulls+full
	}
	return t, nil
}

// socketLimits are the settings of limits, with what counts against each.
var socketLimits = []struct {
	setting, protocol string
	used              func(*procfs.NetSockstatProtocol) *int
}{
	{"udp_mem", "UDP", func(p *procfs.NetSockstatProtocol) *int { return p.Mem }},
	{"tcp_mem", "TCP", func(p *procfs.NetSockstatProtocol) *int { return p.Mem }},
	{"tcp_max_orphans", "TCP", func(p *procfs.NetSockstatProtocol) *int { return p.Orphan }},
}

// sockets are the limits that the namespace has: the last number of a setting is the limit, and only the machine's own
// namespace has these settings.
func sockets(proc procfs.FS, setting func(string) string) (out []model.SocketLimit, err error) {
	stat, err := proc.NetSockstat()
	if err != nil {
		return nil, err
	}
	for p := range model.Each(stat.Protocols) {
		for _, l := range socketLimits {
			used, limits := l.used(p), strings.Fields(setting(l.setting))
			if p.Protocol != l.protocol || used == nil || len(limits) == 0 {
				continue
			}
			limit, err := strconv.ParseUint(limits[len(limits)-1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", l.setting, err)
			}
			out = append(out, model.SocketLimit{Name: l.setting, Used: uint64(*used), Limit: limit})
		}
	}
	return out, nil
}

func device(e *ethtool.Ethtool, l *model.Link, counts link.Counts) (model.Device, error) {
	d := model.Device{IfIndex: l.Index, Link: l.Name, Received: counts.Received, Sent: counts.Sent}
	d.Losses = []model.DeviceLoss{
		{Name: "rx_dropped", Kind: model.LossReceived, Total: counts.RxDropped},
		{Name: "rx_fifo_errors", Kind: model.LossNoBuffer, Total: counts.RxFIFO},
		{Name: "rx_missed_errors", Kind: model.LossNoBuffer, Total: counts.RxMissed},
		{Name: "tx_dropped", Kind: model.LossSent, Total: counts.TxDropped},
	}
	err := readDriver(e, &d)
	sortLosses(&d)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return d, nil // a driver without statistics, or a link that has just gone
	}
	if err != nil {
		return d, fmt.Errorf("read statistics of %s: %w", l.Name, err)
	}
	return d, nil
}

func sortLosses(d *model.Device) {
	slices.SortFunc(d.Losses, func(a, b model.DeviceLoss) int { return strings.Compare(a.Name, b.Name) })
}

// losses are the counters of packets that are lost, by the names that drivers give them, with
// * for numbers.
var losses = map[model.LossKind][]string{
	model.LossNoBuffer: {
		"rx_no_buffer", "rx_no_buffers", "rx_missed", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors", "rx_discards_phy",
		"rx_no_buffer_count", "rx_no_dma_resources", // e1000 and igb, ixgbe
		"rx_out_of_buffer", "hc_rx_discards_no_wqe", "rx_no_buffers_posted[*]", // mlx5, mana, gve
		"rx_queue_*_drops", "rx*_drops", "pkts rx OOB", // veth and virtio_net, others, vmxnet3
	},
	model.LossReceived: {
		"rx_dropped", "rx_drops", "rx_queue_drop_cnt[*]", "drv dropped rx total", "alloc_rx_buff_failed", "rx_buff_alloc_err",
		"rx_discards", "port.rx_dropped", "rx_dropped.nic", // iavf, i40e, ice
		"vport_rx_dropped", "rx_no_memory", "hc_rx_err_vport_disabled", // mlx4, hv_netvsc, mana
	},
	model.LossSent: {
		"tx_dropped", "tx_queue_dropped", "tx_queue_*_dropped", "tx*_dropped", "tx_discards_phy", "tx_no_space",
		"vf_tx_dropped", "drv dropped tx total", "tx_no_memory", "hc_tx_err_vport_disabled", // the last two hv_netvsc, mana
	},
	model.LossTimeout: {"tx_timeout", "tx_timeouts", "tx_timeout_count", "tx*_tx_timeouts", "tx_queue_*_tx_timeouts"},
}

// kinds are the kinds of losses by name: a device may have thousands of counters.
var kinds = func() map[string]model.LossKind {
	out := map[string]model.LossKind{}
	for kind, names := range losses {
		for _, name := range names {
			out[name] = kind
		}
	}
	return out
}()

// kindOf is what a driver's counter counts, empty for what is no loss.
func kindOf(name string) model.LossKind {
	if k := kinds[name]; k != "" || !strings.HasSuffix(name, "_allowance_exceeded") {
		return k
	}
	return model.LossAllowance // ena: bw_in_, bw_out_, pps_, conntrack_, linklocal_
}
