// Package change follows what changes a node's routes, rules, neighbors, addresses, links, settings and nftables, by the
// kernel's notifications (rtnetlink, nfnetlink), which say by which socket, or by which process, each was made.
//
// It subscribes in the node's network namespace and asks for nothing. The kernel says of nobody that an entry of the
// legacy tables changed, nor most settings, and not who changed a link or a setting.
package change

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/ebtables"
	"github.com/lasthop/lasthop/probe/collect/iptables"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/neigh"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/collect/route"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Change is one, with what its notification says of who made it: the port of a socket, which is the number of the process
// that opened it in its own PID namespace if it is the first of that process, 0 for the kernel; or, for nftables, the number
// in the first PID namespace and the name.
type Change struct {
	model.Change
	Port uint32
	PID  uint32
	Name string
	// rule is one of nftables that was deleted.
	rule *nft.Rule
}

// Watcher gets the notifications.
type Watcher struct{ files []*os.File }

const (
	// room is for the notifications of one moment, in bytes: more are lost.
	room = 4 << 20
	// pause is how long notifications are collected after the last ones were told of.
	pause = 200 * time.Millisecond
	// most bounds what is kept of one change of nftables, which may replace thousands of rules.
	most = 32
)

// byKernel is a filter of sockets: neighbor entries that the kernel itself changes, which are many, are not read.
var byKernel = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // the message's type
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTM_NEWNEIGH << 8, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTM_DELNEIGH << 8, Jf: 3},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12}, // the port
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
}

// Watch subscribes. Without nftables in the kernel it subscribes to the rest.
func Watch(ns *netns.NS, kernel *kmod.Kernel) (*Watcher, error) {
	w := &Watcher{}
	subscribe := func(protocol int, groups ...int) error {
		file, err := dump.Subscribe(ns, protocol, func(fd int) {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)
			if protocol == unix.NETLINK_ROUTE {
				filter := unix.SockFprog{Len: uint16(len(byKernel)), Filter: &byKernel[0]}
				_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
			}
		}, groups...)
		if err == nil {
			w.files = append(w.files, file)
		}
		return err
	}
	err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NEIGH, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err == nil && kernel.Check(kmod.NFTables) == nil {
		err = subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("follow changes: %w", err)
	}
	return w, nil
}

// Close closes the sockets.
func (w *Watcher) Close() {
	for _, f := range w.files {
		f.Close()
	}
}

// Run calls f with what changed, until ctx ends; lost says that more had, and is not known. It closes the sockets.
func (w *Watcher) Run(ctx context.Context, f func(list []Change, lost bool)) {
	defer context.AfterFunc(ctx, w.Close)()
	var all sync.WaitGroup
	defer all.Wait()
	for _, file := range w.files {
		all.Go(func() {
			defer file.Close()
			follow(ctx, file, f)
		})
	}
}

// follow reads one socket until it is closed.
func follow(ctx context.Context, file *os.File, f func([]Change, bool)) {
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	d := decoder{forwarding: map[string]string{}, down: map[int]bool{}}
	var told time.Time
	b := make([]byte, 64<<10)
	for ctx.Err() == nil {
		// They are read as they come, since their time is that of reading.
		until := model.Either(len(d.found) > 0 || d.lost, told.Add(pause), time.Time{})
		if err := file.SetReadDeadline(until); err != nil {
			return
		}
		before := len(d.found)
		err := conn.Read(func(fd uintptr) bool {
			lost, failed := dump.Drain(int(fd), b, func(m []byte) { d.decode(m, time.Now()) })
			d.lost = d.lost || lost
			return failed != nil || len(d.found) > before
		})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if time.Since(told) >= pause && (len(d.found) > 0 || d.lost) {
			f(d.found, d.lost)
			d.found, d.lost, told = nil, false, time.Now()
		}
	}
}

// decoder makes changes of messages. Those of a change of nftables end with that of its generation, which says who made it.
type decoder struct {
	found, open []Change
	more        int
	// lost: some did not come, or could not be decoded.
	lost bool
	// forwarding is what that of all links was set to last, by the name of a link's.
	forwarding map[string]string
	// down are the links that were set down.
	down map[int]bool
}

