package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// MaxSize bounds a file: 1 MiB, far above any that a person writes.
const MaxSize = 1 << 20

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
	maxPorts    = 64   // of one flow in turn
	maxPayload  = 1472 // what a datagram holds where the MTU is 1500
)

// What a scenario has when it does not say otherwise.
const (
	defaultDuration = 15 * time.Minute
	// Far above any answer's time, so that a machine that is busy for
	// seconds does not look like a network that is broken.
	defaultTimeout = 5 * time.Second
	defaultRate    = 2
	defaultPort    = 8080
)

// Parse reads a scenario. file is what errors call it. The error is an Errors
// with everything that is wrong.
func Parse(file string, data []byte) (*Scenario, error) {
	return parse(file, data, func(*decoder, *rawScenario) {})
}

// parse reads a scenario, with what change makes of the file's words.
func parse(file string, data []byte, change func(*decoder, *rawScenario)) (*Scenario, error) {
	d := &decoder{file: file}
	root := d.tree(data)
	if err := d.err(); err != nil {
		return nil, err
	}
	var r rawScenario
	d.decode(root, "scenario", "", reflect.ValueOf(&r).Elem())
	if err := d.err(); err != nil {
		// A value that was not read would be reported as missing again.
		return nil, err
	}
	if r.Topology.at == nil {
		r.Topology.at = root
	}
	change(d, &r)
	if err := d.err(); err != nil {
		return nil, err
	}
	s := (&resolver{decoder: d}).resolve(r)
	s.File, s.Expect.Line = file, 1
	if r.Expect.at != nil {
		s.Expect.Line = r.Expect.at.Line
	}
	s.Alone.Line = s.Expect.Line
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
	if len(data) > MaxSize {
		d.errorf(start, "file is larger than %d bytes", MaxSize)
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

// plain reports aliases: they make a file hard to read, and a small one
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
	place
	Name        value[string]        `file:"name,name"`
	Title       value[string]        `file:"title"`
	Description value[string]        `file:"description"`
	Topology    rawTopology          `file:"topology"`
	Routes      value[[]rawRoute]    `file:"routes"`
	Traffic     value[[]rawTraffic]  `file:"traffic"`
	Faults      []rawFault           `file:"faults"`
	Observe     value[string]        `file:"observe"`
	Watch       value[[]rawWatched]  `file:"watch"`
	Churn       []value[string]      `file:"churn"`
	Files       rawFiles             `file:"files"`
	Active      value[bool]          `file:"active"`
	Seed        value[int]           `file:"seed,seed"`
	Expect      rawExpect            `file:"expect"`
	Duration    value[time.Duration] `file:"duration,duration"`
	Timeout     value[time.Duration] `file:"timeout,timeout"`
}

type rawTopology struct {
	place
	VNet      value[netip.Prefix] `file:"vnet,range"`
	Subnet    value[netip.Prefix] `file:"subnet,range"`
	Gateway   value[netip.Addr]   `file:"gateway"`
	PodCIDR   value[netip.Prefix] `file:"podCIDR,range"`
	PodSubnet value[netip.Prefix] `file:"podSubnet,range"`
	Edge      value[netip.Addr]   `file:"edge"`
	Outside   []value[netip.Addr] `file:"outside"`
	FabricMAC value[model.MAC]    `file:"fabricMAC"`
	Plugin    value[Plugin]       `file:"plugin"`
	NIC       value[string]       `file:"nic,link"`
	Stack     value[Stack]        `file:"stack"`
	VNet6     value[netip.Prefix] `file:"vnet6,range6"`
	PodCIDR6  value[netip.Prefix] `file:"podCIDR6,range6"`
	Switched  value[bool]         `file:"switched"`
	Overlay   value[string]       `file:"overlay,link"`
	Nodes     []rawNode           `file:"nodes"`
}

type rawNode struct {
	place
	Name          value[string]                `file:"name,name"`
	Plugin        value[Plugin]                `file:"plugin"`
	NIC           value[string]                `file:"nic,link"`
	NICMAC        value[model.MAC]             `file:"nicMAC"`
	IPForwarding  value[bool]                  `file:"ipForwarding"`
	Card          value[Card]                  `file:"card"`
	SecondNIC     value[bool]                  `file:"secondNIC"`
	Dockershim    value[bool]                  `file:"dockershim"`
	IPMasq        value[bool]                  `file:"ipMasq"`
	Hairpin       value[bool]                  `file:"hairpin"`
	IP            value[netip.Addr]            `file:"ip"`
	PodCIDR       value[netip.Prefix]          `file:"podCIDR,range"`
	Bridge        value[string]                `file:"bridge,link"`
	BridgeMAC     value[model.MAC]             `file:"bridgeMAC"`
	Router        value[netip.Addr]            `file:"router"`
	NonMasquerade value[[]value[netip.Prefix]] `file:"nonMasquerade"`
	Residue       value[string]                `file:"residue,residue"`
	Datapath      value[Datapath]              `file:"datapath"`
	Policy        value[Policy]                `file:"policy"`
	Pods          rawPods                      `file:"pods"`
	OldPods       []rawOldPod                  `file:"oldPods"`
}

// rawPods are a list of pods, or their number.
type rawPods []rawPod

func (r *rawPods) decode(d *decoder, n *yaml.Node, what, _ string) bool {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return d.list(n, what, "", reflect.ValueOf(r).Elem())
	}
	var count value[int]
	ok := count.decode(d, n, what, "pods")
	for i := range count.v {
		*r = append(*r, rawPod{place: place{n}, Name: value[string]{fmt.Sprintf("pod-%d", i+1), n}})
	}
	return ok
}

