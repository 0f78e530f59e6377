package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/cilium"
	"github.com/lasthop/lasthop/probe/collect/cluster"
	"github.com/lasthop/lasthop/probe/collect/conntrack"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/ebtables"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/neigh"
	"github.com/lasthop/lasthop/probe/collect/pods"
	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/collect/route"
	"github.com/lasthop/lasthop/probe/collect/stats"
	"github.com/lasthop/lasthop/probe/collect/sysctl"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/plugin"
)

// reading is the state of one call of State. Each source writes fields of its own
// in the snapshot; the sources' statuses are shared.
type reading struct {
	c *Collector
	s *model.Snapshot

	linkConf, settings        []model.Sysctl
	linkCounts                map[int]link.Counts
	linkErr, settingsErr      error
	frameChains, packetChains []model.Chain
	far                       map[int]*pods.Namespace
	losses                    Losses
	files                     files.Files

	mu      sync.Mutex
	sources map[string]model.Source
}

var sourceOrder = []string{
	model.SourceLinks, model.SourceQueues, model.SourceStats, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge,
	model.SourceSysctl, model.SourceEbtables, model.SourceNAT, model.SourceConntrack, model.SourcePods, model.SourceNames,
	model.SourcePrograms, model.SourceCilium, model.SourceFiles, model.SourceNodes, model.SourceCloud,
}

