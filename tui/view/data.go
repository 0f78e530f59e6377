package view

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// Data is a reading, with the lookups that frames need and its rows. It is made once for a reading, and is immutable.
type Data struct {
	Reading model.Reading
	// Findings and Pods are rows of lists, in the reading's order.
	Findings, Pods []Row
	// Events gives the rows of the events, the latest first. They are made
	// when they are first asked for, since few frames show them.
	Events func() []Row
	// matrix is who reaches whom, reachable are its rows.
	matrix    func() model.Matrix
	reachable func() []Row

	// names are report.Local, called report.Called.
	names, called report.Names
	peers         func() map[netip.Addr]map[netip.Addr]uint64
	open          []model.Finding
	decode        func(model.Sample) string
	// dropped is how many pod packets were lost in the window because the
	// kernel dropped them; losing says whether a drop is a loss.
	dropped model.Count
	losing  *loss.Classifier
	// wait is how long a window must be to be judged.
	wait time.Duration
	// nodes are those of a reading of several nodes.
	nodes []*Data
}

// Row is one line of a list.
type Row struct {
	// ID stays the same from reading to reading as long as the row does.
	ID    string
	Cells []Cell
	// Word and Brief are the row where there is room for one column alone.
	Word, Brief string
	Style       Style
	// Faint rows are over, or stand for no loss: closed findings, pods that are gone, what a socket freed.
	Faint bool
	// In Span rows the column of variable width is the last, and goes to the end of the line.
	Span bool

	Finding *model.Tracked
	Pod     *model.Pod
	// From is a pod, if the row has one to look at, and To the other end, if the row is about a packet between them.
	From, To netip.Addr

	hay   []string
	addrs []netip.Prefix
}

// Cell is one value of a row: what is drawn, and what it is sorted by.
type Cell struct {
	Text string
	// Order is what the column is sorted by, unless by text. NaN stands for
	// what is not known, and comes last in either order.
	Order  float64
	ByText bool
	Style  Style
	// Rates are drawn as a sparkline instead of the text, scaled to Top.
	Rates []float64
	Top   float64
}

func text(s string) Cell              { return Cell{Text: clean(cmp.Or(s, unknown)), ByText: true} }
func figure(s string, f float64) Cell { return Cell{Text: s, Order: f} }
func nothing() Cell                   { return figure(unknown, math.NaN()) }
func whole[N int | uint64](n N) Cell  { return figure(number(uint64(n)), float64(n)) }
func trend(rates []float64) Cell {
	return Cell{Rates: rates[max(0, len(rates)-trendWidth):], Order: last(rates), Style: Healthy}
}
func styled(s Style, c Cell) Cell    { c.Style = s; return c }
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// found has a filter find the row by words, foundAt by addresses.
func (r *Row) found(words ...string) { r.hay = append(r.hay, words...) }

func (r *Row) foundAt(addrs ...netip.Addr) {
	for _, a := range addrs {
		if a.IsValid() {
			r.found(a.String())
			r.addrs = append(r.addrs, host(a))
		}
	}
}

func last(rates []float64) float64 {
	if len(rates) == 0 {
		return math.NaN()
	}
	return rates[len(rates)-1]
}

// judged is how long a window must be for requests without a reply to be judged.
const judged = 10 * time.Second

// NewData prepares a reading to be drawn. The reading's snapshot may be nil: nothing has been read yet. window is the
// requested one, 0 for all. decode puts a packet's head into words; it may be nil.
func NewData(r model.Reading, window time.Duration, decode func(model.Sample) string) *Data {
	if len(r.Nodes) > 0 {
		d := newJoint(r, decode)
		d.Reach(func() (none model.Matrix) { return none })
		return d
	}
	if r.Snapshot == nil {
		r.Snapshot = &model.Snapshot{}
	}
	s := r.Snapshot
	d := &Data{Reading: r, wait: min(cmp.Or(window, judged), judged), decode: decode, names: report.Local(s), called: report.Called(s)}
	d.open = openOf(r.Findings)
	d.losing = loss.NewClassifier(s)
	d.Pods = scale(d.podRows())
	d.Findings = scale(d.findingRows()) // which say how many packets pods lost
	d.peers = sync.OnceValue(d.findPeers)
	d.Events = sync.OnceValue(func() []Row {
		return latestFirst(slices.Concat(d.findingEvents(), d.changeEvents(), d.podEvents(), d.sampleEvents()))
	})
	d.Reach(func() (none model.Matrix) { return none })
	return d
}

func openOf(findings []model.Tracked) []model.Finding {
	open := model.Chosen(findings, func(f *model.Tracked) bool { return !f.Closed })
	return model.Map(open, func(f *model.Tracked) model.Finding { return f.Finding })
}

// Open are the findings of the latest reading.
func (d *Data) Open() []model.Finding { return d.open }

func (d *Data) watched() bool { return d.Reading.Snapshot.Status(model.SourceTC) != model.Missing }

func (d *Data) isPod(a netip.Addr) bool {
	name, ok := d.names[a]
	return ok && !name.Own
}

