package diagnose

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// suspect is a rule, or a chain's policy, that may have dropped packets.
type suspect struct {
	// One of these is set; a chain stands for its policy.
	rule  *model.PacketRule
	frame *model.FrameRule
	chain *model.Chain
	// family is that of the table in nft's words.
	family string
	// path are the chains that lead to it, its own last; jumps the rules
	// between them.
	path  []string
	jumps []*model.PacketRule
	// counted says that it has a counter; left is what that counted in the
	// window and no drop has claimed yet.
	counted bool
	left    uint64
}

// delta is what the suspect counted in the window.
func (s *suspect) delta() uint64 {
	switch {
	case s.rule != nil:
		return s.rule.Counter.Delta
	case s.frame != nil:
		return s.frame.Counter.Delta
	}
	return s.chain.Counter.Delta
}

// table and where name the place of the suspect.
func (s *suspect) table() string {
	switch {
	case s.rule != nil:
		return s.rule.Table
	case s.frame != nil:
		return s.frame.Table
	}
	return s.chain.Table
}

func (s *suspect) where() string { return s.path[len(s.path)-1] }

func (s *suspect) backend() model.Backend {
	switch {
	case s.rule != nil:
		return s.rule.Backend
	case s.frame != nil:
		return s.frame.Backend
	}
	return s.chain.Backend
}

// native reports whether nft alone can edit it.
func (s *suspect) native() bool {
	switch {
	case s.rule != nil:
		return s.rule.Native
	case s.frame != nil:
		return s.frame.Native
	}
	return s.backend() == model.NFT && !iptablesChain(s.chain)
}

// unread are the suspect's matches that were not decoded.
func (s *suspect) unread() []string {
	switch {
	case s.rule != nil:
		return s.rule.Unknown
	case s.frame != nil:
		return s.frame.Unknown
	}
	return nil
}

// fit is how well a packet is known to satisfy a match.
type fit int

const (
	noFit fit = iota
	// poorFit: the one packet that was sampled does not satisfy it; others
	// of the same ends may.
	poorFit
	mayFit
	sureFit
)

// dropped is a drop with what else is known of its packets.
type dropped struct {
	*model.Drop
	// in and out are the names of links that a rule may have seen: the
	// bridge netfilter names a port's bridge.
	in, out []string
	// sample has ports where hasPorts is true.
	srcPort, dstPort uint16
	hasPorts         bool
	srcMAC           model.MAC
}

func (d *dropped) six() bool { return d.Dst.Is6() && !d.Dst.Is4In6() }

// tableChain is a chain's place.
type tableChain struct {
	backend model.Backend
	family  string
	table   string
	chain   string
}

// step is a rule that drops or leads to one that does.
type step struct {
	fits    func(*dropped) fit
	suspect *suspect
	to      string
	jump    *model.PacketRule
	// mapped says that a map tells where it leads.
	mapped bool
}

// candidate is a suspect for one drop.
type candidate struct {
	*suspect
	fit fit
}

// dropRules are all suspects of a node, with the ways to them.
type dropRules struct {
	bases []*model.Chain
	steps map[tableChain][]step
	// policies are the suspects at the ends of chains: of base chains, and
	// of ebtables' own.
	policies map[tableChain]*suspect
	// mapped are the chains that maps may lead to, by table.
	mapped map[tableChain][]tableChain
	local  map[netip.Addr]bool
	// tells says that this kernel frees what nft drops in nft_do_chain
	// itself, as Linux 6.12 does and 6.1 does not.
	tells bool
}

// newDropRules indexes the rules and policies that may have dropped packets in
// the window: those that counted some, and native ones without a counter.
func (v *view) newDropRules() *dropRules {
	t := &dropRules{steps: map[tableChain][]step{}, policies: map[tableChain]*suspect{}, mapped: map[tableChain][]tableChain{}, local: v.nodeAddrs}
	t.tells = slices.ContainsFunc(v.Traffic.Drops, func(d model.Drop) bool { return d.Location == model.LocationNFT })
	families := map[tableChain]bool{}
	for i := range v.Chains {
		c := &v.Chains[i]
		k := tableChain{c.Backend, c.Family, c.Table, c.Name}
		families[k] = true
		if c.Hook != "" {
			t.bases = append(t.bases, c)
		}
		counted := !c.Counter.Restarted && (c.Counter.Packets > 0 || c.Backend == model.Legacy)
		if c.Policy == "DROP" && (c.Counter.Delta > 0 || !counted) {
			t.policies[k] = &suspect{chain: c, family: c.Family, counted: counted, left: c.Counter.Delta}
		}
	}
	slices.SortStableFunc(t.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(hookOrder(a), hookOrder(b)), cmp.Compare(a.Priority, b.Priority))
	})
	t.addFrameRules(v)
	t.addPacketRules(v, families)
	t.prune()
	return t
}

