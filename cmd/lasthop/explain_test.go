package main

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
)

// watchClosely brings a scenario up, and returns what was seen of its node while
// its traffic ran and every pod was looked at closely.
func watchClosely(t *testing.T, name string) *model.Snapshot {
	t.Helper()
	s, err := kind.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), s, lab.Options{ID: newLab(t.Cleanup, t.Error)})
	if err != nil {
		t.Fatal(err)
	}
	node, err := observed(l)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Named(node.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	o := (&observing{hostRoot: t.TempDir(), window: window(4 * time.Second)}).session(ns, node.Name)
	o.Closely = func(s *model.Snapshot) ([]netip.Addr, error) {
		var all []netip.Addr
		for _, p := range s.Pods {
			for _, a := range p.Addresses {
				all = append(all, a.Addr())
			}
		}
		return all, nil
	}
	a := &app{stderr: os.Stderr}
	snapshot, err := a.observe(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func TestSweep(t *testing.T) {
	for _, info := range kind.Scenarios() {
		if f := os.Getenv("SWEEP"); f == "" || !strings.Contains(info.Name, f) {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			s := watchClosely(t, info.Name)
			findings := diagnose.Diagnose(s)
			for _, f := range findings {
				t.Logf("FINDING %s %s pods %v peers %v alive %+v", f.Code, f.Title, f.Pods, f.Peers, f.LastHopAlive)
			}
			var pods []netip.Addr
			for _, p := range s.Pods {
				pods = append(pods, p.Addresses[0].Addr())
			}
			for _, p := range pods {
				peers := busiest(s, []netip.Addr{p})
				for _, q := range pods {
					if q != p {
						peers = append(peers, path.Ends{Pod: p, To: q})
					}
				}
				peers = append(peers, path.Ends{Pod: p, To: outside4})
				for _, l := range s.Links {
					for _, a := range l.Addresses {
						if a.Addr().Is4() == p.Is4() && l.Role == model.RoleUplink {
							peers = append(peers, path.Ends{Pod: p, To: a.Addr()})
						}
					}
				}
				seen := map[path.Ends]bool{}
				for _, e := range peers {
					if seen[e] {
						continue
					}
					seen[e] = true
					got := path.Trace(s, findings, e)
					var b strings.Builder
					r := report.Path{Snapshot: s, Path: got}
					_ = r.Write(&b, report.Text, report.Style{})
					out, _, _ := strings.Cut(b.String(), "\n  node ")
					dead := got.Dead()
					switch {
					case strings.HasPrefix(info.Name, "healthy") && dead != nil:
						t.Errorf("%s", out)
					case os.Getenv("VERBOSE") != "" && (dead != nil || os.Getenv("VERBOSE") == "2"):
						t.Logf("%s", out)
					}
					for _, way := range [][]model.PathHop{got.Forward, got.Return} {
						for _, h := range way {
							if strings.HasPrefix(info.Name, "healthy") && h.Lost.N > 0 {
								t.Errorf("lost at %d %s\n%s", h.N, h.Name(), out)
							}
						}
					}
				}
			}
		})
	}
}
