package redact

import (
	"cmp"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

var (
	// numbers may be addresses of any kind.
	numbers = regexp.MustCompile(`[0-9A-Fa-f:.]{2,}(?:/[0-9]{1,3})?`)
	four    = regexp.MustCompile(`[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?`)
	// uids are those of pods, in cgroups with other dashes; ids those of containers.
	uids = regexp.MustCompile(`[0-9a-f]{8}([-_])[0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}`)
	ids  = regexp.MustCompile(`\b[0-9a-f]{16,}\b`)
	// remarks are the comments within the text of a rule.
	remarks = regexp.MustCompile(`comment "[^"]*"|--comment \S+`)
	// objects are names with their namespace, as agents write them in comments.
	objects = regexp.MustCompile(`[a-z0-9][-a-z0-9]*/[a-z0-9][-.a-z0-9]*`)
	// serviceChains are the names that kube-proxy gives to nft's chains and sets, of a hash and of what they are for.
	serviceChains = regexp.MustCompile(`\b[a-z]+-[A-Z2-7]{8}-[^\s,;]+/[^\s,;]+`)
	amount        = regexp.MustCompile(`^(?:0x[0-9a-f]+|[0-9]+)$`)
)

// terms are words of texts about networks. A pod or namespace of such a name is found in
// them only beside its namespace or pod.
var terms = strings.Fields(`accept address all any bridge chain cluster container default destination drop egress filter
		forward from frame gateway group host icmp in ingress ip link local mangle nat network node nodes none ok out packet packets
			peer pod pods policy port raw return route router routes rule rules service source subnet table tcp to traffic udp
	file name netns nic ns nsg resource rg uid vnet`)

// Text is a text with other names and addresses in it: names that were learnt, and whatever can be read as an address.
func (r *Redactor) Text(s string) string {
	if s == "" {
		return s
	}
	s = serviceChains.ReplaceAllStringFunc(s, func(name string) string {
		kind, rest, _ := strings.Cut(name, "-")
		hash, rest, _ := strings.Cut(rest, "-")
		return kind + "-" + strings.ToUpper(r.hash("chain", hash)[:8]) + "-" + objects.ReplaceAllStringFunc(rest, r.object)
	})
	s = uids.ReplaceAllStringFunc(s, r.uid)
	s = ids.ReplaceAllStringFunc(s, func(id string) string {
		h := r.hash("id", id)
		for len(h) < len(id) {
			h += r.hash("id", h)
		}
		return h[:len(id)]
	})
	return r.words(s)
}

// words replaces known names, which begin and end at words, and addresses between them.
func (r *Redactor) words(s string) string {
	var b strings.Builder
	rest := 0 // where the text without names begins
	for i := 0; i < len(s); i++ {
		if !wordByte(s[i]) || i > 0 && wordByte(s[i-1]) {
			continue
		}
		if end := r.nameEnd(s, i); end > 0 {
			b.WriteString(r.addresses(s[rest:i]) + r.known[s[i:end]])
			rest, i = end, end-1
		}
	}
	b.WriteString(r.addresses(s[rest:]))
	return b.String()
}

// nameEnd is where the longest known name ends that begins at i; 0 where none does.
func (r *Redactor) nameEnd(s string, i int) int {
	for end := min(len(s), i+r.longest); end > i; end-- {
		if end < len(s) && wordByte(s[end]) && wordByte(s[end-1]) {
			continue
		}
		beside := i > 0 && s[i-1] == '/' || end < len(s) && s[end] == '/'
		if name := s[i:end]; r.known[name] != "" && (beside || !slices.Contains(terms, name)) {
			return end
		}
	}
	return 0
}

func wordByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}

func (r *Redactor) addresses(s string) string {
	return numbers.ReplaceAllStringFunc(s, func(token string) string {
		// A sentence may end behind an address.
		for end := len(token); end > 1 && end > len(token)-3; end-- {
			if other, ok := r.address(token[:end]); ok {
				return other + token[end:]
			}
		}
		return four.ReplaceAllStringFunc(token, func(t string) string {
			other, ok := r.address(t)
			return model.Either(ok, other, t)
		})
	})
}

func (r *Redactor) address(token string) (string, bool) {
	if m, err := model.ParseMAC(token); err == nil && strings.Count(token, ":") == 5 {
		return r.MAC(m).String(), true
	}
	if a, err := netip.ParseAddr(token); err == nil {
		return r.Addr(a).String(), true
	}
	if p, err := netip.ParsePrefix(token); err == nil {
		return r.Prefix(p).String(), true
	}
	if p, err := netip.ParseAddrPort(token); err == nil {
		return netip.AddrPortFrom(r.Addr(p.Addr()), p.Port()).String(), true
	}
	// kube-proxy writes an endpoint so.
	if a, port, _ := strings.Cut(token, "/"); port != "" {
		if x, err := netip.ParseAddr(a); err == nil {
			return r.Addr(x).String() + "/" + port, true
		}
	}
	return "", false
}

// comment is Text with names of objects that are known from nothing else, such as services.
func (r *Redactor) comment(s string) string { return r.Text(objects.ReplaceAllStringFunc(s, r.object)) }

