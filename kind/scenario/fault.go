package scenario

import (
	"net/netip"
	"slices"
)

// shape is what a fault's entry must and may hold beside its type.
type shape struct{ need, may []string }

// faultShapes are the faults but those of layer2Shapes.
var faultShapes = map[FaultType]shape{
	DeleteUDR:         {may: []string{"node", "prefix"}},
	WrongUDR:          {need: []string{"via"}, may: []string{"node", "prefix"}},
	NICForwardingOff:  {need: []string{"node"}},
	NSGDrop:           {need: []string{"node"}, may: []string{"prefix"}},
	NoReturn:          {need: []string{"node"}},
	SilentFabric:      {need: []string{"node"}},
	StaleDNAT:         {need: []string{"pod"}, may: []string{"mac"}},
	StaleARPReply:     {need: []string{"pod"}, may: []string{"mac"}},
	WrongNeighbor:     {need: []string{"pod"}, may: []string{"mac"}},
	MissingMasquerade: {need: []string{"node"}, may: []string{"exclude"}},
	DeletePodRoute:    {need: []string{"pod"}},
	DropForward:       {need: []string{"pod"}},
	ForwardingOff:     {need: []string{"node"}},
	PodLinkDown:       {need: []string{"pod"}},
	BlackholeRoute:    {need: []string{"node", "prefix"}},
	AsymmetricRoute:   {need: []string{"node", "prefix"}},
	ReturningUDR:      {need: []string{"node", "prefix"}},
	SmallMTU:          {need: []string{"node"}},
	DeleteNodeRoute:   {need: []string{"node", "prefix"}},

	ForwardPolicyDrop: {need: []string{"node"}},
	DropLegacy:        {need: []string{"pod"}},
	DropNFT:           {need: []string{"pod"}},
	DropChains:        {need: []string{"pod"}},
	NoListener:        {need: []string{"pod"}},
	DeafServer:        {need: []string{"pod"}},
	ConntrackFull:     {need: []string{"node"}},
	DropProgram:       {need: []string{"pod"}},
	LastHop:           {need: []string{"pod"}},
	DropTCX:           {need: []string{"pod"}},
	DropXDP:           {need: []string{"pod"}},
	MasqueradeAll:     {need: []string{"node"}},
	MasqueradeNFT:     {need: []string{"node"}},
	DeadBackend:       {need: []string{"node", "prefix", "via"}},
	SNATPorts:         {need: []string{"node"}},
	ConntrackRace:     {need: []string{"node", "prefix", "via"}},
	DropSomeDNS:       {need: []string{"node"}},

	DeleteDefaultRoute: {need: []string{"node"}},
	PolicyUnprogrammed: {need: []string{"pod"}},
	PolicyDeny:         {need: []string{"pod"}},
	SelfService:        {need: []string{"pod", "prefix"}},
	DedupFlushed:       {need: []string{"node"}},
}

