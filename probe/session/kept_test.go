package session

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestLatest: links and routes of pods that come and go push out neither a route that was deleted by hand nor each other's
// latest.
func TestLatest(t *testing.T) {
	by := func(kind model.ChangeKind, name string, n int) model.Change {
		return model.Change{Kind: kind, Link: n, By: []model.Process{{Name: name}}}
	}
	list := []model.Change{by(model.ChangedRoute, "ip", 0)}
	for i := range 2 * maxChanges {
		list = latest(append(list, by(model.ChangedLink, "", i), by(model.ChangedRoute, "cni", i)))
	}
	if len(list) > maxChanges || len(list) < maxChanges-3 { // shares are equal
		t.Errorf("%d are kept, want %d", len(list), maxChanges)
	}
	if c := list[0]; c.Kind != model.ChangedRoute || c.By[0].Name != "ip" {
		t.Errorf("the route that was deleted by hand is pushed out: the first is %+v", c)
	}
	for _, c := range list[len(list)-2:] {
		if c.Link != 2*maxChanges-1 {
			t.Errorf("the latest is not kept: %+v", c)
		}
	}
	if few := latest(list[:10]); len(few) != 10 {
		t.Errorf("%d of ten are kept", len(few))
	}
}
