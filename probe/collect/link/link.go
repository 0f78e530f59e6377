// Package link reads network interfaces with their addresses and settings (RTM_GETLINK, RTM_GETADDR), and
// notifies of changes (rtnetlink multicast groups).
//
// The dumps need no capability, also for a namespace that is known by its number. A table that changed during its
// dump is a gap: what was read comes with dump.ErrInterrupted.
package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/sysctl"
	"github.com/lasthop/lasthop/probe/model"
)

const ifaTargetNetnsid = 10 // IFA_TARGET_NETNSID, which golang.org/x/sys/unix lacks

// Here is the namespace number that stands for the socket's own namespace.
const Here = -1

// Table holds the links of one namespace.
type Table struct {
	// Links are sorted by index. Role is not set.
	Links []model.Link
	// Sysctls are the settings of each link.
	Sysctls []model.Sysctl
	// Counts are by the index of the link.
	Counts map[int]Counts
}

// Counts are a link's own statistics, in packets.
type Counts struct{ Received, Sent, RxDropped, TxDropped, RxFIFO, RxMissed uint64 }

// Read lists the links of the socket's namespace with their addresses.
func Read(ctx context.Context, c dump.Dumper) (Table, error) { return ReadAt(ctx, c, Here) }

// ReadAt lists the links of the namespace that has the number nsid in the socket's own namespace, without
// entering it (Linux 5.0). With an error, what could be read is returned too.
func ReadAt(ctx context.Context, c dump.Dumper, nsid int) (Table, error) {
	type linkConf struct {
		link   model.Link
		counts Counts
		conf   []model.Sysctl
	}
	decode := func(m []byte) (x linkConf, err error) {
		var afSpec []byte
		if x.link, x.counts, afSpec, err = decodeLink(m); err == nil {
			x.conf, err = sysctl.Decode(x.link.Name, afSpec)
		}
		return x, err
	}
	body := request(unix.SizeofIfInfomsg, unix.IFLA_TARGET_NETNSID, nsid)
	links, err := dump.List(ctx, "list links", c, unix.RTM_GETLINK, body, unix.RTM_NEWLINK, decode)
	slices.SortStableFunc(links, func(a, b linkConf) int { return a.link.Index - b.link.Index })
	t := Table{Counts: make(map[int]Counts, len(links))}
	for _, x := range links {
		t.Counts[x.link.Index] = x.counts
		t.Links = append(t.Links, x.link)
		t.Sysctls = append(t.Sysctls, x.conf...)
	}
	if len(links) == 0 {
		return t, err
	}
	if nsid == Here && slices.ContainsFunc(t.Links, func(l model.Link) bool { return l.Bridge != nil && l.Bridge.VLANFiltering }) {
		err = errors.Join(err, readVLANs(ctx, c, t.Links))
	}
	return t, errors.Join(err, readAddresses(ctx, c, nsid, t.Links))
}

// request is a dump request: a zero header of the given size, and for another
// namespace the attribute that takes its number.
func request(header int, attr uint16, nsid int) []byte {
	b := make([]byte, header)
	if nsid != Here {
		b = dump.Append(b, attr, binary.NativeEndian.AppendUint32(nil, uint32(nsid)))
	}
	return b
}

// decodeLink decodes an RTM_NEWLINK message. Its IFLA_AF_SPEC, which holds the link's settings, is returned as it is.
func decodeLink(m []byte) (l model.Link, counts Counts, afSpec []byte, err error) {
	a := dump.ParseAfter(m, unix.SizeofIfInfomsg)
	if err := a.Err(); err != nil {
		return l, counts, nil, err
	}
	flags := binary.NativeEndian.Uint32(m[8:])
	l = model.Link{
		Index: int(int32(binary.NativeEndian.Uint32(m[4:]))),
		Up:    flags&unix.IFF_UP != 0,
		// IFF_RUNNING may lag behind the carrier by a second.
		Carrier:     flags&unix.IFF_LOWER_UP != 0,
		NoARP:       flags&unix.IFF_NOARP != 0,
		PeerNetNSID: Here,
	}
	peer := 0
	// The programs' ids, one for each attach mode.
	xdp := func(a *dump.Attrs) { l.XDP = append(l.XDP, a.Uint32()) }
	err = a.Decode(binary.NativeEndian, dump.Fields{
		unix.IFLA_IFNAME: &l.Name, unix.IFLA_MTU: &l.MTU, unix.IFLA_MASTER: &l.Master, unix.IFLA_LINK: &peer,
		unix.IFLA_LINK_NETNSID: &l.PeerNetNSID, unix.IFLA_AF_SPEC: &afSpec, unix.IFLA_ADDRESS: &l.MAC,
		unix.IFLA_PROMISCUITY: func(a *dump.Attrs) { l.Promisc = a.Uint32() > 0 },
		unix.IFLA_STATS64:     func(a *dump.Attrs) { counts = decodeCounts(a.Data) },
		unix.IFLA_XDP:         dump.Fields{unix.IFLA_XDP_DRV_PROG_ID: xdp, unix.IFLA_XDP_SKB_PROG_ID: xdp, unix.IFLA_XDP_HW_PROG_ID: xdp},
		unix.IFLA_LINKINFO:    func(a *dump.Attrs) { a.Fail(decodeInfo(a.Nested(), &l)) },
	})
	if err != nil {
		return l, counts, nil, fmt.Errorf("link %d: %w", l.Index, err)
	}
	if Paired(l.Kind) {
		l.Peer = peer
	} else {
		l.PeerNetNSID = Here
	}
	return l, counts, afSpec, nil
}

