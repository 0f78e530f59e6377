package record

import (
	"bytes"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// play plays a recording of a small node, at rest.
func play(t *testing.T, seconds int) *Player {
	t.Helper()
	file, _ := recording(t, seconds)
	f, err := Open(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	p := Play(f, func(*model.Snapshot) model.Verdict {
		return model.Verdict{Findings: []model.Finding{{Code: "Judged", Confidence: model.Proven}}}
	}, 0)
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// until takes readings up to one that is so.
func until(t *testing.T, p *Player, is func(model.Reading) bool) model.Reading {
	t.Helper()
	for r := range p.Readings() {
		if !r.Replay || r.Snapshot.Window.End != r.At {
			t.Fatalf("reading %v: replay %v, window %v", r.At, r.Replay, r.Snapshot.Window)
		}
		if is(r) {
			return r
		}
	}
	t.Fatalf("the player ended: %v", p.Close())
	return model.Reading{}
}

// second is which of the recording's seconds a reading is.
func second(r model.Reading) int {
	return int(r.At.Sub(r.Point.Snapshot.Window.Start) / time.Second)
}

func TestPlayer(t *testing.T) {
	p := play(t, 100)
	at := func(n int) func(model.Reading) bool { return func(r model.Reading) bool { return second(r) == n } }
	until(t, p, at(0))
	p.Step(3)
	until(t, p, at(3))
	p.Step(-1)
	until(t, p, at(2))
	p.Seek(60 * time.Second)
	until(t, p, at(62))
	p.Rescan()
	r := until(t, p, at(62))
	if d := r.Snapshot.Window.Duration(); d < 9*time.Second || d > 14*time.Second {
		t.Errorf("window of %v, want 10s", d)
	}
	if len(r.Findings) != 1 || r.Findings[0].Code != "PolicyDrop" || r.Findings[0].Packets != 62 {
		t.Errorf("findings %+v, want those of the recording", r.Findings)
	}
	total := r.Point.Snapshot.Traffic.Hops[0].Packets
	if n := r.Snapshot.Traffic.Hops[0].Packets; n == 0 || n >= total {
		t.Errorf("%d packets in the window, %d in all", n, total)
	}
	p.SetWindow(time.Minute)
	r = until(t, p, func(r model.Reading) bool { return r.Snapshot.Window.Duration() > 50*time.Second })
	if len(r.Findings) != 1 || r.Findings[0].Code != "Judged" {
		t.Errorf("findings %+v, want them judged anew", r.Findings)
	}
	p.SetWindow(0)
	r = until(t, p, func(r model.Reading) bool { return r.Snapshot.Window.Start.Equal(r.Point.Snapshot.Window.Start) })
	if n := r.Snapshot.Traffic.Hops[0].Packets; n != total {
		t.Errorf("%d packets in all, want %d", n, total)
	}
	p.Reset()
	p.Step(10)
	r = until(t, p, at(72))
	if n := r.Snapshot.Traffic.Hops[0].Packets; n == 0 || n >= total {
		t.Errorf("%d packets since the reset, %d before", n, total)
	}
	p.Seek(-time.Hour)
	until(t, p, at(0))
	p.Seek(time.Hour)
	until(t, p, at(99))
	p.Step(-5)
	p.Speed(1000)
	until(t, p, at(99))
}
