package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// udrCause is what the files say is missing: this node's own route, or that of
// one other node, or with Unassociated all of a subnet's; and the ranges that are
// silent for it.
type udrCause struct {
	routeFact
	own    bool
	ranges []*remoteRange
}

// readFiles asks the files about the routes of all ranges, with and without
// traffic.
func (s *udrSearch) readFiles() {
	s.filed, s.settled = map[netip.Prefix][]routeFact{}, map[netip.Prefix]bool{}
	if len(s.own) == 0 || !s.Has(model.SourceCloud) {
		return
	}
	for _, r := range s.unclaimedRanges(s.fabricRanges()) {
		if r.answers || s.silenced(netip.Addr{}, r.cidr) {
			continue
		}
		cause := s.fileCause(r)
		if cause == nil {
			continue
		}
		s.settled[r.cidr] = true
		if at := slices.IndexFunc(s.causes, func(c *udrCause) bool {
			return c.own && cause.own || c.Unassociated && cause.Unassociated && c.own == cause.own
		}); at >= 0 {
			cause = s.causes[at]
		} else {
			s.causes = append(s.causes, cause)
		}
		cause.ranges = append(cause.ranges, r)
	}
}

// fileCause is what the files say is missing for the range to be reached and to
// reach this node; nil where they name nothing. A range whose routes both lead to
// the correct nodes is settled: its silence has another cause.
func (s *udrSearch) fileCause(r *remoteRange) *udrCause {
	there, back := s.routeTo(r.cidr, s.nodeOf(r.cidr), s.self()), s.routeBack(r.cidr)
	missing := func(f routeFact) bool {
		return f.state == routeMissing || len(r.silent) > 0 && f.state == routeUnlisted
	}
	switch {
	case missing(there) && !r.nodeAnswers:
		return &udrCause{routeFact: there}
	case missing(back) && r.back != reachWorks:
		return &udrCause{routeFact: back, own: true}
	}
	s.settled[r.cidr] = (there.state == routeCorrect || r.there == reachWorks) && (back.state == routeCorrect || r.back == reachWorks)
	for _, f := range []routeFact{there, back} {
		if f.state != routeUnknown {
			s.filed[r.cidr] = append(s.filed[r.cidr], f)
		}
	}
	return nil
}