// decodeCounts decodes struct rtnl_link_stats64.
func decodeCounts(b []byte) Counts {
	at := func(i int) uint64 {
		if len(b) < 8*(i+1) {
			return 0
		}
		return binary.NativeEndian.Uint64(b[8*i:])
	}
	return Counts{Received: at(0), Sent: at(1), RxDropped: at(6), TxDropped: at(7), RxFIFO: at(14), RxMissed: at(15)}
}

// Paired reports whether links of this kind come in pairs whose ends may be in different namespaces.
func Paired(kind string) bool { return kind == "veth" || kind == "netkit" }

func decodeInfo(a dump.Attrs, l *model.Link) error {
	port := ""
	return a.Decode(binary.NativeEndian, dump.Fields{
		unix.IFLA_INFO_KIND: &l.Kind, unix.IFLA_INFO_SLAVE_KIND: &port,
		unix.IFLA_INFO_DATA: func(a *dump.Attrs) {
			switch l.Kind {
			case "bridge":
				l.Bridge = &model.Bridge{}
				a.Fail(a.Nested().Decode(binary.NativeEndian, dump.Fields{
					nl.IFLA_BR_STP_STATE: &l.Bridge.STP, nl.IFLA_BR_VLAN_FILTERING: &l.Bridge.VLANFiltering,
					nl.IFLA_BR_MCAST_SNOOPING: &l.Bridge.Snooping,
				}))
			case "vxlan", "geneve":
				// A tunnel's port is in network byte order.
				kind := model.Either[uint16](l.Kind == "geneve", unix.IFLA_GENEVE_PORT, unix.IFLA_VXLAN_PORT)
				a.Fail(a.Nested().Decode(binary.BigEndian, dump.Fields{kind: &l.TunnelPort}))
			}
		},
		unix.IFLA_INFO_SLAVE_DATA: func(a *dump.Attrs) {
			if port == "bridge" {
				a.Fail(decodePort(a.Nested(), l))
			}
		},
	})
}

// readAddresses sets each link's addresses, in the kernel's order: IPv4 first.
func readAddresses(ctx context.Context, c dump.Dumper, nsid int, links []model.Link) error {
	body := request(unix.SizeofIfAddrmsg, ifaTargetNetnsid, nsid)
	addresses, err := dump.List(ctx, "list addresses", c, unix.RTM_GETADDR, body, unix.RTM_NEWADDR, decodeAddress)
	at := byIndex(links)
	for _, a := range addresses {
		if l := at[a.index]; l != nil && a.prefix.IsValid() {
			l.Addresses = append(l.Addresses, a.prefix)
			if a.flags&unix.IFA_F_DADFAILED != 0 {
				l.Duplicates = append(l.Duplicates, a.prefix.Addr())
			}
		}
	}
	return err
}

func byIndex(links []model.Link) map[int]*model.Link {
	return model.Table(links, func(l *model.Link) (int, *model.Link) { return l.Index, l })
}

// address is an address with the prefix length of its network, and the index of
// its link. An address that is neither IPv4 nor IPv6 has no valid prefix.
type address struct {
	index  int
	prefix netip.Prefix
	flags  uint32
}

// DecodeAddress decodes an RTM_NEWADDR or RTM_DELADDR message: the index of a link, and its address.
func DecodeAddress(m []byte) (index int, p netip.Prefix, err error) {
	a, err := decodeAddress(m)
	return a.index, a.prefix, err
}

// decodeAddress decodes an RTM_NEWADDR message.
func decodeAddress(m []byte) (out address, err error) {
	a := dump.ParseAfter(m, unix.SizeofIfAddrmsg)
	if err := a.Err(); err != nil {
		return out, err
	}
	out.index = int(binary.NativeEndian.Uint32(m[4:]))
	bits := int(m[1])
	out.flags = uint32(m[2])
	var local, peer []byte
	err = a.Decode(binary.NativeEndian, dump.Fields{
		unix.IFA_LOCAL: &local, unix.IFA_ADDRESS: &peer, unix.IFA_FLAGS: &out.flags,
	})
	if err != nil {
		return out, err
	}
	// IFA_ADDRESS is the address itself, or the peer's of a point-to-point link,
	// whose prefix length is the peer's too. IPv6 has no IFA_LOCAL otherwise.
	switch {
	case local == nil:
		local = peer
	case peer != nil && !bytes.Equal(local, peer):
		bits = len(local) * 8
	}
	ip, ok := netip.AddrFromSlice(local)
	if ok && bits > ip.BitLen() {
		return out, fmt.Errorf("address %v of link %d: invalid prefix length %d", ip, out.index, bits)
	}
	if ok {
		out.prefix = netip.PrefixFrom(ip, bits)
	}
	return out, nil
}
