package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// maxSize bounds a file: 1 MiB, far above any that a person writes.
const maxSize = 1 << 20

// The bounds of a scenario.
const (
	maxNodes    = 32
	maxPods     = 250 // of one node, as AKS allows
	maxOutside  = 16
	maxRoutes   = 400 // of one route table, as Azure allows
	maxFaults   = 100
	maxFlows    = 5000
	maxTotal    = 5000 // requests per second over all flows
	maxDuration = time.Hour
	maxPayload  = 1472 // what a datagram holds where the MTU is 1500
)

// What a scenario has when it does not say otherwise.
const (
	defaultDuration = 15 * time.Minute
	// Far above any answer's time, so that a machine that is busy for
	// seconds does not look like a network that is broken.
	defaultTimeout = 5 * time.Second
	defaultRate    = 5
	defaultPort    = 8080
)

// Parse reads a scenario. file is what errors call it. The error is an Errors
// with everything that is wrong.
func Parse(file string, data []byte) (*Scenario, error) {
	d := &decoder{file: file}
	root := d.tree(data)
	if err := d.err(); err != nil {
		return nil, err
	}
	r := d.scenario(root)
	if err := d.err(); err != nil {
		// What is left out would only be complained of again.
		return nil, err
	}
	s := (&resolver{decoder: d}).resolve(r)
	if err := d.err(); err != nil {
		return nil, err
	}
	return s, nil
}

// lineOf finds the line in a syntax error of the YAML package, which says it
// in words alone.
var lineOf = regexp.MustCompile(`line (\d+): `)

// tree parses the YAML to its one document's root.
func (d *decoder) tree(data []byte) *yaml.Node {
	start := &yaml.Node{Line: 1, Column: 1}
	if len(data) > maxSize {
		d.errorf(start, "file is larger than %d bytes", maxSize)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		d.errorf(start, "file is empty")
		return nil
	}
	if err == nil {
		if err = dec.Decode(&more); err == nil {
			d.errorf(&more, "want one document, got another")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		msg := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := lineOf.FindStringSubmatch(msg); m != nil {
			start.Line, _ = strconv.Atoi(m[1])
			msg = strings.Replace(msg, m[0], "", 1)
		}
		d.errorf(start, "not YAML: %s", msg)
		return nil
	}
	d.plain(&doc)
	return doc.Content[0]
}

// plain complains of aliases: they make a file hard to read, and a small one
// huge.
func (d *decoder) plain(n *yaml.Node) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.errorf(n, "anchors and aliases are not taken")
		return
	}
	for _, c := range n.Content {
		d.plain(c)
	}
}

// The raw types hold what the file says, with its place, before defaults.
type rawScenario struct {
	at                       *yaml.Node
	name, title, description value[string]
	topology                 rawTopology
	routes                   value[[]rawRoute]
	traffic                  value[[]rawTraffic]
	faults                   []rawFault
	observe                  value[string]
	files                    rawFiles
	active                   value[bool]
	expect                   rawExpect
	duration, timeout        value[time.Duration]
}

type rawTopology struct {
	at            *yaml.Node
	vnet, subnet  value[netip.Prefix]
	podCIDR       value[netip.Prefix]
	podSubnet     value[netip.Prefix]
	gateway, edge value[netip.Addr]
	outside       []value[netip.Addr]
	fabricMAC     value[model.MAC]
	plugin        value[Plugin]
	half          rawHalf
	switched      value[bool]
	nic           value[string]
	nodes         []rawNode
}

type rawNode struct {
	at                *yaml.Node
	name, nic, bridge value[string]
	plugin            value[Plugin]
	nicMAC, bridgeMAC value[model.MAC]
	ipForwarding      value[bool]
	dockershim        value[bool]
	ipMasq, hairpin   value[bool]
	ip, router        value[netip.Addr]
	podCIDR           value[netip.Prefix]
	nonMasquerade     value[[]value[netip.Prefix]]
	residue           value[string]
	datapath          value[Datapath]
	policy            value[Policy]
	pods, oldPods     []rawPod
}

type rawPod struct {
	at         *yaml.Node
	name, link value[string]
	ip         value[netip.Addr]
	mac        value[model.MAC]
	running    value[bool]
}

type rawRoute struct {
	at     *yaml.Node
	prefix value[netip.Prefix]
	via    value[string]
}

type rawTraffic struct {
	at       *yaml.Node
	from, to []value[string]
	proto    []value[Proto]
	port     value[int]
	rate     value[float64]
	size     value[int]
}

type rawFault struct {
	at              *yaml.Node
	typ             value[FaultType]
	node, pod, via  value[string]
	prefix, exclude value[netip.Prefix]
	mac             value[model.MAC]
	family          value[int]
}

type rawExpect struct {
	exit     value[int]
	plugin   value[string]
	policy   value[string]
	residue  value[string]
	findings []rawFinding
	absent   []value[model.Code]
}

