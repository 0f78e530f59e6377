package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	cart   = netip.MustParseAddr("10.60.0.32")
	till   = netip.MustParseAddr("10.60.0.33")
	self   = netip.MustParseAddr("10.60.0.4")
	client = netip.MustParseAddr("10.60.0.9")
	remote = netip.MustParsePrefix("10.61.1.0/24")
	nodeM  = mac("00:0d:3a:00:00:01")
	stale  = mac("a2:96:88:20:cb:c6")
)

func mac(s string) model.MAC {
	m, err := model.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// node is a snapshot in which every source was read and traffic flowed.
func node() *model.Snapshot {
	start := time.Date(2026, 1, 2, 3, 4, 5, 600_000, time.UTC)
	s := &model.Snapshot{
		Node: model.Node{
			Name: "node-1", Kernel: "6.12.3", Plugin: "azure-bridge", Engine: "tc", Attach: "tcx", Uplinks: []string{"nic0"},
		},
		Window: model.Window{Start: start, End: start.Add(10 * time.Second)},
		Links: []model.Link{
			{Index: 2, Name: "nic0", Role: model.RoleUplink, Addresses: []netip.Prefix{netip.PrefixFrom(self, 16)}},
			{Index: 3, Name: "br0", Role: model.RoleBridge},
			{Index: 7, Name: "port7", Role: model.RolePodLink},
		},
		Pods: []model.Pod{
			{
				Namespace: "shop", Name: "cart-7d9f", Addresses: []netip.Prefix{netip.PrefixFrom(cart, 16)},
				MAC: mac("0a:58:0a:3c:00:20"), Link: "port7", LinkIndex: 7, Netns: 4026532001, Up: true,
			},
			{
				Addresses: []netip.Prefix{netip.PrefixFrom(till, 16), netip.MustParsePrefix("fd00::21/64")},
				Link:      "port8", LinkIndex: 8, NetnsName: "till", Up: true,
			},
		},
		Traffic: model.Traffic{Hops: []model.HopCount{
			{Addr: cart, IfIndex: 2, Link: "nic0", Direction: model.Ingress, Side: model.AsDestination, Packets: 40, Bytes: 3360},
			{Addr: cart, IfIndex: 2, Link: "nic0", Direction: model.Egress, Side: model.AsSource, Packets: 41, Bytes: 3444},
			{Addr: cart, IfIndex: 7, Link: "port7", Direction: model.Ingress, Side: model.AsSource, Packets: 41, Bytes: 3444},
			{Addr: self, IfIndex: 2, Link: "nic0", Direction: model.Ingress, Side: model.AsDestination, Packets: 3, Bytes: 300},
			{Prefix: remote, IfIndex: 2, Link: "nic0", Direction: model.Egress, Side: model.AsDestination, Packets: 12, Bytes: 900},
		}},
	}
	for _, name := range []string{model.SourceLinks, model.SourceRoutes, model.SourceEbtables, model.SourceConntrack, model.SourceTC, model.SourceDrops} {
		s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK, Detail: "read"})
	}
	// What lies beyond the node is never known whole, and is no gap.
	s.Sources = append(s.Sources, model.Source{Name: model.SourceNodes, Status: model.Partial, Detail: "no file given"})
	return s
}

func withGaps() *model.Snapshot {
	s := node()
	s.Sources[3] = model.Source{Name: model.SourceConntrack, Status: model.Missing, Detail: "operation not permitted; needs CAP_NET_ADMIN"}
	s.Sources[5] = model.Source{Name: model.SourceDrops, Status: model.Partial, Detail: "reasons have no names: no BTF"}
	s.Traffic.Lost = model.Lost{Events: 3, Detail: []model.Uncounted{{Packets: 3, Why: "drop samples: the ring buffer was full"}}}
	return s
}

func unwatched() *model.Snapshot {
	s := node()
	s.Node.Engine, s.Node.Attach = "state", ""
	s.Traffic = model.Traffic{}
	s.Sources[4].Status, s.Sources[4].Detail = model.Missing, "not asked for (--engine state)"
	s.Sources[5].Status, s.Sources[5].Detail = model.Missing, "not asked for (--engine state)"
	return s
}

