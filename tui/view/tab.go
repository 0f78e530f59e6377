package view

// TabID is one of the tabs; it is also the digit that shows it.
type TabID int

// The tabs, in their order on the screen, which opens with Findings.
const (
	Map TabID = iota
	Findings
	Pods
	Path
	Events
	Node
	Tabs // how many there are
)

// tab is what a tab shows: a list with a preview below it, or a page that is scrolled, or what it draws itself.
type tab struct {
	name, short string
	// count stands behind the name; nil is none.
	count func(*Data) int
	// columns and rows are those of the list, if the tab has one.
	columns []Column
	rows    func(*Data) []Row
	page    func(*Data, *page)
	// draw gives h lines.
	draw func(f Frame, h int) []string
}

func (t TabID) tab() tab {
	return [Tabs]tab{
		Map: {name: "Map", short: "Map", draw: Frame.listTab, rows: func(d *Data) []Row { return d.reachable() }},
		Findings: {
			name: "Findings", short: "Fnd", columns: findingColumns, draw: Frame.listTab,
			count: func(d *Data) int { return len(d.open) }, rows: func(d *Data) []Row { return d.Findings },
		},
		Pods: {
			name: "Pods", short: "Pod", columns: podColumns, draw: Frame.listTab,
			count: func(d *Data) int { return len(d.Reading.Snapshot.Pods) }, rows: func(d *Data) []Row { return d.Pods },
		},
		Path:   {name: "Path", short: "Pth", draw: Frame.path},
		Events: {name: "Events", short: "Evt", columns: eventColumns, draw: Frame.listTab, rows: func(d *Data) []Row { return d.Events() }},
		Node:   {name: "Node", short: "Nod", page: (*Data).nodePage},
	}[t]
}

// HasList reports whether the tab is a list with a cursor, a filter and an order.
func (t TabID) HasList() bool { return t.tab().rows != nil }

// HasPage reports whether the tab is a page that is scrolled.
func (t TabID) HasPage() bool { return t.tab().page != nil }

// Rows are all rows of a tab's list.
func (d *Data) Rows(t TabID) []Row { return t.tab().rows(d) }
