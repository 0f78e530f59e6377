// Package iptables reads the rules of the node's IP layer with their counters:
// iptables in both its backends, and what nft itself holds in the families
// ip, ip6 and inet.
package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/nft"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// hookNames are the hooks of the IP layer by number, as iptables calls them.
var hookNames = [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// Tables are rules and the chains they stand in.
type Tables struct {
	Rules  []model.PacketRule
	Chains []model.Chain
}

func (t *Tables) add(o Tables) {
	t.Rules = append(t.Rules, o.Rules...)
	t.Chains = append(t.Chains, o.Chains...)
}

// Read reads the rules of both backends. Detail says how many each holds. With
// an error, what could be read is returned too.
func Read(ctx context.Context, ns *netns.NS, c *dump.Conn) (t Tables, detail string, err error) {
	held := 0
	if nft.Present() {
		for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet} {
			set, failed := nft.Read(ctx, c, f)
			t.add(fromSet(set, f))
			err = errors.Join(err, failed)
		}
		held = len(t.Rules)
	}
	legacy, failed := readLegacy(ns)
	t.add(legacy)
	return t, fmt.Sprintf("nft: %d rules; legacy: %d rules", held, len(legacy.Rules)), errors.Join(err, failed)
}
