// Package nft reads nftables rules of one family and decodes each into the matches and statements that it is made
// of. The tables of iptables and ebtables live there too, with their extensions as bytes (nft_compat).
//
// It walks the messages itself: github.com/google/nftables leaves out the expressions that it does not know, and
// a rule without one of its matches is another rule. What is not known here is named, never dropped.
package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	// subsystem is the part of a message's type that all of nf_tables have.
	subsystem = unix.NFNL_SUBSYS_NFTABLES << 8

	// accept is NF_ACCEPT, as a policy.
	accept = 1
	// hookDevices is NFTA_HOOK_DEVS (Linux 5.5): a list of links, even of one.
	hookDevices = 4
	// nfgenmsg is the fixed header behind netlink's.
	nfgenmsg = 4
)

// Chain is one chain of a table.
type Chain struct {
	Table, Name string
	// Base is true for a chain on a hook; Hook is the hook's number in its family.
	Base           bool
	Hook, Priority int
	// Devices are the links that the hook is of; empty where it is of all.
	Devices []string
	// Accept is the policy of a base chain.
	Accept  bool
	Counter model.Counter
}

// Rule is one rule, in the order of its chain.
type Rule struct {
	Table, Chain string
	Handle       uint64
	UserData     []byte
	Items        []Item
}

// Ruleset is what one family holds.
type Ruleset struct {
	Chains []Chain
	Rules  []Rule
	// Sets are those that rules look something up in. Of the bridge they are not read.
	Sets []Set
	// Counters are what all have counted, nil where that was not read whole.
	Counters *Counters
	// Same is true where Chains and Rules are those that the Counters were made with, and were not read again.
	Same bool
}

// Known returns the counters of a family as they were read last, nil if none were. If the
// ruleset is still of their generation, its rules are not decoded again.
type Known func(nftables.TableFamily) *Counters

// Read passes to take the chains and rules of each family (nftables.TableFamilyIPv4, …), and gets from it how
// many rules those are. Detail says their sum, for people, or why there are none: a kernel without nf_tables has
// none. With an error, what could be read was passed.
func Read(ctx context.Context, c *dump.Netfilter, known Known, parts Parts, take func(nftables.TableFamily, Ruleset) int, families ...nftables.TableFamily) (detail string, err error) {
	conn, err := c.Conn()
	if missing, ok := errors.AsType[*kmod.MissingError](err); ok && missing.State.Empty() {
		return "nft: " + kmod.Rules(0, missing.State), nil
	} else if err != nil {
		return "nft: not read", fmt.Errorf("list nft rules: %w", err)
	}
	held := 0
	for _, family := range families {
		var have *Counters
		if known != nil {
			have = known(family)
		}
		set, failed := read(ctx, conn, family, have, parts)
		held += take(family, set)
		err = errors.Join(err, failed)
	}
	return "nft: " + kmod.Rules(held, kmod.Loaded), err
}

// read reads one family. The ruleset is consistent: when it changed during the dump
// it is read again, and after some tries returned with dump.ErrInterrupted.
func read(ctx context.Context, c *dump.Conn, family nftables.TableFamily, known *Counters, parts Parts) (Ruleset, error) {
	var set Ruleset
	err := dump.Retry(ctx, "list nft rules", func() error {
		before, err := generation(c)
		if err != nil {
			return err
		}
		if known != nil && known.Generation == before {
			set = Ruleset{Counters: known, Same: true}
			known = nil // after an error it is read whole
			err = set.Counters.read(c, family)
		} else {
			set, err = readWhole(c, family, parts)
		}
		if err != nil {
			return err
		}
		after, err := generation(c)
		if err == nil && after != before {
			err = dump.ErrInterrupted
		}
		if err == nil && !set.Same {
			set.Counters = newCounters(before, set)
		}
		return err
	})
	return set, err
}

func readWhole(c *dump.Conn, family nftables.TableFamily, parts Parts) (set Ruleset, err error) {
	if set.Chains, err = list(c, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, family, decodeChain); err != nil {
		return set, err
	}
	set.Rules, err = list(c, unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, family, DecodeRule)
	if err == nil && family != nftables.TableFamilyBridge {
		set.Sets, err = readSets(c, family, set.Rules, parts)
	}
	return set, err
}

func header(family nftables.TableFamily) []byte { return []byte{byte(family), 0, 0, 0} }