func staleRewrite() model.Finding {
	return model.Finding{
		Code: "StaleMACRewrite", Severity: model.Critical, Confidence: model.Proven,
		Pods:         []netip.Addr{cart},
		Peers:        []netip.Prefix{netip.PrefixFrom(client, 32)},
		LastHopAlive: model.Place{Link: "nic0", Role: model.RoleUplink, Direction: model.Ingress},
		Title:        "frames for 10.60.0.32 are sent to a2:96:88:20:cb:c6, which nobody has",
		Why:          "A rule of an earlier network plugin rewrites the destination of every frame that arrives for this pod. No live interface has that address, so the bridge floods the frame and the pod never sees it.",
		Evidence: []model.Evidence{
			{Source: "ebtables", Text: "nat PREROUTING 4: -p IPv4 -i nic0 --ip-dst 10.60.0.32 -j dnat --to-dst a2:96:88:20:cb:c6, 40 packets in the window"},
			{Source: "tc", Text: "nic0 ingress 40 packets to 00:0d:3a:00:00:01, nic0 egress 40 packets to a2:96:88:20:cb:c6"},
		},
		Alternatives: []string{"a pod that has just been replaced"},
		Fix:          []string{"ebtables-nft -t nat -D PREROUTING -p IPv4 -i nic0 --ip-dst 10.60.0.32 -j dnat --to-dst a2:96:88:20:cb:c6 --dnat-target ACCEPT"},
		Verify:       "lasthop check --only StaleMACRewrite",
		Packets:      40,
	}
}

func missingUDR() model.Finding {
	pods := []netip.Addr{cart}
	for a := till; len(pods) < 11; a = a.Next() {
		pods = append(pods, a)
	}
	return model.Finding{
		Code: "MissingUDR", Severity: model.Warning, Confidence: model.Likely, Pods: pods, Peers: []netip.Prefix{remote},
		LastHopAlive: model.Place{Link: "nic0", Role: model.RoleUplink, Direction: model.Egress},
		Title:        "nothing comes back from 10.61.1.0/24",
		Why:          "12 packets left right and none returned.",
		Unseen:       []string{"the route table itself"},
	}
}

