package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// talking are two nodes of which a pod of the first asks one of the second: in each second
// busy connections to port 80, and small packets each way.
type talking struct {
	busy, small uint64
	// dead: another port is asked too, once a second, and between the nodes these are lost,
	// or taken: the far node drops them, and does not track them.
	dead, taken bool
	// bulk is when many large packets are sent, and lost those that none of them arrive in.
	bulk [2]int
	lost bool
}

// recordedAt is when a node is recorded, in seconds, and how far its clock is ahead.
type recordedAt struct {
	from, to int
	ahead    time.Duration
}

func talkingPod(node int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, byte(node), 10}) }

// snapshot is a node with one pod.
func (x talking) snapshot(node int, at recordedAt) model.Snapshot {
	own, far := netip.PrefixFrom(talkingPod(node), 24).Masked(), netip.PrefixFrom(talkingPod(3-node), 24).Masked()
	s := model.Snapshot{Node: model.Node{Name: fmt.Sprintf("n%d", node), Plugin: "kubenet", Engine: "tc", Uplinks: []string{"eth0"}}}
	for _, name := range []string{
		model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge, model.SourceSysctl, model.SourceEbtables, model.SourceNAT,
		model.SourceConntrack, model.SourcePods, model.SourceTC, model.SourceDrops,
	} {
		s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK})
	}
	address := netip.AddrFrom4([4]byte{10, 1, 0, byte(node)})
	s.Links = []model.Link{
		{Index: 2, Name: "eth0", MAC: model.MAC{2, 0, byte(node)}, Up: true, Carrier: true, Role: model.RoleUplink, MTU: 1500, Addresses: []netip.Prefix{netip.PrefixFrom(address, 16)}},
		{Index: 3, Name: "cbr0", Kind: "bridge", MAC: model.MAC{2, 1, byte(node)}, Up: true, Carrier: true, Role: model.RoleBridge, MTU: 1500, Addresses: []netip.Prefix{netip.PrefixFrom(own.Addr().Next(), 24)}},
		{Index: 10, Name: "veth1", Kind: "veth", Master: 3, MAC: model.MAC{2, 2, byte(node)}, Up: true, Carrier: true, Role: model.RolePodLink, MTU: 1500},
	}
	s.Routes = []model.Route{
		{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.255.1"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: netip.MustParsePrefix("10.1.0.0/16"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: own, IfIndex: 3, Link: "cbr0", Type: "unicast"},
	}
	s.Neighbors = []model.Neighbor{{Addr: netip.MustParseAddr("10.1.255.1"), MAC: model.MAC{2, 3}, IfIndex: 2, State: "REACHABLE"}}
	s.Pods = []model.Pod{{Addresses: []netip.Prefix{netip.PrefixFrom(talkingPod(node), 32)}, MAC: model.MAC{2, 4, byte(node)}, Up: true, Link: "veth1", LinkIndex: 10}}
	s.Cluster.Nodes = []model.ClusterNode{}
	s.Traffic.Peers = []model.Peer{{Local: talkingPod(node), Remote: talkingPod(3 - node), IfIndex: 2, Link: "eth0"}}
	s.Traffic.Hops = []model.HopCount{
		{Prefix: far, IfIndex: 2, Link: "eth0", Direction: model.Egress, Side: model.AsDestination},
		{Prefix: far, IfIndex: 2, Link: "eth0", Direction: model.Ingress, Side: model.AsSource},
	}
	flow := func(second int, port uint16, replied bool) {
		if second < at.from || second >= at.to {
			return
		}
		a, b, source := talkingPod(1), talkingPod(2), uint16(10000+second)
		s.Flows = append(s.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: a, Dst: b, SrcPort: source, DstPort: port}, Replied: replied,
			Reply: model.Tuple{Src: b, Dst: a, SrcPort: port, DstPort: source}, Start: talkingSince.Add(time.Duration(second)*time.Second + at.ahead)})
	}
	for second := range 120 {
		flow(second, 80, true)
		if x.dead && node == 1 {
			flow(second, 5432, false)
		}
	}
	return s
}

var talkingSince = time.Unix(1800000000, 0).UTC()