// hookOrder is the order in which a packet meets the hooks; the bridge's come
// before the IP layer's of the same place.
func hookOrder(c *model.Chain) int {
	order := 2 * slices.Index([]string{"BROUTING", "INGRESS", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "EGRESS"}, c.Hook)
	if c.Family != "bridge" {
		order++
	}
	return order
}

// iptablesChain reports whether iptables made the base chain.
func iptablesChain(c *model.Chain) bool {
	return c.Hook == c.Name && slices.Contains([]string{"raw", "mangle", "nat", "filter", "security", "broute"}, c.Table)
}

// counts reports whether a rule's counter tells what it met in the window.
func counts(native bool, c model.Counter) bool {
	return !c.Restarted && (!native || c.Kept || c.Packets > 0)
}

// tableOf is the table that a chain is in.
func tableOf(k tableChain) tableChain {
	k.chain = ""
	return k
}

// findMapped lists the chains that no rule leads to, by table: a map may lead to
// any of them, since what it holds is not read.
func (t *dropRules) findMapped(v *view) {
	led := map[tableChain]bool{}
	for k, list := range t.steps {
		for _, s := range list {
			led[tableChain{k.backend, k.family, k.table, s.to}] = true
		}
	}
	for i := range v.Chains {
		c := &v.Chains[i]
		k := tableChain{c.Backend, c.Family, c.Table, c.Name}
		if c.Hook == "" && !led[k] {
			t.mapped[tableOf(k)] = append(t.mapped[tableOf(k)], k)
		}
	}
}

func (t *dropRules) addPacketRules(v *view, families map[tableChain]bool) {
	for i := range v.PacketRules {
		r := &v.PacketRules[i]
		k := tableChain{r.Backend, packetFamily(r, families), r.Table, r.Chain}
		s := step{fits: func(d *dropped) fit { return t.packetFit(r, d) }}
		counted := counts(r.Native, r.Counter)
		switch {
		case r.Map != "":
			s.mapped = true
		case r.Target == "DROP" || r.Target == "REJECT":
			if v.dropsByDesign(r) || counted && r.Counter.Delta == 0 {
				continue
			}
			s.suspect = &suspect{rule: r, family: k.family, counted: counted, left: r.Counter.Delta}
		case families[tableChain{k.backend, k.family, k.table, r.Target}]:
			if counted && r.Counter.Delta == 0 {
				continue
			}
			s.to, s.jump = r.Target, r
		default:
			continue
		}
		t.steps[k] = append(t.steps[k], s)
	}
	t.findMapped(v)
}

// packetFamily is the family of the table that holds a rule. A rule of an inet
// table may match one version of IP only.
func packetFamily(r *model.PacketRule, families map[tableChain]bool) string {
	for number, name := range map[int]string{4: "ip", 6: "ip6"} {
		if r.Family == number && (r.Backend == model.Legacy || families[tableChain{r.Backend, name, r.Table, r.Chain}]) {
			return name
		}
	}
	return "inet"
}

func (t *dropRules) addFrameRules(v *view) {
	for i := range v.FrameRules {
		r := &v.FrameRules[i]
		k := tableChain{r.Backend, "bridge", r.Table, r.Chain}
		s := step{fits: func(d *dropped) fit { return frameFit(r, d) }}
		counted := counts(r.Native, r.Counter)
		if counted && r.Counter.Delta == 0 {
			continue
		}
		switch {
		case r.Target == model.TargetDrop && !v.deduplicates(r):
			s.suspect = &suspect{frame: r, family: k.family, counted: counted, left: r.Counter.Delta}
		case r.Target == model.TargetJump:
			s.to = r.TargetName
		default:
			continue
		}
		t.steps[k] = append(t.steps[k], s)
	}
}