func (d *decoder) decode(b []byte, now time.Time) {
	list, err := syscall.ParseNetlinkMessage(b)
	d.lost = d.lost || err != nil
	for i := range list {
		m := &list[i]
		c := Change{Port: m.Header.Pid}
		c.At = now
		if m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES {
			d.filter(m, c)
		} else if m.Header.Type == unix.RTM_NEWLINK {
			d.link(m.Data, c)
		} else if m.Header.Type == unix.RTM_NEWNETCONF {
			d.setting(m, c)
		} else if c.read(m) != nil {
			d.lost = true
		} else if c.Kind != "" {
			d.found = append(d.found, c)
		}
	}
}

// read decodes a message of rtnetlink. Of others, and of what follows from an address, there is no Kind.
func (c *Change) read(m *syscall.NetlinkMessage) (err error) {
	if len(m.Data) > 0 && m.Data[0] != unix.AF_INET && m.Data[0] != unix.AF_INET6 {
		return nil
	}
	c.Deleted = (m.Header.Type-unix.RTM_NEWLINK)%4 == 1
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		var r model.Route
		r, err = route.Decode(m.Data)
		c.Kind, c.Dst, c.Table, c.Link, c.Type = model.ChangedRoute, r.Dst, r.Table, r.IfIndex, r.Type
		if !slices.Contains(routeTypes, r.Type) {
			c.Kind = ""
		}
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		var r model.RoutingRule
		r, err = route.DecodeRule(m.Data)
		c.Kind, c.Dst, c.From, c.Table, c.Priority = model.ChangedRule, r.To, r.From, r.Table, r.Priority
		if action := model.Either(r.Action == "lookup", "unicast", r.Action); slices.Contains(routeTypes, action) && byAddress(r) {
			c.Type = action
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		var n model.Neighbor
		n, err = neigh.Decode(m.Data)
		c.Kind, c.Dst, c.Link, c.MAC = model.ChangedNeighbor, model.Host(n.Addr), n.IfIndex, n.MAC
		// What a program deletes fails first, by that program; the kernel then deletes it.
		c.Deleted = c.Deleted || n.State == "FAILED"
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		c.Kind = model.ChangedAddress
		c.Link, c.Dst, err = link.DecodeAddress(m.Data)
	}
	if c.Kind != model.ChangedRule && !c.Dst.IsValid() || errors.Is(err, dump.ErrSkip) {
		c.Kind = ""
	}
	return model.Unless(err, dump.ErrSkip)
}

// byAddress reports whether a routing rule selects by addresses alone.
func byAddress(r model.RoutingRule) bool {
	return r.In == "" && r.Out == "" && r.Mark|r.Mask == 0 && r.Proto == 0 && !r.Not && r.MinBits == 0 && len(r.Unknown) == 0 &&
		r.SrcPorts == model.PortRange{} && r.DstPorts == model.PortRange{}
}

// routeTypes are those that packets take or end at. What the kernel makes for an address has others.
var routeTypes = []string{"unicast", "blackhole", "unreachable", "prohibit", "throw"}

// link takes a link (struct ifinfomsg) that was set down, or up again. Of a new link all flags changed.
func (d *decoder) link(b []byte, c Change) {
	if len(b) < unix.SizeofIfInfomsg {
		d.lost = true
		return
	}
	flags, changed := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	c.Kind, c.Link, c.Deleted = model.ChangedLink, int(binary.NativeEndian.Uint32(b[4:])), flags&unix.IFF_UP == 0
	if b[0] == unix.AF_UNSPEC && changed != 1<<32-1 && changed&unix.IFF_UP != 0 && c.Deleted != d.down[c.Link] {
		d.found = append(d.found, c)
		if d.down[c.Link] = c.Deleted; !c.Deleted {
			delete(d.down, c.Link)
		}
	}
}