// report sets the status of a source: ok, or with an error partial if got says that something was read, else missing.
func (r *reading) report(name, detail string, got bool, err error) {
	src := model.Source{Name: name, Status: model.OK, Detail: detail}
	switch {
	case err != nil && got:
		src.Status, src.Detail = model.Partial, detail+"; "+reason(name, err)
	case err != nil:
		src.Status, src.Detail = model.Missing, reason(name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[name] = src
}

// reason formats an error in one line, each of its parts once, with the capability that would help.
func reason(source string, err error) string {
	text := strings.Join(model.With(nil, model.Map(slices.Collect(strings.Lines(err.Error())), strings.TrimSpace)...), "; ")
	var unsupported *model.UnsupportedError
	if errors.As(err, &unsupported) || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return text
	}
	remedy := map[string]string{
		model.SourcePods:  "entering namespaces needs CAP_SYS_ADMIN",
		model.SourceNames: "needs root on the node",
	}[source]
	return text + " (" + cmp.Or(remedy, "needs root with CAP_NET_ADMIN") + ")"
}

// Losses are what was lost so far. More is read of pods that have a part in it.
type Losses struct {
	// Netns are the pods' namespaces, by inode, whose rules and listeners are read.
	Netns []uint32
	// Addrs are those that lost packets, or got no reply: of the first few pods with one, and
	// of those whose DNS requests got no reply, the resolv.conf is read.
	Addrs map[netip.Addr]bool
	// Last: no other state will be read, and this one waits for what Azure tells.
	Last bool
}

// maxResolvers bounds the pods whose resolv.conf is read.
const maxResolvers = 16

// State reads all sources once, and more where packets were lost. It fails only if ctx ends.
func (c *Collector) State(ctx context.Context, losses Losses) (*model.Snapshot, error) {
	r := &reading{c: c, losses: losses, s: &model.Snapshot{}, sources: map[string]model.Source{}}
	var g sync.WaitGroup
	// Flows are filtered by the pods' addresses, and which port of a bridge is an uplink may depend on the bridge's rules.
	framesRead, local := make(chan struct{}), make(chan map[netip.Addr]bool, 1)
	g.Go(func() {
		defer close(framesRead)
		r.readFrames(ctx)
	})
	g.Go(func() { r.readPackets(ctx) })
	g.Go(func() {
		r.settings, r.settingsErr = sysctl.Read(r.c.ns)
		r.readFiles()
		r.readCilium(ctx)
	})
	g.Go(func() {
		r.readNetwork(ctx)
		<-framesRead
		r.place()
		r.readStats()
		local <- r.localAddresses()
	})
	g.Go(func() { r.readFlows(ctx, <-local) })
	g.Wait()
	if losses.Last {
		c.awaitAzure(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.finish()
	return r.s, nil
}

func (r *reading) readFrames(ctx context.Context) {
	t, detail, err := ebtables.Read(ctx, r.c.ns, r.c.kernel, r.c.nft)
	r.s.FrameRules, r.frameChains = t.Rules, t.Chains
	r.report(model.SourceEbtables, detail, len(t.Chains) > 0, err)
	r.c.mu.Lock()
	r.c.frames = t.Rules
	r.c.mu.Unlock()
}

func (r *reading) readPackets(ctx context.Context) {
	t, detail, err := r.c.packets.Read(ctx, r.c.ns, r.c.kernel, r.c.nft)
	r.s.PacketRules, r.s.Sets, r.packetChains = t.Rules, t.Sets, t.Chains
	r.report(model.SourceNAT, detail, len(t.Chains) > 0, err)
}

func (r *reading) readFiles() {
	if r.c.noFiles != nil {
		r.report(model.SourceFiles, "", false, r.c.noFiles)
		return
	}
	var err error
	r.files, err = files.Read(r.c.options.HostRoot)
	r.report(model.SourceFiles, r.files.Detail(), err != nil, err)
}

// readCilium reads what Cilium's agent keeps, on a node that has it.
func (r *reading) readCilium(ctx context.Context) {
	if r.c.noFiles != nil {
		return
	}
	c, detail, err := r.c.cilium.Read(ctx, r.c.options.HostRoot)
	if errors.Is(err, cilium.ErrNone) {
		return
	}
	config := cilium.ReadConfig(r.c.options.HostRoot)
	c.Untranslated = config.Untranslated
	r.s.Cilium, r.s.Node.PassedBy = c, config.PassesBy
	r.report(model.SourceCilium, detail, detail != "", err)
}

// addEndpoints adds the pods that Cilium's endpoints name to those of the plugins' files.
func (r *reading) addEndpoints() {
	for e := range model.Each(r.s.Cilium.Endpoints) {
		i := slices.IndexFunc(r.s.Links, func(l model.Link) bool { return l.Index == e.IfIndex })
		if i < 0 || e.Name == "" || r.files.Owners == nil {
			continue
		}
		for _, a := range e.Addresses {
			if _, named := r.files.Owners[a]; !named {
				r.files.Owners[a] = files.Owner{Namespace: e.Namespace, Name: e.Name, Link: r.s.Links[i].Name}
			}
		}
	}
}

// readNetwork reads links, routes and neighbours, then the namespaces behind the links.
func (r *reading) readNetwork(ctx context.Context) {
	t, err := link.Read(ctx, r.c.conn)
	r.s.Links, r.linkConf, r.linkCounts = t.Links, t.Sysctls, t.Counts
	r.report(model.SourceLinks, model.Quantity(len(t.Links), "link"), len(t.Links) > 0, err)
	// What is found by its link is no more complete than the links are.
	r.linkErr = err

	r.s.Queues, err = link.Queues(ctx, r.c.handle)
	r.report(model.SourceQueues, model.Quantity(len(r.s.Queues), "queue"), len(r.s.Queues) > 0, err)

	var failed error
	r.s.Routes, err = route.Read(ctx, r.c.conn)
	r.s.Rules, failed = route.Rules(ctx, r.c.conn)
	r.report(model.SourceRoutes, model.Quantity(len(r.s.Routes), "route")+", "+model.Quantity(len(r.s.Rules), "rule"), len(r.s.Routes) > 0, errors.Join(err, failed))

	r.s.Neighbors, err = neigh.Read(ctx, r.c.conn)
	r.report(model.SourceNeighbors, model.Quantity(len(r.s.Neighbors), "neighbour"), len(r.s.Neighbors) > 0, err)

	r.s.FDB, err = neigh.FDB(ctx, r.c.conn)
	r.report(model.SourceBridge, fmt.Sprintf("%d FDB entries", len(r.s.FDB)), len(r.s.FDB) > 0, err)

	r.far, err = r.c.behind(ctx, r.s.Links, r.s.Routes, pods.Node{Programs: true, Lossy: r.losses.Netns})
	r.c.mu.Lock()
	r.c.processes = processesOf(r.far)
	r.c.mu.Unlock()
	r.report(model.SourcePods, model.Quantity(len(r.far), "network namespace"), len(r.far) > 0, errors.Join(r.linkErr, err))
	r.label()
	r.readPrograms(ctx)
}

// readPrograms reads what is attached to the node's links and to cgroups, and adds what was read with the pods.
func (r *reading) readPrograms(ctx context.Context) {
	found, err := program.Read(ctx, r.c.ns, r.c.conn, r.s.Links)
	errs := []error{r.linkErr, err}
	for _, id := range slices.Sorted(maps.Keys(r.far)) {
		found = append(found, r.far[id].Programs...)
		errs = append(errs, r.far[id].Refused)
		if !r.far[id].Entered {
			errs = append(errs, errors.New("some pods' namespaces were not entered"))
		}
	}
	detail := fmt.Sprintf("%d on links", len(found))
	groups, err := program.Cgroups(ctx, r.c.options.HostRoot, "/")
	if errors.Is(err, program.ErrNoCgroups) {
		// Without cgroups there are no programs on them.
		detail, err = detail+"; "+err.Error(), nil
	} else {
		detail += fmt.Sprintf(", %d on cgroups", len(groups))
	}
	r.s.Programs = append(found, groups...)
	r.report(model.SourcePrograms, detail, len(r.s.Programs) > 0, errors.Join(append(errs, err)...))
}

// processesOf are the processes of namespaces, by inode.
func processesOf(far map[int]*pods.Namespace) map[uint32][]string {
	out := map[uint32][]string{}
	for _, ns := range far {
		out[ns.Inode] = ns.Processes
	}
	return out
}

// behind reads the namespaces at the far ends of the links, as much as n asks for. Links that
// a default route uses lead to the network, whose namespaces are not read.
func (c *Collector) behind(ctx context.Context, links []model.Link, routes []model.Route, n pods.Node) (map[int]*pods.Namespace, error) {
	up := model.Table(defaults(routes, links), func(hop *model.Route) (int, bool) { return hop.IfIndex, true })
	n.Inode, n.Conn, n.Handle, n.Kernel = c.ns.Inode(), c.conn, c.handle, c.kernel
	n.Links = model.Filter(links, func(l model.Link) bool {
		return !up[l.Index] && !slices.Contains(c.options.Uplinks, l.Name)
	})
	return pods.Read(ctx, n, c.roots()...)
}

// label sets the link names of routes, neighbours and queues.
func (r *reading) label() {
	names := model.Table(r.s.Links, func(l *model.Link) (int, string) { return l.Index, l.Name })
	for x := range model.Each(r.s.Routes) {
		x.Link = names[x.IfIndex]
		for h := range model.Each(x.NextHops) {
			h.Link = names[h.IfIndex]
		}
	}
	for q := range model.Each(r.s.Queues) {
		q.Link = names[q.IfIndex]
	}
	for n := range model.Each(r.s.Neighbors) {
		n.Link = names[n.IfIndex]
	}
}

// place finds the uplinks, the links' roles and the pods.
func (r *reading) place() {
	v := view{
		links: r.s.Links, routes: r.s.Routes, neighbors: r.s.Neighbors, fdb: r.s.FDB,
		frames: r.s.FrameRules, far: r.far, given: r.c.options.Uplinks,
	}
	r.s.Node.Uplinks = v.uplinks()
	r.s.Pods = v.assign(r.s.Node.Uplinks)
	v.setGiven(r.s.Pods)
}

// readStats reads what is counted below IP.
func (r *reading) readStats() {
	got, err := stats.Read(r.c.ns, r.s.Links, r.linkCounts)
	r.s.Devices, r.s.Softnet, r.s.NeighborTables, r.s.SocketLimits = got.Devices, got.Softnet, got.Tables, got.Sockets
	detail := model.Quantity(len(got.Devices), "NIC") + ", " + model.Quantity(len(got.Softnet), "CPU")
	if len(got.Tables) == 0 {
		detail += "; the kernel counts neighbour tables only in the machine's initial namespace"
	}
	r.report(model.SourceStats, detail, len(got.Devices)+len(got.Softnet) > 0, errors.Join(r.linkErr, err))
}

// localAddresses returns the addresses of the pods and the node, without loopback; nil where they are not all known.
func (r *reading) localAddresses() map[netip.Addr]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sources[model.SourcePods].Status != model.OK {
		return nil
	}
	out := nodeAddresses(r.s.Links)
	maps.Copy(out, model.SetOf(model.Flat(r.s.Pods, func(p model.Pod) []netip.Addr { return p.Known() })))
	return out
}

// nodeAddresses returns the addresses of the links, without loopback. With IPVS they include those of every service.
func nodeAddresses(links []model.Link) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, l := range links {
		for _, a := range l.Addresses {
			if !a.Addr().IsLoopback() {
				out[a.Addr()] = true
			}
		}
	}
	return out
}

func (r *reading) readFlows(ctx context.Context, local map[netip.Addr]bool) {
	ct, err := r.c.ct.Conn()
	if err != nil {
		r.noFlows(err)
		return
	}
	r.c.mu.Lock()
	r.c.local = local
	r.c.mu.Unlock()
	flows, err := r.c.Flows(ctx)
	r.s.Flows = flows
	now, failed := conntrack.Statistics(ctx, ct)
	if failed == nil {
		r.s.Conntrack = conntrack.Since(now, r.c.before)
	}
	detail := fmt.Sprintf("%d of %d flows involve this node", len(flows), now.Count)
	r.report(model.SourceConntrack, detail, len(flows) > 0 || errors.Is(err, dump.ErrInterrupted), errors.Join(err, failed))
}

// Flows lists the connections of the node's and its pods' addresses that the last State found. With an error, what could be
// read is returned too.
func (c *Collector) Flows(ctx context.Context) ([]model.Flow, error) {
	ct, err := c.ct.Conn()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	local := c.local
	c.mu.Unlock()
	flows, err := conntrack.Read(ctx, ct, int(c.flows.Load()), local)
	c.flows.Store(int64(len(flows)))
	return flows, err
}

// noFlows reports why no flow was read. A kernel without connection tracking has
// none; one that tracks without the module that lists the flows has a gap.
func (r *reading) noFlows(err error) {
	missing, ok := errors.AsType[*kmod.MissingError](err)
	switch tracking := r.c.kernel.State(kmod.Conntrack); {
	case ok && tracking.Empty():
		r.report(model.SourceConntrack, "no flows: connection tracking is "+tracking.String(), false, nil)
		return
	case ok && missing.State == kmod.NotLoaded:
		err = &model.UnsupportedError{Feature: "list flows", Remedy: "modprobe " + missing.Module.Name, Err: err}
	}
	r.report(model.SourceConntrack, "", false, err)
}

// finish sets what follows from several sources.
func (r *reading) finish() {
	s := r.s
	s.Sysctls = append(r.settings, r.linkConf...)
	r.report(model.SourceSysctl, fmt.Sprintf("%d settings, and those of each link", len(r.settings)), len(r.settings) > 0,
		errors.Join(r.linkErr, r.settingsErr))
	byFamily := func(a, b model.Chain) int { return strings.Compare(a.Family, b.Family) }
	// There may be very many, which are not copied where they need not be.
	if s.Chains = r.packetChains; len(r.frameChains) > 0 || !slices.IsSortedFunc(s.Chains, byFamily) {
		s.Chains = slices.Concat(r.frameChains, r.packetChains)
		slices.SortStableFunc(s.Chains, byFamily)
	}
	r.addEndpoints()
	giveFiled(s.Pods, r.files)
	detail, err := r.c.names.name(s.Pods, r.far, r.files.Owners, r.c.noFiles)
	r.report(model.SourceNames, detail, true, err)
	s.Cluster.Pods = r.c.names.elsewhere(s.Pods)
	r.readResolvers()
	s.Node.Kernel = kernel()
	s.Node.Netns = r.c.ns.Inode()
	s.Node.Name = r.c.nodeName(s.Links)
	model.SetEngines(s)
	r.readCluster()
	s.Node.Networkd = r.files.Networkd
	v := plugin.Recognise(s, r.files.Config)
	s.Node.Plugin, s.Node.PluginBy, s.Node.Policy, s.Node.Residue = v.Plugin, v.By, v.Policy, v.Residue
	s.Node.Masquerades, s.Node.Bridge = v.Masquerades, v.Bridge
	s.Node.Beside = model.Programs(s)
	for _, n := range sourceOrder {
		if src, ok := r.sources[n]; ok {
			s.Sources = append(s.Sources, src)
		}
	}
}

// readResolvers reads pods' name servers: first those of pods whose requests got no reply, then those that
// lost packets or have routing rules; and any, where a service for names has no backend: then no packet leaves a pod.
func (r *reading) readResolvers() {
	const dnsPort = 53
	asked := map[netip.Addr]bool{}
	for f := range model.Each(r.s.Flows) {
		if f.Original.DstPort == dnsPort && !f.Replied {
			asked[f.Original.Src] = true
		}
	}
	unserved := slices.ContainsFunc(r.s.Cilium.Services, func(x model.CiliumService) bool {
		return x.Addr.Port() == dnsPort && len(x.Backends) == 0
	})
	processes := processesOf(r.far)
	own, left := sync.OnceValue(func() []netip.Addr { return pods.NodeServers(r.c.options.HostRoot) }), maxResolvers
	for _, chosen := range []func(netip.Addr) bool{
		func(a netip.Addr) bool { return asked[a] }, func(a netip.Addr) bool { return r.losses.Addrs[a] || unserved },
	} {
		for p := range model.Each(r.s.Pods) {
			if left > 0 && p.Resolver == nil && p.Netns != 0 && (slices.ContainsFunc(p.Known(), chosen) || len(p.Rules) > 0) {
				p.Resolver = pods.Resolver(processes[p.Netns], own)
				left--
			}
		}
	}
}

// readCluster sets the pod ranges, the other nodes and the cloud's network.
func (r *reading) readCluster() {
	r.s.Cluster.Nodes = r.c.nodes
	r.s.Cluster.Azure.Node = r.files.Cloud
	var details []string
	if r.c.options.NodesFile != "" {
		details = append(details, model.Quantity(len(r.c.nodes), "node")+" from "+r.c.nodesFrom)
	}
	r.s.Cluster.PodCIDRs = r.c.options.PodCIDRs
	if len(r.c.options.PodCIDRs) > 0 {
		details = append(details, "pod ranges from --pod-cidr")
	} else {
		for _, x := range cluster.Ranges(r.s) {
			r.s.Cluster.PodCIDRs = append(r.s.Cluster.PodCIDRs, x.Prefix)
			details = append(details, fmt.Sprintf("pod range %s from %s", x.Prefix, x.By))
		}
	}
	var err error
	if r.c.options.NodesFile == "" {
		err = errors.New(strings.TrimSuffix("the cluster's nodes are unknown: "+r.c.options.NodesHint, ": "))
	}
	r.report(model.SourceNodes, strings.Join(details, "; "), len(r.s.Cluster.PodCIDRs) > 0, err)
	r.readCloud()
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Quick reads the links, with their roles, and the pods only, to follow changes. It
// fails if links, routes or neighbours cannot be read whole.
func (c *Collector) Quick(ctx context.Context) ([]model.Link, []model.Pod, error) {
	t, err := link.Read(ctx, c.conn)
	if err != nil {
		return nil, nil, err
	}
	v := view{links: t.Links, given: c.options.Uplinks}
	if v.routes, err = route.Read(ctx, c.conn); err != nil {
		return nil, nil, err
	}
	if v.neighbors, err = neigh.Entries(ctx, c.conn); err != nil {
		return nil, nil, err
	}
	if v.fdb, err = neigh.FDB(ctx, c.conn); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	v.frames = c.frames
	known := c.processes
	c.mu.Unlock()
	// A namespace that cannot be read leaves its link without a pod. State reports why.
	if v.far, _ = c.behind(ctx, v.links, v.routes, pods.Node{Known: known}); ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	pods := v.assign(v.uplinks())
	v.setGiven(pods)
	// Pods that the plugins' files alone name have their names from State.
	_, _ = c.names.name(pods, v.far, nil, c.noFiles)
	return v.links, pods, nil
}