// prune takes out the jumps to chains that lead to no suspect. A way goes by
// one map at most, so that many maps and chains do not multiply.
func (t *dropRules) prune() {
	direct := map[tableChain]bool{}
	for table, chains := range t.mapped {
		t.mapped[table] = slices.DeleteFunc(chains, func(k tableChain) bool { return !t.leads(k, 0, direct, false) })
	}
	useful := map[tableChain]bool{}
	for k := range t.steps {
		t.leads(k, 0, useful, true)
	}
	for k, list := range t.steps {
		t.steps[k] = slices.DeleteFunc(list, func(s step) bool {
			if s.mapped {
				return len(t.mapped[tableOf(k)]) == 0
			}
			next := k
			next.chain = s.to
			return s.suspect == nil && !useful[next] && t.policies[next] == nil
		})
	}
}

// leads reports whether a chain leads to a suspect, also by maps where these
// count. It keeps in known what it found.
func (t *dropRules) leads(k tableChain, depth int, known map[tableChain]bool, maps bool) bool {
	if is, ok := known[k]; ok || depth > maxJumps {
		return is
	}
	known[k] = false // a ring leads nowhere
	found := t.policies[k] != nil
	for _, s := range t.steps[k] {
		next := k
		next.chain = s.to
		if s.mapped {
			found = found || maps && len(t.mapped[tableOf(k)]) > 0
			continue
		}
		found = s.suspect != nil || t.leads(next, depth+1, known, maps) || found
	}
	known[k] = found
	return found
}

// maxJumps bounds the depth of chains, as the kernel does.
const maxJumps = 16

// maxSteps bounds the rules that one search looks at. Each chain is searched
// once for each way of coming to it that differs, so that real tables stay far
// below.
const maxSteps = 200_000

// candidates are the suspects that may have dropped it, in the order in which
// a packet meets them; what is behind a certain one is left out. They are not
// whole where the search was cut off.
func (t *dropRules) candidates(d *dropped) (found []candidate, whole bool) {
	s := search{dropRules: t, drop: d, at: map[*suspect]int{}, seen: map[visit]int{}, left: maxSteps}
	for _, c := range t.bases {
		if c.Family == "ip" && d.six() || c.Family == "ip6" && !d.six() ||
			t.tells && (c.Backend == model.NFT) != (d.Location == model.LocationNFT) {
			continue
		}
		k := tableChain{c.Backend, c.Family, c.Table, c.Name}
		if s.walk(k, way{fit: sureFit, path: []string{c.Name}}) {
			break
		}
	}
	return s.found, s.left > 0
}

// way is how a walk came to a chain.
type way struct {
	fit   fit
	path  []string
	jumps []*model.PacketRule
	// mapped says that it came by a map.
	mapped bool
}

// visit is a chain and what decides over what a walk through it finds. Names of
// chains on the way do not: the first way to a suspect is the one that is told.
type visit struct {
	chain  tableChain
	fit    fit
	mapped bool
}

// search is one search for those that may have made a drop.
type search struct {
	*dropRules
	drop  *dropped
	found []candidate
	// at is where in found each suspect is.
	at map[*suspect]int
	// seen holds at which depth each visit was made: what is as deep again
	// finds nothing new, and does not end the search, or it would have.
	seen map[visit]int
	// left are the steps until it is cut off.
	left int
}

// add takes in a suspect, or that it fits better by another way.
func (s *search) add(x *suspect, f fit, w *way) {
	w.reach(x)
	if i, known := s.at[x]; known {
		s.found[i].fit = max(s.found[i].fit, f)
		return
	}
	s.at[x] = len(s.found)
	s.found = append(s.found, candidate{x, f})
}

// again reports whether a walk would only repeat one that was made.
func (s *search) again(k tableChain, w *way) bool {
	v := visit{k, w.fit, w.mapped}
	depth, seen := s.seen[v]
	if seen && depth <= len(w.path) {
		return true
	}
	s.seen[v] = len(w.path)
	return false
}