// name is a pod's name, or its address if it has none.
func (d *Data) name(a netip.Addr) string {
	switch name := d.called[a]; {
	case name.String() != "" && !name.Own:
		return clean(name.String())
	case !a.IsValid():
		return unknown
	}
	return clean(a.String())
}

func (d *Data) named(a netip.Addr) string { return clean(report.Named(d.called, a)) }

// perSecond is a count as a rate over the window; NaN without a window.
func (d *Data) perSecond(n uint64) float64 {
	if secs := d.Reading.Snapshot.Window.Duration().Seconds(); secs > 0 {
		return float64(n) / secs
	}
	return math.NaN()
}

// lossRate is packets lost per second: drops, and what findings tell of; NaN where drops are not watched.
// While nothing is judged, no drop yet does not say that nothing is lost.
func (d *Data) lossRate() float64 {
	rate := max(d.perSecond(d.dropped.N), told(&d.Reading))
	return model.Either(d.dropped.Known && (rate > 0 || d.left() <= 0), rate, math.NaN())
}

// left is the time until the first window is judged.
func (d *Data) left() time.Duration {
	return model.Either(d.Reading.Replay, 0, d.wait*9/10-d.Reading.Snapshot.Window.Duration())
}

// told is how many packets the open findings lost per second, among them requests without a reply.
func told(r *model.Reading) float64 {
	n := model.Sum(r.Findings, func(f model.Tracked) uint64 { return model.Either(f.Closed || f.Passes, 0, f.Packets) })
	return model.Either(n == 0, 0, float64(n)/judgedIn(r))
}

// judgedIn are the seconds of the window that the findings count packets in.
func judgedIn(r *model.Reading) float64 {
	return cmp.Or(r.Verdict.On, r.Snapshot).Window.Duration().Seconds()
}

// maxPeers bounds the peers that are offered for one pod.
const maxPeers = 64

// Peers are those of a pod, the busiest first: those that were counted, those of
// its flows, and single addresses among its findings' peers.
func (d *Data) Peers(pod netip.Addr) []netip.Addr {
	packets := d.peers()[pod]
	peers := slices.SortedFunc(maps.Keys(packets), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(packets[b], packets[a]), a.Compare(b))
	})
	return peers[:min(len(peers), maxPeers)]
}

func (d *Data) findPeers() map[netip.Addr]map[netip.Addr]uint64 {
	s := d.Reading.Snapshot
	all := make(map[netip.Addr]map[netip.Addr]uint64, len(d.names))
	add := func(pod, to netip.Addr, n uint64) {
		if !d.isPod(pod) || !to.IsValid() || to == pod {
			return
		}
		if all[pod] == nil {
			all[pod] = make(map[netip.Addr]uint64)
		}
		all[pod][to] += n
	}
	for p := range model.Each(s.Traffic.Peers) {
		add(p.Local, p.Remote, p.Out.Packets+p.In.Packets)
	}
	for f := range model.Each(s.Flows) {
		add(f.Original.Src, f.Original.Dst, 0)
		add(f.Reply.Src, f.Original.Src, 0)
	}
	for _, f := range d.open {
		for _, pod := range f.Pods {
			for _, p := range f.Peers {
				if p.IsSingleIP() {
					add(pod, p.Addr(), 0)
				}
			}
		}
	}
	return all
}

// Ends are the pod and the peer whose path shows a finding best; not valid where it names none.
func (d *Data) Ends(f *model.Finding) (pod, to netip.Addr) {
	for _, a := range f.Pods {
		if to := d.met(f, a); to.IsValid() {
			return a, to
		}
	}
	if len(f.Pods) > 0 {
		pod = f.Pods[0]
	}
	for _, p := range f.Peers {
		if p.IsSingleIP() && p.Addr() != pod {
			return pod, p.Addr()
		}
	}
	if len(f.Peers) > 0 {
		return pod, netip.Addr{}
	}
	n := d.home(pod)
	if to = n.losing.Peer(n.Reading.Snapshot, pod); to.IsValid() {
		return pod, to
	}
	if peers := d.Peers(pod); len(peers) > 0 {
		return pod, peers[0]
	}
	return pod, netip.Addr{}
}

// PodEnds are a pod and the peer whose path shows best how it fares: that of its worst finding, or its busiest.
func (d *Data) PodEnds(a netip.Addr) (pod, to netip.Addr) {
	for f := range model.Each(d.open) {
		if to := d.met(f, a); to.IsValid() && slices.Contains(f.Pods, a) {
			return a, to
		}
	}
	if peers := d.Peers(a); len(peers) > 0 {
		to = peers[0]
	}
	return a, to
}

// met is the busiest of a pod's peers that a finding is about, not valid where it is about none.
func (d *Data) met(f *model.Finding, pod netip.Addr) netip.Addr {
	return model.Find(d.Peers(pod), func(p netip.Addr) bool { return model.InAny(f.Peers, p) })
}

func (d *Data) describe(x *model.Sample) string {
	if d.decode != nil {
		if what := clean(report.Brief(d.called, d.decode(*x))); what != "" {
			return what
		}
	}
	return fmt.Sprintf("%s > %s, EtherType %#04x, %s", d.name(x.Src), d.name(x.Dst), x.Protocol, model.Quantity(max(x.Length, 0), "byte"))
}
