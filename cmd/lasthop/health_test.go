package main

import (
	"errors"
	"testing"
	"time"
)

// TestReady: an agent says why it is not ready, and is alive all the same, but where it is
// stuck.
func TestReady(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		health health
		want   string
		stuck  bool
	}{
		{"all well", health{at: now}, "", false},
		{"not begun", health{}, "the node is not observed yet", false},
		{"no rights", health{observing: errors.New("cannot observe: NET_ADMIN is missing")}, "cannot observe: NET_ADMIN is missing", false},
		{"no packets", health{at: now, unwatched: "packets cannot be watched: no tcx"}, "packets cannot be watched: no tcx", false},
		{"no readings", health{at: now.Add(-2 * time.Minute)}, "no reading for 2m0s", false},
		{"none for long", health{at: now.Add(-time.Hour)}, "no reading for 1h0m0s", true},
		{"a slow disk", health{at: now, since: now.Add(-time.Minute)}, "the disk is slow: a write to the ring has taken 1m0s so far", false},
		{"a full disk", health{at: now, ring: errors.New("no space left on device")}, "no space left on device", false},
	} {
		if got, stuck := tt.health.unready(now), tt.health.stuck(now); got != tt.want || stuck != tt.stuck {
			t.Errorf("%s: %q, stuck %v; want %q", tt.name, got, stuck, tt.want)
		}
	}
}