func dropped() *model.Snapshot {
	s := node()
	s.Traffic.Drops = []model.Drop{
		{Src: client, Dst: cart, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Link: "nic0", Packets: 5},
		{Src: client, Dst: cart, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Link: "nic0", Packets: 2},
		{Src: client, Dst: self, Reason: "NO_SOCKET", Location: "tcp_v4_rcv", Link: "nic0", Packets: 9},
		{Src: self, Dst: till, Reason: "NEIGH_FAILED", Location: "neigh_invalidate", Link: "port8", Packets: 4},
		{Src: cart, Dst: till, Location: "ip_error", Packets: 1},
		{Src: client, Dst: cart, Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues", Packets: 6},
		{Src: cart, Dst: till, Reason: "OTHERHOST", Location: "ip_rcv_core", DstMAC: stale, Packets: 3},
		{Src: cart, Dst: till, Reason: "OTHERHOST", Location: "ip_rcv_core", DstMAC: s.Pods[0].MAC, Packets: 2},
	}
	s.PastPods = []model.Pod{{Name: "gone-1", Namespace: "shop", Addresses: []netip.Prefix{netip.MustParsePrefix("10.60.0.40/16")}}}
	return s
}

func probing() *model.Snapshot {
	s := node()
	s.Sources = append(s.Sources, model.Source{Name: model.SourceProbes, Status: model.OK, Detail: "4 sent, 3 answered"})
	s.Probes = []model.Probe{
		{Kind: model.ProbeEcho, Link: "nic0", From: self, To: client, Sent: 1, Answered: true, RTT: 312_345 * time.Nanosecond},
		{Kind: model.ProbeEcho, Link: "nic0", From: self, To: remote.Addr().Next(), Sent: 2},
		{Kind: model.ProbeARP, Link: "br0", From: self, To: till, Sent: 1, Answered: true, RTT: time.Millisecond, MACs: []model.MAC{stale}},
		{Kind: model.ProbeARP, Link: "br0", From: self, To: cart, Sent: 1, Answered: true, RTT: time.Millisecond, MACs: []model.MAC{nodeM, stale}},
	}
	return s
}

// probingNone may send probes, and had none to send.
func probingNone() *model.Snapshot {
	s := probing()
	s.Probes = nil
	return s
}

// hostile is a report in which every text from outside is an attack on the
// reader's terminal, or on the document that holds it.
func hostile() report.Report {
	const evil = "\x1b]0;owned\x07\x1b[2J \u202etxt.exe\u202c \x9b31m \u0085 \u2028 a\r\nb \xff\xfe `x` |y| <b>&\U000e0041 é 日本"
	s := node()
	s.Node.Name, s.Node.Uplinks = evil, []string{evil}
	s.Node.Plugin, s.Node.Policy, s.Node.Residue, s.Node.Kernel, s.Node.Engine, s.Node.Attach = evil, evil, evil, evil, evil, evil
	s.Node.PluginBy = []string{evil}
	s.Links[2].Name = evil
	s.Pods[0].Name, s.Pods[0].Namespace, s.Pods[0].Link, s.Pods[0].NetnsName = evil, evil, evil, evil
	s.Sources = append(s.Sources, model.Source{Name: evil, Status: model.Partial, Detail: evil})
	s.Traffic.Hops[2].Link = evil
	s.Traffic.Drops = []model.Drop{{Src: client, Dst: cart, Reason: evil, Location: evil, Link: evil, Packets: 1}}
	s.Traffic.Lost = model.Lost{Detail: []model.Uncounted{{Packets: 1, Why: evil}}}
	s.Sources = append(s.Sources, model.Source{Name: model.SourceProbes, Status: model.OK})
	s.Probes = []model.Probe{{Kind: evil, Link: evil, From: self, To: client, Sent: 1}}
	rows := []model.LedgerRow{{
		Addrs: []netip.Addr{cart}, Link: evil, Direction: model.FromPod, In: model.Counted(2), Dropped: 1, Least: 1, Most: model.Counted(2),
		Drops: []model.LedgerDrop{{Reason: evil, Location: evil, Packets: 1}}, Why: []string{evil},
	}}
	f := staleRewrite()
	f.Title, f.Why, f.Verify, f.LastHopAlive.Link = evil, evil, evil, evil
	f.Evidence = []model.Evidence{{Source: evil, Text: evil}}
	f.Unseen, f.Alternatives, f.Fix, f.Next = []string{evil}, []string{evil}, []string{evil}, []string{evil}
	return report.Report{Snapshot: s, Ledger: rows, Findings: []model.Finding{f}, Rewrites: []model.MACRewrite{{
		Addr: cart, Field: model.DestinationMAC, From: model.MACPlace{MAC: nodeM, Link: evil}, To: model.MACPlace{MAC: stale, Link: evil}, Packets: 1,
	}}}
}

// accounts are rows that balance, that do not, and that are not known.
func accounts() []model.LedgerRow {
	pod := []netip.Addr{cart}
	return []model.LedgerRow{
		{
			Addrs: pod, Link: "port7", Direction: model.FromPod, In: model.Counted(41), Out: model.Counted(36), Dropped: 3,
			Least: 2, Most: model.Counted(2), Edge: 4,
			Parts: []model.LedgerPart{{Place: model.PlaceOutside, Packets: 30}, {Place: model.PlaceTranslated, Packets: 6}},
			Drops: []model.LedgerDrop{
				{Reason: "NETFILTER_DROP", Location: "nf_hook_slow", DropCause: model.DropCause{Code: "PolicyDrop"}, Packets: 2},
				{Reason: "IP_INNOROUTES", Location: "ip_error", Packets: 1},
			},
		},
		{
			Addrs: pod, Link: "port7", Direction: model.ToPod, Out: model.Counted(38), Least: 1, Most: model.Counted(9),
			Parts: []model.LedgerPart{{Place: model.PlaceNode, Packets: 8}},
			Why:   []string{"of what came for the node's address, up to 12 packets may have been the pod's, or the node's own"},
		},
		{Addrs: []netip.Addr{till, client}, Link: "port8", Direction: model.FromPod, In: model.Counted(5), Why: []string{"the pod started or ended within the window"}},
		{Addrs: []netip.Addr{till, client}, Link: "port8", Direction: model.ToPod, In: model.Counted(0), Out: model.Counted(0), Most: model.Counted(0)},
	}
}

func rewrites() []model.MACRewrite {
	return []model.MACRewrite{{
		Addr: cart, Field: model.DestinationMAC,
		From:    model.MACPlace{MAC: nodeM, Link: "nic0", Direction: model.Ingress},
		To:      model.MACPlace{MAC: stale, Link: "nic0", Direction: model.Egress},
		Packets: 40,
	}}
}

func render(t *testing.T, r report.Report, f report.Format, style report.Style) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Write(&b, r, f, style); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// whoReaches is a map with each kind of reach, one more node than has a column, and a pod of which
// not all packets were counted.
func whoReaches() model.Matrix {
	m := model.Matrix{Columns: []model.Destination{{Kind: model.ToPods}}}
	reaches := []model.Reach{model.ReachWell, model.ReachOneWay, model.ReachDead, model.ReachLossy, model.ReachSilent, model.ReachUnclear}
	for i := range 9 {
		m.Columns = append(m.Columns, model.Destination{Kind: model.ToNode, Name: fmt.Sprintf("node-%d", i+2)})
	}
	m.Columns = append(m.Columns, model.Destination{Kind: model.ToDNS}, model.Destination{Kind: model.ToInternet})
	for i, pod := range []netip.Addr{cart, till} {
		r := model.MatrixRow{Pod: pod, Reach: model.ReachLossy, Whole: i == 0}
		for j := range m.Columns {
			var c *model.MatrixCell
			if (i+j)%5 != 0 {
				reach := reaches[(i+j)%len(reaches)]
				pair := model.MatrixPair{Pod: pod, Peer: netip.AddrFrom4([4]byte{10, 244, byte(j), 9}), Reach: reach, Sent: 9, Lost: uint64(j)}
				if reach.Dead() {
					pair.Code = "MissingUDR"
				}
				c = &model.MatrixCell{Reach: reach, Sent: 9, Lost: uint64(j), Pairs: []model.MatrixPair{pair}}
			}
			r.Cells = append(r.Cells, c)
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

func TestGolden(t *testing.T) {
	one := report.Report{Snapshot: node(), Findings: []model.Finding{staleRewrite()}, Rewrites: rewrites()}
	two := report.Report{Snapshot: dropped(), Findings: []model.Finding{staleRewrite(), missingUDR()}, Rewrites: rewrites(), Silences: []model.Silence{
		{Local: cart, Remote: netip.MustParseAddr("10.244.2.9"), Packets: 12, Code: "MissingUDR"},
		{Local: cart, Remote: netip.MustParseAddr("198.51.100.77"), Packets: 3, Ordinary: model.ExcusedScan},
	}}
	accounts := report.Report{Snapshot: dropped(), Ledger: accounts()}
	reaching := report.Report{Snapshot: node(), Matrix: whoReaches()}
	quiet := node()
	quiet.Traffic = model.Traffic{}
	tests := []struct {
		name   string
		report report.Report
		format report.Format
		style  report.Style
	}{
		{"none.txt", report.Report{Snapshot: node()}, report.Text, report.Style{}},
		{"none-wide.txt", report.Report{Snapshot: node()}, report.Wide, report.Style{}},
		{"none.json", report.Report{Snapshot: node()}, report.JSON, report.Style{}},
		{"gaps.txt", report.Report{Snapshot: withGaps()}, report.Text, report.Style{}},
		{"gaps.md", report.Report{Snapshot: withGaps()}, report.Markdown, report.Style{}},
		{"unwatched.txt", report.Report{Snapshot: unwatched()}, report.Text, report.Style{}},
		{"quiet.txt", report.Report{Snapshot: quiet}, report.Text, report.Style{}},
		{"one.txt", one, report.Text, report.Style{}},
		{"one-color.txt", one, report.Text, report.Style{Color: true}},
		{"one.md", one, report.Markdown, report.Style{}},
		{"two.txt", two, report.Text, report.Style{}},
		{"two-wide.txt", two, report.Wide, report.Style{}},
		{"two.json", two, report.JSON, report.Style{}},
		{"two.yaml", two, report.YAML, report.Style{}},
		{"two.ndjson", two, report.NDJSON, report.Style{}},
		{"dropped.txt", report.Report{Snapshot: dropped()}, report.Text, report.Style{}},
		{"focus-wide.txt", report.Report{Snapshot: dropped(), Focus: []netip.Addr{till}}, report.Wide, report.Style{}},
		{"probes.txt", report.Report{Snapshot: probing()}, report.Text, report.Style{}},
		{"probes.md", report.Report{Snapshot: probing()}, report.Markdown, report.Style{}},
		{"probes.json", report.Report{Snapshot: probing()}, report.JSON, report.Style{}},
		{"probes-none.json", report.Report{Snapshot: probingNone()}, report.JSON, report.Style{}},
		{"probes-none.txt", report.Report{Snapshot: probingNone()}, report.Text, report.Style{}},
		{"limits.txt", report.Report{Snapshot: node(), Limits: []string{"judged only MissingUDR"}}, report.Text, report.Style{}},
		{"ledger.txt", accounts, report.Text, report.Style{}},
		{"ledger-wide.txt", accounts, report.Wide, report.Style{}},
		{"ledger.json", accounts, report.JSON, report.Style{}},
		{"ledger.ndjson", accounts, report.NDJSON, report.Style{}},
		{"ledger.md", accounts, report.Markdown, report.Style{}},
		{"matrix-wide.txt", reaching, report.Wide, report.Style{}},
		{"matrix.json", reaching, report.JSON, report.Style{}},
		{"empty.json", report.Report{Snapshot: &model.Snapshot{}}, report.JSON, report.Style{}},
		{"empty-wide.txt", report.Report{Snapshot: &model.Snapshot{}}, report.Wide, report.Style{}},
		{"hostile-wide.txt", hostile(), report.Wide, report.Style{}},
		{"hostile.json", hostile(), report.JSON, report.Style{}},
		{"hostile.yaml", hostile(), report.YAML, report.Style{}},
		{"hostile.md", hostile(), report.Markdown, report.Style{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := render(t, tt.report, tt.format, tt.style)
			path := filepath.Join("testdata", tt.name)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs from what is written (go test -update, then review):\n%s", path, got)
			}
		})
	}
}

// TestNothingActsOnTheTerminal wants every byte of every format to be either
// visible or a line end, whatever came in.
func TestNothingActsOnTheTerminal(t *testing.T) {
	for _, f := range report.Formats() {
		for _, r := range render(t, hostile(), f, report.Style{}) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: %U gets through", f, r)
			}
		}
	}
}

// TestDocumentsKeepTheirText wants escapes to be lossless: a reader of JSON or
// YAML gets the same document, with the text as it was.
func TestDocumentsKeepTheirText(t *testing.T) {
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(render(t, hostile(), report.JSON, report.Style{})), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(render(t, hostile(), report.YAML, report.Style{})), &fromYAML); err != nil {
		t.Fatal(err)
	}
	name := func(doc any) string {
		return doc.(map[string]any)["node"].(map[string]any)["name"].(string)
	}
	if name(fromJSON) != name(fromYAML) {
		t.Errorf("JSON and YAML differ:\n%q\n%q", name(fromJSON), name(fromYAML))
	}
	if !strings.Contains(name(fromJSON), "\x1b[2J \u202etxt.exe") || !strings.Contains(name(fromJSON), "\U000e0041") {
		t.Errorf("text was lost: %q", name(fromJSON))
	}
}

