package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// APIVersion names the contract of the documents. Fields are added to it, and
// never renamed or removed.
const APIVersion = "lasthop/v1alpha1"

// The documents. Field order is output order; a pointer or omitempty marks
// what may be unknown, which is then absent.
type (
	document struct {
		APIVersion  string       `json:"apiVersion"`
		Kind        string       `json:"kind"`
		Node        nodeDoc      `json:"node"`
		Window      windowDoc    `json:"window"`
		Sources     []sourceDoc  `json:"sources"`
		Pods        []podDoc     `json:"pods"`
		Hops        []hopDoc     `json:"hops"`
		MACRewrites []rewriteDoc `json:"macRewrites"`
		Drops       []dropDoc    `json:"drops"`
		Probes      []probeDoc   `json:"probes,omitzero"`
		Ledger      []ledgerDoc  `json:"ledger"`
		Findings    []findingDoc `json:"findings"`
		Lost        lostDoc      `json:"lost"`
	}
	nodeDoc struct {
		Name    string `json:"name,omitempty"`
		Kernel  string `json:"kernel,omitempty"`
		Plugin  string `json:"plugin"`
		Policy  string `json:"policy,omitempty"`
		Residue string `json:"residue,omitempty"`
		// PluginBy is what plugin, policy and residue were recognised by.
		PluginBy []string `json:"pluginBy,omitempty"`
		Engine   string   `json:"engine"`
		Attach   string   `json:"attach,omitempty"`
		Uplinks  []string `json:"uplinks"`
	}
	windowDoc struct {
		Start   string  `json:"start,omitempty"`
		Seconds float64 `json:"seconds"`
	}
	sourceDoc struct {
		Name   string `json:"name"`
		Status string `json:"status"`
		Detail string `json:"detail,omitempty"`
	}
	podDoc struct {
		IP string `json:"ip,omitempty"`
		// IPs are all addresses of a pod that has several.
		IPs       []string `json:"ips,omitempty"`
		Namespace string   `json:"namespace,omitempty"`
		Name      string   `json:"name,omitempty"`
		Link      string   `json:"link,omitempty"`
		IfIndex   int      `json:"ifindex,omitempty"`
		MAC       string   `json:"mac,omitempty"`
		Netns     string   `json:"netns,omitempty"`
		// Gone marks a pod that ended within the window.
		Gone bool `json:"gone,omitempty"`
	}
	hopDoc struct {
		Pod string `json:"pod,omitempty"`
		// Node stands for Pod where an address of the node's own was
		// counted, Peer where a remote range was.
		Node      string `json:"node,omitempty"`
		Peer      string `json:"peer,omitempty"`
		Link      string `json:"link,omitempty"`
		Role      string `json:"role"`
		Direction string `json:"direction"`
		Side      string `json:"side"`
		Packets   uint64 `json:"packets"`
		Bytes     uint64 `json:"bytes"`
	}
	macPlaceDoc struct {
		MAC       string `json:"mac,omitempty"`
		Link      string `json:"link,omitempty"`
		Direction string `json:"direction,omitempty"`
	}
	rewriteDoc struct {
		Kind    string      `json:"kind,omitempty"`
		Pod     string      `json:"pod"`
		Field   string      `json:"field"`
		From    macPlaceDoc `json:"from"`
		To      macPlaceDoc `json:"to"`
		Packets uint64      `json:"packets"`
	}
	dropDoc struct {
		Kind     string `json:"kind,omitempty"`
		Pod      string `json:"pod,omitempty"`
		Node     string `json:"node,omitempty"`
		Side     string `json:"side,omitempty"`
		Peer     string `json:"peer,omitempty"`
		Reason   string `json:"reason,omitempty"`
		Location string `json:"location,omitempty"`
		Link     string `json:"link,omitempty"`
		// Harmless is why packets were freed that were not lost; absent for drops.
		Harmless string `json:"harmless,omitempty"`
		Packets  uint64 `json:"packets"`
	}
	placeDoc struct {
		Link      string `json:"link,omitempty"`
		Role      string `json:"role,omitempty"`
		Direction string `json:"direction,omitempty"`
	}
	evidenceDoc struct {
		Source string `json:"source"`
		Text   string `json:"text"`
	}
	findingDoc struct {
		Kind         string        `json:"kind,omitempty"`
		Code         model.Code    `json:"code"`
		Severity     string        `json:"severity"`
		Confidence   string        `json:"confidence"`
		Pods         []string      `json:"pods"`
		Peers        []string      `json:"peers"`
		LastHopAlive *placeDoc     `json:"lastHopAlive,omitempty"`
		Title        string        `json:"title"`
		Why          string        `json:"why"`
		Evidence     []evidenceDoc `json:"evidence"`
		Unseen       []string      `json:"unseen"`
		Alternatives []string      `json:"alternatives"`
		Fix          []string      `json:"fix"`
		Verify       string        `json:"verify,omitempty"`
		Packets      uint64        `json:"packets,omitempty"`
	}
	lostDoc struct {
		Kind     string `json:"kind,omitempty"`
		Events   uint64 `json:"events"`
		Counters uint64 `json:"counters"`
		MACs     uint64 `json:"macs,omitempty"`
		Unparsed uint64 `json:"unparsed,omitempty"`
	}
)