// element is the key or the value of an element of a set: fields with addresses, ports, names of links or chains.
func (r *Redactor) element(s string) string {
	fields := strings.Split(s, " . ")
	for i, f := range fields {
		first, last, between := strings.Cut(f, "-")
		a, err := netip.ParseAddr(first)
		b, err2 := netip.ParseAddr(last)
		if fields[i] = r.Text(f); between && err == nil && err2 == nil {
			fields[i] = r.Addr(a).String() + "-" + r.Addr(b).String()
		}
	}
	return strings.Join(fields, " . ")
}

func (r *Redactor) rule(s string) string {
	return r.Text(remarks.ReplaceAllStringFunc(s, func(s string) string { return objects.ReplaceAllStringFunc(s, r.object) }))
}

func (r *Redactor) object(s string) string {
	namespace, name, _ := strings.Cut(s, "/")
	if amount.MatchString(namespace) || amount.MatchString(name) || four.MatchString(s) {
		return s
	}
	// The first is a namespace wherever it stands.
	return r.called("ns", namespace) + "/" + cmp.Or(r.known[name], r.called("name", name))
}

// stems are how common names of links begin: what follows is an ID, or a number.
var stems = []string{"cilium_", "vxlan.", "flannel.", "wireguard.", "docker", "dummy", "azure", "bond", "veth", "eth", "lxc", "azv", "cali", "cni", "cbr",
	"eno", "ens", "enp", "enP", "enX", "nic", "tunl", "vlan", "wlan", "lo", "br", "gre", "sit", "wg", "kube-ipvs", "kube-bridge", "nodelocaldns", "tap", "tun"}

var plainNumber = regexp.MustCompile(`^(?:[0-9]{0,4}(?:[.:][0-9]{1,4})?|_?health|host|net|vxlan|geneve|wg0|calico|v[46]-cni|[0-9]{1,5}[ps][0-9]{1,3}(?:[fnpds][0-9]{1,3})*)$`)

// link is another name for a link: as long, with the same stem, and with as much in
// common with other names as before. Names without an ID stay.
func (r *Redactor) link(name string) string {
	stem := ""
	for _, s := range stems {
		if strings.HasPrefix(name, s) && len(s) > len(stem) {
			stem = s
		}
	}
	if stem != "" && plainNumber.MatchString(name[len(stem):]) {
		return name
	}
	// A vendor's short stem says nothing for a name of words.
	if len(stem) < 3 {
		stem = ""
	}
	out := []byte(name)
	for i := len(stem); i < len(out); i++ {
		out[i] = r.letter(name[:i], name[i])
	}
	return string(out)
}

// letter is another letter or digit, which depends on what is before it. Each has one of its own.
func (r *Redactor) letter(before string, c byte) byte {
	for _, class := range []string{"0123456789abcdef", "ghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		at := strings.IndexByte(class, c)
		if at < 0 {
			continue
		}
		h := r.hash("letter", class+before)
		return class[(at+1+(int(h[0])*256+int(h[1]))%(len(class)-1))%len(class)]
	}
	return c
}

// match is a link's name in a rule, which may end in a wildcard.
func (r *Redactor) match(name string) string {
	before, ok := strings.CutSuffix(name, "+")
	return r.link(before) + model.Either(ok, "+", "")
}

// sysctl is the name of a setting, which may hold that of a link. Dots in that are written as slashes.
func (r *Redactor) sysctl(name string) string {
	parts := strings.Split(name, ".")
	for i := 3; i < len(parts)-1 && (parts[2] == "conf" || parts[2] == "neigh"); i++ {
		if parts[i] == "all" || parts[i] == "default" {
			continue
		}
		parts[i] = strings.ReplaceAll(r.link(strings.ReplaceAll(parts[i], "/", ".")), ".", "/")
	}
	return strings.Join(parts, ".")
}

func (r *Redactor) netns(name string) string {
	dir, base := path.Split(name)
	return r.words(dir) + r.called("netns", base)
}

func (r *Redactor) file(name string) string {
	return model.Either(name == "-" || name == "Azure", name, r.called("file", name)+path.Ext(name))
}

// uid is another UUID, with the same dashes.
func (r *Redactor) uid(s string) string {
	s = strings.ToLower(s)
	if !uids.MatchString(s) {
		return r.called("uid", s)
	}
	h := r.hash("uid", strings.ReplaceAll(s, "_", "-"))
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:32]}, s[8:9])
}

// azureKinds are how the names of resources begin, by what stands before them in an ID.
var azureKinds = map[string]string{
	"resourcegroups": "rg", "virtualnetworks": "vnet", "subnets": "subnet", "routetables": "table",
	"networksecuritygroups": "nsg", "networkinterfaces": "nic", "routes": "route", "applicationsecuritygroups": "asg",
	"virtualmachinescalesets": "set", "virtualmachines": "vm",
}

// tag is what a security rule names: a tag of Azure's, of which a region may follow, or the ID of an application security group.
func (r *Redactor) tag(name string) string {
	if strings.Contains(name, "/") {
		return r.azureID(name)
	}
	before, _, _ := strings.Cut(name, ".")
	return before
}

func (r *Redactor) azureID(id string) string {
	parts := strings.Split(id, "/")
	for i := 2; i < len(parts); i += 2 {
		switch kind := strings.ToLower(parts[i-1]); kind {
		case "providers":
		case "subscriptions":
			parts[i] = r.uid(parts[i])
		default:
			parts[i] = r.called(cmp.Or(azureKinds[kind], "resource"), parts[i])
		}
	}
	return strings.Join(parts, "/")
}
