package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/timeline"
	"github.com/lasthop/lasthop/tui/view"
)

// TestDropsAgree has one drop of each class: judgement, the ledger's causes, every
// report, the events, the screen and its rates agree on whether packets were lost.
func TestDropsAgree(t *testing.T) {
	start := time.Unix(1700000000, 0)
	pod, young, gone, peer := netip.MustParseAddr("10.77.1.2"), netip.MustParseAddr("10.77.1.3"), netip.MustParseAddr("10.77.1.4"), netip.MustParseAddr("10.99.0.9")
	podMAC, gateway := model.MAC{2, 0, 0, 0, 0, 2}, netip.MustParseAddr("192.0.2.1")
	drops := map[loss.Class][]model.Drop{
		loss.Lost: {
			{Src: peer, Dst: pod, Reason: "SKB_CSUM", Location: "ip_rcv_core"},
			{Src: peer, Dst: pod, Reason: "OTHERHOST", Location: "ip_rcv_core", DstMAC: model.MAC{2, 9, 9, 9, 9, 9}},
		},
		loss.Delivered: {{Src: peer, Dst: pod, Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues"}},
		loss.Copy: {
			{Src: peer, Dst: pod, Reason: "OTHERHOST", Location: "ip_rcv_core", DstMAC: podMAC},
			{Src: pod, Dst: peer, Reason: "OTHERHOST", Location: "ip_rcv_core", DstMAC: model.MAC{2, 0, 0, 0, 0, 1}},
		},
		loss.Group: {
			{Src: pod, Dst: netip.MustParseAddr("224.0.0.251"), Reason: "NOT_SPECIFIED", Location: "ip_rcv_finish_core"},
			{Src: pod, Dst: netip.MustParseAddr("10.77.1.255"), Reason: "NO_SOCKET", Location: "__udp4_lib_rcv"},
		},
		loss.NeighborDiscovery: {{Src: pod, Dst: netip.MustParseAddr("ff02::1:ff00:1"), Reason: "IPV6_NDISC_NS_OTHERHOST", Location: "icmpv6_rcv"}},
		loss.PodGone: {
			{Src: pod, Dst: gone, Reason: "NEIGH_FAILED", Location: "neigh_invalidate"},
			{Src: peer, Dst: gone, Reason: "IP_INNOROUTES", Location: "ip_error"},
		},
		loss.Redirect:    {{Src: peer, Dst: pod, Proto: 1, Reason: "NETFILTER_DROP", Location: "nf_hook_slow"}},
		loss.PodStarting: {{Src: young, Dst: peer, Reason: "NETFILTER_DROP", Location: "nft_do_chain"}},
	}
	snapshot := func(end time.Duration, drops ...model.Drop) *model.Snapshot {
		addrs := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, 24)} }
		s := &model.Snapshot{
			Window: model.Window{Start: start, End: start.Add(end)},
			Routes: []model.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway}},
			// Nothing but the gateway has this MAC.
			Neighbors: []model.Neighbor{{Addr: gateway, MAC: model.MAC{2, 0, 0, 0, 0, 1}, State: "REACHABLE"}},
			Pods: []model.Pod{
				{Addresses: addrs(pod), MAC: podMAC, Link: "veth2", LinkIndex: 2}, {Addresses: addrs(young), Link: "veth3", LinkIndex: 3, Since: start.Add(5 * time.Second)},
			},
			PastPods: []model.Pod{{Addresses: addrs(gone), Link: "veth4", Until: start.Add(8 * time.Second)}},
			Traffic:  model.Traffic{Drops: drops},
		}
		for _, d := range drops {
			if d.Proto == 1 {
				head := append([]byte{0x45, 19: 0}, 5, 1)
				head[9] = 1
				s.Traffic.Samples = append(s.Traffic.Samples, model.Sample{Time: d.Last, Src: d.Src, Dst: d.Dst, Reason: d.Reason, Location: d.Location, Head: head})
			}
		}
		for _, source := range []string{model.SourceTC, model.SourceDrops} {
			s.Sources = append(s.Sources, model.Source{Name: source, Status: model.OK})
		}
		return s
	}
	for class, list := range drops {
		for _, d := range list {
			d.Packets, d.Last = 7, start.Add(6*time.Second)
			s, lost := snapshot(10*time.Second, d), class == loss.Lost
			what := fmt.Sprintf("%q: %s at %s", class, d.Reason, d.Location)
			if got := loss.NewClassifier(s).Class(&d); got != class {
				t.Fatalf("%s is of class %q", what, got)
			}

			v := diagnose.Judge(s)
			findings, causes := v.Findings, v.Causes
			if (causes[0].Code != "") != lost || !lost && causes[0].Ordinary != class {
				t.Errorf("%s: its cause is %+v", what, causes[0])
			}
			if unexplained := len(findings) > 0; unexplained != lost {
				t.Errorf("%s: findings %+v", what, findings)
			}

			// Without findings the first line says how many drops have none.
			written := write(t, what, report.Report{Snapshot: s}, report.Wide)
			some := "  drops           7 " + string(d.Reason)
			harmless, heading := "  not lost        7 "+string(d.Reason), "\nfrees that are no loss\n  LOCAL"
			for text, want := range map[string]bool{
				"7 drops without": lost, some: lost, harmless: !lost, heading: !lost, "\ndrops\n  none": !lost,
			} {
				if strings.Contains(written, text) != want {
					t.Errorf("%s: the report has %q: %v, want %v\n%s", what, text, !want, want, written)
				}
			}
			field := fmt.Sprintf("%q: %q", "harmless", class)
			if strings.Contains(write(t, what, report.Report{Snapshot: s}, report.JSON), field) == lost {
				t.Errorf("%s: whether the document has %s is wrong", what, field)
			}
			var events bytes.Buffer
			if err := (report.Events{Counts: s}).Write(&events); err != nil || strings.Contains(events.String(), `"kind":"Drop"`) != lost {
				t.Errorf("%s: the events are %v, %s", what, err, &events)
			}

			tl := timeline.New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
			tl.Add(model.Point{Snapshot: snapshot(9 * time.Second)})
			r := tl.Add(model.Point{Snapshot: s})
			screen, want := view.NewData(r, 0, nil), 0.0
			if lost {
				want = 7
			}
			if len(r.Drops) != 1 || r.Drops[0] != want {
				t.Errorf("%s: rates %v, want %v", what, r.Drops, want)
			}
			sum := 0.0
			for _, row := range screen.Pods {
				sum += row.Cells[5].Order // DROPS
			}
			if sum != want {
				t.Errorf("%s: the screen has %v drops", what, sum)
			}
		}
	}
}

func write(t *testing.T, what string, r report.Report, f report.Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Write(&b, r, f, report.Style{}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return b.String()
}