// reading is what a node counted until a second of its recording.
func (x talking) reading(s model.Snapshot, node int, at recordedAt, second int) model.Reading {
	begin := talkingSince.Add(time.Duration(at.from)*time.Second + at.ahead)
	s.Window = model.Window{Start: begin, End: talkingSince.Add(time.Duration(second)*time.Second + at.ahead)}
	n, bulk := uint64(second-at.from), uint64(max(0, min(second, x.bulk[1])-max(at.from, x.bulk[0])))
	const packets, size = 200, 1400
	requests, large, arrived := n*x.busy, bulk*packets, bulk*packets
	if x.dead && node == 1 || x.taken {
		requests += n
	}
	if x.lost {
		arrived = 0
	}
	ask, reply := model.NewPeerCount(requests+n*x.small+large, requests, n*x.small+large, 0), model.NewPeerCount(n*(x.busy+x.small), 0, n*(x.busy+x.small), 0)
	out, in, volumes := ask, reply, [2]uint64{large, 0}
	if node == 2 {
		out, in, volumes = reply, model.NewPeerCount(requests+n*x.small+arrived, requests, n*x.small+arrived, 0), [2]uint64{0, arrived}
	}
	p, hops := s.Traffic.Peers[0], slices.Clone(s.Traffic.Hops)
	p.Out, p.In, p.FirstOut, p.LastOut, p.LastIn = out, in, begin.Add(time.Second/2), s.Window.End, s.Window.End
	for i, c := range []model.PeerCount{out, in} {
		hops[i].Packets, hops[i].Bytes = c.Packets, 80*(c.Packets-volumes[i])+size*volumes[i]
	}
	s.Traffic = model.Traffic{Peers: []model.Peer{p}, Hops: hops}
	return model.Reading{At: s.Window.End, Point: model.Point{Snapshot: &s, Whole: (second-at.from)%3 == 0 || second == at.to, Ready: s.Window.End}}
}

func (x talking) record(file string, node int, at recordedAt) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w, err := record.NewWriter(f, record.Head{Writer: "test", Node: fmt.Sprintf("n%d", node), Window: 10 * time.Second})
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s := x.snapshot(node, at)
	for second := at.from + 1; second <= at.to; second++ {
		if err := w.Write(x.reading(s, node, at, second)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Close())
}

// TestCommonTime judges recordings of different spans together: what one counted while the
// other was not recorded is neither lost nor arrived.
func TestCommonTime(t *testing.T) {
	t.Parallel()
	const port, mtu = "NoReply proven [10.2.2.10/32]", "PathMTU likely [10.2.2.10/32]"
	spans := map[string][2]recordedAt{
		"the same":                {{20, 50, 0}, {20, 50, 0}},
		"the receiver longer":     {{20, 50, 0}, {0, 80, 0}},
		"the sender longer":       {{0, 80, 0}, {20, 50, 0}},
		"one after the other":     {{10, 40, 0}, {25, 60, 0}},
		"the receiver first":      {{25, 60, 0}, {10, 40, 0}},
		"the receiver's clock on": {{20, 50, 0}, {0, 80, time.Minute}},
		"the sender's clock on":   {{0, 80, 40 * time.Second}, {20, 50, 0}},
	}
	for _, tt := range []struct {
		name string
		talk talking
		want string
	}{
		{"healthy", talking{busy: 50, small: 20}, ""},
		{"a port that dies", talking{busy: 50, small: 20, dead: true}, port},
		{"a port that the far node drops", talking{busy: 50, small: 20, dead: true, taken: true}, ""},
		{"a bulk transfer that was under way", talking{busy: 5, bulk: [2]int{0, 26}}, ""},
		{"one that goes on", talking{busy: 5, bulk: [2]int{0, 120}}, ""},
		{"one that begins late", talking{busy: 5, bulk: [2]int{38, 120}}, ""},
		{"large packets that are lost", talking{busy: 5, bulk: [2]int{0, 120}, lost: true}, mtu},
		{"large packets that are lost among many small", talking{busy: 5, small: 600, bulk: [2]int{0, 120}, lost: true}, mtu},
	} {
		for name, span := range spans {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				var files []string
				for i, at := range span {
					files = append(files, filepath.Join(dir, fmt.Sprintf("%d.rec", i+1)))
					if err := tt.talk.record(files[i], i+1, at); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					var got []string
					for _, f := range judged(t, files) {
						got = append(got, fmt.Sprintf("%s %s %v", f.Code, f.Confidence, f.Peers))
					}
					if want := slices.DeleteFunc([]string{tt.want}, func(s string) bool { return s == "" }); !slices.Equal(got, want) {
						t.Errorf("%v: got %q, want %q", files, got, want)
					}
					slices.Reverse(files)
				}
			})
		}
	}
}

// judged are the findings of recordings.
func judged(t *testing.T, files []string) []model.Finding {
	t.Helper()
	args := []string{"check", "-o", "json"}
	for _, file := range files {
		args = append(args, "--replay", file)
	}
	var out bytes.Buffer
	run(args, &out, io.Discard)
	found, err := decodeFindings(out.Bytes())
	if err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	return found
}
