package model

// Device is what a NIC, its driver and the cloud under it count of the packets that never came to the hook at the
// link's ingress, or that left by the one at its egress and were not sent (ethtool -S, ip -s -s link).
type Device struct {
	IfIndex int
	Link    string `redact:"link"`
	// Driver is hv_netvsc, ena, mlx5_core, …; empty where the kernel did not tell it.
	Driver string `redact:"keep"`
	// RxRing and TxRing are the packets that a queue of the NIC holds, RxRingMax and
	// TxRingMax the most that it can be set to (ethtool -g). 0: not known.
	RxRing, RxRingMax, TxRing, TxRingMax uint64
	// Received and Sent are the link's packets.
	Received, Sent, ReceivedDelta, SentDelta uint64
	// VF are the packets that went either way by a virtual function below the device, as hv_netvsc counts them.
	VF, VFDelta uint64
	// Losses are sorted by name.
	Losses []DeviceLoss
}

// LossKind is what a device's counter counts.
type LossKind string

// The kinds.
const (
	// LossNoBuffer are packets that came while no receive buffer was free.
	LossNoBuffer LossKind = "noBuffer"
	// LossReceived are others that came. What the link itself calls rx_dropped includes
	// packets of protocols that the kernel does not take.
	LossReceived LossKind = "received"
	// LossSent are packets that the driver or the NIC did not send.
	LossSent LossKind = "sent"
	// LossTimeout are no packets, but resets of a transmit queue that hung.
	LossTimeout LossKind = "timeout"
	// LossAllowance are packets that the cloud dropped or held back, as more came than the machine's size allows.
	LossAllowance LossKind = "allowance"
)

// DeviceLoss is a counter of what a device lost.
type DeviceLoss struct {
	// Name is the driver's, with * for numbers: its queues' counters are added up.
	Name string `redact:"keep"`
	Kind LossKind
	// Total is since the driver was loaded, Delta what was added in the window.
	Total, Delta uint64
}

// Lost is what the device lost in the window. Counters of one kind may count the same packets: the highest counts.
func (d *Device) Lost(kinds ...LossKind) uint64 {
	var n uint64
	for l := range Each(d.Losses) {
		for _, k := range kinds {
			if l.Kind == k {
				n = max(n, l.Delta)
			}
		}
	}
	return n
}

// Softnet is what one CPU counts of the packets that its network softirq handles
// (/proc/net/softnet_stat). It is the machine's, whatever network namespace the node is.
type Softnet struct {
	CPU int
	// Processed are packets, Dropped those for which the CPU's backlog had no room, Squeezed
	// how often the softirq ended with work left.
	Processed, Dropped, Squeezed                uint64
	ProcessedDelta, DroppedDelta, SqueezedDelta uint64
}

// SocketLimit is how much of a limit of the machine's sockets is in use.
type SocketLimit struct {
	// Name is the setting's below net.ipv4: udp_mem and tcp_mem, in pages, or tcp_max_orphans.
	Name        string `redact:"keep"`
	Used, Limit uint64
}

// Near reports whether little of it is left.
func (l *SocketLimit) Near() bool { return l.Used >= l.Limit-l.Limit/8 }

// NeighborTable is one of the kernel's tables of neighbours. All network namespaces of the machine share it.
type NeighborTable struct {
	// Name is arp_cache or ndisc_cache.
	Name    string `redact:"keep"`
	Entries uint64
	// Fulls is how often no entry was made, as the table was full; FullsDelta in the window.
	Fulls, FullsDelta uint64
}

// Is6 reports whether the table is IPv6's.
func (t *NeighborTable) Is6() bool { return t.Name == NeighborTable6 }

// The names of the tables.
const (
	NeighborTable4 = "arp_cache"
	NeighborTable6 = "ndisc_cache"
)
