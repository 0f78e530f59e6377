package joint

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
)

// Recordings are several nodes' recordings of one time, and what is learnt as they are read.
type Recordings struct {
	// Last is how much of each recording's end is judged, 0 for all of it.
	Last time.Duration
	// Hide makes what replaces names and addresses in what is shown; it may be nil.
	Hide func() *redact.Redactor
	// Told reads the findings that a node had while it was recorded, for a window that begins then; it may be nil.
	Told func(f *record.File, since time.Time) ([]model.Tracked, error)
	// Look is given each recording as it is, and as it is shown, one at a time; it may be nil.
	Look func(name string, recorded, shown *model.Snapshot)
	// Apart: the recordings need not be of the same window.
	Apart bool

	// mu guards the rest: recordings are read at the same time.
	mu sync.Mutex
	// Names are those of addresses on any node, Read counts what could be read, and Unread is why not, by recording.
	Names  report.Names
	Read   int
	Unread map[string]error
	// Snapshots are what is shown of each recording, unless nil.
	Snapshots map[string]*model.Snapshot

	sources []join.Source
	spans   []Span
	told    map[string][]model.Tracked
}

// New is without a recording.
func New() *Recordings {
	return &Recordings{Names: report.Names{}, Unread: map[string]error{}, told: map[string][]model.Tracked{}}
}

// Add adds a recording by its name, which open opens for as long as use takes. cut is why it is not whole. It is read
// anew each time, so that not all are held in memory at once.
func (r *Recordings) Add(name, cut string, open func(use func(*record.File) error) error) join.Source {
	var hide *redact.Redactor
	if r.Hide != nil {
		hide = r.Hide()
	}
	src, first := join.Source{Name: name, Cut: cut}, true
	src.Tables = func(s *model.Snapshot, verdict []model.Finding) []model.Finding {
		return audit.Beside(node.New(s), verdict, nil)
	}
	src.Read = func() (shown *model.Snapshot, err error) {
		err = open(func(f *record.File) error {
			s, err := f.Window(r.Last)
			if shown = hide.Snapshot(&s); err != nil || !first {
				return err
			}
			return r.learn(name, f, &s, shown)
		})
		if err != nil && first {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.Unread[name] = err
		}
		if first = false; err != nil && cut != "" {
			err = errors.New(cut)
		}
		return shown, err
	}
	if r.Apart {
		src.Within = func(within, around model.Window) (inner, outer *model.Snapshot, err error) {
			err = open(func(f *record.File) (err error) {
				inner, outer, err = f.Within(within, around)
				return err
			})
			return hide.Snapshot(inner), hide.Snapshot(outer), err
		}
	}
	span := func(w model.Window) (*model.Snapshot, error) {
		var s model.Snapshot
		err := open(func(f *record.File) (err error) {
			s, err = f.Span(w)
			return err
		})
		return hide.Snapshot(&s), err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources, r.spans = append(r.sources, src), append(r.spans, span)
	return src
}

// learn takes what a recording shows besides its traffic.
func (r *Recordings) learn(name string, f *record.File, s, shown *model.Snapshot) error {
	var told []model.Tracked
	if r.Told != nil {
		var err error
		if told, err = r.Told(f, s.Window.Start); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Read++
	r.told[name] = model.Filter(told, func(x model.Tracked) bool { return x.Last.After(s.Window.Start) })
	if r.Snapshots != nil {
		r.Snapshots[name] = shown
	}
	if r.Look != nil {
		r.Look(name, s, shown)
	}
	r.Names.Add(shown)
	return nil
}

// OpenFile opens a recording, and takes the file. closeFile is to be called in any case.
func OpenFile(file *os.File) (f *record.File, closeFile func(), err error) {
	info, err := file.Stat()
	if err == nil {
		f, err = record.Open(file, info.Size())
	}
	return f, func() {
		if err == nil {
			f.Close()
		}
		file.Close()
	}, err
}

// AddFiles adds recordings that need not be of the same window, with what their nodes had told. closeFiles is to be called
// in any case. Where names are replaced, so are those of files, which are often named after their nodes.
func (r *Recordings) AddFiles(names []string, open func(name string) (*record.File, func(), error), hide func() *redact.Redactor) (closeFiles func()) {
	r.Hide, r.Apart = hide, true
	r.Told = func(f *record.File, since time.Time) ([]model.Tracked, error) { return Had(f, since, hide()) }
	var opened []func()
	for i, name := range names {
		f, closeFile, err := open(name)
		opened = append(opened, closeFile)
		cut := model.Either(err == nil && f.Damage != nil, "its recording is truncated", "")
		r.Add(model.Either(hide() != nil, fmt.Sprintf("recording %d", i+1), name), cut, func(use func(*record.File) error) error {
			if err != nil {
				return err
			}
			defer f.Forget()
			return use(f)
		})
	}
	return func() {
		for _, closeFile := range opened {
			closeFile()
		}
	}
}

// Draw has the state of the recordings held in memory, so that paths can be drawn, unless they are too many.
func (r *Recordings) Draw(wanted bool, of int) {
	if wanted && of <= mostDrawn {
		r.Snapshots = map[string]*model.Snapshot{}
	}
}

// Judge judges the recordings that were added together.
func (r *Recordings) Judge() join.Result { return join.Judge(r.sources) }

// Report is what the user wants of what was judged, who asked about some addresses, with what came and went.
func (r *Recordings) Report(judged join.Result, v *flags.Verdict, focus []netip.Addr) report.Joint {
	findings := v.Choose(Told(r.sources, r.spans, judged, r.told), focus)
	return report.Joint{
		Nodes: judged.Nodes, Names: r.Names, Focus: focus, Limits: v.Limits(), Findings: findings, Paths: r.Paths(judged.Nodes, findings),
	}
}
