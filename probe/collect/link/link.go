// Package link reads network interfaces, their addresses and settings, and
// tells when any of them changes.
package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/sysctl"
	"github.com/lasthop/lasthop/probe/model"
)

// Attributes and offsets that golang.org/x/sys/unix does not name.
const (
	brportMode       = 4   // IFLA_BRPORT_MODE: the hairpin flag
	otherHostDropped = 192 // offset in struct rtnl_link_stats64, Linux 5.19
	ifaTargetNetnsid = 10  // IFA_TARGET_NETNSID
)

// Here is the namespace number that stands for the socket's own namespace.
const Here = -1

// Table is what one dump of a namespace's links tells.
type Table struct {
	// Links are sorted by index, without Role.
	Links []model.Link
	// Sysctls are the settings of each link.
	Sysctls []model.Sysctl
}

// Read lists the links of the socket's namespace with their addresses.
func Read(ctx context.Context, c *dump.Conn) (Table, error) {
	return ReadAt(ctx, c, Here)
}

// ReadAt lists the links of the namespace that the socket's own namespace
// knows by the number nsid, without entering it (Linux 5.0).
func ReadAt(ctx context.Context, c *dump.Conn, nsid int) (Table, error) {
	var t Table
	err := dump.Retry(ctx, func() error {
		t = Table{}
		return c.Each(unix.RTM_GETLINK, linkRequest(nsid), unix.RTM_NEWLINK, func(m []byte) error {
			l, afSpec, err := decodeLink(m)
			if err != nil {
				return err
			}
			conf, err := sysctl.Decode(l.Name, afSpec)
			if err != nil {
				return err
			}
			t.Links = append(t.Links, l)
			t.Sysctls = append(t.Sysctls, conf...)
			return nil
		})
	})
	if err != nil {
		return t, fmt.Errorf("list links: %w", err)
	}
	sort.Slice(t.Links, func(i, j int) bool { return t.Links[i].Index < t.Links[j].Index })
	if err := readAddresses(ctx, c, nsid, t.Links); err != nil {
		return t, fmt.Errorf("list addresses: %w", err)
	}
	return t, nil
}

func linkRequest(nsid int) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	if nsid != Here {
		b = dump.Append(b, unix.IFLA_TARGET_NETNSID, binary.NativeEndian.AppendUint32(nil, uint32(nsid)))
	}
	return b
}

func addrRequest(nsid int) []byte {
	b := make([]byte, unix.SizeofIfAddrmsg)
	if nsid != Here {
		b = dump.Append(b, ifaTargetNetnsid, binary.NativeEndian.AppendUint32(nil, uint32(nsid)))
	}
	return b
}

// decodeLink reads an RTM_NEWLINK message and returns its IFLA_AF_SPEC beside.
func decodeLink(m []byte) (l model.Link, afSpec []byte, err error) {
	a := dump.ParseAfter(m, unix.SizeofIfInfomsg)
	if err := a.Err(); err != nil {
		return l, nil, err
	}
	flags := binary.NativeEndian.Uint32(m[8:])
	l = model.Link{
		Index: int(int32(binary.NativeEndian.Uint32(m[4:]))),
		Up:    flags&unix.IFF_UP != 0,
		// IFF_RUNNING lags behind by up to a second.
		Carrier:     flags&unix.IFF_LOWER_UP != 0,
		PeerNetNSID: Here,
	}
	peer := 0
	for a.Next() {
		switch a.Type {
		case unix.IFLA_IFNAME:
			l.Name = a.String()
		case unix.IFLA_ADDRESS:
			l.MAC = model.MACFrom(a.Data)
		case unix.IFLA_MTU:
			l.MTU = int(a.Uint32())
		case unix.IFLA_MASTER:
			l.Master = int(a.Uint32())
		case unix.IFLA_LINK:
			peer = int(int32(a.Uint32()))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNetNSID = int(int32(a.Uint32()))
		case unix.IFLA_PROMISCUITY:
			l.Promisc = a.Uint32() > 0
		case unix.IFLA_STATS64:
			if len(a.Data) >= otherHostDropped+8 {
				l.OtherHost = binary.NativeEndian.Uint64(a.Data[otherHostDropped:])
			}
		case unix.IFLA_AF_SPEC:
			afSpec = a.Data
		case unix.IFLA_XDP:
			a.Fail(decodeXDP(a.Nested(), &l))
		case unix.IFLA_LINKINFO:
			a.Fail(decodeInfo(a.Nested(), &l))
		}
	}
	if err := a.Err(); err != nil {
		return l, nil, fmt.Errorf("link %d: %w", l.Index, err)
	}
	if Paired(l.Kind) {
		l.Peer = peer
	} else {
		l.PeerNetNSID = Here
	}
	return l, afSpec, nil
}

