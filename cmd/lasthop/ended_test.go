package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/ring"
	"github.com/lasthop/lasthop/probe/timeline"
)

// dropping is a rule that is there for a while, from a second to before another, and drops what a client sends to a pod.
type dropping struct {
	pod      string
	from, to int
}

func (d dropping) at(second int) bool { return d.from <= second && second < d.to }

// perSecond is how many packets it drops.
const perSecond = 5

// recordRules records a node with rules that come and go, each seconds long, with a state each so many. It returns what
// was known at each reading.
func recordRules(t *testing.T, name string, head record.Head, begin time.Time, seconds, every int, rules ...dropping) []model.Reading {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(file, head)
	if err != nil {
		t.Fatal(err)
	}
	prefix, client := netip.MustParsePrefix, netip.MustParseAddr("10.50.0.9")
	line := timeline.New(diagnose.Judge, timeline.Short)
	var out []model.Reading
	var state model.Snapshot
	drops, counted := map[string]*model.Drop{}, make([]uint64, len(rules))
	for i := range seconds + 1 {
		now := begin.Add(time.Duration(i) * time.Second)
		for j, r := range rules {
			if r.at(i - 1) { // in the second before
				d := drops[r.pod]
				if d == nil {
					d = &model.Drop{Src: client, Dst: netip.MustParseAddr(r.pod), Proto: 6, Reason: "NETFILTER_DROP", Location: "nf_hook_slow",
						IfIndex: 2, Link: "eth0", First: now}
					drops[r.pod] = d
				}
				d.Packets, d.Last, counted[j] = d.Packets+perSecond, now, counted[j]+perSecond
			}
		}
		whole := i%every == 0
		if whole {
			state = model.Snapshot{
				Node: model.Node{Name: "one", Plugin: "kubenet", Engine: "tc", Uplinks: []string{"eth0"}},
				Links: []model.Link{
					{Index: 2, Name: "eth0", Role: model.RoleUplink, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 0, 2}, Addresses: []netip.Prefix{prefix("10.50.0.4/24")}},
					{Index: 3, Name: "cbr0", Kind: "bridge", Role: model.RoleBridge, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 0, 3}, Addresses: []netip.Prefix{prefix("10.77.0.1/24")}},
				},
				Routes: []model.Route{
					{Table: 254, Dst: prefix("10.50.0.0/24"), IfIndex: 2, Link: "eth0", Type: "unicast"},
					{Table: 254, Dst: prefix("10.77.0.0/24"), IfIndex: 3, Link: "cbr0", Type: "unicast"},
				},
				Chains: []model.Chain{{Backend: model.NFT, Family: "ip", Table: "filter", Name: "FORWARD", Hook: "FORWARD", Policy: "ACCEPT"}},
			}
			for _, source := range []string{model.SourceTC, model.SourceDrops, model.SourceLinks, model.SourceRoutes, model.SourceNeighbors,
				model.SourcePods, model.SourceNAT, model.SourceEbtables, model.SourceConntrack} {
				state.Sources = append(state.Sources, model.Source{Name: source, Status: model.OK})
			}
			for n, last := range []byte{5, 6} {
				link := model.Link{Index: 9 + n, Name: fmt.Sprintf("veth%d", 9+n), Kind: "veth", Role: model.RolePodLink, Master: 3, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 1, last}}
				state.Links = append(state.Links, link)
				state.Pods = append(state.Pods, model.Pod{Namespace: "shop", Name: []string{"cart", "db"}[n], Up: true, Interface: "eth0",
					Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, last}), 24)},
					MAC:       model.MAC{2, 0, 0, 0, 0, last}, Link: link.Name, LinkIndex: link.Index, Netns: uint32(77 + n), Since: begin})
			}
			for j, r := range rules {
				if r.at(i) {
					state.PacketRules = append(state.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD",
						Number: len(state.PacketRules) + 1, Text: "-d " + r.pod + "/32 -j DROP", Target: "DROP",
						Dst: model.AddrMatch{Prefix: prefix(r.pod + "/32")}, Counter: model.Counter{Packets: counted[j]}})
				}
			}
		}
		s := state
		s.Window = model.Window{Start: begin, End: now}
		for _, pod := range slices.Sorted(maps.Keys(drops)) {
			s.Traffic.Drops = append(s.Traffic.Drops, *drops[pod])
		}
		r := line.Add(model.Point{Snapshot: &s, Whole: whole, Ready: now})
		out = append(out, r)
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

// ended is a finding as a document tells it, or a reading has it.
type ended struct {
	Code, Confidence string
	Pods             []string
	Fix              []string
	Opened, Closed   time.Time
}

func (e ended) String() string {
	clock := func(at time.Time) string { return at.UTC().Format("04:05") }
	return fmt.Sprintf("%s %s %s %s-%s %s", e.Code, e.Confidence, strings.Join(e.Pods, ","), clock(e.Opened), clock(e.Closed), strings.Join(e.Fix, "; "))
}

// endedBy are the findings that a command tells of a recording or of the agent's directory.
func endedBy(t *testing.T, args ...string) []string {
	t.Helper()
	var stdout, stderr strings.Builder
	run(append(args, "-o", "json"), &stdout, &stderr)
	var doc struct{ Findings []ended }
	if err := json.Unmarshal([]byte(stdout.String()), &doc); err != nil {
		t.Fatalf("%q: %v: %s", args, err, &stderr)
	}
	slices.SortStableFunc(doc.Findings, func(a, b ended) int { return a.Opened.Compare(b.Opened) })
	return model.Map(doc.Findings, ended.String)
}

