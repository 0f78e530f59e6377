package model

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// ChangeKind is what a change is of.
type ChangeKind string

// The kinds. A change of nftables is one by iptables-nft and ebtables-nft too; the legacy tables notify nobody.
const (
	ChangedRoute    ChangeKind = "route"
	ChangedRule     ChangeKind = "routing rule"
	ChangedNeighbor ChangeKind = "neighbor entry"
	ChangedAddress  ChangeKind = "address"
	ChangedFilter   ChangeKind = "nftables"
	// ChangedLink is one that was there before, and was set up or, Deleted, down.
	ChangedLink ChangeKind = "link"
	// ChangedSetting is one of IP: forwarding, rp_filter, proxy_arp. Of others nobody is notified.
	ChangedSetting ChangeKind = "setting"
)

// Change is one change of the node's state that the kernel notified of.
type Change struct {
	At   time.Time
	Kind ChangeKind
	// Deleted: it was deleted; else added or replaced.
	Deleted bool
	// Dst is a route's or a rule's destination, a neighbor's or the node's address; From is a rule's source.
	Dst, From netip.Prefix
	// Table is the routing table, Link the link's index, Type a route's; of a rule that selects by addresses alone, Type is
	// unicast for lookup, or its action.
	Table, Link, Priority int
	Type                  string `redact:"keep"`
	MAC                   MAC
	// Family, Filter, Chain and Handle are those of a rule of nftables: its table is Filter. Without a Handle it is the chain,
	// without a Chain it is more than is kept of one change.
	Family string `redact:"keep"`
	Filter string `redact:"text"`
	Chain  string `redact:"text"`
	Handle uint64
	// Packet or Frame is a rule that was deleted and had dropped packets, or given them another MAC, with all that it
	// counted. Policy is the one that a chain was given.
	Packet *PacketRule
	Frame  *FrameRule
	Policy string `redact:"keep"`
	// Setting is the name of a setting, and Value what it was set to.
	Setting string `redact:"sysctl"`
	Value   string `redact:"keep"`
	// On is the name of the link that was set up or down.
	On string `redact:"link"`
	// By made it, as far as is known: one of these if they are several. Without any it is not known who.
	By []Process
}

// Process is a program that ran. Its arguments are never read.
type Process struct {
	PID  int
	Name string `redact:"program"`
	// Parent started it; the name is empty where that is not known.
	Parent     int
	ParentName string `redact:"program"`
	// Pod is the one that it ran in, by its cgroup; empty where that is none, or has no name.
	Namespace string `redact:"ns"`
	Pod       string `redact:"pod"`
}

// Author says who made the change.
func (c *Change) Author() string {
	if len(c.By) == 0 {
		return "a program that is not known"
	}
	return strings.Join(Map(c.By, func(p Process) string {
		started := Either(p.ParentName == "", "", fmt.Sprintf(", started by %s %d", p.ParentName, p.Parent))
		in := Either(p.Pod == "", "", ", in pod "+p.Namespace+"/"+p.Pod)
		return fmt.Sprintf("`%s` (pid %d%s%s)", p.Name, p.PID, started, in)
	}), " or ")
}

// What says what the change did.
func (c *Change) What() string {
	verb := Either(c.Deleted, "deleted ", "set ")
	switch {
	case c.Kind == ChangedRoute && c.Type != "" && c.Type != "unicast":
		return fmt.Sprintf("%sthe %s route to %v", verb, c.Type, c.Dst)
	case c.Kind == ChangedRoute:
		return fmt.Sprintf("%sthe route to %v", verb, c.Dst)
	case c.Kind == ChangedRule:
		kind := Either(c.Type == "" || c.Type == "unicast", "routing", c.Type)
		return fmt.Sprintf("%sa %s rule from %s to %s", verb, kind, whole(c.From), whole(c.Dst))
	case c.Kind == ChangedNeighbor && c.Deleted:
		return fmt.Sprintf("deleted the neighbor entry of %v", c.Dst.Addr())
	case c.Kind == ChangedNeighbor:
		return fmt.Sprintf("set the neighbor entry of %v to %v", c.Dst.Addr(), c.MAC)
	case c.Kind == ChangedAddress:
		return fmt.Sprintf("%sthe node's address %v", verb, c.Dst)
	case c.Kind == ChangedLink:
		return fmt.Sprintf("set the link %s %s", c.On, Either(c.Deleted, "down", "up"))
	case c.Kind == ChangedSetting:
		return fmt.Sprintf("set %s to %s", c.Setting, c.Value)
	case c.Handle != 0:
		return fmt.Sprintf("%sa rule in %s %s %s", verb, c.Family, c.Filter, c.Chain)
	case c.Chain != "":
		return fmt.Sprintf("%sthe chain %s %s %s", verb, c.Family, c.Filter, c.Chain)
	}
	return "changed nftables"
}

func whole(p netip.Prefix) string { return Either(p.IsValid(), p.String(), "all") }

// Text says who did what.
func (c *Change) Text() string { return c.Author() + " " + c.What() }

func (c *Change) String() string { return c.At.Format(time.TimeOnly) + " " + c.Text() }
