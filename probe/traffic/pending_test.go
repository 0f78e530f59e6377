package traffic

import (
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestPending: what may wait is attached to later, uplinks and what comes first at once; meanwhile the source says what lacks.
func TestPending(t *testing.T) {
	ends := newTwoEnds(t)
	first, _ := veth(t, ends.node, "first0", "10.78.0.1/24", ends.pod, "first1", "10.78.0.2/24")
	up, _ := veth(t, ends.node, "up0", "10.79.0.1/24", ends.pod, "up1", "10.79.0.2/24")
	first.First, up.Uplink = true, true
	e := ends.watched(t, Config{})
	links := []Link{ends.nodeLink, first, up}
	if err := e.Attach(links, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	s := sourceStatus(e, model.SourceTC)
	if s.Status != model.Partial || !strings.Contains(s.Detail, "on 2 links; 1 not attached yet") || len(e.Pending()) != 1 || !e.Pending()[ends.nodeLink.Index] {
		t.Errorf("%+v", s)
	}
	if err := e.Attach(links, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if s := sourceStatus(e, model.SourceTC); s.Status != model.OK || len(e.Pending()) > 0 {
		t.Errorf("%+v", s)
	}
}

// TestRoom: a node with many links has room for as many again, within what a slot may hold.
func TestRoom(t *testing.T) {
	for links, want := range map[int]int{3: defaultLinks, 400: 800, 2000: linkTable/2 - 1} {
		cfg := Config{NS: newNS(t), MaxLinks: Room(links)}
		if cfg.MaxLinks != want {
			t.Errorf("%d links: room for %d, want %d", links, cfg.MaxLinks, want)
		}
		open(t, cfg)
	}
}
