package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

type (
	ledgerDoc struct {
		Kind    string `json:"kind,omitempty"`
		Pod     string `json:"pod"`
		PodName string `json:"podName,omitempty"`
		// IPs are all addresses of the row where it has several.
		IPs       []string              `json:"ips,omitempty"`
		Link      string                `json:"link,omitempty"`
		Direction model.LedgerDirection `json:"direction"`
		In        *uint64               `json:"in,omitempty"`
		Out       *uint64               `json:"out,omitempty"`
		Dropped   uint64                `json:"dropped"`
		// Unexplained is absent where it is not known; the bounds then stand for it, as far as there are any.
		Unexplained *uint64         `json:"unexplained,omitempty"`
		AtLeast     *uint64         `json:"unexplainedAtLeast,omitempty"`
		AtMost      *uint64         `json:"unexplainedAtMost,omitempty"`
		Edge        uint64          `json:"edge,omitempty"`
		Parts       []ledgerPartDoc `json:"parts"`
		Drops       []ledgerDropDoc `json:"drops"`
		Why         []string        `json:"why,omitempty"`
	}
	ledgerPartDoc struct {
		Place   model.LedgerPlace `json:"place"`
		Packets uint64            `json:"packets"`
	}
	ledgerDropDoc struct {
		Reason   model.Reason `json:"reason,omitempty"`
		Location string       `json:"location,omitempty"`
		Finding  model.Code   `json:"finding,omitempty"`
		Expected bool         `json:"expected,omitempty"`
		// Ordinary is why no finding claims them.
		Ordinary model.Excuse `json:"ordinary,omitempty"`
		Packets  uint64       `json:"packets"`
	}
)

func (names Names) ledger(row model.LedgerRow) ledgerDoc {
	d := ledgerDoc{
		Link: row.Link, Direction: row.Direction, In: countOf(row.In), Out: countOf(row.Out), Dropped: row.Dropped,
		Unexplained: countOf(row.Unexplained()), Edge: row.Edge, Why: row.Why,
		Parts: model.Map(row.Parts, func(x model.LedgerPart) ledgerPartDoc { return ledgerPartDoc(x) }),
		Drops: model.Map(row.Drops, func(x model.LedgerDrop) ledgerDropDoc {
			return ledgerDropDoc{x.Reason, x.Location, x.Code, x.Expected(), x.Ordinary, x.Packets}
		}),
	}
	d.Pod, d.IPs = severally(model.Map(row.Addrs, addrText))
	if len(row.Addrs) > 0 {
		d.PodName = names.of(row.Addrs[0])
	}
	if d.Unexplained == nil {
		d.AtLeast, d.AtMost = &row.Least, countOf(row.Most)
	}
	return d
}

func countOf(c model.Count) *uint64 { return model.Either(!c.Known, nil, &c.N) }

// ledger prints the rows in which packets were counted.
func (r Report) ledger(p *printer, names Names) {
	if r.Ledger == nil {
		return
	}
	p.title("ledger: in = out + dropped + unexplained")
	heading := []string{"POD", "DIRECTION", "IN", "OUT", "DROPPED", "BY", "UNEXPLAINED", "EDGE"}
	var rows [][]string
	var notes []string
	for row := range model.Each(r.Ledger) {
		if !slices.ContainsFunc(row.Addrs, r.inFocus) || idle(row) {
			continue
		}
		pod, direction := Named(names, row.Addrs[0]), words[row.Direction]
		rows = append(rows, []string{
			pod, direction, countText(row.In), countText(row.Out), number(row.Dropped), dropCauses(row), bounds(row), number(row.Edge),
		})
		notes = append(notes, model.Map(row.Why, func(why string) string { return fmt.Sprintf("%s %s: %s", pod, direction, why) })...)
	}
	p.table(heading, rows)
	for _, n := range notes {
		for _, line := range Wrap(Clean(n), p.columns()-2) {
			p.line("  " + line)
		}
	}
}

func idle(row *model.LedgerRow) bool { return row.In.N+row.Out.N+row.Dropped+row.Least == 0 }

var words = map[model.LedgerDirection]string{model.FromPod: "from the pod", model.ToPod: "to the pod"}

// bounds is the number of unexplained packets, or what is known of it.
func bounds(row *model.LedgerRow) string {
	switch u := row.Unexplained(); {
	case u.Known:
		return number(u.N)
	case !row.Most.Known:
		return "? (at least " + number(row.Least) + ")"
	}
	return number(row.Least) + " to " + number(row.Most.N)
}

// dropCauses names the findings that account for the drops, or says why none does.
func dropCauses(row *model.LedgerRow) string {
	var names []string
	for _, d := range row.Drops {
		if name := cmp.Or(causeText(d.DropCause), orUnknown(string(d.Reason))); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// unexplained lists the pods of which packets are missing for certain.
func (r Report) unexplained(names Names) []string {
	var lines []string
	for row := range model.Each(r.Ledger) {
		if row.Least == 0 || !slices.ContainsFunc(row.Addrs, r.inFocus) {
			continue
		}
		atLeast := model.Either(row.Unexplained().Known, "", "at least ")
		lines = append(lines, fmt.Sprintf("%s, %s: %s%s neither left nor were dropped",
			Named(names, row.Addrs[0]), words[row.Direction], atLeast, model.Quantity(row.Least, "packet")))
	}
	return bounded(lines)
}
