package diagnose

import (
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
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
	if c.Rule == nil || c.Maker() != "kube-proxy" {
		return "", false
	}
	for _, r := range c.leading() {
		port, none := strings.CutSuffix(r.Comment, noEndpoints)
		port, local = strings.CutSuffix(port, noLocalEndpoints)
		byMap := slices.ContainsFunc(r.Lookups, func(l model.Lookup) bool { return l.Element != "" && strings.HasPrefix(l.Set, "no-endpoint-") })
		if none || local || byMap {
			service, _, _ = strings.Cut(port, ":")
			return service, local || byMap && r.Target == "DROP"
		}
	}
	return "", false
}

// serviceFacts are what the drops of kube-proxy's rules mean: they tell who asks for a
// service that cannot reply.
func (c *candidateRule) serviceFacts(to facts) {
	service, local := c.serviceWithout()
	switch {
	case service != "":
		namespace, object, _ := strings.Cut(service, "/")
		to["service"], to["namespace"], to["object"], to["local"] = service, namespace, object, local
	case c.Rule != nil && c.Maker() == "kube-proxy":
		to["noService"], to["noPort"] = c.Rule.Comment == noSuchService, c.Rule.Comment == noSuchPort
	}
}