func faultTypes() []FaultType {
	types := make([]FaultType, 0, len(faultShapes)+len(layer2Shapes))
	for t := range faultShapes {
		types = append(types, t)
	}
	for t := range layer2Shapes {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// shapeOf is the shape of a fault's entry.
func shapeOf(t FaultType) shape {
	if sh, ok := layer2Shapes[t]; ok {
		return sh
	}
	return faultShapes[t]
}

func (r *resolver) faults(raw []rawFault) {
	if len(raw) > maxFaults {
		r.errorf(raw[maxFaults].at, "more than %d faults", maxFaults)
		return
	}
	for _, f := range raw {
		r.fault(f)
	}
}

func (r *resolver) fault(raw rawFault) {
	if !raw.typ.set() {
		r.errorf(raw.at, "fault has no type")
		return
	}
	if !r.faultFields(raw) {
		return
	}
	f := Fault{Type: raw.typ.v, MAC: raw.mac.v, Prefix: raw.exclude.v, Family: raw.family.v}
	if !r.faultFamily(&f, raw.family.where(raw.at)) {
		return
	}
	t := &r.s.Topology
	if raw.node.set() {
		if t.Node(raw.node.v) == nil {
			r.errorf(raw.node.at, "no node %q", short(raw.node.v))
			return
		}
		f.Node = raw.node.v
	}
	if raw.pod.set() && !r.faultPod(&f, raw) {
		return
	}
	if raw.via.set() {
		e, ok := r.endpoint(raw.via)
		if !ok {
			return
		}
		f.Via = e.Addr
	}
	switch f.Type {
	case ReusedIP:
		if n, p := t.Pod(t.Place(f.Via)); p == nil || n.Name != f.Node || t.Place(f.Via) == f.Pod {
			r.errorf(raw.via.at, "via: %s is not another pod of node %q", f.Via, f.Node)
			return
		}
	case DeleteUDR, WrongUDR:
		if !r.faultRoute(&f, raw) {
			return
		}
	case BlackholeRoute, AsymmetricRoute, ReturningUDR, SmallMTU, DeleteNodeRoute:
		if !r.faultNode(&f, raw) {
			return
		}
	case DeadBackend, NSGDrop, SelfService:
		f.Prefix = raw.prefix.v
	case ConntrackRace:
		f.Prefix = raw.prefix.v
		r.raceable(f, raw)
	case MissingMasquerade:
		if n := t.Node(f.Node); n.Dockershim && f.Prefix.IsValid() {
			r.errorf(raw.at, "node %q has one rule that masquerades: nothing can be excluded beside", f.Node)
		}
		if t.Node(f.Node).Plugin == Calico {
			r.errorf(raw.node.at, "node %q is %s, whose masquerading no range is excluded from", f.Node, Calico)
		}
	case DedupFlushed:
		if t.Node(f.Node).Plugin != Kubenet {
			r.errorf(raw.node.at, "node %q is not %s", f.Node, Kubenet)
		}
	case NICForwardingOff:
		if !t.Node(f.Node).IPForwarding {
			r.errorf(raw.node.at, "the NIC of %q does not forward as it is", f.Node)
		}
	}
	if why := f.unmet(t); why != "" {
		r.errorf(raw.at, "fault %s cannot be: %s", f.Type, why)
		return
	}
	if slices.Contains(r.s.Faults, f) {
		r.errorf(raw.at, "fault %q is there already", f)
		return
	}
	if at, by := r.struck(f); at.IsValid() {
		r.errorf(raw.at, "route %s is struck by %s already", at, by)
		return
	}
	r.s.Faults = append(r.s.Faults, f)
}

// unmet says why the network, or the plugin of the node, is not one that a
// fault can strike; empty when it is.
func (f Fault) unmet(t *Topology) string {
	switch f.Type {
	case NICForwardingOff, NSGDrop, NoReturn, ReturningUDR:
		if t.Switched {
			return "a switch connects the nodes, and no cloud"
		}
	case MissingMasquerade, MasqueradeAll, SNATPorts:
		if n := t.Node(f.Node); n.IPMasq && (f.Type != MissingMasquerade || f.Prefix.IsValid()) {
			return "the plugin masquerades each pod by rules of its own"
		}
	}
	if n := t.Node(f.Node); f.Family == 6 && n != nil {
		switch {
		case f.Type == SilentGateway && !n.Plugin.HasRouter():
			return "the pods' IPv6 gateway is the link's own address, or pinned"
		case f.Type == WrongGateway && !n.PodGateway().IsValid():
			return "the pods' IPv6 gateway is the link's own address, or pinned"
		}
	}
	return ""
}

// faultFields checks that the entry has what its type wants and no more.
func (r *resolver) faultFields(raw rawFault) bool {
	sh := shapeOf(raw.typ.v)
	ok := true
	given := []struct {
		name string
		set  bool
	}{
		{"node", raw.node.set()}, {"pod", raw.pod.set()}, {"prefix", raw.prefix.set()},
		{"exclude", raw.exclude.set()}, {"via", raw.via.set()}, {"mac", raw.mac.set()},
	}
	for _, g := range given {
		need := slices.Contains(sh.need, g.name)
		switch {
		case need && !g.set:
			r.errorf(raw.at, "fault %s wants %q", raw.typ.v, g.name)
			ok = false
		case g.set && !need && !slices.Contains(sh.may, g.name):
			r.errorf(raw.at, "fault %s has no %q", raw.typ.v, g.name)
			ok = false
		}
	}
	return ok
}

// faultPod finds the pod and checks that the fault can strike it.
func (r *resolver) faultPod(f *Fault, raw rawFault) bool {
	n, p := r.s.Topology.Pod(raw.pod.v)
	if p == nil {
		r.errorf(raw.pod.at, "no pod %q, want node/pod", short(raw.pod.v))
		return false
	}
	f.Node, f.Pod = n.Name, raw.pod.v
	switch {
	case p.Gone:
		r.errorf(raw.pod.at, "pod %q is gone", f.Pod)
		return false
	case f.Type == StaleDNAT && (n.Bridge == "" || n.PodGateway().IsValid()):
		r.errorf(raw.pod.at, "the NIC of %q is on no bridge: no frame rule for it can be stale", n.Name)
		return false
	case f.Type == StaleARPReply && n.Bridge == "":
		r.errorf(raw.pod.at, "node %q has no bridge", n.Name)
		return false
	case f.Type == DeletePodRoute && p.Bridged:
		r.errorf(raw.pod.at, "pod %q is on a bridge and has no route of its own", f.Pod)
		return false
	case f.Type == PolicyUnprogrammed && n.Policy != PolicyCalico && n.Policy != PolicyCalicoNFT && n.Plugin != Calico:
		r.errorf(raw.pod.at, "node %q has no Calico", n.Name)
		return false
	case f.Type == PolicyDeny && n.Policy == "" && n.Plugin != Calico:
		r.errorf(raw.pod.at, "node %q has no program for network policies", n.Name)
		return false
	}
	if why := f.Type.misfit(n, p); why != "" {
		r.errorf(raw.pod.at, "fault %s does not fit %q: %s", f.Type, f.Pod, why)
		return false
	}
	if f.Type.writesMAC() {
		if f.MAC.IsZero() {
			f.MAC = localMAC("dead " + f.Pod)
		}
		if who, ok := r.macs[f.MAC]; ok {
			r.errorf(raw.at, "MAC %s is not dead, it is that of %s", f.MAC, who)
			return false
		}
	}
	return true
}

// faultRoute finds the route that the fault strikes; none is all of them.
func (r *resolver) faultRoute(f *Fault, raw rawFault) bool {
	switch {
	case raw.prefix.set() && raw.node.set():
		r.errorf(raw.at, "fault %s wants prefix or node, not both", f.Type)
		return false
	case raw.prefix.set():
		f.Prefix = raw.prefix.v
	case raw.node.set():
		f.Prefix = r.s.Topology.Node(f.Node).PodCIDR
		if f.Six() {
			f.Prefix = r.s.Topology.Node(f.Node).V6().PodCIDR
			f.Family = 0
		}
		if !f.Prefix.IsValid() {
			r.errorf(raw.node.at, "node %q has no podCIDR", f.Node)
			return false
		}
		f.Node = ""
	case f.Type == DeleteUDR && (f.Family == 0 || r.s.Topology.OnlyIPv6()):
		f.Family = 0
		return true
	default:
		r.errorf(raw.at, "fault %s wants prefix or node", f.Type)
		return false
	}
	if !slices.ContainsFunc(r.s.Routes, func(o Route) bool { return o.Prefix == f.Prefix }) {
		r.errorf(raw.at, "no route for %s", f.Prefix)
		return false
	}
	return true
}

// struck finds a route that the fault would change and an earlier one did:
// undoing one of them would undo the other.
func (r *resolver) struck(f Fault) (netip.Prefix, FaultType) {
	for _, other := range r.s.Faults {
		if !other.ofRoute() || !f.ofRoute() {
			continue
		}
		for _, route := range r.s.StruckRoutes(f) {
			if slices.Contains(r.s.StruckRoutes(other), route) {
				return route.Prefix, other.Type
			}
		}
	}
	return netip.Prefix{}, ""
}

func (f Fault) ofRoute() bool { return f.Type == DeleteUDR || f.Type == WrongUDR }

// StruckRoutes are the routes that a DeleteUDR or WrongUDR fault changes.
func (s *Scenario) StruckRoutes(f Fault) []Route {
	if f.Prefix == (netip.Prefix{}) {
		return s.Routes
	}
	var out []Route
	for _, route := range s.Routes {
		if route.Prefix == f.Prefix {
			out = append(out, route)
		}
	}
	return out
}
