package session

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// roster holds every pod seen in the window, by its network namespace and link: addresses are reused.
type roster struct {
	pods map[podKey]*model.Pod
	now  time.Time
}

type podKey struct {
	netns uint32
	link  int
}

func (r *roster) see(now time.Time, pods []model.Pod) {
	if r.pods == nil {
		r.pods = map[podKey]*model.Pod{}
	}
	r.now = now
	held := model.SetOf(model.Flat(pods, func(p model.Pod) []netip.Addr { return model.Map(p.Addresses, netip.Prefix.Addr) }))
	for _, p := range pods {
		k := podKey{p.Netns, p.LinkIndex}
		p.Since, p.Until = now, now
		if old := r.pods[k]; old != nil {
			p.Since, p.Watched = old.Since, old.Watched
			// What the pod had, or was given, and no interface has now.
			for _, a := range old.Known() {
				if !held[a] && !slices.Contains(p.Given, a) {
					p.Given = append(p.Given, a)
				}
			}
			// A quick reading does not read all that has names, and a file goes before
			// the pod does. A namespace is one pod's as long as it is.
			if p.Name == "" {
				p.Namespace, p.Name, p.UID, p.Labels = old.Namespace, old.Name, old.UID, old.Labels
			}
			// A quick reading leaves the listeners and rules out.
			p.Backlog, p.Inside = cmp.Or(p.Backlog, old.Backlog), cmp.Or(p.Inside, old.Inside)
			p.Resolver = cmp.Or(p.Resolver, old.Resolver)
		}
		r.pods[k] = &p
	}
}

// unread are the running pods that a reading may have missed: their links are there, or not all links were read.
func (r *roster) unread(s *model.Snapshot) []model.Pod {
	if s.Has(model.SourceLinks, model.SourcePods) {
		return nil
	}
	return r.list(func(p *model.Pod) bool {
		here := !s.Has(model.SourceLinks) || slices.ContainsFunc(s.Links, func(l model.Link) bool { return l.Index == p.LinkIndex })
		return r.isAlive(p) && here && !slices.ContainsFunc(s.Pods, func(o model.Pod) bool { return o.LinkIndex == p.LinkIndex })
	})
}

// forget removes the pods that were gone by then.
func (r *roster) forget(by time.Time) {
	maps.DeleteFunc(r.pods, func(_ podKey, p *model.Pod) bool { return p.Until.Before(by) && !p.Until.Equal(r.now) })
}

func (r *roster) isAlive(p *model.Pod) bool { return p.Until.Equal(r.now) }

func (r *roster) alive() []model.Pod { return r.list(r.isAlive) }

// watch learns that the links of pods are watched by now, but for those that are pending.
func (r *roster) watch(now time.Time, pending map[int]bool) {
	for _, p := range r.pods {
		if p.Watched.IsZero() && !pending[p.LinkIndex] {
			p.Watched = now
		}
	}
}

// watched are the pods whose packets are counted.
func (r *roster) watched() []model.Pod {
	return r.list(func(p *model.Pod) bool { return r.isAlive(p) && !p.Watched.IsZero() })
}

func (r *roster) gone() []model.Pod {
	return r.list(func(p *model.Pod) bool { return !r.isAlive(p) })
}

func (r *roster) list(keep func(*model.Pod) bool) []model.Pod {
	var out []model.Pod
	for _, p := range r.pods {
		if keep(p) {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b model.Pod) int {
		return cmp.Or(cmp.Compare(a.LinkIndex, b.LinkIndex), cmp.Compare(a.Netns, b.Netns))
	})
	return out
}
