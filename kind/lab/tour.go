package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/kind/scenario"
)

// Shape is what a lab is made of before anything is broken. Of scenarios with the same, one lab can have the traffic
// and the faults in turn. As Rewrite it is for tests.
func Shape(s *scenario.Scenario) (string, error) {
	text, err := json.Marshal(struct {
		Topology scenario.Topology
		Routes   []scenario.Route
	}{s.Topology, s.Routes})
	return string(text), wrap(err, "describe scenario %s", s.Name)
}

// Follow puts another scenario of the same shape on a lab in which nothing is broken and no traffic flows: Break makes
// its faults. The kernel forgets what it learnt: flows, neighbours, and the MTU of paths. As Rewrite it is for tests.
func Follow(ctx context.Context, l *Lab, s *scenario.Scenario) error {
	next := *s
	next.Topology = l.s.Topology // CNI plugins have chosen names and MACs in it
	next.Faults = slices.Clone(s.Faults)
	next.Traffic = slices.Clone(s.Traffic)
	l.s, l.turned = &next, false
	return l.locked(ctx, func() error {
		for _, place := range l.places() {
			if err := l.with(place, (*space).forget); err != nil {
				return err
			}
		}
		return nil
	})
}

// forget deletes what the kernel learnt by traffic.
func (sp *space) forget() error {
	if err := sp.forgetFlows(); err != nil {
		return err
	}
	links, err := sp.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list links in %s: %w", sp.name, err)
	}
	for _, l := range links {
		if err := sp.forgetNeighbors(l.Attrs().Name, netip.Addr{}); err != nil {
			return err
		}
	}
	return sp.sysctls("ipv4/route/flush", "1", "ipv6/route/flush", "1")
}
