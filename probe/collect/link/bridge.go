package link

import (
	"context"
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// rtextFilterBRVLANCompressed asks for VLANs as ranges (RTEXT_FILTER_BRVLAN_COMPRESSED of linux/rtnetlink.h).
const rtextFilterBRVLANCompressed = 1 << 2

// portStates are those of linux/if_bridge.h, by their number.
var portStates = []model.PortState{model.PortDisabled, model.PortListening, model.PortLearning, model.PortForwarding, model.PortBlocking}

// decodePort decodes the settings of a bridge's port. Linux 4.18 and later has all of them, but for the lock.
func decodePort(a dump.Attrs, l *model.Link) error {
	l.Port = &model.BridgePort{}
	delayed := false
	err := a.Decode(binary.NativeEndian, dump.Fields{
		nl.IFLA_BRPORT_MODE: &l.Hairpin, nl.IFLA_BRPORT_ISOLATED: &l.Port.Isolated,
		nl.IFLA_BRPORT_LEARNING: &l.Port.Learning, nl.IFLA_BRPORT_LOCKED: &l.Port.Locked,
		nl.IFLA_BRPORT_UNICAST_FLOOD: &l.Port.Flood, nl.IFLA_BRPORT_BCAST_FLOOD: &l.Port.BroadcastFlood,
		nl.IFLA_BRPORT_MCAST_FLOOD: func(a *dump.Attrs) { l.Port.MulticastOff = a.Uint8() == 0 },
		nl.IFLA_BRPORT_STATE: func(a *dump.Attrs) {
			if n := int(a.Uint8()); n < len(portStates) {
				l.Port.State = portStates[n]
			}
		},
		nl.IFLA_BRPORT_FORWARD_DELAY_TIMER: func(a *dump.Attrs) {
			delayed = len(a.Data) >= 8 && binary.NativeEndian.Uint64(a.Data) > 0
		},
	})
	// The timer runs for a port that forwards at once, too.
	l.Port.Settling = delayed && (l.Port.State == model.PortListening || l.Port.State == model.PortLearning)
	return err
}

// readVLANs sets the VLANs of the links that are bridges which filter by VLAN, or ports of such.
func readVLANs(ctx context.Context, c dump.Dumper, links []model.Link) error {
	request := make([]byte, unix.SizeofIfInfomsg)
	request[0] = unix.AF_BRIDGE
	request = dump.Append(request, unix.IFLA_EXT_MASK, binary.NativeEndian.AppendUint32(nil, rtextFilterBRVLANCompressed))
	list, err := dump.List(ctx, "list VLANs of bridges", c, unix.RTM_GETLINK, request, unix.RTM_NEWLINK, decodeVLANs)
	at := byIndex(links)
	for _, x := range list {
		l := at[x.index]
		if l == nil {
			continue
		}
		bridge := model.Either(l.Bridge == nil, at[l.Master], l)
		if bridge != nil && bridge.Bridge != nil && bridge.Bridge.VLANFiltering {
			l.VLANs = &x.vlans
		}
	}
	return err
}

// allowed are the VLANs of the link with an index.
type allowed struct {
	index int
	vlans model.VLANs
}

// decodeVLANs decodes a port's VLANs from an RTM_NEWLINK message of AF_BRIDGE.
func decodeVLANs(m []byte) (x allowed, err error) {
	a := dump.ParseAfter(m, unix.SizeofIfInfomsg)
	if err := a.Err(); err != nil {
		return x, err
	}
	v := &x.vlans
	x.index = int(int32(binary.NativeEndian.Uint32(m[4:])))
	first := 0
	info := func(a *dump.Attrs) {
		const size = 4 // struct bridge_vlan_info: flags, VLAN
		if len(a.Data) < size {
			return
		}
		flags, vlan := a.Uint16(), int(binary.NativeEndian.Uint16(a.Data[2:]))
		if flags&nl.BRIDGE_VLAN_INFO_PVID != 0 {
			v.PVID = vlan
		}
		if flags&nl.BRIDGE_VLAN_INFO_RANGE_END == 0 {
			first = vlan
		}
		if flags&nl.BRIDGE_VLAN_INFO_RANGE_BEGIN == 0 {
			v.Ranges = append(v.Ranges, model.VLANRange{First: first, Last: vlan})
		}
	}
	err = a.Decode(binary.NativeEndian, dump.Fields{unix.IFLA_AF_SPEC: dump.Fields{nl.IFLA_BRIDGE_VLAN_INFO: info}})
	return x, err
}
