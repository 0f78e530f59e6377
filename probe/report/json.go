package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// APIVersion names the contract of the documents. Fields are added to it, and never renamed or removed.
const APIVersion = "lasthop/v1alpha1"

// Schema is the JSON Schema, draft 2020-12, of every document that is written: reports, paths, and each line of NDJSON.
//
//go:embed lasthop.schema.json
var Schema string

// The documents. Field order is output order; a pointer or omitempty marks what may be unknown, which is then absent.
type (
	document struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		watchedDoc
		Pods        []podDoc     `json:"pods"`
		Hops        []hopDoc     `json:"hops"`
		MACRewrites []rewriteDoc `json:"macRewrites"`
		Drops       []dropDoc    `json:"drops"`
		Silences    []silenceDoc `json:"silences"`
		Matrix      matrixDoc    `json:"matrix"`
		Probes      []probeDoc   `json:"probes,omitzero"`
		Ledger      []ledgerDoc  `json:"ledger"`
		Findings    []findingDoc `json:"findings"`
		Lost        lostDoc      `json:"lost"`
		Audit       *auditDoc    `json:"audit,omitempty"`
	}
	watchedDoc struct {
		Node    nodeDoc     `json:"node"`
		Window  windowDoc   `json:"window"`
		Sources []sourceDoc `json:"sources"`
	}
	// localDoc is an address here, in the field that says whose it is: a pod's, or the node's own.
	localDoc struct {
		Pod     string `json:"pod,omitempty"`
		PodName string `json:"podName,omitempty"`
		Node    string `json:"node,omitempty"`
	}
	nodeDoc struct {
		Name    string `json:"name,omitempty"`
		Kernel  string `json:"kernel,omitempty"`
		Plugin  string `json:"plugin"`
		Policy  string `json:"policy,omitempty"`
		Residue string `json:"residue,omitempty"`
		// Programs made chains, rules or routes of the node's. With EBPFHostRouting, iptables rules do not see pods' packets.
		Programs        []string `json:"programs,omitempty"`
		EBPFHostRouting bool     `json:"ebpfHostRouting,omitempty"`
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
		Name   string       `json:"name"`
		Status model.Status `json:"status"`
		Detail string       `json:"detail,omitempty"`
	}
	podDoc struct {
		IP string `json:"ip,omitempty"`
		// IPs are all addresses of a pod that has several.
		IPs       []string  `json:"ips,omitempty"`
		Namespace string    `json:"namespace,omitempty"`
		Name      string    `json:"name,omitempty"`
		UID       string    `json:"uid,omitempty"`
		Link      string    `json:"link,omitempty"`
		IfIndex   int       `json:"ifindex,omitempty"`
		MAC       model.MAC `json:"mac,omitzero"`
		Netns     string    `json:"netns,omitempty"`
		// Resolver is known of pods whose requests were lost.
		Resolver *resolverDoc `json:"resolver,omitempty"`
		// Gone marks a pod that ended within the window.
		Gone bool `json:"gone,omitempty"`
	}
	resolverDoc struct {
		Servers []string         `json:"servers"`
		By      model.ResolverBy `json:"by,omitempty"`
	}
	hopDoc struct {
		localDoc
		// Peer stands for them where a remote range was counted.
		Peer      string          `json:"peer,omitempty"`
		Link      string          `json:"link,omitempty"`
		Role      string          `json:"role"`
		Direction model.Direction `json:"direction"`
		Side      model.Side      `json:"side"`
		Packets   uint64          `json:"packets"`
		Bytes     uint64          `json:"bytes"`
	}
	macPlaceDoc struct {
		MAC       model.MAC       `json:"mac,omitzero"`
		Link      string          `json:"link,omitempty"`
		Direction model.Direction `json:"direction,omitempty"`
	}
	rewriteDoc struct {
		Pod     string         `json:"pod"`
		PodName string         `json:"podName,omitempty"`
		Field   model.MACField `json:"field"`
		From    macPlaceDoc    `json:"from"`
		To      macPlaceDoc    `json:"to"`
		Packets uint64         `json:"packets"`
	}
	dropDoc struct {
		localDoc
		Side     model.Side   `json:"side,omitempty"`
		Peer     string       `json:"peer,omitempty"`
		PeerName string       `json:"peerName,omitempty"`
		Reason   model.Reason `json:"reason,omitempty"`
		Cilium   ciliumDoc    `json:"cilium,omitzero"`
		Location string       `json:"location,omitempty"`
		Link     string       `json:"link,omitempty"`
		// Harmless is why the packets were not lost; absent for drops.
		Harmless loss.Class `json:"harmless,omitempty"`
		// Finding is the one that claims the packets: its cause drops them.
		Finding model.Code `json:"finding,omitempty"`
		// Ordinary is why no finding claims packets that were lost.
		Ordinary model.Excuse `json:"ordinary,omitempty"`
		Packets  uint64       `json:"packets"`
	}
	ciliumDoc struct {
		Reason   string               `json:"reason"`
		Code     model.CiliumReason   `json:"code"`
		Error    int8                 `json:"error,omitempty"`
		From     model.CiliumIdentity `json:"sourceIdentity,omitempty"`
		To       model.CiliumIdentity `json:"destinationIdentity,omitempty"`
		Endpoint uint16               `json:"endpoint,omitempty"`
		Source   string               `json:"source"`
	}
	silenceDoc struct {
		localDoc
		Peer     string       `json:"peer"`
		PeerName string       `json:"peerName,omitempty"`
		Packets  uint64       `json:"packets"`
		Finding  model.Code   `json:"finding,omitempty"`
		Ordinary model.Excuse `json:"ordinary,omitempty"`
	}
	placeDoc struct {
		Link      string          `json:"link,omitempty"`
		Role      model.Role      `json:"role,omitempty"`
		Direction model.Direction `json:"direction,omitempty"`
	}
	evidenceDoc struct {
		Source string `json:"source"`
		Text   string `json:"text"`
		// Node is who saw it, where several nodes were observed.
		Node string `json:"node,omitempty"`
		// Values are those that Text shows, by their names.
		Values model.Values `json:"values,omitzero"`
	}
	findingDoc struct {
		Code       model.Code       `json:"code"`
		Severity   model.Severity   `json:"severity"`
		Confidence model.Confidence `json:"confidence"`
		// ByTables: no packet of the window is concerned. The node's tables say what would become of some.
		ByTables bool     `json:"byTables,omitempty"`
		Pods     []string `json:"pods"`
		Peers    []string `json:"peers"`
		// Names are those of the addresses above that have one in the cluster: namespace/name of a pod, "node NAME".
		Names        map[string]string `json:"names,omitempty"`
		LastHopAlive *placeDoc         `json:"lastHopAlive,omitempty"`
		Title        string            `json:"title"`
		Why          string            `json:"why"`
		Evidence     []evidenceDoc     `json:"evidence"`
		Unseen       []string          `json:"unseen"`
		Alternatives []string          `json:"alternatives"`
		// Next is what would make it surer.
		Next []Step   `json:"next,omitempty"`
		Fix  []string `json:"fix"`
		// Steps are what to do first where nothing is known to end it.
		Steps   []string `json:"steps,omitempty"`
		Verify  string   `json:"verify,omitempty"`
		Packets uint64   `json:"packets,omitempty"`
		// Nodes are those whose observations show it, where several were observed: first that of LastHopAlive.
		Nodes []string `json:"nodes,omitempty"`
		// Opened and Closed are when it was first and last seen, absent if it was there
		// before the window or at its end. Times is how often it was.
		Opened string `json:"opened,omitempty"`
		Closed string `json:"closed,omitempty"`
		Times  int    `json:"times,omitempty"`
	}
	lostDoc struct {
		Events   uint64 `json:"events"`
		Counters uint64 `json:"counters"`
		MACs     uint64 `json:"macs,omitempty"`
		Unparsed uint64 `json:"unparsed,omitempty"`
		// Malformed packets are no loss.
		Malformed uint64 `json:"malformed,omitempty"`
		// Missed are drops anywhere on the machine.
		Missed uint64 `json:"missed,omitempty"`
		// Gaps is how often a link was found where others hid packets.
		Gaps uint64 `json:"gaps,omitempty"`
	}
)

