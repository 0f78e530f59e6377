package tui

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/reach"
)

// bigNode has some pods and for each twenty hops, four drops and twenty flows, to pods of a hundred
// other nodes.
func bigNode(pods int) model.Reading {
	r := kubenetNode(pods)
	s := r.Snapshot
	for len(s.Traffic.Hops) < 20*pods {
		s.Traffic.Hops = append(s.Traffic.Hops, s.Traffic.Hops[:min(3*pods, 20*pods-len(s.Traffic.Hops))]...)
	}
	for i := range 100 {
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(100 + i), 0}), 24)
		s.Cluster.Nodes = append(s.Cluster.Nodes, model.ClusterNode{Name: fmt.Sprintf("aks-np1-vmss%02d", i), PodCIDRs: []netip.Prefix{cidr}})
	}
	for i := range 20 * pods {
		pod := podAddr(i % pods)
		to := netip.AddrFrom4([4]byte{10, 244, byte(100 + i*7%100), byte(i)})
		s.Flows = append(s.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: pod, Dst: to, SrcPort: uint16(i), DstPort: 443}, Reply: model.Tuple{Src: to, Dst: pod}})
		if i < 4*pods {
			s.Traffic.Drops = append(s.Traffic.Drops, model.Drop{Src: pod, Dst: to, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", IfIndex: 10 + i%pods, Packets: 3, Last: noon})
		}
		s.Traffic.Peers = append(s.Traffic.Peers, model.Peer{Local: pod, Remote: to, IfIndex: 2, Out: model.PeerCount{Packets: uint64(i)}})
	}
	r.Verdict = model.Verdict{On: s, Causes: make([]model.DropCause, len(s.Traffic.Drops))}
	for f := range model.Each(r.Findings) {
		r.Verdict.Findings = append(r.Verdict.Findings, f.Finding)
	}
	return r
}

// drawing is one of the screen's, at a size.
type drawing struct {
	name, key string
	w, h      int
}

var drawn = []drawing{
	{"findings/80x24", "1", 80, 24}, {"findings/160x50", "1", 160, 50}, {"pods/160x50", "2", 160, 50},
	{"path/160x50", "3", 160, 50}, {"events/160x50", "4", 160, 50}, {"node/160x50", "5", 160, 50},
	{"map/160x50", "0", 160, 50},
}

func (p drawing) screen() *screen {
	s := newScreen(Options{Env: utf8Env, Source: newCanned(), Trace: kubenetPath, Window: time.Minute, Reach: func(r model.Reading) model.Matrix { return reach.Matrix(r.Verdict) }}, func() tea.Msg { return nil })
	send(s, tea.WindowSizeMsg{Width: p.w, Height: p.h}, named["enter"], tea.KeyPressMsg{Code: rune(p.key[0]), Text: p.key})
	return s
}

// BenchmarkDraw takes a reading of a full node and draws it.
func BenchmarkDraw(b *testing.B) {
	r := bigNode(250)
	for _, c := range drawn {
		b.Run(c.name, func(b *testing.B) {
			s := c.screen()
			b.ReportAllocs()
			for b.Loop() {
				send(s, readingMsg{r})
				if s.View().Content == "" {
					b.Fatal("nothing was drawn")
				}
			}
		})
	}
}

func TestGrowth(t *testing.T) {
	for _, p := range drawn[1:] {
		t.Run(strings.ReplaceAll(p.name, "/", " "), func(t *testing.T) {
			growth.Test(t, func(scale int) func() {
				r, s := bigNode(60*scale), p.screen()
				return func() {
					send(s, readingMsg{r})
					if s.View().Content == "" {
						t.Error("nothing was drawn")
					}
				}
			})
		})
	}
}
