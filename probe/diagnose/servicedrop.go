package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Comments of kube-proxy's rules, in its modes iptables and nftables.
const (
	noEndpoints      = " has no endpoints"
	noLocalEndpoints = " has no local endpoints"
	noSuchService    = "Drop traffic to unallocated ClusterIPs"
	noSuchPort       = "Reject traffic to invalid ports of ClusterIPs"
)

// serviceWithout is the service ("shop/cart") whose packets a rule of kube-proxy's
// refuses, since it has no endpoints, or none on this node; empty where it is another rule.
func (c *candidateRule) serviceWithout() (service string, local bool) {
	if c.rule == nil || c.maker() != "kube-proxy" {
		return "", false
	}
	for _, r := range append(slices.Clone(c.jumps), c.rule) {
		name, port := strings.CutSuffix(r.Comment, noEndpoints)
		if !port {
			name, local = strings.CutSuffix(r.Comment, noLocalEndpoints)
		}
		byMap := slices.ContainsFunc(r.Lookups, func(l model.Lookup) bool { return l.Element != "" && strings.HasPrefix(l.Set, "no-endpoint-") })
		if name, _, _ = strings.Cut(name, ":"); port || local || byMap {
			return name, local || byMap && r.Target == "DROP"
		}
	}
	return "", false
}

// sayService says what the drops of kube-proxy's rules mean: they tell who asks for a
// service that cannot reply.
func (c *candidateRule) sayService(f *model.Finding) {
	if len(f.Peers) == 0 {
		return
	}
	var asked string
	for i, p := range f.Peers {
		if asked += p.Addr().String(); i < len(f.Peers)-1 {
			asked += ", "
		}
	}
	show := "kubectl get services --all-namespaces | grep -wF " + words.Quote(f.Peers[0].Addr().String())
	service, local := c.serviceWithout()
	switch {
	case service != "":
		namespace, object, _ := strings.Cut(service, "/")
		list := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", words.Quote(namespace), words.Quote(object))
		f.Title = fmt.Sprintf("service %s has no endpoints", service)
		f.Why = fmt.Sprintf("kube-proxy refuses what %s send to the service %s (%s), since it has no endpoints that are ready.", words.Addrs(f.Pods), service, asked)
		f.Fix = []string{list, fmt.Sprintf("kubectl -n %s describe service %s # no pod that its selector finds is ready", words.Quote(namespace), words.Quote(object))}
		if local {
			f.Title += " on the node"
			f.Why = fmt.Sprintf("kube-proxy drops what %s send to the service %s (%s): its traffic policy is Local, and none of its endpoints is on this node.",
				words.Addrs(f.Pods), service, asked)
		}
	case c.rule == nil || c.maker() != "kube-proxy":
	case c.rule.Comment == noSuchService:
		f.Title = "no service has " + asked
		f.Why = fmt.Sprintf("%s send to %s, which is in the range of services, and no service has it: it was deleted, or kube-proxy does not know it yet.", words.Addrs(f.Pods), asked)
		f.Fix = []string{show, "where no service has the address, look who still asks for it; where one has, restart kube-proxy on this node"}
	case c.rule.Comment == noSuchPort:
		f.Title = "no service has this port at " + asked
		f.Why = fmt.Sprintf("%s send to a port of %s that the service does not have.", words.Addrs(f.Pods), asked)
		f.Fix = []string{show}
	}
}