// head is what a line of NDJSON has before the fields of its document.
type head struct {
	Kind string `json:"kind"`
	// Time, Change, ID and Since are those of Events.
	Time   string `json:"time,omitempty"`
	Change Change `json:"change,omitempty"`
	ID     int    `json:"id,omitempty"`
	Since  string `json:"since,omitempty"`
	// Probe is a probe's own kind.
	Probe model.ProbeKind `json:"probe,omitempty"`
}

// lines writes NDJSON until the first error.
type lines struct {
	w   io.Writer
	at  string
	err error
}

// add writes one object with the fields of both.
func (l *lines) add(h head, doc any) {
	h.Time = l.at
	first, failed := marshal(h, "")
	rest, err := marshal(doc, "")
	if l.err = cmp.Or(l.err, failed, err); l.err == nil {
		_, l.err = io.WriteString(l.w, strings.TrimSuffix(first, "}\n")+","+strings.TrimPrefix(rest, "{"))
	}
}

func addAll[D any](l *lines, kind string, docs []D) {
	for _, d := range docs {
		l.add(head{Kind: kind}, d)
	}
}

// ndjson writes what was found and counted, one object a line, each with its kind.
func (r Report) ndjson(w io.Writer) error {
	d, l := r.document(), &lines{w: w}
	addAll(l, "Finding", d.Findings)
	addAll(l, "Drop", d.Drops)
	addAll(l, "Silence", d.Silences)
	addAll(l, "MACRewrite", d.MACRewrites)
	for i, x := range d.Ledger {
		if !idle(&r.Ledger[i]) {
			l.add(head{Kind: "Ledger"}, x)
		}
	}
	for _, x := range d.Probes {
		l.add(head{Kind: "Probe", Probe: x.Kind}, x.answerDoc)
	}
	l.add(head{Kind: "Lost"}, d.Lost)
	return l.err
}

