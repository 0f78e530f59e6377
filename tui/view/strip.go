package view

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Moment is what the strip shows of one reading.
type Moment struct {
	At time.Time
	// Drops and unanswered requests are per second; NaN is not known.
	Drops float64
	// Pods and Routes differ where these do.
	Pods, Routes uint64
}

// NewMoment is that of a reading of one node.
func NewMoment(r model.Reading) Moment {
	m := Moment{At: r.At, Drops: math.NaN()}
	if n := len(r.Drops); n > 0 {
		m.Drops = max(r.Drops[n-1], told(&r))
	}
	// The order in which the kernel lists them says nothing, so the sum has none.
	for p := range model.Each(r.Snapshot.Pods) {
		m.Pods += mix(uint64(p.Netns), uint64(p.LinkIndex))
	}
	for x := range model.Each(r.Snapshot.Routes) {
		to, via := x.Dst.Addr().As16(), x.Gateway.As16()
		n := mix(uint64(x.Table), uint64(x.IfIndex), uint64(x.Dst.Bits()), uint64(x.Priority))
		for _, b := range slices.Concat(to[:], via[:], []byte(x.Type)) {
			n = mix(n, uint64(b))
		}
		m.Routes += n
	}
	return m
}

// mix is FNV-1a over numbers.
func mix(ns ...uint64) uint64 {
	h := uint64(14695981039346656037)
	for _, n := range ns {
		h = (h ^ n) * 1099511628211
	}
	return h
}

// Track is the time axis.
type Track struct {
	// From and To are its ends. A recording has both ends fixed.
	From, To time.Time
	Recorded bool
	// At is the moment that is shown, zero for the present.
	At      time.Time
	Moments []Moment
	// Findings are those that opened and closed.
	Findings []model.Tracked
}

// The strip has labels of labelWidth at both ends.
const labelWidth = 9

// stripHeight is how many lines the strip takes of a screen.
func (f Frame) stripHeight() int {
	if f.Height < 16 || f.Width < oneColumn || f.Page == Help || f.Track == nil || len(f.Track.Moments) == 0 {
		return 0
	}
	return 2 + len(f.bars())
}

// bars are the findings that have a bar each, as many as there is room for.
func (f Frame) bars() []model.Tracked {
	return f.Track.Findings[:max(0, min(len(f.Track.Findings), (f.Height-30)/3, 5))]
}

// columns of the axis, and the time that each stands for. Whole steps keep marks in their columns.
func (k *Track) axis(w int) (from time.Time, step time.Duration, n int) {
	n = max(w-2*labelWidth, 1)
	step = max(k.To.Sub(k.From)/time.Duration(n), 1)
	if k.Recorded {
		return k.From, step + 1, n
	}
	return k.To.Truncate(step).Add(step - time.Duration(n)*step), step, n
}

// strip is what happened over time: drops per second, and below them what opened, closed and changed.
func (f Frame) strip() []string {
	t, k := f.Theme, f.Track
	from, step, n := k.axis(f.Width)
	column := func(at time.Time) int {
		if at.Before(from) {
			return -1
		}
		return int(at.Sub(from) / step)
	}
	drops, marks := make([]float64, n), make([]mark, n)
	for i := range drops {
		drops[i] = math.NaN()
	}
	changes := k.marks(t)
	for _, m := range changes {
		if c := column(m.at); c >= 0 && c < n && m.rank > marks[c].rank {
			marks[c] = m
		}
	}
	// The clock stands where there is room for it, and a change whose time it tells: alone it would have the screen drawn
	// again and again.
	const room = 12
	minutes := []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour}
	every := model.Find(minutes, func(d time.Duration) bool { return d >= room*step })
	for at := k.To.Truncate(max(every, 1)); every > 0 && len(changes) > 0 && at.After(from); at = at.Add(-every) {
		text, c := clock(at)[:5], column(at)
		if c+len(text) >= n || slices.ContainsFunc(marks[c:c+len(text)], func(m mark) bool { return m.rank > 0 }) {
			continue
		}
		for i := range text {
			marks[c+i] = mark{at, text[i : i+1], Heading, 1}
		}
	}
	for i, m := range k.Moments {
		c, until := column(m.At), column(m.At)
		if i+1 < len(k.Moments) && k.Moments[i+1].At.Sub(m.At) < 15*time.Second {
			until = max(until, column(k.Moments[i+1].At)-1)
		}
		for ; c <= until; c++ {
			if c >= 0 && c < n && !(drops[c] > m.Drops) {
				drops[c] = m.Drops
			}
		}
	}
	cursor := model.Either(!k.At.IsZero(), column(k.At), -1)
	left, right := "-"+age(k.To.Sub(k.From)), model.Either(cursor >= 0, clock(k.At), "now")
	if k.Recorded {
		left, right = clock(k.From), clock(k.To)
	}
	marked := func(i int) (string, Style) {
		return model.Either(marks[i].rank == 0, rule, marks[i].sign), model.Either(marks[i].rank == 0, Dim, marks[i].style)
	}
	a := t.paint(Heading, t.fit("lost/s", labelWidth)) + t.rates(drops, cursor) + " " + t.right(rate(f.Data.lossRate()), 7)
	b := t.paint(Heading, t.fit(left, labelWidth)) + t.run(n, cursor, marked) + " " + t.paint(Heading, t.fit(right, labelWidth-1))
	spans := model.Map(f.bars(), func(x model.Tracked) string { return t.span(&x, column, n, cursor) })
	return append([]string{a, b}, spans...)
}

