package scenario

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
	// DropProgram has a program at the ingress of Pod's link, on the node,
	// drop everything but ARP.
	DropProgram FaultType = "drop-program"
)

// Afflicted reports whether a fault of the type strikes the place.
func (s *Scenario) Afflicted(t FaultType, place string) bool {
	for _, f := range s.Faults {
		if f.Type == t && f.Pod == place {
			return true
		}
	}
	return false
}
