package lab

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// Inject breaks one thing in a lab that is up. The fault is one of the
// scenario's kind of operations, whether or not the scenario names it.
func (l *Lab) Inject(ctx context.Context, f scenario.Fault) error {
	return l.locked(ctx, func() error { return l.inject(ctx, f) })
}

// Undo mends what Inject or the scenario broke.
func (l *Lab) Undo(ctx context.Context, f scenario.Fault) error {
	return l.locked(ctx, func() error { return l.undo(ctx, f) })
}

// locked runs f while nobody else changes the lab.
func (l *Lab) locked(ctx context.Context, f func() error) error {
	d, err := lockDir(ctx, l.id)
	if err != nil {
		return err
	}
	defer d.close()
	return f()
}

func (l *Lab) inject(ctx context.Context, f scenario.Fault) error {
	return wrap(l.apply(ctx, f, true), "inject %s", f)
}

func (l *Lab) undo(ctx context.Context, f scenario.Fault) error {
	return wrap(l.apply(ctx, f, false), "undo %s", f)
}

// apply does a fault or undoes it, in the namespace where it strikes.
func (l *Lab) apply(ctx context.Context, f scenario.Fault, do bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch f.Type {
	case scenario.DeleteUDR, scenario.WrongUDR, scenario.NICForwardingOff, scenario.NSGDrop, scenario.NoReturn:
		return l.with(fabricName, func(sp *space) error { return l.fabricFault(sp, f, do) })
	}
	n := l.s.Topology.Node(f.Node)
	if n == nil {
		return fmt.Errorf("no node %q", f.Node)
	}
	if f.Type == scenario.SilentFabric {
		return l.silentFabric(n, do)
	}
	if f.Type == scenario.ReturningUDR {
		r := scenario.Route{Prefix: f.Prefix, Via: n.IP}
		err := l.with(fabricName, func(sp *space) error {
			if do {
				return l.udr(sp, r)
			}
			return sp.unroute(l.udrRoute(r))
		})
		if err != nil {
			return err
		}
	}
	gateway := l.s.Topology.Gateway
	if f.Family == 6 {
		n, gateway = n.V6(), l.s.Topology.V6().Gateway
	}
	return l.with(f.Node, func(sp *space) error {
		switch f.Type {
		case scenario.DeleteNodeRoute:
			r, err := nodeRoute(&l.s.Topology, n, f.Prefix)
			if err != nil {
				return err
			}
			if do {
				return sp.unroute(r)
			}
			return sp.route(r)
		case scenario.DeleteDefaultRoute:
			r := route{dst: defaultFor(n.IP), via: gateway, link: uplinkOf(n)}
			if do {
				return sp.unroute(r)
			}
			return sp.route(r)
		case scenario.MissingMasquerade:
			if n.IPMasq {
				if err := sp.runAll(tables(n.IP.Is6()), l.pluginMasquerade(op(!do, "-A"), n)...); err != nil {
					return err
				}
				return sp.forgetFlows()
			}
		case scenario.BlackholeRoute, scenario.AsymmetricRoute, scenario.ReturningUDR, scenario.SmallMTU:
			return routingFault(sp, n, f, do)
		}
		if f.Pod == "" {
			return nodeFault(sp, n, f, do)
		}
		_, p := l.s.Topology.Pod(f.Pod)
		if p == nil {
			return fmt.Errorf("no pod %q", f.Pod)
		}
		if f.Family == 6 {
			p = p.V6()
		}
		return l.podFault(ctx, sp, n, p, f, do)
	})
}

// op is the option that makes a rule, or with do false the one that takes it
// away.
func op(do bool, make string) string {
	if do {
		return make
	}
	return "-D"
}