// walk follows a chain, and reports whether the search ends in it: the packet
// surely does, or no steps are left.
func (s *search) walk(k tableChain, w way) bool {
	if len(w.path) > maxJumps || s.again(k, &w) {
		return false
	}
	for _, step := range s.steps[k] {
		if s.left--; s.left <= 0 {
			return true
		}
		f := min(w.fit, step.fits(s.drop))
		if f == noFit {
			continue
		}
		if step.suspect != nil {
			s.add(step.suspect, f, &w)
			if f == sureFit {
				return true
			}
			continue
		}
		if step.mapped {
			if s.walkMapped(k, w) {
				return true
			}
			continue
		}
		next := way{fit: f, path: append(slices.Clone(w.path), step.to), jumps: slices.Clone(w.jumps), mapped: w.mapped}
		if step.jump != nil {
			next.jumps = append(next.jumps, step.jump)
		}
		to := k
		to.chain = step.to
		if s.walk(to, next) {
			return true
		}
	}
	if p := s.policies[k]; p != nil {
		// What the chain's other rules accept does not come here.
		s.add(p, min(w.fit, mayFit), &w)
	}
	return false
}

// walkMapped follows the chains that a map in chain k may lead to, and reports
// whether the search ends.
func (s *search) walkMapped(k tableChain, w way) bool {
	if w.mapped {
		return false
	}
	for _, to := range s.mapped[tableOf(k)] {
		if s.left--; s.left <= 0 {
			return true
		}
		if to != k && s.walk(to, way{fit: min(w.fit, mayFit), path: append(slices.Clone(w.path), to.chain), jumps: slices.Clone(w.jumps), mapped: true}) {
			return true
		}
	}
	return false
}

// reach notes the way to a suspect.
func (w *way) reach(s *suspect) {
	if s.path == nil {
		s.path, s.jumps = slices.Clone(w.path), slices.Clone(w.jumps)
	}
}

// packetFit compares a rule with a drop. Addresses and protocol are known;
// marks, states and sets are not.
func (t *dropRules) packetFit(r *model.PacketRule, d *dropped) fit {
	switch {
	case r.Family == 4 && d.six(), r.Family == 6 && !d.six(),
		!r.Src.Matches(d.Src), !r.Dst.Matches(d.Dst),
		r.Proto != 0 && (r.Proto == d.Proto) == r.ProtoNot,
		r.DstLocal != 0 && (r.DstLocal > 0) != t.local[d.Dst],
		r.SrcLocal != 0 && (r.SrcLocal > 0) != t.local[d.Src]:
		return noFit
	}
	f := min(linkFit(r.In, d.in), linkFit(r.Out, d.out), portFit(r.SrcPorts, d.srcPort, d), portFit(r.DstPorts, d.dstPort, d))
	if r.Mark.Set || len(r.Unknown) > 0 {
		f = min(f, mayFit)
	}
	return f
}

func portFit(ranges []model.PortRange, port uint16, d *dropped) fit {
	switch {
	case ranges == nil:
		return sureFit
	case !d.hasPorts:
		return mayFit
	case slices.ContainsFunc(ranges, func(r model.PortRange) bool { return r.First <= port && port <= r.Last }):
		// The sample is one of several, perhaps to other ports.
		return mayFit
	}
	return poorFit
}

// linkFit compares a match with the links that the packet may have had.
func linkFit(m model.IfMatch, names []string) fit {
	if m.Name == "" {
		return sureFit
	}
	if len(names) == 0 {
		return mayFit
	}
	hits := 0
	for _, n := range names {
		if m.Matches(n) {
			hits++
		}
	}
	switch hits {
	case 0:
		return noFit
	case len(names):
		return sureFit
	}
	return mayFit
}