type rawFinding struct {
	at          *yaml.Node
	code        value[model.Code]
	family      value[int]
	pods, peers []value[string]
	title, fix  value[string]
	evidence    []value[string]
}

func (d *decoder) scenario(n *yaml.Node) rawScenario {
	r := rawScenario{at: n, topology: rawTopology{at: n}}
	d.mapping(n, "scenario", fields{
		"name":        into(d, "name", &r.name, parseName),
		"title":       into(d, "title", &r.title, parseText),
		"description": into(d, "description", &r.description, parseText),
		"topology":    func(n *yaml.Node) { r.topology = d.topology(n) },
		"routes":      func(n *yaml.Node) { r.routes = value[[]rawRoute]{items(d, n, "routes", d.route), n} },
		"traffic":     func(n *yaml.Node) { r.traffic = value[[]rawTraffic]{items(d, n, "traffic", d.traffic), n} },
		"faults":      func(n *yaml.Node) { r.faults = items(d, n, "faults", d.fault) },
		"observe":     into(d, "observe", &r.observe, parseText),
		"files":       func(n *yaml.Node) { r.files = d.files(n) },
		"active":      into(d, "active", &r.active, parseBool),
		"expect":      func(n *yaml.Node) { r.expect = d.expect(n) },
		"duration":    into(d, "duration", &r.duration, parseDuration(time.Second, maxDuration)),
		"timeout":     into(d, "timeout", &r.timeout, parseDuration(100*time.Millisecond, 30*time.Second)),
	})
	return r
}

// items reads every item of a list.
func items[T any](d *decoder, n *yaml.Node, what string, read func(*yaml.Node) T) []T {
	var out []T
	d.list(n, what, func(item *yaml.Node) { out = append(out, read(item)) })
	return out
}

func (d *decoder) topology(n *yaml.Node) rawTopology {
	t := rawTopology{at: n}
	d.mapping(n, "topology", fields{
		"vnet":      into(d, "vnet", &t.vnet, parseRange),
		"subnet":    into(d, "subnet", &t.subnet, parseRange),
		"gateway":   into(d, "gateway", &t.gateway, parseAddr),
		"podCIDR":   into(d, "podCIDR", &t.podCIDR, parseRange),
		"podSubnet": into(d, "podSubnet", &t.podSubnet, parseRange),
		"edge":      into(d, "edge", &t.edge, parseAddr),
		"outside":   each(d, "outside", &t.outside, parseAddr),
		"fabricMAC": into(d, "fabricMAC", &t.fabricMAC, parseMAC),
		"plugin":    into(d, "plugin", &t.plugin, choice(allPlugins...)),
		"nic":       into(d, "nic", &t.nic, parseLink),
		"stack":     into(d, "stack", &t.half.stack, choice(IPv4, IPv6, Dual)),
		"vnet6":     into(d, "vnet6", &t.half.vnet, parseRange6),
		"podCIDR6":  into(d, "podCIDR6", &t.half.podCIDR, parseRange6),
		"switched":  into(d, "switched", &t.switched, parseBool),
		"nodes":     func(n *yaml.Node) { t.nodes = items(d, n, "nodes", d.node) },
	})
	return t
}

func (d *decoder) node(n *yaml.Node) rawNode {
	r := rawNode{at: n}
	d.mapping(n, "node", fields{
		"name":         into(d, "name", &r.name, parseName),
		"plugin":       into(d, "plugin", &r.plugin, choice(allPlugins...)),
		"nic":          into(d, "nic", &r.nic, parseLink),
		"nicMAC":       into(d, "nicMAC", &r.nicMAC, parseMAC),
		"ipForwarding": into(d, "ipForwarding", &r.ipForwarding, parseBool),
		"dockershim":   into(d, "dockershim", &r.dockershim, parseBool),
		"ipMasq":       into(d, "ipMasq", &r.ipMasq, parseBool),
		"hairpin":      into(d, "hairpin", &r.hairpin, parseBool),
		"ip":           into(d, "ip", &r.ip, parseAddr),
		"podCIDR":      into(d, "podCIDR", &r.podCIDR, parseRange),
		"bridge":       into(d, "bridge", &r.bridge, parseLink),
		"bridgeMAC":    into(d, "bridgeMAC", &r.bridgeMAC, parseMAC),
		"router":       into(d, "router", &r.router, parseAddr),
		"nonMasquerade": func(n *yaml.Node) {
			r.nonMasquerade.at = n
			each(d, "nonMasquerade", &r.nonMasquerade.v, parsePrefix)(n)
		},
		"residue":  into(d, "residue", &r.residue, choice(AzureVNet)),
		"datapath": into(d, "datapath", &r.datapath, choice(DatapathTC, DatapathTCX, DatapathRedirect)),
		"policy":   into(d, "policy", &r.policy, choice(PolicyCalico, PolicyCalicoNFT, PolicyNPM)),
		"pods":     func(n *yaml.Node) { r.pods = d.pods(n) },
		"oldPods":  func(n *yaml.Node) { r.oldPods = items(d, n, "oldPods", d.oldPod) },
	})
	return r
}