// writeJSON writes v as JSON that is safe to print on a terminal.
func writeJSON(w io.Writer, v any, indent string) error {
	doc, err := marshal(v, indent)
	if err == nil {
		_, err = io.WriteString(w, doc)
	}
	return err
}

func marshal(v any, indent string) (string, error) {
	return encode(v, indent, func(b *strings.Builder, r rune) {
		hi, lo := utf16.EncodeRune(r)
		fmt.Fprintf(b, `\u%04x\u%04x`, hi, lo)
	})
}

func ciliumOf(c model.CiliumDrop) ciliumDoc {
	doc := ciliumDoc{c.Reason.String(), c.Reason, c.Error, c.SrcIdentity, c.DstIdentity, c.Endpoint, c.Source()}
	return model.Either(c == model.CiliumDrop{}, ciliumDoc{}, doc)
}

// encode is marshal with the escape for characters beyond 16 bits, in which JSON and YAML differ.
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

// writeYAML writes the same document as writeJSON. But for one kind of escape
// JSON is YAML, so it is read back and printed in block style.
func writeYAML(w io.Writer, v any) error {
	doc, err := encode(v, "", writeEscape)
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
	_, err = io.WriteString(w, escape(out, writeEscape))
	return err
}

// block clears the style that nodes have from JSON. Strings that hold anything
// but visible characters stay quoted, as escapes mean nothing elsewhere.
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
	names := Called(s)
	d := document{
		APIVersion: APIVersion, Kind: "Report", watchedDoc: watched(s.Node, s.Window, s.Sources), Pods: []podDoc{},
		MACRewrites: model.Map(r.Rewrites, func(x model.MACRewrite) rewriteDoc {
			return rewriteDoc{addrText(x.Addr), names.of(x.Addr), x.Field, macPlaceDoc(x.From), macPlaceDoc(x.To), x.Packets}
		}),
		Probes: probeDocuments(s), Ledger: model.Map(r.Ledger, names.ledger), Matrix: names.matrix(r.Matrix),
		Findings: names.findings(s, r.Findings), Lost: lostDocument(s.Traffic.Lost), Audit: names.audit(r.Audit),
	}
	for i, p := range allPods(s) {
		d.Pods = append(d.Pods, podDocument(p, i >= len(s.Pods)))
	}
	role := linkRoles(s)
	d.Hops = model.Map(s.Traffic.Hops, func(h model.HopCount) hopDoc {
		return hopDoc{
			localDoc: names.local(h.Addr), Peer: prefixText(h.Prefix), Link: h.Link, Role: orUnknown(string(role(&h))),
			Direction: h.Direction, Side: h.Side, Packets: h.Packets, Bytes: h.Bytes,
		}
	})
	d.Drops = model.Map(r.dropRows(), func(x dropRow) dropDoc {
		return dropDoc{
			localDoc: names.local(x.local), Side: x.side,
			Peer: cmp.Or(prefixText(x.far), addrText(x.peer)), PeerName: names.of(x.peer), Reason: x.reason,
			Cilium: ciliumOf(x.cilium), Location: x.location, Link: x.link,
			Harmless: x.class, Finding: x.cause.Code, Packets: x.packets,
			Ordinary: model.Either(x.class == loss.Lost, x.cause.Ordinary, ""),
		}
	})
	d.Silences = model.Map(r.Silences, func(x model.Silence) silenceDoc {
		return silenceDoc{
			localDoc: names.local(x.Local), Peer: addrText(x.Remote), PeerName: names.of(x.Remote),
			Packets: x.Packets, Finding: x.Code, Ordinary: x.Ordinary,
		}
	})
	return d
}

