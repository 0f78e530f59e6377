package tui

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestFooterKeepsItsWord presses each key that the foot of the screen names,
// wherever one may be: it does something, and that is no refusal.
func TestFooterKeepsItsWord(t *testing.T) {
	quiet := func() model.Reading {
		r := kubenetNode(2)
		r.Findings, r.Snapshot.Pods, r.Snapshot.Sources = nil, nil, nil
		return r
	}
	for _, r := range []model.Reading{kubenetNode(41), quiet()} {
		for _, where := range []string{"1", "1 enter", "1 G up enter", "2", "2 enter", "3", "3 r", "3 right", "3 right enter", "3 enter", "4", "5", "?", "!", "1 enter ?"} {
			start := func() *screen {
				s := opened(t, Options{Env: utf8Env, Export: func(model.Reading) (string, error) { return "", nil }}, 160, 30, r)
				press(t, s, where)
				return s
			}
			for i, b := range start().keys {
				s := start()
				if b.footer == nil || !b.footer(s) {
					continue
				}
				if b.when != nil && !b.when(s) {
					t.Errorf("after %q: %s is named and does not work", where, b.Help().Key)
					continue
				}
				if shadow := slices.IndexFunc(s.keys, func(o binding) bool {
					return slices.ContainsFunc(o.Keys(), func(k string) bool { return slices.Contains(b.Keys(), k) }) && (o.when == nil || o.when(s))
				}); shadow != i {
					t.Errorf("after %q: %s is named as %q and does %q", where, b.Help().Key, b.Help().Desc, s.keys[shadow].Help().Desc)
				}
				before := frame(s)
				cmd := b.do(s)
				s.frame = ""
				if after := frame(s); cmd == nil && after == before {
					t.Errorf("after %q: %s changes nothing", where, b.Help().Key)
				}
				if strings.HasPrefix(s.Status, "no") {
					t.Errorf("after %q: %s says %q", where, b.Help().Key, s.Status)
				}
			}
		}
	}
}

// TestSortShows holds that a list is never sorted by a column that is not there.
func TestSortShows(t *testing.T) {
	for _, w := range []int{72, 80, 96, 110, 119, 120, 130, 150, 160, 240} {
		for _, tab := range []string{"1", "2", "4"} {
			s := opened(t, Options{Env: utf8Env}, w, 40, kubenetNode(9))
			press(t, s, tab+" s")
			for by := s.list().By; by >= 0; by = s.list().By {
				rows := strings.Split(ansi.Strip(frame(s)), "\n")
				heading := rows[slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, ">") })-1]
				if !strings.ContainsAny(heading, "^v") {
					t.Errorf("at %d columns tab %s is sorted by %s, which does not show: %q", w, tab, s.Data.Columns(s.Tab)[by].Title, heading)
				}
				press(t, s, "s")
			}
		}
	}
}

// returning is a path whose packets end on their way back.
func returning(_ model.Reading, _ []model.Finding, pod, to netip.Addr) model.Path {
	p := kubenetPath(model.Reading{}, nil, pod, to)
	p.Return[3].Dead, p.Return[3].Finding = true, "StaleMACRewrite"
	return p
}

// TestPathTurnsToWhereItEnds opens the return path where packets end on it.
func TestPathTurnsToWhereItEnds(t *testing.T) {
	s := opened(t, Options{Env: utf8Env, Trace: returning}, 80, 24, kubenetNode(41))
	press(t, s, "down")
	shows(t, s, "bridge cbr0", "✕ packets end here: known MAC")
	press(t, s, "3")
	shows(t, s, "Return 10.240.0.9:8443/tcp > bank/ledger-0")
	if got := cursorLine(s); !strings.Contains(got, "X  4 bridge cbr0") {
		t.Errorf("the cursor is at %q", got)
	}
	press(t, s, "r")
	shows(t, s, "Path bank/ledger-0 10.244.1.6 > 10.240.0.9", "✕ ends at bridge cbr0: known MAC")
	send(s, readingMsg{kubenetNode(41)})
	shows(t, s, "Path bank/ledger-0 10.244.1.6 > ")
}

