package scenario

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

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
	if !raw.Type.set() {
		r.errorf(raw.at, "fault has no type")
		return
	}
	f := Fault{Type: raw.Type.v, MAC: raw.MAC.v, Port: uint16(raw.Port.v), Prefix: raw.Exclude.or(raw.Prefix.v), Family: raw.Family.v, When: raw.When.v}
	if raw.When.set() && f.When != Flowing && f.When != Before {
		r.errorf(raw.When.at, "when: want %s or %s", Flowing, Before)
		return
	}
	if !r.faultArgs(raw) || !r.faultFamily(&f, raw.Family.where(raw.at)) || !r.faultTarget(&f, raw) {
		return
	}
	if f.ofRoute() && !r.faultRoute(&f, raw) {
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

// faultArgs checks that the entry has what its type wants and no more.
func (r *resolver) faultArgs(raw rawFault) bool {
	row, before := faultRows[raw.Type.v], len(r.errs)
	args := strings.Fields(row.args)
	for _, given := range []struct {
		name string
		set  bool
	}{
		{"node", raw.Node.set()}, {"pod", raw.Pod.set()}, {"prefix", raw.Prefix.set()},
		{"exclude", raw.Exclude.set()}, {"via", raw.Via.set()}, {"mac", raw.MAC.set()}, {"port", raw.Port.set()},
	} {
		need := slices.Contains(args, given.name)
		switch {
		case need && !given.set:
			r.errorf(raw.at, "fault %s wants %q: it %s", raw.Type.v, given.name, row.doc)
		case given.set && !need && !slices.Contains(args, given.name+"?"):
			r.errorf(raw.at, "fault %s has no %q: it %s", raw.Type.v, given.name, row.doc)
		}
	}
	return len(r.errs) == before
}

// faultFamily checks the family that a fault is said to strike, and sets it
// where there is no other.
func (r *resolver) faultFamily(f *Fault, at *yaml.Node) bool {
	row, only := faultRows[f.Type], r.s.Topology.OnlyIPv6()
	switch {
	case only && f.Family == 4:
		r.errorf(at, "family 4 wants stack: %s", Dual)
	case only && row.family == onlyIPv4:
		r.errorf(at, "fault %s is of IPv4 alone", f.Type)
	case f.Family != 0 && !r.s.Topology.HasIPv6():
		r.errorf(at, "family wants stack: %s", Dual)
	case f.Family == 6 && !only && row.family != oneFamily:
		r.errorf(at, "fault %s has no family", f.Type)
	default:
		if only && row.family == oneFamily {
			f.Family = 6
		} else if f.Family == 4 {
			f.Family = 0
		}
		return true
	}
	return false
}

// faultTarget finds the node, the pod and the address that the entry names, and
// checks that the fault can strike them.
func (r *resolver) faultTarget(f *Fault, raw rawFault) bool {
	x := target{t: &r.s.Topology}
	switch {
	case raw.Node.set():
		if x.node = x.t.Node(raw.Node.v); x.node == nil {
			r.errorf(raw.Node.at, "no node %q", short(raw.Node.v))
			return false
		}
		f.Node = raw.Node.v
	case raw.Pod.set():
		if x.node, x.pod = x.t.Pod(raw.Pod.v); x.pod == nil {
			r.errorf(raw.Pod.at, "no pod %q, want node/pod", short(raw.Pod.v))
			return false
		}
		f.Node, f.Pod = x.node.Name, raw.Pod.v
		if x.pod.Gone {
			r.errorf(raw.Pod.at, "pod %q is gone", f.Pod)
			return false
		}
	}
	if raw.Via.set() {
		e, ok := r.endpoint(raw.Via)
		if !ok {
			return false
		}
		f.Via = e.Addr
	}
	row, before := faultRows[f.Type], len(r.errs)
	x.f = *f
	for _, refuse := range row.refuse {
		if refuse.is(x) {
			places := map[string]*yaml.Node{"": raw.at, "node": raw.Node.at, "pod": raw.Pod.at, "prefix": raw.Prefix.at, "via": raw.Via.at}
			r.errorf(places[refuse.at], "%s", x.explain(refuse.why))
		}
	}
	if strings.HasSuffix(row.args, "mac?") {
		if f.MAC.IsZero() {
			f.MAC = localMAC("dead " + cmp.Or(f.Pod, f.Node))
		}
		if who, ok := r.macs[f.MAC]; ok {
			r.errorf(raw.at, "MAC %s is not dead, it is that of %s", f.MAC, who)
		}
	}
	return len(r.errs) == before
}

// explain fills in the names in the reason of a refusal.
func (x target) explain(why string) string {
	names := []string{"{fault}", string(x.f.Type), "{node}", x.f.Node, "{pod}", x.f.Pod, "{prefix}", x.f.Prefix.String(), "{via}", x.f.Via.String()}
	if x.node != nil {
		names = append(names, "{plugin}", string(x.node.Plugin))
	}
	return strings.NewReplacer(names...).Replace(why)
}

// faultRoute finds the route that the fault strikes; none is all of them.
func (r *resolver) faultRoute(f *Fault, raw rawFault) bool {
	switch {
	case raw.Prefix.set() && raw.Node.set():
		r.errorf(raw.at, "fault %s wants prefix or node, not both", f.Type)
		return false
	case raw.Prefix.set():
	case raw.Node.set():
		n := r.s.Topology.Node(f.Node)
		if f.IsIPv6() {
			n = n.V6()
		}
		f.Node, f.Prefix, f.Family = "", n.PodCIDR, 0
		if !f.Prefix.IsValid() {
			r.errorf(raw.Node.at, "node %q has no podCIDR", n.Name)
			return false
		}
	case f.Type == DeleteUDR && (f.Family == 0 || r.s.Topology.OnlyIPv6()):
		f.Family = 0
		return true
	default:
		r.errorf(raw.at, "fault %s wants prefix or node", f.Type)
		return false
	}
	if len(r.s.StruckRoutes(*f)) == 0 {
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