type rawPod struct {
	place
	Name value[string]     `file:"name,name,alone"`
	IP   value[netip.Addr] `file:"ip"`
	MAC  value[model.MAC]  `file:"mac"`
	Link value[string]     `file:"link,link"`
}

type rawOldPod struct {
	rawPod
	Running value[bool] `file:"running"`
}

type rawRoute struct {
	place
	Prefix value[netip.Prefix] `file:"prefix"`
	Via    value[string]       `file:"via"`
}

type rawTraffic struct {
	place
	From  []value[string] `file:"from"`
	To    []value[string] `file:"to"`
	Proto []value[Proto]  `file:"proto"`
	Port  value[int]      `file:"port,port"`
	Rate  value[float64]  `file:"rate"`
	Size  value[int]      `file:"size,size"`
	// OneWay is for UDP alone.
	OneWay value[bool] `file:"oneWay"`
	Denied value[bool] `file:"denied"`
	Slow   value[bool] `file:"slow"`
	// Keep is for TCP alone.
	Keep  value[bool] `file:"keep"`
	Ports value[int]  `file:"ports,ports"`
}

type rawFault struct {
	place
	Type    value[FaultType]    `file:"type"`
	Node    value[string]       `file:"node"`
	Pod     value[string]       `file:"pod"`
	Prefix  value[netip.Prefix] `file:"prefix"`
	Exclude value[netip.Prefix] `file:"exclude"`
	Via     value[string]       `file:"via"`
	MAC     value[model.MAC]    `file:"mac"`
	Port    value[int]          `file:"port,port"`
	Family  value[int]          `file:"family,family"`
	When    value[string]       `file:"when"`
}

type rawWatched struct {
	place
	Node  value[string]        `file:"node,,alone"`
	Clock value[time.Duration] `file:"clock,clock"`
	Cut   value[bool]          `file:"cut"`
}

type rawFiles struct {
	Nodes  value[bool]       `file:"nodes"`
	Pods   value[bool]       `file:"pods"`
	Routes []value[FileKind] `file:"routes"`
	Raw    value[bool]       `file:"raw"`
	Spare  value[int]        `file:"spare,spare"`
}

type rawExpect struct {
	place
	rawVerdict
	Plugin  value[string]     `file:"plugin,name"`
	Policy  value[string]     `file:"policy,name"`
	Residue value[string]     `file:"residue,name"`
	Alone   value[rawVerdict] `file:"alone"`
}

type rawVerdict struct {
	Exit     value[int]          `file:"exit,exit"`
	Findings []rawFinding        `file:"findings"`
	Absent   []value[model.Code] `file:"absent"`
}

type rawFinding struct {
	place
	Code     value[model.Code] `file:"code,,alone"`
	Family   value[int]        `file:"family,family"`
	Pods     []value[string]   `file:"pods"`
	Peers    []value[string]   `file:"peers"`
	Title    value[string]     `file:"title"`
	Fix      value[string]     `file:"fix"`
	Evidence []value[string]   `file:"evidence"`
	// Confidence and Nodes are what only some findings are about.
	Confidence value[model.Confidence] `file:"confidence"`
	Nodes      []value[string]         `file:"nodes"`
}

// nameFrom is the scenario's name when the file does not say it: the file's.
func nameFrom(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}