// TestLongTitle shows what a finding says first as a whole, though it is longer than a line.
func TestLongTitle(t *testing.T) {
	r := kubenetNode(3)
	r.Findings[0].Title = "pods here cannot reach 10.244.1.0/24, 10.244.2.0/24, 10.244.3.0/24: no route beyond eth0, or none back"
	s := opened(t, Options{Env: utf8Env}, 100, 30, r)
	shows(t, s, "✕ pods here cannot reach 10.244.1.0/24", "  back ──")
}

// TestDropsAreLosses holds that what sockets free as they go alarms nobody.
func TestDropsAreLosses(t *testing.T) {
	r := kubenetNode(3)
	r.Findings, r.Drops = nil, []float64{0, 0}
	r.Snapshot.Traffic.Samples = nil
	r.Snapshot.Traffic.Drops = []model.Drop{
		{Src: podAddr(0), Dst: addr("10.240.0.9"), Proto: 6, Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues", Packets: 600, Last: noon},
	}
	s := opened(t, Options{Env: utf8Env}, 160, 50, r)
	shows(t, s, "lost 0/s", "no loss seen in 1m")
	hides(t, s, "QUEUE_PURGE", "drops without a finding")
	press(t, s, "2")
	if line := cursorLine(s); !strings.Contains(line, "0 -") {
		t.Errorf("the pod has drops: %q", line)
	}
	r.Snapshot.Traffic.Drops[0].Reason, r.Snapshot.Traffic.Drops[0].Location = "NETFILTER_DROP", "nf_hook_slow"
	s = opened(t, Options{Env: utf8Env}, 160, 50, r)
	shows(t, s, "lost 10/s", "drops without a finding")
}

// TestNarrowKeepsTheMeaning looks for what must be read whole where there is
// little room, with names and addresses as long as they come.
func TestNarrowKeepsTheMeaning(t *testing.T) {
	r := kubenetNode(3)
	for i := range r.Snapshot.Pods {
		p := &r.Snapshot.Pods[i]
		p.Namespace, p.Name = "a-rather-long-namespace", fmt.Sprintf("a-deployment-with-a-name-7d9f6c5b8d-x%dz", i)
		p.Addresses = []netip.Prefix{prefix(fmt.Sprintf("2001:db8:aaaa:bbbb:cccc:dddd:eeee:f00%d/128", i))}
	}
	for _, c := range []struct {
		w, h  int
		keys  string
		shows []string
		hides []string
	}{
		{80, 24, "2", []string{"x0z", ":eeee:f000 ", "x1z", ":eeee:f001 ", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:f000/128 eth0"}, nil},
		{40, 12, "2", []string{":f000", ":f001"}, nil},
		{120, 40, "2", []string{"behind veth03f2", "x2z"}, nil},
		{80, 24, "!", []string{"the cluster's nodes are unknown: use --nodes FILE"}, nil},
		{40, 12, "?", nil, []string{"…"}},
		{80, 24, "?", nil, []string{"…"}},
		{80, 24, "5 G", []string{"Pod range 10.244.0.0/16", "In window"}, nil},
	} {
		s := opened(t, Options{Env: utf8Env}, c.w, c.h, r)
		press(t, s, c.keys)
		shows(t, s, c.shows...)
		hides(t, s, c.hides...)
	}
	// The severity of a pod's worst finding shows in one column, too.
	s := opened(t, Options{Env: utf8Env}, 40, 12, kubenetNode(3))
	press(t, s, "2")
	shows(t, s, ">CRIT shop/cart-7d9f")
}

// TestPodRange has the range of this node's pods, also where only that is known.
func TestPodRange(t *testing.T) {
	r := kubenetNode(3)
	r.Snapshot.Cluster.Nodes = []model.ClusterNode{
		{Name: "another", PodCIDRs: []netip.Prefix{prefix("10.244.7.0/24")}},
		{Name: r.Snapshot.Node.Name, PodCIDRs: []netip.Prefix{prefix("10.244.1.0/24")}},
	}
	for cluster, want := range map[string]string{"10.244.0.0/16": "Pod range 10.244.0.0/16; this node's 10.244.1.0/24", "": "Pod range this node's 10.244.1.0/24"} {
		r.Snapshot.Cluster.PodCIDRs = nil
		if cluster != "" {
			r.Snapshot.Cluster.PodCIDRs = []netip.Prefix{prefix(cluster)}
		}
		s := opened(t, Options{Env: utf8Env}, 120, 60, r)
		press(t, s, "5")
		shows(t, s, want)
		hides(t, s, "10.244.7.0")
	}
}

// TestPreviewUsesTheRoom holds that a short list leaves the rest to the preview,
// and that what is left out is told.
func TestPreviewUsesTheRoom(t *testing.T) {
	r := kubenetNode(41)
	r.Findings, r.Snapshot.Sources = r.Findings[:1], nil
	s := opened(t, Options{Env: utf8Env}, 80, 24, r)
	shows(t, s, "✕ no route to 10.244.3.0/24", "10.240.0.7")
	s = opened(t, Options{Env: utf8Env}, 120, 40, r)
	shows(t, s, "╭ uplink eth0 ╮", "✕ 412 packets end here: no SYN-ACK, no ICMP", "0 packets in 1m at uplink eth0")
	r.Findings[0].Why = strings.Repeat("And then some more of it. ", 100)
	s = opened(t, Options{Env: utf8Env}, 80, 24, r)
	shows(t, s, "more lines ─")
}

// TestFirstReading is one that has no window yet.
func TestFirstReading(t *testing.T) {
	r := kubenetNode(3)
	r.Findings = nil
	r.Snapshot.Window.Start = r.Snapshot.Window.End
	s := opened(t, Options{Env: utf8Env}, 80, 24, r)
	shows(t, s, "win 0s/1m", "judging", "lost -")
	hides(t, s, "no loss")
}

func TestPagesAreCopied(t *testing.T) {
	for keys, want := range map[string]string{"3": "filter rules", "3 home down enter": "up, rp_filter 2"} {
		s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
		press(t, s, keys)
		if got := s.copied(); !strings.Contains(got, want) || ansi.Strip(got) != got {
			t.Errorf("%s copies %q", keys, got)
		}
	}
}

// TestHelpNamesEachKeyOnce holds that no section's keys are cut.
func TestHelpNamesEachKeyOnce(t *testing.T) {
	s := opened(t, Options{Env: utf8Env, Job: true}, 80, 24, kubenetNode(3))
	press(t, s, "?")
	for _, b := range s.keys {
		if b.section == "" || b.section == "Replay" {
			continue
		}
		shows(t, s, b.Help().Desc)
	}
}

// TestPodOfTwoAddresses has all traffic on the second one.
func TestPodOfTwoAddresses(t *testing.T) {
	r := kubenetNode(3)
	six := addr("2001:db8:7::4")
	r.Snapshot.Pods[0].Addresses = append(r.Snapshot.Pods[0].Addresses, netip.PrefixFrom(six, 128))
	r.Snapshot.Traffic.Hops = r.Snapshot.Traffic.Hops[3:]
	r.Snapshot.Traffic.Hops = append(r.Snapshot.Traffic.Hops,
		model.HopCount{Addr: six, IfIndex: 10, Link: "veth03f2", Direction: model.Ingress, Side: model.AsSource, Packets: 4242})
	s := opened(t, Options{Env: utf8Env}, 80, 24, r)
	press(t, s, "2")
	if line := cursorLine(s); !strings.Contains(line, " 71 ") {
		t.Errorf("what the second address sends is not told: %q", line)
	}
	text := ansi.Strip(frame(s))
	first, second, figure := strings.Index(text, "\n10.244.1.4\n"), strings.Index(text, "\n2001:db8:7::4\n"), strings.Index(text, "4242")
	if first < 0 || second < first || figure < second {
		t.Errorf("the hops of each address are not told apart:\n%s", text)
	}
}

// TestFindingOfTheNode names no pod: no other pod's path is shown for its own.
func TestFindingOfTheNode(t *testing.T) {
	r := kubenetNode(3)
	r.Findings[0].Pods, r.Findings[0].Peers = nil, nil
	r.Findings[0].LastHopAlive = model.Place{}
	s := opened(t, Options{Env: utf8Env}, 80, 24, r)
	if line := cursorLine(s); !strings.Contains(line, "this node") || strings.Contains(line, " 0 ") {
		t.Errorf("the finding of the node is %q", line)
	}
	press(t, s, "enter")
	hides(t, s, "enter path", "not known")
	press(t, s, "enter")
	shows(t, s, "[1]Findings", "(likely)")
}

// TestFilterIsShownWhereItWorks looks for it over what it does not concern.
func TestFilterIsShownWhereItWorks(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
	press(t, s, "/ ~ (")
	shows(t, s, "/filter: ~(_ (!)", "filter not used")
	press(t, s, "enter")
	for _, tab := range []string{"3", "5", "1 enter", "esc !"} {
		press(t, s, tab)
		hides(t, s, "/filter", "filter not used")
	}
	press(t, s, "2")
	shows(t, s, "/filter: ~( (!)", "filter not used")
	press(t, s, "esc")
	shows(t, s, "/filter: -")
}

func TestFrozenGoesOn(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	press(t, s, "p")
	shows(t, s, "FROZEN", "p continue")
	press(t, s, "p")
	shows(t, s, "LIVE", "p pause")
}

// TestJudging: before there is a verdict the screen says for how long, and what is lost already. The first finding is then
// selected, unless the user moved.
func TestJudging(t *testing.T) {
	early := kubenetNode(3)
	early.Findings = nil
	early.Snapshot.Window.Start = early.Snapshot.Window.End.Add(-4 * time.Second)
	s := opened(t, Options{Env: utf8Env}, 120, 40, early)
	shows(t, s, "judging", "5s to go; 94 drops/s so far", "who reaches whom")
	hides(t, s, "no loss")
	later := kubenetNode(3)
	send(s, readingMsg{later})
	if got := cursorLine(s); !strings.Contains(got, "MissingUDR") {
		t.Errorf("selected is %q", got)
	}
	press(t, s, "down")
	worse := kubenetNode(3)
	worse.Findings[0], worse.Findings[1] = worse.Findings[1], worse.Findings[0]
	send(s, readingMsg{worse})
	if got := cursorLine(s); !strings.Contains(got, "StaleMACRewrite") {
		t.Errorf("the user chose another than %q", got)
	}
}

// TestOneFigure: the header, the list and the strip have the same for one loss.
func TestOneFigure(t *testing.T) {
	r := kubenetNode(3)
	r.Snapshot.Traffic.Drops, r.Drops = nil, []float64{0}
	r.Findings = r.Findings[:1]
	n := r.Findings[0].Packets
	s := opened(t, Options{Env: utf8Env}, 120, 40, r)
	per := report.Rate(float64(n) / r.Snapshot.Window.Duration().Seconds())
	shows(t, s, "lost "+per+"/s", " +2      "+per+" ")
	_, strip, _ := strings.Cut(ansi.Strip(frame(s)), "\nlost/s ")
	if line, _, _ := strings.Cut(strip, "\n"); !strings.HasSuffix(line, " "+per) {
		t.Errorf("the strip has %q, not %s", line, per)
	}
}