func (l *Lab) fabricFault(sp *space, f scenario.Fault, do bool) error {
	if f.Type == scenario.NSGDrop || f.Type == scenario.NoReturn {
		return l.wayFault(sp, f, do)
	}
	if f.Type == scenario.NICForwardingOff {
		for i, n := range l.s.Topology.Nodes {
			if n.Name == f.Node {
				return sp.runAll(iptables, spoofJumps(op(do, "-A"), nicLink(i))...)
			}
		}
		return fmt.Errorf("no node %q", f.Node)
	}
	for _, r := range l.s.StruckRoutes(f) {
		var err error
		switch {
		case !do:
			err = l.udr(sp, r)
		case f.Type == scenario.DeleteUDR:
			err = sp.unroute(l.udrRoute(r))
		default:
			err = l.udr(sp, scenario.Route{Prefix: r.Prefix, Via: f.Via})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func nodeFault(sp *space, n *scenario.Node, f scenario.Fault, do bool) error {
	switch f.Type {
	case scenario.MissingMasquerade:
		// The fault is that a rule is missing, so it is done by -D.
		args := agentOf(n).masquerade(op(!do, "-A"))
		switch {
		case n.Dockershim && n.IP.Is4():
			args = kubeletMasquerade(op(!do, "-A"), n)
		case f.Prefix.IsValid():
			args = agentOf(n).exclusion(op(do, "-I"), f.Prefix)
		}
		if err := sp.run(tables(n.IP.Is6()), args...); err != nil {
			return err
		}
		// A flow keeps the address that it was given, and so would a new
		// one from the same port.
		return sp.forgetFlows()
	case scenario.DedupFlushed:
		if do {
			return sp.run(ebtables, "-F", dedupChain(n))
		}
		return sp.runAll(ebtables, dedupRules(n)...)
	case scenario.ForwardingOff:
		name, val := "ipv4/ip_forward", "1"
		if f.Family == 6 {
			name = "ipv6/conf/all/forwarding"
		}
		if do {
			val = "0"
		}
		return sp.sysctl(name, val)
	}
	if known, err := natFault(sp, n, f, do); known {
		return err
	}
	return fmt.Errorf("no fault %q of a node", f.Type)
}

func (l *Lab) podFault(ctx context.Context, sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) error {
	switch f.Type {
	case scenario.StaleDNAT:
		// In front, as the older rule is.
		return sp.run(ebtables, frameDNAT(op(do, "-I"), n.NIC, p.IP, f.MAC)...)
	case scenario.StaleARPReply:
		if err := sp.run(ebtables, arpReply(op(do, "-I"), p.IP, f.MAC)...); err != nil {
			return err
		}
		return l.forget(sp, n, p)
	case scenario.WrongNeighbor:
		return wrongNeighbor(sp, n, p, f.MAC, do)
	case scenario.DropForward:
		return sp.run(tables(p.IP.Is6()), op(do, "-I"), "FORWARD", "-d", p.IP.String(), "-j", "DROP")
	case scenario.DeletePodRoute:
		if !do && n.Plugin == scenario.Cilium {
			return ciliumDelivery(p, sp)
		}
		if !do {
			return sp.route(route{dst: host(p.IP), link: p.Link})
		}
		if err := sp.unroute(route{dst: host(p.IP), link: p.Link}); err != nil || n.Plugin != scenario.Cilium {
			return err
		}
		return sp.unrule(toPod(p))
	case scenario.PodLinkDown:
		if do {
			return sp.withLink(p.Link, "take down", sp.nl.LinkSetDown)
		}
		return l.reconnect(ctx, sp, n, p)
	}
	if known, err := filterFault(sp, n, p, f, do); known {
		return err
	}
	return l.layer2Fault(ctx, sp, n, p, f, do)
}

// forget makes the node and its other pods ask for a pod's MAC anew, as they
// would by themselves some time later.
func (l *Lab) forget(node *space, n *scenario.Node, p *scenario.Pod) error {
	if err := node.forgetNeighbors(deviceOf(n, p), p.IP); err != nil {
		return err
	}
	for _, pods := range [][]scenario.Pod{n.Pods, n.OldPods} {
		for _, other := range pods {
			if !other.Bridged || other.Gone || other.Name == p.Name {
				continue
			}
			err := l.with(n.Name+"/"+other.Name, func(sp *space) error { return sp.forgetNeighbors(podInterface, p.IP) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// reconnect brings a pod's link up again, with what went when it went down.
func (l *Lab) reconnect(ctx context.Context, node *space, n *scenario.Node, p *scenario.Pod) error {
	err := l.with(n.Name+"/"+p.Name, func(pod *space) error {
		if err := joinUp(ctx, node, p.Link, pod, podInterface); err != nil {
			return err
		}
		return pod.forgetNeighbors(podInterface, netip.Addr{})
	})
	if err == nil {
		err = l.forget(node, n, p)
	}
	if err == nil && !p.Bridged {
		for _, q := range podFamilies(p) {
			if err == nil && q.IP.Is6() && n.PodGateway().IsValid() {
				// IPv6 lost the address with the link.
				err = node.addr(p.Link, host(n.V6().PodGateway()), netlink.SCOPE_UNIVERSE)
			}
			if err == nil {
				err = node.route(route{dst: host(q.IP), link: p.Link})
			}
		}
	}
	return err
}

// podFamilies are the pod by each of its addresses.
func podFamilies(p *scenario.Pod) []*scenario.Pod {
	if p.IP6.IsValid() {
		return []*scenario.Pod{p, p.V6()}
	}
	return []*scenario.Pod{p}
}

// deviceOf is the node's device on which it has the pod for a neighbour.
func deviceOf(n *scenario.Node, p *scenario.Pod) string {
	if p.Bridged {
		return n.Bridge
	}
	return p.Link
}

// wrongNeighbor pins the node's entry for a pod, or puts back what the plugin
// has: the right MAC pinned on azure0, nothing elsewhere.
func wrongNeighbor(sp *space, n *scenario.Node, p *scenario.Pod, mac model.MAC, do bool) error {
	link := deviceOf(n, p)
	switch {
	case do:
		return sp.neigh(link, p.IP, mac)
	case p.Bridged && !n.PodGateway().IsValid() && n.Plugin != scenario.AzureTunnel:
		return sp.neigh(link, p.IP, p.MAC)
	}
	return sp.unneigh(link, p.IP)
}