func (r Report) json(w io.Writer) error {
	doc, err := marshal(r.document(), "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, doc)
	return err
}

// ndjson writes the report's events, one object a line, each with its kind.
func (r Report) ndjson(w io.Writer) error {
	d := r.document()
	var rows []any
	for _, f := range d.Findings {
		f.Kind = "Finding"
		rows = append(rows, f)
	}
	for _, x := range d.Drops {
		x.Kind = "Drop"
		rows = append(rows, x)
	}
	for _, x := range d.MACRewrites {
		x.Kind = "MACRewrite"
		rows = append(rows, x)
	}
	for i, x := range d.Ledger {
		if !idle(&r.Ledger[i]) {
			x.Kind = "Ledger"
			rows = append(rows, x)
		}
	}
	for _, x := range d.Probes {
		rows = append(rows, probeLine{"Probe", x.Kind, x.probeRest})
	}
	d.Lost.Kind = "Lost"
	rows = append(rows, d.Lost)
	return writeLines(w, rows)
}

// writeLines writes one JSON object a line.
func writeLines(w io.Writer, rows []any) error {
	for _, row := range rows {
		line, err := marshal(row, "")
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// marshal encodes v as JSON that is safe to print on a terminal.
func marshal(v any, indent string) (string, error) {
	return encode(v, indent, func(b *strings.Builder, r rune) {
		hi, lo := utf16.EncodeRune(r)
		fmt.Fprintf(b, `\u%04x\u%04x`, hi, lo)
	})
}

// encode is marshal with the escape for characters beyond 16 bits, in which
// JSON and YAML differ.
func encode(v any, indent string, wide func(*strings.Builder, rune)) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("encode report: %w", err)
	}
	return escape(b.Bytes(), wide), nil
}

// yaml writes the same document as json: but for one kind of escape JSON is
// YAML, so it is read back and printed in block style.
func (r Report) yaml(w io.Writer) error { return writeYAML(w, r.document()) }

func writeYAML(w io.Writer, v any) error {
	wide := func(b *strings.Builder, r rune) { fmt.Fprintf(b, `\U%08x`, r) }
	doc, err := encode(v, "", wide)
	if err != nil {
		return err
	}
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(doc), &root); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	block(&root)
	out, err := yaml.Marshal(&root)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	_, err = io.WriteString(w, escape(out, wide))
	return err
}

