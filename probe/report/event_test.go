package report_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

func TestEvents(t *testing.T) {
	at := time.Date(2026, 5, 6, 7, 8, 9, 123456789, time.FixedZone("", 7200))
	pod, peer := netip.MustParseAddr("10.66.0.9"), netip.MustParseAddr("10.67.0.1")
	e := report.Events{
		At: at,
		Findings: []report.FindingChange{{Change: report.Closed, Finding: model.Tracked{
			ID: 7, First: at.Add(-time.Minute), Finding: model.Finding{Code: "NoReply", Title: "x\x1b[2Jy\u202e", Pods: []netip.Addr{pod}}}}},
		Counts: &model.Snapshot{
			Pods: []model.Pod{{Addresses: []netip.Prefix{netip.PrefixFrom(pod, 24)}}},
			Traffic: model.Traffic{
				Drops: []model.Drop{
					{Src: pod, Dst: peer, Reason: "NEIGH_FAILED", Location: "neigh_invalidate", Packets: 3},
					{Src: peer, Dst: pod, Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues", Packets: 9},
				},
				Lost: model.Lost{Events: 2},
			},
		},
		Rewrites: []model.MACRewrite{{Addr: pod, Field: model.SourceMAC, Packets: 4}},
	}
	want := `{"kind":"Finding","time":"2026-05-06T05:08:09.123Z","change":"closed","id":7,"since":"2026-05-06T05:07:09.123Z","code":"NoReply","severity":"","confidence":"","pods":["10.66.0.9"],"peers":[],"title":"x\u001b[2Jy\u202e","why":"","evidence":[],"unseen":[],"alternatives":[],"fix":[]}
{"kind":"Drop","time":"2026-05-06T05:08:09.123Z","pod":"10.66.0.9","side":"source","peer":"10.67.0.1","reason":"NEIGH_FAILED","location":"neigh_invalidate","packets":3}
{"kind":"MACRewrite","time":"2026-05-06T05:08:09.123Z","pod":"10.66.0.9","field":"source","from":{},"to":{},"packets":4}
{"kind":"Lost","time":"2026-05-06T05:08:09.123Z","events":2,"counters":0}
`
	var b strings.Builder
	if err := e.Write(&b); err != nil || b.String() != want {
		t.Errorf("%v\n got %s\nwant %s", err, b.String(), want)
	}
	b.Reset()
	quiet := report.Events{At: at, Counts: &model.Snapshot{}}
	if err := quiet.Write(&b); err != nil || b.Len() > 0 {
		t.Errorf("nothing went on, and it says %q, %v", b.String(), err)
	}
	quiet.LostToo = true
	if err := quiet.Write(&b); err != nil || !strings.HasPrefix(b.String(), `{"kind":"Lost",`) {
		t.Errorf("got %q, %v", b.String(), err)
	}
}