func frameFit(r *model.FrameRule, d *dropped) fit {
	const ipv4, ipv6 = 0x0800, 0x86dd
	etherType := uint16(ipv4)
	if d.six() {
		etherType = ipv6
	}
	switch {
	case r.EtherType != 0 && (r.EtherType == etherType) == r.EtherTypeNot,
		!r.IPSrc.Matches(d.Src), !r.IPDst.Matches(d.Dst),
		!r.ARPSrc.IsZero(), !r.ARPDst.IsZero(), r.ARPOp != 0,
		r.DstMAC.Set && !d.DstMAC.IsZero() && !r.DstMAC.Matches(d.DstMAC),
		r.SrcMAC.Set && !d.srcMAC.IsZero() && !r.SrcMAC.Matches(d.srcMAC):
		return noFit
	}
	f := min(linkFit(r.In, d.in), linkFit(r.Out, d.out), linkFit(r.LogicalIn, d.in), linkFit(r.LogicalOut, d.out))
	if len(r.Unknown) > 0 || r.DstMAC.Set && d.DstMAC.IsZero() || r.SrcMAC.Set && d.srcMAC.IsZero() {
		f = min(f, mayFit)
	}
	return f
}

// dropIn fills in what is known of a drop's packets.
func (v *view) dropIn(d *model.Drop, samples map[sampleKey]*model.Sample) *dropped {
	out := &dropped{Drop: d}
	out.in = v.linksOf(d.Src)
	out.out = v.linksOf(d.Dst)
	if d.Link != "" {
		// Which of the two the packet's device is depends on the hook.
		for _, name := range v.withMaster(d.Link) {
			out.in, out.out = add(out.in, name), add(out.out, name)
		}
	}
	if s := samples[keyOfDrop(d)]; s != nil {
		out.srcMAC = s.SrcMAC
		out.srcPort, out.dstPort, out.hasPorts = ports(s.Head)
	}
	return out
}

// linksOf are the links by which the node has an address: a pod's own and its
// bridge, or the uplinks and theirs.
func (v *view) linksOf(a netip.Addr) []string {
	var out []string
	if v.nodeAddrs[a] {
		return nil
	}
	if pods := v.pods[a]; len(pods) > 0 {
		for _, p := range pods {
			out = append(out, v.withMaster(p.Link)...)
		}
		return out
	}
	for i := range v.Links {
		if v.Links[i].Role == model.RoleUplink {
			out = append(out, v.withMaster(v.Links[i].Name)...)
		}
	}
	return out
}

func (v *view) withMaster(link string) []string {
	out := []string{link}
	if l := v.byName[link]; l != nil {
		if m := v.links[l.Master]; m != nil {
			out = append(out, m.Name)
		}
	}
	return out
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// sampleKey is what a sample has in common with its drops.
type sampleKey struct {
	src, dst netip.Addr
	proto    uint8
	reason   model.Reason
	netns    uint32
	ifindex  int
}

func keyOfDrop(d *model.Drop) sampleKey {
	return sampleKey{d.Src, d.Dst, d.Proto, d.Reason, d.Netns, d.IfIndex}
}

// dropSamples are the samples by their kind.
func (v *view) dropSamples() map[sampleKey]*model.Sample {
	out := map[sampleKey]*model.Sample{}
	for i := range v.Traffic.Samples {
		s := &v.Traffic.Samples[i]
		out[sampleKey{s.Src, s.Dst, headProto(s.Head), s.Reason, s.Netns, s.IfIndex}] = s
	}
	return out
}

const (
	icmp4 = 1
	tcp   = 6
	udp   = 17
	icmp6 = 58
)

// headProto is the protocol of a packet from its network header; extension
// headers are not looked behind.
func headProto(head []byte) uint8 {
	switch {
	case len(head) >= 20 && head[0]>>4 == 4:
		return head[9]
	case len(head) >= 40 && head[0]>>4 == 6:
		return head[6]
	}
	return 0
}

// transport is what follows the network header of TCP or UDP, nil where it
// was not kept or is a later fragment.
func transport(head []byte) []byte {
	p := headProto(head)
	if p != tcp && p != udp {
		return nil
	}
	size := 40
	if head[0]>>4 == 4 {
		size = int(head[0]&0xf) * 4
		if size < 20 || binary.BigEndian.Uint16(head[6:])&0x1fff != 0 {
			return nil
		}
	}
	return head[min(size, len(head)):]
}

func ports(head []byte) (src, dst uint16, ok bool) {
	t := transport(head)
	if len(t) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]), true
}

const calicoOwner = "Calico"