// block clears the style that nodes have from JSON. Strings that hold anything
// but visible characters stay quoted, as only there an escape has a meaning.
func block(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || clean(n.Value) {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

func (r Report) document() document {
	s := r.Snapshot
	d := document{
		APIVersion: APIVersion,
		Kind:       "Report",
		Node: nodeDoc{
			Name: s.Node.Name, Kernel: s.Node.Kernel,
			Plugin: orUnknown(s.Node.Plugin), Policy: s.Node.Policy, Residue: s.Node.Residue,
			PluginBy: s.Node.PluginBy,
			Engine:   orUnknown(s.Node.Engine), Attach: s.Node.Attach,
			Uplinks: append([]string{}, s.Node.Uplinks...),
		},
		Window:      windowDoc{Seconds: math.Round(s.Window.Duration().Seconds()*1000) / 1000},
		Sources:     make([]sourceDoc, 0, len(s.Sources)),
		Pods:        []podDoc{},
		Hops:        make([]hopDoc, 0, len(s.Traffic.Hops)),
		MACRewrites: make([]rewriteDoc, 0, len(r.Rewrites)),
		Drops:       make([]dropDoc, 0, len(s.Traffic.Drops)),
		Probes:      probeDocuments(s),
		Ledger:      make([]ledgerDoc, 0, len(r.Ledger)),
		Findings:    make([]findingDoc, 0, len(r.Findings)),
		Lost: lostDoc{
			Events: s.Traffic.Lost.Events, Counters: s.Traffic.Lost.Counters,
			MACs: s.Traffic.Lost.MACs, Unparsed: s.Traffic.Lost.Unparsed,
		},
	}
	if !s.Window.Start.IsZero() {
		d.Window.Start = s.Window.Start.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
	}
	for _, src := range s.Sources {
		d.Sources = append(d.Sources, sourceDoc{src.Name, string(src.Status), src.Detail})
	}
	for i, p := range allPods(s) {
		d.Pods = append(d.Pods, podDocument(p, i >= len(s.Pods)))
	}
	names := locals(s)
	for _, h := range s.Traffic.Hops {
		pod, node := podOrNode(h.Addr, names[h.Addr] == thisNode)
		d.Hops = append(d.Hops, hopDoc{
			Pod: pod, Node: node, Peer: prefixText(h.Prefix), Link: h.Link,
			Role:      orUnknown(string(role(s, h.IfIndex, h.Link))),
			Direction: string(h.Direction), Side: string(h.Side),
			Packets: h.Packets, Bytes: h.Bytes,
		})
	}
	for _, x := range r.Rewrites {
		d.MACRewrites = append(d.MACRewrites, rewriteDoc{
			Pod: addrText(x.Addr), Field: string(x.Field),
			From: macPlace(x.From), To: macPlace(x.To), Packets: x.Packets,
		})
	}
	for _, x := range dropRows(s) {
		pod, node := podOrNode(x.local, x.node)
		d.Drops = append(d.Drops, dropDoc{
			Pod: pod, Node: node, Side: string(x.side), Peer: addrText(x.peer),
			Reason: string(x.reason), Location: x.location, Link: x.link, Harmless: string(x.class), Packets: x.packets,
		})
	}
	for i := range r.Ledger {
		d.Ledger = append(d.Ledger, ledgerDocument(&r.Ledger[i]))
	}
	for _, f := range r.Findings {
		d.Findings = append(d.Findings, findingDocument(f))
	}
	return d
}

// podOrNode puts a local address into the field that says whose it is.
func podOrNode(a netip.Addr, isNode bool) (pod, node string) {
	if isNode {
		return "", addrText(a)
	}
	return addrText(a), ""
}

func podDocument(p model.Pod, gone bool) podDoc {
	d := podDoc{
		Namespace: p.Namespace, Name: p.Name, Link: p.Link, IfIndex: p.LinkIndex,
		MAC: p.MAC.String(), Netns: p.NetnsName, Gone: gone,
	}
	if d.Netns == "" && p.Netns != 0 {
		d.Netns = fmt.Sprintf("net:[%d]", p.Netns)
	}
	if len(p.Addresses) > 0 {
		d.IP = addrText(p.Addresses[0].Addr())
	}
	if len(p.Addresses) > 1 {
		for _, a := range p.Addresses {
			d.IPs = append(d.IPs, addrText(a.Addr()))
		}
	}
	return d
}

func findingDocument(f model.Finding) findingDoc {
	d := findingDoc{
		Code: f.Code, Severity: string(f.Severity), Confidence: string(f.Confidence),
		Pods: []string{}, Peers: []string{},
		Title: f.Title, Why: f.Why,
		Evidence:     make([]evidenceDoc, 0, len(f.Evidence)),
		Unseen:       append([]string{}, f.Unseen...),
		Alternatives: append([]string{}, f.Alternatives...),
		Fix:          append([]string{}, f.Fix...),
		Verify:       f.Verify, Packets: f.Packets,
	}
	for _, a := range f.Pods {
		d.Pods = append(d.Pods, addrText(a))
	}
	for _, p := range f.Peers {
		d.Peers = append(d.Peers, prefixText(p))
	}
	if f.LastHopAlive.Link != "" || f.LastHopAlive.Role != "" {
		d.LastHopAlive = &placeDoc{
			Link: f.LastHopAlive.Link, Role: string(f.LastHopAlive.Role), Direction: string(f.LastHopAlive.Direction),
		}
	}
	for _, e := range f.Evidence {
		d.Evidence = append(d.Evidence, evidenceDoc(e))
	}
	return d
}

func macPlace(p model.MACPlace) macPlaceDoc {
	return macPlaceDoc{MAC: p.MAC.String(), Link: p.Link, Direction: string(p.Direction)}
}

// addrText is the address's canonical text, an IPv4 address without the
// IPv6 wrapping; empty when unknown.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().String()
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.Masked().String()
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