// pods reads a list of pods, or their number.
func (d *decoder) pods(n *yaml.Node) []rawPod {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return items(d, n, "pods", d.pod)
	}
	count := scalar(d, n, "pods", parseInt(0, maxPods))
	pods := make([]rawPod, count.v)
	for i := range pods {
		pods[i] = rawPod{at: n, name: value[string]{fmt.Sprintf("pod-%d", i+1), n}}
	}
	return pods
}

// pod reads a pod's name, or a mapping with more of it.
func (d *decoder) pod(n *yaml.Node) rawPod {
	r := rawPod{at: n}
	if n.Kind == yaml.ScalarNode {
		r.name = scalar(d, n, "pod", parseName)
		return r
	}
	d.mapping(n, "pod", d.podFields(&r))
	return r
}

// oldPod is pod, and may say that the pod still runs.
func (d *decoder) oldPod(n *yaml.Node) rawPod {
	r := rawPod{at: n}
	if n.Kind == yaml.ScalarNode {
		return d.pod(n)
	}
	f := d.podFields(&r)
	f["running"] = into(d, "running", &r.running, parseBool)
	d.mapping(n, "old pod", f)
	return r
}

func (d *decoder) podFields(r *rawPod) fields {
	return fields{
		"name": into(d, "name", &r.name, parseName),
		"ip":   into(d, "ip", &r.ip, parseAddr),
		"mac":  into(d, "mac", &r.mac, parseMAC),
		"link": into(d, "link", &r.link, parseLink),
	}
}

func (d *decoder) route(n *yaml.Node) rawRoute {
	r := rawRoute{at: n}
	d.mapping(n, "route", fields{
		"prefix": into(d, "prefix", &r.prefix, parsePrefix),
		"via":    into(d, "via", &r.via, parseText),
	})
	return r
}

func (d *decoder) traffic(n *yaml.Node) rawTraffic {
	r := rawTraffic{at: n}
	d.mapping(n, "traffic", fields{
		"from":  each(d, "from", &r.from, parseText),
		"to":    each(d, "to", &r.to, parseText),
		"proto": each(d, "proto", &r.proto, choice(TCP, UDP, ICMP)),
		"port":  into(d, "port", &r.port, parseInt(1, 65535)),
		"rate":  into(d, "rate", &r.rate, parseRate),
		"size":  into(d, "size", &r.size, parseInt(0, maxPayload)),
	})
	return r
}

func (d *decoder) fault(n *yaml.Node) rawFault {
	r := rawFault{at: n}
	d.mapping(n, "fault", fields{
		"type":    into(d, "type", &r.typ, choice(faultTypes()...)),
		"node":    into(d, "node", &r.node, parseText),
		"pod":     into(d, "pod", &r.pod, parseText),
		"prefix":  into(d, "prefix", &r.prefix, parsePrefix),
		"exclude": into(d, "exclude", &r.exclude, parsePrefix),
		"via":     into(d, "via", &r.via, parseText),
		"mac":     into(d, "mac", &r.mac, parseMAC),
		"family":  into(d, "family", &r.family, parseFamily),
	})
	return r
}

func (d *decoder) expect(n *yaml.Node) rawExpect {
	var r rawExpect
	d.mapping(n, "expect", fields{
		"exit":     into(d, "exit", &r.exit, parseInt(0, 255)),
		"plugin":   into(d, "plugin", &r.plugin, parseName),
		"policy":   into(d, "policy", &r.policy, parseName),
		"residue":  into(d, "residue", &r.residue, parseName),
		"findings": func(n *yaml.Node) { r.findings = items(d, n, "findings", d.finding) },
		"absent":   each(d, "absent", &r.absent, parseCode),
	})
	return r
}

func (d *decoder) finding(n *yaml.Node) rawFinding {
	r := rawFinding{at: n}
	if n.Kind == yaml.ScalarNode {
		r.code = scalar(d, n, "finding", parseCode)
		return r
	}
	d.mapping(n, "finding", fields{
		"code":   into(d, "code", &r.code, parseCode),
		"family": into(d, "family", &r.family, parseFamily),
		"pods":   each(d, "pods", &r.pods, parseText),
		"peers":  each(d, "peers", &r.peers, parseText),
		"title":  into(d, "title", &r.title, parseText),
		"fix":    into(d, "fix", &r.fix, parseText),
		// What the evidence must hold.
		"evidence": each(d, "evidence", &r.evidence, parseText),
	})
	return r
}

// nameFrom is the scenario's name when the file does not say it: the file's.
func nameFrom(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}
