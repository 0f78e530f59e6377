package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/ring"
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
		{"all well", health{at: now, recorded: now.Add(-slow)}, "", false},
		{"not recorded", health{at: now}, "no reading is recorded yet", false},
		{"not begun", health{}, "the node is not observed yet", false},
		{"no rights", health{observing: errors.New("cannot observe: NET_ADMIN is missing")}, "cannot observe: NET_ADMIN is missing", false},
		{"no packets", health{at: now, unwatched: "packets cannot be watched: no tcx"}, "packets cannot be watched: no tcx", false},
		{"no readings", health{at: now.Add(-2 * time.Minute)}, "no reading for 2m0s", false},
		{"none for long", health{at: now.Add(-time.Hour)}, "no reading for 1h0m0s", true},
		{"a slow disk", health{at: now, recorded: now.Add(-time.Minute)}, "the disk is slow: the newest reading in the ring is 1m0s older than the latest", false},
		{"a full disk", health{at: now, recorded: now, ring: errors.New("no space left on device")}, "no space left on device", false},
	} {
		if got, stuck := tt.health.unready(now), tt.health.stuck(now); got != tt.want || stuck != tt.stuck {
			t.Errorf("%s: %q, stuck %v; want %q", tt.name, got, stuck, tt.want)
		}
	}
}

// TestUnrecorded: as long as readings are not recorded, because the disk is kept full or the directory was removed, both
// /readyz and the metrics say so after each of them, and no longer once they are.
func TestUnrecorded(t *testing.T) {
	t.Parallel()
	disk := tmpfs(t, "2m")
	said := &strings.Builder{}
	g := &agent{app: &app{stderr: said}, to: ring.Options{Dir: filepath.Join(disk, "ring"), Keep: time.Hour, Space: 1 << 20}}
	stop, err := g.serve("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, address, _ := strings.Cut(strings.TrimSpace(said.String()), "/readyz at ")
	to, second, began := ring.New(g.to), 0, time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	observe := func(n int, want string) {
		t.Helper()
		for range n {
			at := began.Add(time.Duration(second) * time.Second)
			s := &model.Snapshot{Window: model.Window{Start: began, End: at}}
			g.update(func(h *health) { h.at = time.Now() })
			g.write(to, model.Reading{At: at, Point: model.Point{Snapshot: s, Whole: second%10 == 0}})
			second++
			status, why := get(t, "http://"+address+"/readyz")
			_, metrics := get(t, "http://"+address+"/metrics")
			failing := strings.Contains(metrics, "\nlasthop_ring_failing 1\n")
			if !strings.Contains(why, want) || failing != (want != "ok") || failing != (status == http.StatusServiceUnavailable) {
				t.Fatalf("second %d: want %q, got %d: %s, lasthop_ring_failing: %v", second, want, status, why, failing)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	observe(30, "ok")
	must(os.RemoveAll(g.to.Dir))
	observe(10, "no such file or directory")
	full := filepath.Join(disk, "full")
	file, err := os.Create(full)
	must(err)
	if _, err := io.CopyN(file, zeros{}, 4<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	must(file.Close())
	observe(65, "no space left on device")
	must(os.Remove(full))
	observe(5, "no space left on device") // until there is a state
	observe(40, "ok")
	must(os.RemoveAll(g.to.Dir))
	observe(10, "no such file or directory")
	observe(30, "ok")
	if _, metrics := get(t, "http://"+address+"/metrics"); !strings.Contains(metrics, "\nlasthop_ring_missed_readings_total 90\n") {
		t.Error(metrics)
	}
	must(errors.Join(to.Close(), stop()))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// tmpfs is a disk of a size, until the test ends.
func tmpfs(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