// setting takes one of IP (struct netconfmsg). The kernel sets the links' forwarding with that of all, and says so of each.
func (d *decoder) setting(m *syscall.NetlinkMessage, c Change) {
	const header, index, forwarding, rpFilter, proxy = 4, 1, 2, 3, 5 // NETCONFA_
	const all, standard = -1, -2                                     // NETCONFA_IFINDEX_
	var values []string
	take := func(name string) func(*dump.Attrs) {
		return func(a *dump.Attrs) {
			c.Setting, c.Value = name, strconv.Itoa(int(int32(a.Uint32())))
			values = append(values, name)
		}
	}
	isIPv6 := len(m.Data) > 0 && m.Data[0] == unix.AF_INET6
	err := dump.ParseAfter(m.Data, header).Decode(binary.NativeEndian, dump.Fields{index: &c.Link, forwarding: take("forwarding"),
		rpFilter: take("rp_filter"), proxy: take(model.Either(isIPv6, "proxy_ndp", "proxy_arp"))})
	d.lost = d.lost || err != nil
	// Of a new link all are told.
	if len(values) != 1 || c.Link == standard {
		return
	}
	conf := "net." + model.Either(isIPv6, "ipv6", "ipv4") + ".conf."
	ofLink := conf + "*." + c.Setting
	switch c.Setting, c.Kind = ofLink, model.ChangedSetting; {
	case c.Link != all && d.forwarding[ofLink] == c.Value:
		return
	case c.Link == all && values[0] != "forwarding":
		c.Setting = conf + "all." + values[0]
	case c.Link == all:
		c.Setting = model.Either(isIPv6, conf+"all.forwarding", "net.ipv4.ip_forward")
		d.forwarding[ofLink] = c.Value
		d.found = slices.DeleteFunc(d.found, func(x Change) bool { return x.Setting == ofLink && x.Value == c.Value })
	}
	c.Link = max(c.Link, 0)
	d.found = append(d.found, c)
}

// filter takes a message of nftables.
func (d *decoder) filter(m *syscall.NetlinkMessage, c Change) {
	const header = 4 // struct nfgenmsg
	if len(m.Data) < header {
		d.lost = true
		return
	}
	c.Kind, c.Family = model.ChangedFilter, families[m.Data[0]]
	var pid uint32
	fields, typ := dump.Fields{}, m.Header.Type&0xff
	switch typ {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.Deleted = typ == unix.NFT_MSG_DELRULE
		fields = dump.Fields{unix.NFTA_RULE_TABLE: &c.Filter, unix.NFTA_RULE_CHAIN: &c.Chain, unix.NFTA_RULE_HANDLE: &c.Handle}
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.Deleted = typ == unix.NFT_MSG_DELCHAIN
		fields = dump.Fields{unix.NFTA_CHAIN_TABLE: &c.Filter, unix.NFTA_CHAIN_NAME: &c.Chain, unix.NFTA_CHAIN_POLICY: func(a *dump.Attrs) {
			c.Policy = model.Either(int32(a.BE32()) == nft.Accept, "ACCEPT", "DROP")
		}}
	case unix.NFT_MSG_NEWGEN:
		fields = dump.Fields{unix.NFTA_GEN_PROC_PID: &pid, unix.NFTA_GEN_PROC_NAME: &c.Name}
	}
	if d.more++; d.more > most && typ != unix.NFT_MSG_NEWGEN {
		return
	}
	if dump.ParseAfter(m.Data, header).Decode(binary.BigEndian, fields) != nil {
		d.lost = true
		return
	}
	if typ == unix.NFT_MSG_DELRULE {
		if r, err := nft.DecodeRule(m.Data); err == nil {
			c.rule = &r
		}
	}
	switch {
	case typ == unix.NFT_MSG_NEWGEN:
		if c.Family = ""; len(d.open) == 0 || d.more > most+1 {
			d.open = append(d.open, c)
		}
		for i := range d.open {
			d.open[i].PID, d.open[i].Name, d.open[i].At = pid, c.Name, c.At
			d.open[i].keep()
		}
		d.found, d.open, d.more = append(d.found, d.open...), nil, 0
	case c.Chain != "":
		d.open = append(d.open, c)
	}
}

// keep keeps of a rule that was deleted what it did to packets. iptables and ebtables write rules in words of their own.
func (c *Change) keep() {
	r := c.rule
	if c.rule = nil; r == nil {
		return
	}
	native := !slices.ContainsFunc([]string{"ip", "eb", "xt"}, func(tool string) bool { return strings.HasPrefix(c.Name, tool) })
	if c.Family == families[unix.NFPROTO_BRIDGE] {
		if f := ebtables.One(r, native); !f.MAC.IsZero() || f.Target == model.TargetDrop {
			c.Frame = &f
		}
	} else if p := iptables.One(r, c.Family, native); p.Target == "DROP" || p.Target == "REJECT" {
		c.Packet = &p
	}
}

// families are those of tables, as nft names them.
var families = map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev"}
