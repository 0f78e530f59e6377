package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// probeDoc is one probe. Kind is what was asked with: echo or arp.
type probeDoc struct {
	Kind string `json:"kind"`
	probeRest
}

// probeRest is what was asked, and what came back.
type probeRest struct {
	Link     string `json:"link,omitempty"`
	From     string `json:"from"`
	To       string `json:"to"`
	Sent     int    `json:"sent"`
	Answered bool   `json:"answered"`
	MAC      string `json:"mac,omitempty"`
	// MACs are all that answered, where there were several.
	MACs   []string `json:"macs,omitempty"`
	Millis float64  `json:"millis,omitempty"`
}

// probeLine is a probe on a line of its own, where kind says that it is one: it
// has what the probe asked with beside that.
type probeLine struct {
	Kind  string `json:"kind"`
	Probe string `json:"probe"`
	probeRest
}

// probed reports whether probes were allowed.
func probed(s *model.Snapshot) bool {
	return slices.ContainsFunc(s.Sources, func(src model.Source) bool { return src.Name == model.SourceProbes })
}

// probeDocuments are nil where no probe was allowed, and empty where none was
// sent.
func probeDocuments(s *model.Snapshot) []probeDoc {
	if !probed(s) {
		return nil
	}
	out := []probeDoc{}
	for i := range s.Probes {
		p := &s.Probes[i]
		d := probeDoc{string(p.Kind), probeRest{
			Link: p.Link, From: addrText(p.From), To: addrText(p.To), Sent: p.Sent, Answered: p.Answered, Millis: millis(p.RTT),
		}}
		if macs := macTexts(p.MACs); len(macs) > 0 {
			d.MAC = macs[0]
			if len(macs) > 1 {
				d.MACs = macs
			}
		}
		out = append(out, d)
	}
	return out
}

// millis is in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Microsecond)) / 1000 }

func macTexts(macs []model.MAC) []string {
	out := make([]string, len(macs))
	for i, m := range macs {
		out[i] = m.String()
	}
	return out
}

// probeRows are the probes in text, a row each.
func probeRows(s *model.Snapshot) []string {
	if !probed(s) {
		return nil
	}
	if len(s.Probes) == 0 {
		return []string{"none sent"}
	}
	var rows []string
	for i := range s.Probes {
		p := &s.Probes[i]
		rows = append(rows, fmt.Sprintf("%s from %s to %s on %s: %s", p.Kind, addrText(p.From), addrText(p.To), p.Link, answerText(p)))
	}
	return rows
}

func answerText(p *model.Probe) string {
	if !p.Answered {
		return "no answer"
	}
	s := fmt.Sprintf("answered in %.2f ms", millis(p.RTT))
	if len(p.MACs) > 0 {
		s += " by " + strings.Join(macTexts(p.MACs), ", ")
	}
	return s
}
