package lab

import (
	"context"
	"errors"
	"fmt"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Churn deletes pods of a lab that is up and makes them anew, count of them
// one after the other, each with the address that another of them had before
// and a MAC of its own. Each new pod asks the peers by ping, once each, and an
// unanswered ping is an error. The pods must be of one node, with nothing of
// the scenario's traffic from or to them. At the end the pods are as they were.
func (l *Lab) Churn(ctx context.Context, refs []string, count int, peers ...scenario.Endpoint) error {
	return l.locked(ctx, func() error {
		c := &churn{builder: builder{Lab: l, topology: &l.s.Topology, log: func(string, ...any) {}}, peers: peers}
		for _, ref := range refs {
			n, p := c.topology.Pod(ref)
			if p == nil || c.node != nil && c.node != n {
				return fmt.Errorf("churn pod %q: not a pod of one node", ref)
			}
			c.node, c.pods = n, append(c.pods, *p)
		}
		return wrap(c.run(ctx, count), "churn pods")
	})
}

// churn is what Churn works with.
type churn struct {
	builder
	node  *scenario.Node
	pods  []scenario.Pod
	peers []scenario.Endpoint
}

func (c *churn) run(ctx context.Context, count int) error {
	sp, err := c.open(c.node.Name)
	if err != nil {
		return err
	}
	defer sp.close()
	now := append([]scenario.Pod(nil), c.pods...)
	for i := 0; i < count; i += len(now) {
		// All go before any comes, so that no address is there twice.
		for k := range now {
			if err := c.remove(ctx, &now[k], sp); err != nil {
				return err
			}
		}
		last := i+len(now) >= count
		for k := range now {
			before := c.pods[(k+i/len(now)+1)%len(now)]
			now[k].IP, now[k].IP6 = before.IP, before.IP6
			h := now[k].IP.AsSlice()
			now[k].MAC = model.MAC(append([]byte{0x02, byte(i + k)}, h[len(h)-4:]...))
			if last {
				now[k] = c.pods[k]
			}
			if err := c.make(ctx, &now[k], sp); err != nil {
				return err
			}
		}
		for k := range now {
			// A rule answers for the peers on azure0, so that they do not
			// hear of the new MAC by being asked.
			if now[k].Bridged && !c.node.PodGateway().IsValid() {
				if err := c.forget(sp, c.node, &now[k]); err != nil {
					return err
				}
			}
			if err := c.ask(ctx, &now[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// make makes a pod whose addresses are in use.
func (c *churn) make(ctx context.Context, p *scenario.Pod, node *space) error {
	if err := c.pod(ctx, c.node, p, node); err != nil || !c.topology.HasIPv6() {
		return err
	}
	return c.with(c.node.Name+"/"+p.Name, func(pod *space) error { return pod.awaitSettled(ctx) })
}

// ask lets a new pod ask the peers.
func (c *churn) ask(ctx context.Context, p *scenario.Pod) error {
	place := c.node.Name + "/" + p.Name
	ns, err := netns.Named(c.netns(place))
	if err != nil {
		return err
	}
	defer ns.Close()
	for i, peer := range c.peers {
		f := &flow{Flow: scenario.Flow{From: scenario.Endpoint{Place: place, Addr: p.IP}, To: peer, Proto: scenario.ICMP}, from: ns}
		if err := request(ctx, f, 0, c.s.Timeout, payload(f, i, 0), func() {}); err != nil {
			return fmt.Errorf("ping %s from %s: %w", peer, place, err)
		}
	}
	return nil
}

// remove deletes a pod as its plugin does: its rules and neighbour, its link,
// and last its namespace.
func (c *churn) remove(ctx context.Context, p *scenario.Pod, node *space) error {
	if c.node.Plugin.CNI() {
		runtime, err := c.cni(c.node, node)
		if err != nil {
			return err
		}
		if err := runtime.del(ctx, p); err != nil {
			return err
		}
		return deleteNetns(c.netns(c.node.Name + "/" + p.Name))
	}
	if p.Bridged && c.node.Plugin != scenario.Kubenet {
		answer := p.MAC
		if c.node.Plugin == scenario.AzureTunnel {
			answer = c.topology.FabricMAC
		} else if err := node.unneigh(c.node.Bridge, p.IP); err != nil {
			return err
		}
		if err := node.runAll(ebtables, arpReply("-D", p.IP, answer), frameDNAT("-D", c.node.NIC, p.IP, p.MAC)); err != nil {
			return err
		}
	}
	for _, q := range podFamilies(p) {
		if err := c.forgetRules(q, node); err != nil {
			return err
		}
	}
	if err := errors.Join(node.withLink(p.Link, "delete", node.nl.LinkDel), c.Lab.remember(ctx, c.node, p, true)); err != nil {
		return err
	}
	return deleteNetns(c.netns(c.node.Name + "/" + p.Name))
}

// forgetRules takes away what a plugin has for a pod beside its link and route.
func (c *churn) forgetRules(p *scenario.Pod, node *space) error {
	switch c.node.Plugin {
	case scenario.Cilium:
		for _, r := range []rule{toPod(p), {priority: fromPodPriority, from: host(p.IP)}} {
			if err := node.unrule(r); err != nil {
				return err
			}
		}
	case scenario.Calico:
		for _, w := range workloadChains(p) {
			if err := node.runAll(tables(p.IP.Is6()), w.dispatchRule("-D", p), []string{"-F", w.chain}, []string{"-X", w.chain}); err != nil {
				return err
			}
		}
	}
	return nil
}
