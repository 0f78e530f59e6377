package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Other programs may remove ours from a link, or put theirs before ours: the clean-up of Retina deletes the whole
// clsact qdisc, Cilium when it starts deletes all filters of a hook. Each Poll looks, and attaches again.

// mendEvery is the least time between two attempts to attach to a link again, so
// that two programs that remove each other's do not keep the node busy.
const mendEvery = time.Minute

// trouble is what others did to our programs on a link.
type trouble struct {
	// gone says that the link is gone, which is no trouble.
	gone bool
	// lost says that one of our programs is not attached any more.
	lost bool
	// behind are programs of others that run before ours. What these drop or redirect, ours do not count.
	behind []string
}

// String is empty if there is no trouble.
func (t trouble) String() string {
	switch {
	case t.lost:
		return "another program removed lasthop's programs: packets were not counted"
	case len(t.behind) > 0:
		return strings.Join(t.behind, ", ") + " runs before lasthop's programs and may hide packets from them"
	}
	return ""
}

type attachment struct {
	link Link
	// gap is open while the link is in trouble, else nil.
	gap *gap
	// mended is when attaching again was last tried, stuck the trouble that it did not end.
	mended time.Time
	stuck  string
}

// gap is a time in which not every packet of a link was counted.
type gap struct {
	link, why string
	// from is when all was well for the last time, zero if never. to is zero while the gap is open.
	from, to time.Time
}

// lookNow looks, unless links are being attached or detached meanwhile.
func (e *Engine) lookNow(now time.Time) error {
	if !e.changing.TryLock() {
		return nil
	}
	defer e.changing.Unlock()
	if e.by == nil || e.closed.Load() {
		return nil
	}
	return e.ns.Do(func() error {
		e.look(now)
		return nil
	})
}

// look finds out what others did to our programs, and mends it. changing is held.
func (e *Engine) look(now time.Time) {
	indices := slices.Sorted(maps.Keys(e.on))
	changed, blind := e.by.changed(indices)
	for _, index := range indices {
		if at := e.on[index]; at.gap != nil || slices.Contains(changed, index) {
			if err := e.lookAt(at, now); err != nil && blind == nil {
				blind = fmt.Errorf("look at link %s: %w", at.link.Name, err)
			}
		}
	}
	e.locked(func() { e.looked, e.blind = now, blind })
}

func (e *Engine) lookAt(at *attachment, now time.Time) error {
	t, err := e.by.check(at.link.Index)
	if err != nil {
		return err
	}
	if t.gone {
		return e.detach([]int{at.link.Index})
	}
	e.note(at, t, now)
	if why := t.String(); why == "" || why == at.stuck || now.Sub(at.mended) < mendEvery && !at.mended.IsZero() {
		return nil
	}
	at.mended = now
	index := []int{at.link.Index}
	if err := e.by.detach(index); err != nil {
		return err
	}
	if err := e.by.attach(at.link); err != nil {
		if vanished(err) {
			return e.detach(index)
		}
		return err
	}
	if t, err = e.by.check(at.link.Index); err != nil || t.gone {
		return err
	}
	if at.stuck = t.String(); at.stuck == "" {
		e.locked(func() { e.end(at, now) })
	}
	return nil
}

// note opens or ends the gap of a link.
func (a *attachments) note(at *attachment, t trouble, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	why := t.String()
	if at.gap != nil && at.gap.why != why {
		a.end(at, now)
	}
	if why == "" {
		at.stuck = ""
		return
	}
	a.gapsSeen++
	if at.gap == nil {
		at.gap = &gap{link: at.link.Name, why: why, from: a.looked}
		a.gaps = append(a.gaps, at.gap)
	}
}

// end ends the gap of a link, if there is one. mu is held.
func (a *attachments) end(at *attachment, now time.Time) {
	if at.gap != nil {
		at.gap.to, at.gap = now, nil
	}
}

// gapTexts describe the gaps, those of several links together.
func gapTexts(gaps []*gap) []string {
	var out []string
	links := map[string][]string{}
	for _, g := range gaps {
		text := g.when() + ": " + g.why
		if links[text] == nil {
			out = append(out, text)
		}
		if !slices.Contains(links[text], g.link) {
			links[text] = append(links[text], g.link)
		}
	}
	for i, text := range out {
		out[i] = "on " + model.Some(links[text], 5, "other links") + text
	}
	return out
}

func (g gap) when() string {
	text := ""
	if !g.from.IsZero() {
		text = " from " + g.from.Format(time.TimeOnly)
	}
	if !g.to.IsZero() {
		text += " to " + g.to.Format(time.TimeOnly)
	}
	return text
}