// TestYAMLIsTheSameDocument compares the two encodings value by value.
func TestYAMLIsTheSameDocument(t *testing.T) {
	r := report.Report{Snapshot: dropped(), Findings: []model.Finding{staleRewrite(), missingUDR()}, Rewrites: rewrites()}
	var fromJSON, fromYAML, again any
	if err := json.Unmarshal([]byte(render(t, r, report.JSON, report.Style{})), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(render(t, r, report.YAML, report.Style{})), &fromYAML); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(fromJSON, again) {
		t.Errorf("documents differ:\n%v\n%v", fromJSON, again)
	}
}

func TestArraysAreNeverNull(t *testing.T) {
	r := report.Report{Snapshot: &model.Snapshot{}, Findings: []model.Finding{{Code: "X"}}}
	for _, f := range []report.Format{report.JSON, report.NDJSON, report.YAML} {
		if out := render(t, r, f, report.Style{}); strings.Contains(out, "null") {
			t.Errorf("%s holds null:\n%s", f, out)
		}
	}
}

func TestWriteFails(t *testing.T) {
	full := errors.New("no space left")
	for _, f := range report.Formats() {
		err := report.Write(failing{full}, report.Report{Snapshot: node()}, f, report.Style{})
		if !errors.Is(err, full) {
			t.Errorf("%s: got %v, want the writer's error", f, err)
		}
	}
	if err := report.Write(&bytes.Buffer{}, report.Report{Snapshot: node()}, "xml", report.Style{}); err == nil {
		t.Error("an unknown format was written")
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "plain é 日本", "\x1b[31m", "\xff", "\u202e", "a\nb\t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := report.Clean(s)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("Clean(%q) = %q holds %U", s, got, r)
			}
		}
		if report.Clean(got) != got {
			t.Errorf("Clean(%q) is not clean", s)
		}
	})
}

