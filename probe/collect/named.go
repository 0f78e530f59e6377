package collect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/cluster"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/names"
	"github.com/lasthop/lasthop/probe/collect/pods"
	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/model"
)

// naming has what names pods. It does not change after Open.
type naming struct {
	finder *names.Finder
	// from is the file of the cluster's pods, which list holds; empty without one.
	from string
	list []cluster.Pod
	// byAddr are the pods by their addresses, nil for those of several pods; byUID and byName the same by these.
	byAddr map[netip.Addr]*cluster.Pod
	byUID  map[string]*cluster.Pod
	byName map[[2]string]*cluster.Pod
}

// know takes the cluster's pods from the API's file.
func (n *naming) know(from string, list []cluster.Pod) {
	n.from, n.list = from, list
	n.byAddr, n.byUID, n.byName = map[netip.Addr]*cluster.Pod{}, map[string]*cluster.Pod{}, map[[2]string]*cluster.Pod{}
	for p := range model.Each(list) {
		n.byName[[2]string{p.Namespace, p.Name}] = p
		if p.UID != "" {
			n.byUID[p.UID] = p
		}
		for _, a := range p.Addresses {
			_, taken := n.byAddr[a]
			n.byAddr[a] = model.Either(taken, nil, p)
		}
	}
}

// name gives the pods their Kubernetes names, and says how many have one from where: libcni's cache and cgroups,
// else the plugin's files, else the API's file. That may be older than a pod, so that it names those alone that
// nothing else does. noFiles says why the node's files may not be read, nil if they may.
func (n *naming) name(list []model.Pod, far map[int]*pods.Namespace, owners map[netip.Addr]files.Owner, noFiles error) (detail string, err error) {
	processes := processesOf(far)
	var found names.Result
	if err = noFiles; err == nil {
		found = n.finder.Pods(list, processes)
		err = found.Err()
	}
	filed, told := 0, 0
	var without []string
	for p := range model.Each(list) {
		if p.Name == "" && fromFile(p, owners) {
			filed++
		}
		if p.Name == "" && n.tell(p) {
			told++
		}
		if p.Name == "" {
			without = append(without, place(p))
		} else if x := n.known(p); x != nil {
			p.UID, p.Labels = x.UID, x.Labels
		}
	}
	parts := found.Detail()
	if filed > 0 {
		parts = append(parts, fmt.Sprintf("%d from the plugin's files", filed))
	}
	if told > 0 {
		parts = append(parts, fmt.Sprintf("%d from %s", told, n.from))
	}
	detail = strings.TrimSuffix(fmt.Sprintf("%d of %d pods: %s", len(list)-len(without), len(list), strings.Join(parts, ", ")), ": ")
	if len(without) > 0 {
		detail += "; unnamed: " + model.Some(without, 8, "more") + found.Lack()
	}
	return detail, err
}

// fromFile names a pod by the plugin's files. A file may be stale: an entry that
// names a link other than the pod's is about an earlier pod.
func fromFile(p *model.Pod, owners map[netip.Addr]files.Owner) bool {
	for _, a := range p.Known() {
		if o, ok := owners[a]; ok && (o.Link == "" || o.Link == p.Link) && names.Check(o.Namespace, o.Name) == nil {
			p.Namespace, p.Name = o.Namespace, o.Name
			return true
		}
	}
	return false
}

// tell names a pod by the API's file: by its UID, or else by its addresses.
func (n *naming) tell(p *model.Pod) bool {
	x := n.byUID[p.UID]
	for _, a := range p.Known() {
		if x == nil && p.UID == "" {
			x = n.byAddr[a]
		}
	}
	if x != nil {
		p.Namespace, p.Name = x.Namespace, x.Name
	}
	return x != nil
}

// PodOf is the name of the pod of a process that runs or, where cgroup is not 0, of one that has ended and had the cgroup of
// that number; empty for none.
func (c *Collector) PodOf(pid int, cgroup uint64) (namespace, name string) {
	if c.noFiles != nil {
		return "", ""
	}
	top, _ := program.Hierarchy(c.roots()...) // without one there is nothing below it
	uid, namespace, name := c.names.finder.Process(fmt.Sprintf("/proc/%d", pid), cgroup, top)
	if x := c.names.byUID[uid]; name == "" && x != nil {
		return x.Namespace, x.Name
	}
	return namespace, name
}

// known is the pod as the API's file has it, nil if it does not or has another of that name.
func (n *naming) known(p *model.Pod) *cluster.Pod {
	if x := n.byName[[2]string{p.Namespace, p.Name}]; x != nil && (p.UID == "" || x.UID == "" || p.UID == x.UID) {
		return x
	}
	return nil
}

// elsewhere are the cluster's pods but for those on the node, and those whose addresses several have.
func (n *naming) elsewhere(here []model.Pod) (out []model.ClusterPod) {
	own := addressesOf(here)
	for p := range model.Each(n.list) {
		if !slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return own[a] || n.byAddr[a] == nil }) {
			out = append(out, p.ClusterPod)
		}
	}
	return out
}

// place is what a pod without a name is known by.
func place(p *model.Pod) string {
	if known := p.Known(); len(known) > 0 {
		return known[0].String()
	}
	return "the pod behind " + p.Link
}