func watched(n model.Node, w model.Window, sources []model.Source) watchedDoc {
	return watchedDoc{
		Node: nodeDoc{
			Name: n.Name, Kernel: n.Kernel, Plugin: orUnknown(n.Plugin), Policy: n.Policy, Residue: n.Residue,
			Programs: n.Beside, EBPFHostRouting: n.PassedBy,
			PluginBy: n.PluginBy, Engine: orUnknown(n.Engine), Attach: n.Attach,
			Uplinks: append([]string{}, n.Uplinks...),
		},
		Window:  windowDoc{Start: instant(w.Start), Seconds: math.Round(w.Duration().Seconds()*1000) / 1000},
		Sources: model.Map(sources, func(src model.Source) sourceDoc { return sourceDoc(src) }),
	}
}

func lostDocument(l model.Lost) lostDoc {
	return lostDoc{Events: l.Events, Counters: l.Counters, MACs: l.MACs, Unparsed: l.Unparsed, Malformed: l.Malformed, Missed: l.Missed, Gaps: l.Gaps}
}

func podDocument(p model.Pod, gone bool) podDoc {
	d := podDoc{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Link: p.Link, IfIndex: p.LinkIndex,
		MAC: p.MAC, Netns: p.NetnsName, Gone: gone,
	}
	if d.Netns == "" && p.Netns != 0 {
		d.Netns = fmt.Sprintf("net:[%d]", p.Netns)
	}
	d.IP, d.IPs = severally(model.Map(p.Addresses, func(a netip.Prefix) string { return addrText(a.Addr()) }))
	if r := p.Resolver; r != nil {
		d.Resolver = &resolverDoc{model.Map(r.Servers, addrText), r.By}
	}
	return d
}

func severally[T any](list []T) (first T, all []T) {
	if len(list) > 0 {
		first = list[0]
	}
	return first, model.Either(len(list) > 1, list, nil)
}

// of is the name of an address that the cluster has for it; empty if it has none.
func (names Names) of(a netip.Addr) string {
	return model.Either(names[a].clustered(), names[a].String(), "")
}

func (names Names) local(a netip.Addr) localDoc {
	if names[a].Own {
		return localDoc{PodName: names.of(a), Node: addrText(a)}
	}
	return localDoc{PodName: names.of(a), Pod: addrText(a)}
}

func (names Names) findings(s *model.Snapshot, list []model.Finding) []findingDoc {
	return model.Map(list, func(f model.Finding) findingDoc { return names.finding(s, f) })
}

func (names Names) finding(s *model.Snapshot, f model.Finding) findingDoc {
	d := findingDoc{
		Code: f.Code, Severity: f.Severity, Confidence: f.Confidence, ByTables: f.ByTables,
		Pods: model.Map(f.Pods, addrText), Peers: model.Map(f.Peers, prefixText),
		Title: f.Title, Why: f.Why,
		Evidence:     model.Map(f.Evidence, func(e model.Evidence) evidenceDoc { return evidenceDoc(e) }),
		Unseen:       append([]string{}, f.Unseen...),
		Alternatives: append([]string{}, f.Alternatives...),
		Next:         Next(s, names, &f),
		Fix:          append([]string{}, Fix(&f)...),
		Steps:        f.Next,
		Verify:       f.Verify, Packets: f.Packets, Nodes: f.Nodes,
		Opened: instant(f.Opened), Closed: instant(f.Closed), Times: f.Times, Names: map[string]string{},
	}
	single := model.Map(model.Filter(f.Peers, netip.Prefix.IsSingleIP), netip.Prefix.Addr)
	for _, a := range slices.Concat(f.Pods, single) {
		if name := names.of(a); name != "" {
			d.Names[addrText(a)] = name
		}
	}
	if f.LastHopAlive.Link != "" || f.LastHopAlive.Role != "" {
		d.LastHopAlive = (*placeDoc)(&f.LastHopAlive)
	}
	return d
}

func orUnknown(s string) string { return cmp.Or(s, "unknown") }
