package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
)

// Inject breaks one thing in a lab that is up, whether or not its scenario
// names the fault.
func (l *Lab) Inject(ctx context.Context, f scenario.Fault) error {
	return l.locked(ctx, func() error { return l.inject(ctx, f) })
}

// Undo repairs what Inject or the scenario broke.
func (l *Lab) Undo(ctx context.Context, f scenario.Fault) error {
	return l.locked(ctx, func() error { return wrap(l.apply(ctx, f, true), "undo %s", f) })
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

// turn makes the faults that wait for the traffic, and undoes those that last until it
// flows, once.
func (l *Lab) turn(ctx context.Context) error {
	if l.turned {
		return nil
	}
	l.turned = true
	for _, f := range l.s.Faults {
		if f.When == "" {
			continue
		}
		if err := wrap(l.apply(ctx, f, f.When == scenario.Before), "turn %s", f); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) inject(ctx context.Context, f scenario.Fault) error {
	return wrap(l.apply(ctx, f, false), "inject %s", f)
}

// injection makes a fault or, where the target says so, undoes it. What a file
// may say of the fault is the row of its type in the scenario package.
type injection func(*target) error

// injectionTables are all faults, by what they break.
var injectionTables = []map[scenario.FaultType]injection{fabricFaults, routeFaults, linkFaults, filterFaults, translationFaults, serverFaults, ordinaryStates}

var injections = func() map[scenario.FaultType]injection {
	all := map[scenario.FaultType]injection{}
	for _, table := range injectionTables {
		maps.Copy(all, table)
	}
	return all
}()

// target is a fault with all that it breaks.
type target struct {
	*Lab
	scenario.Fault
	// ctx is that of the one call that made the target.
	ctx  context.Context
	undo bool
	// topology, node and pod have the addresses of the IP version that the
	// fault breaks. node and pod are nil where the fault names none.
	topology *scenario.Topology
	node     *scenario.Node
	pod      *scenario.Pod
	// port is the fabric's side of the node's network card.
	port string
	// sp is the namespace of the node or, without one, of the fabric.
	sp *space
}

// apply makes a fault or undoes it.
func (l *Lab) apply(ctx context.Context, f scenario.Fault, undo bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	inject, ok := injections[f.Type]
	if !ok {
		return fmt.Errorf("no fault %q", f.Type)
	}
	x := &target{Lab: l, Fault: f, ctx: ctx, undo: undo, topology: &l.s.Topology}
	if f.Family == 6 {
		if x.topology = l.s.Topology.V6(); x.topology == nil {
			return fmt.Errorf("lab %q has no IPv6", l.id)
		}
	}
	place := fabricName
	if f.Node != "" {
		i := slices.IndexFunc(x.topology.Nodes, func(n scenario.Node) bool { return n.Name == f.Node })
		if i < 0 {
			return fmt.Errorf("no node %q", f.Node)
		}
		place, x.node, x.port = f.Node, &x.topology.Nodes[i], nicLink(i)
	}
	if f.Pod != "" {
		if _, x.pod = x.topology.Pod(f.Pod); x.pod == nil {
			return fmt.Errorf("no pod %q", f.Pod)
		}
	}
	return l.with(place, func(sp *space) error {
		x.sp = sp
		return inject(x)
	})
}

// op is the option that makes a rule, or -D where the fault is undone.
func (x *target) op(make string) string { return pick(x, make, "-D") }

// unop is op for a fault that is a missing rule.
func (x *target) unop(make string) string { return pick(x, "-D", make) }

// pick returns what holds with the fault, or without it when it is undone.
func pick[T any](x *target, with, without T) T {
	if x.undo {
		return without
	}
	return with
}

// iptables runs the tool of the fault's family in the node.
func (x *target) iptables(rules ...[]string) error {
	return x.sp.runAll(tables(x.node.IP.Is6()), rules...)
}

func (x *target) inFabric(f func(*space) error) error { return x.with(fabricName, f) }

func (x *target) inPod(f func(*space) error) error { return x.with(x.Pod, f) }

// gateway is the next hop of the pod's default route.
func (x *target) gateway() netip.Addr { return podGateway(x.topology, x.node, x.pod) }

// viaPod is the pod that the fault's Via is the address of.
func (x *target) viaPod() (place string, p *scenario.Pod, err error) {
	place = x.s.Topology.Place(x.Via)
	if _, p = x.s.Topology.Pod(place); p == nil {
		err = fmt.Errorf("no pod has %s", x.Via)
	}
	return place, p, err
}

// forget makes the node and its other pods ask for a pod's MAC anew, as they
// would by themselves some time later.
func (l *Lab) forget(node *space, n *scenario.Node, p *scenario.Pod) error {
	if err := node.forgetNeighbors(deviceOf(n, p), p.IP); err != nil {
		return err
	}
	for other := range n.AllPods() {
		if !other.Bridged || other.Gone || other.Name == p.Name {
			continue
		}
		err := l.with(n.Name+"/"+other.Name, func(sp *space) error { return sp.forgetNeighbors(podInterface, p.IP) })
		if err != nil {
			return err
		}
	}
	return nil
}

// reconnect brings the pod's link up again, with what went when it went down.
func (x *target) reconnect() error {
	n, p := x.node, x.pod
	err := x.inPod(func(pod *space) error {
		if err := joinUp(x.ctx, x.sp, p.Link, pod, podInterface); err != nil {
			return err
		}
		return pod.forgetNeighbors(podInterface, netip.Addr{})
	})
	if err == nil {
		err = x.forget(x.sp, n, p)
	}
	if err != nil || p.Bridged {
		return err
	}
	for _, q := range podFamilies(p) {
		if q.IP.Is6() && n.PodGateway().IsValid() {
			// The kernel deletes IPv6 addresses of a link that goes down.
			if err := x.sp.addr(p.Link, host(n.V6().PodGateway()), netlink.SCOPE_UNIVERSE); err != nil {
				return err
			}
		}
		if err := x.sp.route(route{dst: host(q.IP), link: p.Link}); err != nil {
			return err
		}
	}
	return nil
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