// owners of chains, by how their names begin, most telling first.
var chainOwners = []struct{ prefix, owner string }{
	{"cali-", calicoOwner},
	{"AZURE-NPM", "Azure Network Policy Manager"},
	{"KUBE-ROUTER", "kube-router"},
	{"KUBE-NWPLCY", "kube-router"},
	{"KUBE-POD-FW", "kube-router"},
	{"KUBE-FIREWALL", "kubelet"},
	{"KUBE-DEDUP", "kubelet"},
	{"KUBE-", "kube-proxy"},
	{"IP-MASQ-AGENT", "ip-masq-agent"},
	{"KIND-MASQ-AGENT", "kindnet"},
	{"AKS-", "AKS"},
	{"CILIUM_", "Cilium"},
	{"OLD_CILIUM_", "Cilium"},
	{"ANTREA-", "Antrea"},
	{"WEAVE-", "Weave Net"},
	{"FLANNEL-", "flannel"},
	{"SWIFT", "Azure CNI"},
	{"CNI-", "the CNI plugins"},
	{"DOCKER", "Docker"},
	{"ufw", "ufw"},
	{"f2b-", "fail2ban"},
	{"LIBVIRT_", "libvirt"},
}

// tableOwners are those of whole nft tables.
var tableOwners = []struct{ prefix, owner string }{
	{"calico", "Calico"},
	{"kube-proxy", "kube-proxy"},
	{"kindnet", "kindnet"},
	{"kube-network-policies", "kube-network-policies"},
	{"firewalld", "firewalld"},
	{"cni_", "the CNI plugins"},
	{"libvirt", "libvirt"},
}

// commentOwners are told by what they write beside their rules.
var commentOwners = []struct{ prefix, owner string }{
	{"cali:", "Calico"},
	{"AKS managed", "AKS"},
	{"ip-masq-agent", "ip-masq-agent"},
	{"kubernetes ", "kube-proxy"},
	{"cilium", "Cilium"},
	{"kube-router", "kube-router"},
}

// owner is the program that made the suspect, empty where none is known to: a
// person or a script.
func (s *suspect) owner() string {
	if s.chain != nil && iptablesChain(s.chain) {
		return ""
	}
	for _, c := range slices.Backward(s.path) {
		for _, o := range chainOwners {
			if strings.HasPrefix(c, o.prefix) {
				return o.owner
			}
		}
	}
	if s.rule != nil {
		for _, o := range commentOwners {
			if strings.HasPrefix(s.rule.Comment, o.prefix) {
				return o.owner
			}
		}
	}
	for _, o := range tableOwners {
		if strings.HasPrefix(s.table(), o.prefix) {
			return o.owner
		}
	}
	return ""
}

// text is the suspect as its own tool prints it.
func (s *suspect) text() string {
	switch {
	case s.rule != nil:
		return fmt.Sprintf("rule %d: %s", s.rule.Number, s.rule.Text)
	case s.frame != nil:
		return fmt.Sprintf("rule %d: %s", s.frame.Number, s.frame.Text)
	}
	return "policy DROP"
}

// remove is the command that takes the suspect away.
func (s *suspect) remove() string {
	nft := fmt.Sprintf("%s %s %s", s.family, shellWord(s.table()), shellWord(s.where()))
	switch {
	case s.chain != nil && s.native():
		return fmt.Sprintf("nft chain %s '{ policy accept; }'", nft)
	case s.chain != nil && s.family == "bridge":
		return fmt.Sprintf("%s -t %s -P %s ACCEPT", frameTool(s.backend()), shellWord(s.table()), shellWord(s.where()))
	case s.chain != nil:
		tool := iptables(&model.PacketRule{Backend: s.backend(), Family: map[string]int{"ip": 4, "ip6": 6}[s.family]})
		return fmt.Sprintf("%s -t %s -P %s ACCEPT", tool, shellWord(s.table()), shellWord(s.where()))
	case s.frame != nil:
		return deleteFrameRule(s.frame)
	case s.native():
		return "nft delete rule " + nft + fmt.Sprintf(" handle %d", s.rule.Handle)
	}
	return deletePacketRule(s.rule)
}

func frameTool(b model.Backend) string {
	if b == model.Legacy {
		return "ebtables-legacy"
	}
	return "ebtables-nft"
}
