package tui

import (
	"net/netip"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/model"
)

// bigNode has 250 pods and 5,000 hops, 1,000 drops and 5,000 flows.
func bigNode() model.Reading {
	r := kubenetNode(250)
	s := r.Snapshot
	for len(s.Traffic.Hops) < 5000 {
		s.Traffic.Hops = append(s.Traffic.Hops, s.Traffic.Hops[:min(750, 5000-len(s.Traffic.Hops))]...)
	}
	for i := range 5000 {
		pod := podAddr(i % 250)
		to := netip.AddrFrom4([4]byte{10, 244, 3, byte(i)})
		s.Flows = append(s.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: pod, Dst: to, SrcPort: uint16(i), DstPort: 443}, Reply: model.Tuple{Src: to, Dst: pod}})
		if i < 1000 {
			s.Traffic.Drops = append(s.Traffic.Drops, model.Drop{Src: pod, Dst: to, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", IfIndex: 10 + i%250, Packets: 3, Last: noon})
			s.Traffic.Peers = append(s.Traffic.Peers, model.Peer{Local: pod, Remote: to, IfIndex: 2, Out: model.PeerCount{Packets: uint64(i)}})
		}
	}
	return r
}

// BenchmarkDraw takes a reading of a full node and draws it.
func BenchmarkDraw(b *testing.B) {
	r := bigNode()
	for _, c := range []struct {
		name, key string
		w, h      int
	}{{"findings/80x24", "1", 80, 24}, {"findings/160x50", "1", 160, 50}, {"pods/160x50", "2", 160, 50}, {"path/160x50", "3", 160, 50}, {"events/160x50", "4", 160, 50}, {"node/160x50", "5", 160, 50}} {
		b.Run(c.name, func(b *testing.B) {
			s := newScreen(Options{Env: utf8Env, Source: newCanned(), Trace: kubenetPath, Window: time.Minute}, func() tea.Msg { return nil })
			send(s, tea.WindowSizeMsg{Width: c.w, Height: c.h}, named["enter"], tea.KeyPressMsg{Code: rune(c.key[0]), Text: c.key})
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
