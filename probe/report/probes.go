package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

type probeDoc struct {
	Kind model.ProbeKind `json:"kind"`
	answerDoc
}

type answerDoc struct {
	Link     string    `json:"link,omitempty"`
	From     string    `json:"from"`
	To       string    `json:"to"`
	Sent     int       `json:"sent"`
	Answered bool      `json:"answered"`
	MAC      model.MAC `json:"mac,omitzero"`
	// MACs are all that replied, if there were several.
	MACs   []model.MAC `json:"macs,omitempty"`
	Millis float64     `json:"millis,omitempty"`
}

func probed(s *model.Snapshot) bool {
	return slices.ContainsFunc(s.Sources, func(src model.Source) bool { return src.Name == model.SourceProbes })
}

// probeDocuments is nil where no probe was allowed, and empty where none was sent.
func probeDocuments(s *model.Snapshot) []probeDoc {
	if !probed(s) {
		return nil
	}
	return model.Map(s.Probes, func(p model.Probe) probeDoc {
		d := answerDoc{Link: p.Link, From: addrText(p.From), To: addrText(p.To), Sent: p.Sent, Answered: p.Answered, Millis: millis(p.RTT)}
		d.MAC, d.MACs = severally(p.MACs)
		return probeDoc{p.Kind, d}
	})
}

func millis(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Microsecond)) / 1000 }

func probeRows(s *model.Snapshot, names Names) []string {
	if !probed(s) {
		return nil
	}
	if len(s.Probes) == 0 {
		return []string{"none sent"}
	}
	return model.Map(s.Probes, func(p model.Probe) string {
		reply := "no reply"
		if p.Answered {
			reply = fmt.Sprintf("reply in %.2f ms", millis(p.RTT))
			if len(p.MACs) > 0 {
				reply += " from " + strings.Join(model.Map(p.MACs, model.MAC.String), ", ")
			}
		}
		return fmt.Sprintf("%s from %s to %s on %s: %s", p.Kind, addrText(p.From), Named(names, p.To), p.Link, reply)
	})
}