// generation is the number of the ruleset's last change.
func generation(c *dump.Conn) (uint32, error) {
	var gen uint32
	request := header(nftables.TableFamilyUnspecified)
	err := c.Get(subsystem|unix.NFT_MSG_GETGEN, request, subsystem|unix.NFT_MSG_NEWGEN, func(m []byte) error {
		return decode(m, dump.Fields{unix.NFTA_GEN_ID: &gen})
	})
	return gen, err
}

// decode decodes a message, without its netlink header.
func decode(m []byte, fields dump.Fields) error {
	return dump.ParseAfter(m, nfgenmsg).Decode(binary.BigEndian, fields)
}

// list reads all that a family has of one kind.
func list[T any](c *dump.Conn, get, answer uint16, family nftables.TableFamily, decode func([]byte) (T, error)) (all []T, err error) {
	err = c.Each(subsystem|get, header(family), subsystem|answer, func(m []byte) error {
		x, err := decode(m)
		all = append(all, x)
		return err
	})
	return all, err
}

func decodeChain(m []byte) (Chain, error) {
	var ch Chain
	err := decode(m, dump.Fields{
		unix.NFTA_CHAIN_TABLE: &ch.Table, unix.NFTA_CHAIN_NAME: &ch.Name,
		unix.NFTA_CHAIN_POLICY: func(a *dump.Attrs) { ch.Accept = a.BE32() == accept },
		unix.NFTA_CHAIN_COUNTERS: dump.Fields{
			unix.NFTA_COUNTER_BYTES: &ch.Counter.Bytes, unix.NFTA_COUNTER_PACKETS: &ch.Counter.Packets,
		},
		unix.NFTA_CHAIN_HOOK: func(a *dump.Attrs) {
			ch.Base = true
			a.Fail(a.Nested().Decode(binary.BigEndian, dump.Fields{
				unix.NFTA_HOOK_HOOKNUM: &ch.Hook, unix.NFTA_HOOK_PRIORITY: &ch.Priority,
				hookDevices: func(a *dump.Attrs) {
					list := a.Nested()
					for list.Next() {
						ch.Devices = append(ch.Devices, list.String())
					}
					a.Fail(list.Err())
				},
			}))
		},
	})
	if err != nil {
		return ch, fmt.Errorf("chain %s %s: %w", ch.Table, ch.Name, err)
	}
	return ch, nil
}

// counter reads the attributes of a rule's counter. There are very many.
func counter(a dump.Attrs) (model.Counter, error) {
	var c model.Counter
	for a.Next() {
		switch a.Type {
		case unix.NFTA_COUNTER_BYTES:
			c.Bytes = a.BE64()
		case unix.NFTA_COUNTER_PACKETS:
			c.Packets = a.BE64()
		}
	}
	return c, a.Err()
}

// DecodeRule reads an NFT_MSG_NEWRULE message, without its netlink header.
func DecodeRule(m []byte) (Rule, error) {
	var r Rule
	err := decode(m, dump.Fields{
		unix.NFTA_RULE_TABLE: &r.Table, unix.NFTA_RULE_CHAIN: &r.Chain, unix.NFTA_RULE_HANDLE: &r.Handle,
		unix.NFTA_RULE_USERDATA: &r.UserData,
		unix.NFTA_RULE_EXPRESSIONS: func(a *dump.Attrs) {
			var err error
			r.Items, err = decodeItems(a.Nested())
			a.Fail(err)
		},
	})
	if err != nil {
		return r, fmt.Errorf("rule %s %s handle %d: %w", r.Table, r.Chain, r.Handle, err)
	}
	return r, nil
}

// decodeCount reads no more of an NFT_MSG_NEWRULE message than what changes without a new generation.
func decodeCount(m []byte) (model.Counter, error) {
	var n model.Counter
	a := dump.ParseAfter(m, nfgenmsg)
	for a.Next() {
		if a.Type != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		list := a.Nested()
		for list.Next() {
			isCounter, e := false, list.Nested()
			for e.Next() {
				switch {
				case e.Type == unix.NFTA_EXPR_NAME:
					isCounter = string(e.Data) == "counter\x00"
				case e.Type == unix.NFTA_EXPR_DATA && isCounter:
					var err error
					n, err = counter(e.Nested())
					e.Fail(err)
				}
			}
			list.Fail(e.Err())
		}
		a.Fail(list.Err())
	}
	return n, a.Err()
}