// Paired reports whether links of the kind come in pairs, one end of which may
// be in another namespace.
func Paired(kind string) bool { return kind == "veth" || kind == "netkit" }

func decodeInfo(a dump.Attrs, l *model.Link) error {
	port := ""
	for a.Next() {
		switch a.Type {
		case unix.IFLA_INFO_KIND:
			l.Kind = a.String()
		case unix.IFLA_INFO_SLAVE_KIND:
			port = a.String()
		case unix.IFLA_INFO_SLAVE_DATA:
			if port != "bridge" {
				continue
			}
			p := a.Nested()
			for p.Next() {
				if p.Type == brportMode {
					l.Hairpin = p.Uint8() != 0
				}
			}
			a.Fail(p.Err())
		}
	}
	return a.Err()
}

// decodeXDP reads the numbers of the programs, one for each mode.
func decodeXDP(a dump.Attrs, l *model.Link) error {
	for a.Next() {
		switch a.Type {
		case unix.IFLA_XDP_DRV_PROG_ID, unix.IFLA_XDP_SKB_PROG_ID, unix.IFLA_XDP_HW_PROG_ID:
			l.XDP = append(l.XDP, a.Uint32())
		}
	}
	return a.Err()
}

// readAddresses adds each link's addresses, in the kernel's order but IPv4
// first.
func readAddresses(ctx context.Context, c *dump.Conn, nsid int, links []model.Link) error {
	at := make(map[int]*model.Link, len(links))
	for i := range links {
		at[links[i].Index] = &links[i]
	}
	return dump.Retry(ctx, func() error {
		for i := range links {
			links[i].Addresses = nil
		}
		return c.Each(unix.RTM_GETADDR, addrRequest(nsid), unix.RTM_NEWADDR, func(m []byte) error {
			index, p, err := decodeAddress(m)
			if err != nil {
				return err
			}
			if l := at[index]; l != nil && p.IsValid() {
				l.Addresses = append(l.Addresses, p)
			}
			return nil
		})
	})
}

// decodeAddress reads an RTM_NEWADDR message: the link's index and the address
// with the length of its network. An address of another family is the zero
// prefix.
func decodeAddress(m []byte) (index int, p netip.Prefix, err error) {
	a := dump.ParseAfter(m, unix.SizeofIfAddrmsg)
	if err := a.Err(); err != nil {
		return 0, p, err
	}
	index = int(binary.NativeEndian.Uint32(m[4:]))
	bits := int(m[1])
	var local, address []byte
	for a.Next() {
		switch a.Type {
		case unix.IFA_LOCAL:
			local = a.Data
		case unix.IFA_ADDRESS:
			address = a.Data
		}
	}
	if err := a.Err(); err != nil {
		return 0, p, err
	}
	switch {
	case local == nil:
		local = address
	case address != nil && !bytes.Equal(local, address):
		// On a point-to-point link the length is that of the peer.
		bits = len(local) * 8
	}
	ip, ok := netip.AddrFromSlice(local)
	if !ok {
		return index, p, nil
	}
	if bits > ip.BitLen() {
		return 0, p, fmt.Errorf("address %v of link %d: prefix length %d", ip, index, bits)
	}
	return index, netip.PrefixFrom(ip, bits), nil
}
