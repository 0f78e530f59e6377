// Package fault is what a kind of finding is made of: its input, which is the index of a node and what the kinds before
// it have claimed, and the faults that it proposes. A package below it holds a family of kinds; families do not know each
// other.
package fault

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// Input is what one kind of finding is judged by: the indexed snapshot, and which losses
// the kinds before it have claimed.
type Input struct {
	*node.Index
	Claims
	// Proposed are the findings that the kind at work has reported.
	Proposed []Fault
}

// Kind is how the findings of one code are made. What it means is a part of its page in probe/words.
type Kind struct {
	Code     model.Code
	Severity model.Severity
	Find     func(*Input)
	// Needs are the sources that must have been read whole.
	Needs Sources
	// Rests are those of which an unread part may be the cause instead: without them nothing is proven.
	Rests Sources
	// Ends are the kinds of hop at which the finding's packets end, the likeliest
	// first; nil leaves that to the tables and counts. Passes: they do not end.
	Ends   Hops
	Passes bool
	// Decides: the object itself, such as a rule, is the cause also where an earlier one cuts all of the pods off.
	Decides bool
	// Objects name the values that are the object whose state is the cause: of a line all, of several lines the first
	// whose values are there. Findings about other objects are others.
	Objects Objects
	// Else are alternatives and doubts, of which a page has only the words: with one a fault is likely. Each is the
	// names of values that a fault then has or, with !, has not; and that of a page is of faults with this page alone.
	Else Else
	// Traits are what several nodes' comparison asks.
	Traits model.Trait
}

// The lists of a Kind.
type (
	// Hops are kinds of hops.
	Hops = []model.HopKind
	// Sources are names of sources.
	Sources = []string
	// Objects are paths of values, such as "pod.Link".
	Objects = []string
	// Else are names of values or pages.
	Else = []string
)

// doubted reports whether one of the kind's alternatives is left.
func (k *Kind) doubted(f *Fault) bool {
	return slices.ContainsFunc(k.Else, func(names string) bool {
		return !slices.ContainsFunc(strings.Fields(names), func(name string) bool {
			name, absent := strings.CutPrefix(name, "!")
			is, _ := template.IsTrue(f.Facts[name])
			return is == absent && name != cmp.Or(f.Page, string(k.Code))
		})
	})
}

// Verify is the command that shows whether a finding is still there.
func (k *Kind) Verify() string { return "lasthop check --only " + string(k.Code) }

// Fault is a finding with the losses that its cause makes, which are no other's then.
type Fault struct {
	model.Finding
	// Facts are the values that its page of words names, the one of its code or another; the
	// engine adds the finding, as "f".
	Facts words.Facts
	Page  string
	// Lost are the drops that it is about: where the finding does not say otherwise, its
	// pods, peers and packets are theirs, and it claims them.
	Lost *node.Lost
	// Claims reports whether the cause makes a drop; nil where it makes none.
	Claims func(*model.Drop) bool
	// Silences reports whether the cause makes what one address asks of others unheard or unanswered; nil for the requests
	// of its pods to its peers, and those to its pods from its peers or, where it has none, from anywhere.
	Silences func(asker netip.Addr, asked netip.Prefix) bool
	// Flows are those that the cause concerns by their protocols and ports, of all between these addresses; nil for all.
	Flows func(*model.Flow) bool
	// Returns are the pods whose packets the cause brings back to the node.
	Returns []netip.Addr
	// Inserts: the cause makes connection tracking refuse new entries.
	Inserts bool
	// CutOff are addresses that the cause cuts off: a finding of a later kind
	// about none but these is a consequence and is not reported.
	CutOff []netip.Addr
	// Lacks is LacksRoute or LacksRule where that is the cause: who removes such may have. LacksTo are the ranges that a route
	// of their own would lead to; nil for any route to the peers, a default one included.
	Lacks   string
	LacksTo []netip.Prefix
	// About is the object whose state the finding is about, effects are those that its cause made so: a later
	// finding that is about one of these is evidence of this one.
	About   any
	Effects []any
	// Undoes is the rule, route or neighbour entry that its fix deletes, or the chain whose policy it sets to accept; nil for
	// none. Packet is one that ends by it: that of most drops, if it is not given.
	Undoes any
	Packet path.Packet
	// Sets are the settings that its fix writes.
	Sets []model.Sysctl
	// Idle: nothing but state speaks for it.
	Idle bool
}

// Notified is how long it takes at most until a notification of a change is read, whose time is then.
const Notified = 100 * time.Millisecond

// InfoUnless makes the finding one of information where nothing is at fault.
func (f *Fault) InfoUnless(fault bool) {
	if !fault {
		f.Severity = model.Info
	}
}

// StateAlone weakens a finding for which nothing but state speaks; its page has the reason.
func (f *Fault) StateAlone() {
	f.Confidence, f.Severity, f.Facts["idle"], f.Idle = model.Possible, model.Warning, true, true
}

// TakeAfter has the page give a pod addresses, with the routes that another pod has.
func (f *Fault) TakeAfter(p, from *model.Pod, isIPv6 bool, addrs ...netip.Prefix) {
	var held []netip.Prefix
	usual := node.FirstIn(from, isIPv6)
	if from.PrefixRoute(usual) {
		held = model.Map(addrs, netip.Prefix.Masked)
	}
	f.Facts["noPrefixRoute"] = held == nil && !usual.IsSingleIP()
	f.Facts["addrs"], f.Facts["routes"] = addrs, node.LackedRoutes(p, from, isIPv6, held...)
}