// TestVolumeCountsPods: a pod of two addresses is one, with the packets of both.
func TestVolumeCountsPods(t *testing.T) {
	four, six, gone := netip.MustParsePrefix("10.1.0.5/32"), netip.MustParsePrefix("fd01::5/128"), netip.MustParseAddr("10.1.0.6")
	s := &model.Snapshot{Pods: []model.Pod{{Addresses: []netip.Prefix{four, six}}, {Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.7/32")}}}}
	for _, a := range []netip.Addr{four.Addr(), six.Addr(), gone} {
		s.Traffic.Hops = append(s.Traffic.Hops, model.HopCount{Addr: a, Side: model.AsSource, Packets: 2})
	}
	var b strings.Builder
	if err := report.Write(&b, report.Report{Snapshot: s}, report.Text, report.Style{}); err != nil || !strings.Contains(b.String(), "; 2 pods, 6 packets out") {
		t.Errorf("%v:\n%s", err, &b)
	}
}

// TestNotLost: neither what a healthy node drops by design nor what passes between
// others is a drop of pods without a finding.
func TestNotLost(t *testing.T) {
	s := node()
	s.Traffic.Drops = []model.Drop{
		{Src: cart, Dst: client, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Packets: 60},
		{Src: client, Dst: netip.MustParseAddr("10.61.1.7"), Reason: "OTHERHOST", Location: "ip_rcv_core", Packets: 5},
		{Src: self, Dst: client, Reason: "NO_SOCKET", Location: "tcp_v4_rcv", Packets: 5},
	}
	ban := model.PacketRule{Target: "DROP", Dst: model.AddrMatch{Prefix: netip.PrefixFrom(client, 32)}, Comment: "AKS managed", Counter: model.Counter{Delta: 60}}
	for want, rules := range map[bool][]model.PacketRule{true: nil, false: {ban}} {
		s.PacketRules = rules
		var text strings.Builder
		if err := report.Write(&text, report.Report{Snapshot: s, Causes: make([]model.DropCause, 3)}, report.Text, report.Style{}); err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(text.String(), "\n\n")
		if got := strings.Contains(strings.Join(strings.Fields(first), " "), "60 drops without a finding"); got != want {
			t.Errorf("rules %v: %s", rules, first)
		}
		if !want && strings.Contains(first, "drop") {
			t.Errorf("it tells of drops: %s", first)
		}
	}
}
