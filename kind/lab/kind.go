package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/cluster"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// KindOptions are what UpOnKind needs beside Options.
type KindOptions struct {
	Options
	// Image is the nodes' image; empty for kind's own.
	Image string
	// Hold is what the pods' only program does with these arguments: nothing, until
	// it is told to end. The program is this process's.
	Hold []string
}

// UpOnKind is Up on a cluster of kind: its nodes and pods become the lab's places,
// whose namespaces get the names that the lab's own would have. The scenario is asked
// for twice, before there is a cluster and with what it has. Faults are left to Break.
//
// The outside is a namespace of the lab's. A link connects it to the namespace that
// this process is in, which is the nodes' router.
func UpOnKind(ctx context.Context, parse func(*scenario.Cluster) (*scenario.Scenario, error), o KindOptions) (*Lab, error) {
	s, err := parse(nil)
	if err != nil {
		return nil, err
	}
	l := &Lab{id: o.ID, s: s, tables: o.Tables, sound: true}
	if l.id == "" {
		l.id = s.Name
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if err := l.ready(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	rec := record{ID: l.id, Created: time.Now().UTC(), Scenario: l.s, Tables: l.tables, Cluster: netnsPrefix + l.id}
	if err := cluster.Ready(ctx, rec.Cluster, o.Image, self); err != nil {
		return nil, err
	}
	for _, place := range l.places() {
		if place != fabricName {
			rec.Spaces = append(rec.Spaces, l.netns(place))
		}
	}
	err = l.bringUp(ctx, rec, func(d *dir) error {
		return wrap(l.onKind(ctx, d, self, parse, o), "bring lab %q up on kind", l.id)
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// onKind makes the cluster and puts the scenario on it.
func (l *Lab) onKind(ctx context.Context, d *dir, self string, parse func(*scenario.Cluster) (*scenario.Scenario, error), o KindOptions) error {
	spec := cluster.Spec{Name: netnsPrefix + l.id, Image: o.Image, Binary: self, Args: o.Hold, Dir: d.path, PodCIDR: l.s.Topology.PodCIDR, Pods: map[string][]string{}, Log: o.Log}
	for _, n := range l.s.Topology.Nodes {
		spec.Nodes = append(spec.Nodes, n.Name)
		for _, p := range n.Pods {
			spec.Pods[n.Name] = append(spec.Pods[n.Name], p.Name)
		}
	}
	// What breaks the observed node shall not break the control plane.
	slices.Reverse(spec.Nodes)
	slices.SortStableFunc(spec.Nodes, func(a, b string) int { return rank(a == l.s.Observe) - rank(b == l.s.Observe) })
	c, err := cluster.Create(ctx, spec)
	if err != nil {
		return err
	}
	if l.cluster, err = l.adopt(c); err != nil {
		return err
	}
	if l.s, err = parse(l.cluster); err != nil {
		return err
	}
	return l.beyondKind()
}

// Recast puts another scenario on the cluster of a lab of UpOnKind that is not broken.
// Its nodes and pods must be among the lab's, and its outside the same. As Rewrite it is for
// tests.
func Recast(l *Lab, parse func(*scenario.Cluster) (*scenario.Scenario, error)) error {
	s, err := parse(l.cluster)
	if err != nil {
		return err
	}
	t := l.s.Topology
	for _, n := range s.Topology.Nodes {
		for _, p := range n.Pods {
			if _, ok := l.cluster.Pods[n.Name+"/"+p.Name]; !ok {
				return fmt.Errorf("put scenario %s on lab %q: no pod %s/%s", s.Name, l.id, n.Name, p.Name)
			}
		}
	}
	if s.Topology.Edge != t.Edge || !slices.Equal(s.Topology.Outside, t.Outside) {
		return fmt.Errorf("put scenario %s on lab %q: another outside", s.Name, l.id)
	}
	l.s = s
	return nil
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// adopt gives the namespaces of nodes and pods their names, and reads what they have.
func (l *Lab) adopt(c *cluster.Cluster) (*scenario.Cluster, error) {
	out := &scenario.Cluster{Subnet: c.Subnet, Gateway: c.Gateway, PodCIDR: l.s.Topology.PodCIDR, Nodes: map[string]scenario.ClusterNode{}, Pods: map[string]scenario.ClusterPod{}}
	l.roots = map[string]string{}
	for _, n := range c.Nodes {
		l.roots[n.Name] = fmt.Sprintf("/proc/%d/root", n.PID)
		if err := bindNetns(l.netns(n.Name), n.PID); err != nil {
			return nil, err
		}
		err := l.with(n.Name, func(node *space) error {
			if err := node.sysctls(mayPing...); err != nil {
				return err
			}
			card, err := node.linkWith(n.IP)
			if err != nil {
				return err
			}
			out.Nodes[n.Name] = scenario.ClusterNode{NIC: card.Attrs().Name, MAC: model.MACFrom(card.Attrs().HardwareAddr), IP: n.IP, PodCIDR: n.PodCIDR}
			for _, p := range n.Pods {
				got, err := l.adoptPod(n.Name+"/"+p.Name, p, node)
				if err != nil {
					return err
				}
				out.Pods[n.Name+"/"+p.Name] = got
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (l *Lab) adoptPod(place string, p cluster.Pod, node *space) (got scenario.ClusterPod, err error) {
	if err := bindNetns(l.netns(place), p.PID); err != nil {
		return got, err
	}
	err = l.with(place, func(pod *space) error {
		if err := pod.sysctls(mayPing...); err != nil {
			return err
		}
		own, err := pod.link(podInterface)
		if err != nil {
			return err
		}
		peer, err := node.nl.LinkByIndex(own.Attrs().ParentIndex)
		if err != nil {
			return fmt.Errorf("find the other end of the link of pod %s: %w", place, err)
		}
		got = scenario.ClusterPod{Link: peer.Attrs().Name, MAC: model.MACFrom(own.Attrs().HardwareAddr), IP: p.IP}
		return nil
	})
	return got, err
}

// bindNetns gives the namespace of a process a name.
func bindNetns(name string, pid int) error {
	if err := shareNetnsDir(); err != nil {
		return err
	}
	file := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("name a network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), file, "none", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("name the network namespace of process %d: %w", pid, err), os.Remove(file))
	}
	return nil
}

// linkWith is the link that has an address.
func (sp *space) linkWith(a netip.Addr) (netlink.Link, error) {
	all, err := sp.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses in %s: %w", sp.name, err)
	}
	for _, got := range all {
		if own, _ := netip.AddrFromSlice(got.IP); own.Unmap() == a {
			return sp.nl.LinkByIndex(got.LinkIndex)
		}
	}
	return nil, fmt.Errorf("find the link with %s in %s: none", a, sp.name)
}

// beyondLink is the link by which a lab on kind has its outside, in the namespace of the
// engine's networks.
func beyondLink(id string) string {
	// No longer than a link's name may be.
	return fmt.Sprintf("lasthop%x", sha256.Sum256([]byte(id)))[:15]
}

// removeBeyond removes that link, which would go some time after the outside's namespace.
func removeBeyond(id string) error {
	here, err := openSpace("/proc/thread-self/ns/net", "")
	if err != nil {
		return err
	}
	defer here.close()
	err = here.withLink(beyondLink(id), "delete", here.nl.LinkDel)
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// beyondKind makes the outside, on a link to this process's namespace.
func (l *Lab) beyondKind() error {
	t := &l.s.Topology
	here, err := openSpace("/proc/thread-self/ns/net", l.tables)
	if err != nil {
		return err
	}
	defer here.close()
	if _, err := here.linkWith(t.Gateway); err != nil {
		return &model.UnsupportedError{Feature: "reach the nodes' router", Remedy: "run lasthop where the engine has its networks", Err: err}
	}
	if err := createNetns(l.netns(outsideName)); err != nil {
		return err
	}
	return l.with(outsideName, func(out *space) error {
		name := beyondLink(l.id)
		if err := here.veth(name, model.MAC{}, out, podInterface, outsideMAC); err != nil {
			return err
		}
		if err := here.addr(name, host(t.Edge), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		if err := errors.Join(here.up(name), out.up("lo", podInterface)); err != nil {
			return err
		}
		for _, a := range t.Outside {
			if err := out.addr(podInterface, host(a), netlink.SCOPE_UNIVERSE); err != nil {
				return err
			}
			// No route of the caller's namespace gives way.
			if err := here.newRoute(route{dst: host(a), link: name}); err != nil {
				return err
			}
		}
		// The engine gives what leaves its networks the router's address. All else is
		// lost here: nobody on the internet knows a pod.
		return out.route(route{dst: host(t.Edge), link: podInterface})
	})
}

// Break applies the scenario's faults to a lab of UpOnKind or Follow, but for those that wait for the traffic. Mend undoes
// them, the last one first.
func (l *Lab) Break(ctx context.Context) error {
	l.setSound(false)
	return l.locked(ctx, func() error { return l.breakAll(ctx, func(string, ...any) {}) })
}

func (l *Lab) breakAll(ctx context.Context, log func(string, ...any)) error {
	for _, f := range l.s.Faults {
		if f.When == scenario.Flowing {
			continue
		}
		log("fault %s", f)
		if err := l.inject(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// Mend is described at Break.
func (l *Lab) Mend(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(l.s.Faults) {
		errs = append(errs, l.Undo(ctx, f))
	}
	l.setSound(true)
	return errors.Join(errs...)
}

func (l *Lab) setSound(sound bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sound = sound
}

// asItIs is the scenario with the faults that are applied. Without any nobody asks
// addresses that no machine has: some fault is to give them a meaning.
func (l *Lab) asItIs() *scenario.Scenario {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sound {
		return l.s
	}
	out := *l.s
	out.Faults = nil
	out.Traffic = slices.DeleteFunc(slices.Clone(l.s.Traffic), func(f scenario.Flow) bool { return f.To.Place == "" })
	return &out
}
