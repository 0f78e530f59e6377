package scenario

import (
	"net/netip"
	"strings"
)

// The faults of firewall rules, of address translation and of delivery.
const (
	// ForwardPolicyDrop sets the policy of Node's FORWARD chain to DROP.
	ForwardPolicyDrop FaultType = "forward-policy-drop"
	// DropLegacy drops what is forwarded to Pod, by legacy iptables.
	DropLegacy FaultType = "drop-legacy"
	// DropNFT drops what is forwarded to Pod by a rule of nft's own, in a
	// chain that another jumps to, among rules that match other pods.
	DropNFT FaultType = "drop-nft"
	// DropChains drops what Pod sends in chains like those of a network
	// policy, a jump for each pod.
	DropChains FaultType = "drop-chains"
	// NoListener leaves Pod without the servers that traffic asks; it takes
	// effect when traffic starts.
	NoListener FaultType = "no-listener"
	// DeafServer has Pod's UDP servers read nothing, with the smallest
	// buffer that there is; likewise.
	DeafServer FaultType = "deaf-server"
	// MasqueradeAll takes away every exclusion from Node's MASQUERADE rule.
	MasqueradeAll FaultType = "masquerade-all"
	// MasqueradeNFT has Node masquerade all that its pods send, by a rule of
	// nft's own in a table of the family inet.
	MasqueradeNFT FaultType = "masquerade-nft"
	// DeadBackend has Node translate the service address Prefix to Via,
	// where no pod lives.
	DeadBackend FaultType = "dead-backend"
	// SelfService has Pod's node translate the service address Prefix to Pod,
	// also for Pod itself, whose source then stays what it is.
	SelfService FaultType = "self-service"
	// DedupFlushed empties the chain by which a kubenet Node holds back the
	// second copies that a promiscuous bridge makes. It does no harm to
	// traffic.
	DedupFlushed FaultType = "dedup-flushed"
	// SNATPorts leaves Node a handful of ports for what it masquerades.
	SNATPorts FaultType = "snat-ports"
	// ConntrackFull fills Node's connection-tracking table with flows that
	// the kernel may not throw out. The limit is the whole machine's, so it
	// is not touched.
	ConntrackFull FaultType = "conntrack-full"
	// ConntrackRace has Node translate the service addresses of Prefix to Via
	// and hold the first packets of flows to it as a slow policy daemon does.
	// Pods ask all of the addresses at once from one socket, as some
	// resolvers ask their name servers.
	ConntrackRace FaultType = "conntrack-race"
	// DropSomeDNS has Node lose a tenth of what is sent to UDP port 53.
	DropSomeDNS FaultType = "drop-some-dns"
	// LastHop has Node give what Pod sends a time to live of one.
	LastHop FaultType = "last-hop"
	// DropProgram has a filter of tc at the ingress of Pod's link, on the
	// node, drop IPv4 by a program; DropTCX a program attached by tcx, DropXDP
	// one of XDP.
	DropProgram FaultType = "drop-program"
	DropTCX     FaultType = "drop-tcx"
	DropXDP     FaultType = "drop-xdp"
	// PolicyUnprogrammed takes Pod out of the dispatch chains of Calico, which
	// drop what they do not know.
	PolicyUnprogrammed FaultType = "policy-unprogrammed"
	// PolicyDeny has a network policy of the node's own program allow nothing
	// to Pod.
	PolicyDeny FaultType = "policy-deny"
)

// maxRaced is how many service addresses are asked at once at most.
const maxRaced = 4

// raceable checks the service addresses that are asked at once.
func (r *resolver) raceable(f Fault, raw rawFault) {
	if bits := f.Prefix.Addr().BitLen() - f.Prefix.Bits(); bits < 1 || 1<<bits > maxRaced {
		r.errorf(raw.prefix.at, "fault %s wants a prefix of 2 to %d addresses, got %s", f.Type, maxRaced, f.Prefix)
	}
	if _, p := r.s.Topology.Pod(r.s.Topology.Place(f.Via)); p == nil {
		r.errorf(raw.via.at, "fault %s wants a pod for via, got %s", f.Type, f.Via)
	}
}

// Raced are the further addresses that a request of the flow goes to from the
// same socket, because of a ConntrackRace.
func (s *Scenario) Raced(flow Flow) []netip.Addr {
	node, _, _ := strings.Cut(flow.From.Place, "/")
	var out []netip.Addr
	for _, f := range s.Faults {
		if f.Type != ConntrackRace || f.Node != node || flow.Proto != UDP || !f.Prefix.Contains(flow.To.Addr) {
			continue
		}
		for a := f.Prefix.Masked().Addr(); f.Prefix.Contains(a); a = a.Next() {
			if a != flow.To.Addr {
				out = append(out, a)
			}
		}
	}
	return out
}

// Afflicted reports whether a fault of the type strikes the place.
func (s *Scenario) Afflicted(t FaultType, place string) bool {
	for _, f := range s.Faults {
		if f.Type == t && f.Pod == place {
			return true
		}
	}
	return false
}