// span is a finding from when it opened to when it closed, with its name before it or on it.
func (t Theme) span(x *model.Tracked, column func(time.Time) int, n, cursor int) string {
	s, name := severityStyle(x.Severity), plainASCII(clean(string(x.Code)))
	from, to := max(column(x.First), 0), model.Either(x.Closed, min(column(x.Last), n-1), n-1)
	at := model.Either(from > len(name), from-len(name)-1, from+2)
	return strings.TrimRight(t.fit("", labelWidth)+t.run(n, cursor, func(i int) (string, Style) {
		switch {
		case i >= at && i < at+len(name):
			return name[i-at : i-at+1], s
		case i == from && column(x.First) >= 0:
			return t.Sign(s), s
		case i == to && x.Closed:
			return ended, Healthy
		case i > from && i <= to:
			return solid, s
		}
		return " ", Plain
	}), " ")
}

// mark is a change on the axis. In one column the highest rank is shown.
type mark struct {
	at    time.Time
	sign  string
	style Style
	rank  int
}

// marks are the changes of pods and routes, and the findings that opened and closed.
func (k *Track) marks(t Theme) (out []mark) {
	for i, m := range k.Moments[min(1, len(k.Moments)):] {
		if m.Pods != k.Moments[i].Pods {
			out = append(out, mark{m.At, "+", Info, 1})
		}
		if m.Routes != k.Moments[i].Routes {
			out = append(out, mark{m.At, "~", Likely, 2})
		}
	}
	for x := range model.Each(k.Findings) {
		if x.Closed && !x.Last.IsZero() {
			out = append(out, mark{x.Last, ended, Healthy, 3})
		}
		if !x.First.IsZero() {
			s := severityStyle(x.Severity)
			out = append(out, mark{x.First, t.Sign(s), s, 4 + x.Severity.Rank()})
		}
	}
	return out
}

// Changes are when there are any, the earliest first.
func (k *Track) Changes() []time.Time {
	out := model.Map(k.marks(Theme{}), func(m mark) time.Time { return m.at })
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// rates draws rates against the highest; nothing where none is known.
func (t Theme) rates(rates []float64, cursor int) string {
	top := highest(rates)
	return t.run(len(rates), cursor, func(i int) (string, Style) {
		if math.IsNaN(rates[i]) {
			return " ", Dim
		}
		return t.level(rates[i], top), model.Either(rates[i] > 0, Critical, Dim)
	})
}

// run paints cells, those of one style at once; that at the cursor is inverted.
func (t Theme) run(n, cursor int, cell func(i int) (string, Style)) string {
	var b, same strings.Builder
	last := Plain
	flush := func() {
		b.WriteString(t.paint(last, same.String()))
		same.Reset()
	}
	for i := range n {
		s, style := cell(i)
		if i == cursor {
			style = Tab
		}
		if style != last {
			flush()
			last = style
		}
		same.WriteString(s)
	}
	flush()
	return b.String()
}