// TestEndedRule: what a rule dropped that came and went is told with that rule and its times, and is not another's, whoever
// tells it: while it lasts, on the screen afterwards, in a replay, and from the agent's recordings.
func TestEndedRule(t *testing.T) {
	const seconds = 110
	begin := time.Now().Truncate(time.Hour).Add(-time.Hour) // so that its minutes are known
	one, two := "10.77.0.5", "10.77.0.6"
	for _, tt := range []struct {
		name  string
		every int
		rules []dropping
		sure  model.Confidence
	}{
		{"1 s", 1, []dropping{{one, 20, 21}}, model.Likely},
		{"6 s", 1, []dropping{{one, 20, 26}}, model.Proven},
		{"40 s", 1, []dropping{{one, 20, 60}}, model.Proven},
		{"6 s, a state each 3", 3, []dropping{{one, 20, 26}}, model.Proven},
		{"40 s, a state each 3", 3, []dropping{{one, 20, 60}}, model.Proven},
		{"40 s, a state each 10", 10, []dropping{{one, 22, 62}}, model.Proven},
		{"another rule meanwhile", 1, []dropping{{one, 20, 60}, {two, 40, 46}}, model.Proven},
		{"another that lasts longer", 2, []dropping{{one, 20, 60}, {two, 50, 70}}, model.Proven},
		{"another a minute later", 1, []dropping{{one, 20, 30}, {two, 80, 90}}, model.Proven},
		{"the same a minute later", 1, []dropping{{one, 20, 30}, {one, 80, 90}}, model.Proven},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			name := filepath.Join(dir, "a.rec")
			seen := recordRules(t, name, record.Head{Window: 10 * time.Second}, begin, seconds, tt.every, tt.rules...)
			var want, listed []string
			counted := map[model.Code]uint64{}
			for _, r := range tt.rules {
				e := ended{"PolicyDrop", string(tt.sure), []string{r.pod}, []string{
					"was: iptables-nft -t filter -D FORWARD -d " + r.pod + "/32 -j DROP # unless this is intended (no longer needed)",
				}, begin.Add(time.Duration(r.from+1) * time.Second), begin.Add(time.Duration(r.to) * time.Second)}
				want = append(want, e.String())
				listed = append(listed, fmt.Sprintf("%s PolicyDrop %s %d", e.Opened.Format("04:05"), tt.sure, perSecond*(r.to-r.from)))
				counted["PolicyDrop"] += uint64(perSecond * (r.to - r.from))
			}
			wants := func(by string, got []string) {
				t.Helper()
				if !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", by, got, want)
				}
			}
			var sum sums
			agent := ring.New(ring.Options{Dir: filepath.Join(dir, "ring"), Keep: time.Hour, Space: 1 << 26, Head: record.Head{Window: 10 * time.Second}})
			for _, r := range seen {
				sum.count(r)
				if err := agent.Write(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := agent.Close(); err != nil {
				t.Fatal(err)
			}
			var shown []string
			for _, x := range slices.Backward(seen[seconds].Findings) {
				shown = append(shown, ended{string(x.Code), string(x.Confidence), model.Map(x.Pods, netip.Addr.String), report.Fix(&x.Finding), x.First, x.Last}.String())
			}
			slices.SortFunc(shown, func(a, b string) int { return slices.Index(want, a) - slices.Index(want, b) })
			wants("the screen", shown)
			again := want
			if len(tt.rules) == 2 && tt.rules[0].pod == tt.rules[1].pod {
				// A report tells it once, from its first time to its last.
				e := strings.Fields(want[1])
				want = []string{strings.Replace(want[0], "-"+begin.Add(30*time.Second).UTC().Format("04:05"), e[3][5:], 1)}
			}
			wants("replay", endedBy(t, "replay", name))
			wants("check --at", endedBy(t, "check", "--dir", agent.Dir, "--at", begin.Format(time.RFC3339), "--for", "2m"))
			wants("check --last", endedBy(t, "check", "--dir", agent.Dir, "--last", "3h"))
			want = again
			if sum.lost["PolicyDrop"] != counted["PolicyDrop"] || sum.unexplained != 0 || sum.drops[dropKind{"NETFILTER_DROP", "PolicyDrop"}] != counted["PolicyDrop"] {
				t.Errorf("the metrics have %v, %v and %d unexplained; want %v", sum.lost, sum.drops, sum.unexplained, counted)
			}
			var stdout, stderr strings.Builder
			if code := run([]string{"past", "--dir", agent.Dir}, &stdout, &stderr); code != exitClean {
				t.Fatal(code, &stderr)
			}
			var lines []string
			for _, line := range strings.Split(strings.TrimSpace(stdout.String()), "\n")[1:] {
				f := strings.Fields(line)
				lines = append(lines, fmt.Sprintf("%s %s %s %s", f[0][14:19], f[2], f[3], f[5]))
			}
			if !slices.Equal(lines, listed) {
				t.Errorf("past: %q, want %q", lines, listed)
			}
		})
	}
}
