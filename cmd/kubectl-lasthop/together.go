package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
)

// recorded are the flags that reach each node when several are judged together: those
// that `lasthop record` has. judging are those about the verdict.
var (
	recorded = []string{"for", "last", "at", "uplink", "pod-cidr", "engine", "attach", "redact", "debug"}
	judging  = []string{"only", "skip", "fail-on", "output", "color", "strict", "github"}
)

// allJudged refuses flags about the verdict that several nodes cannot have.
func (o *options) allJudged() error {
	for _, arg := range o.passed {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !slices.Contains(recorded, name) && !slices.Contains(judging, name) {
			return usagef("--%s %s: not possible for several nodes: use one", name, value)
		}
	}
	return nil
}

// recordArgs is the command line that records a node for a verdict here.
func (r *runner) recordArgs(t target, known *facts) []string {
	args := []string{"record", "-"}
	if r.command == "explain" && !r.past() {
		args = append(args, pairs(t.pods)...)
	}
	if !r.given.Changed("for") && !r.past() {
		args = append(args, "--for=10s") // as check does
	}
	for _, arg := range r.passed {
		if name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "="); slices.Contains(recorded, name) {
			args = append(args, arg)
		}
	}
	args = append(args, known.args...)
	if r.pcap != "" {
		args = append(args, samplesFlag)
	}
	return args
}

// pairs has a recording count the packets of these pods by pair of addresses.
func pairs(pods []string) []string {
	return model.Either(len(pods) > 0, []string{"--pairs=" + strings.Join(pods, ",")}, nil)
}

// recording is the file of the i-th node's recording.
func (r *runner) recording(i int) string {
	return filepath.Join(r.recordings, fmt.Sprintf("%d.rec", i))
}

// together records several nodes in the same window, and judges the recordings together.
func (r *runner) together(ctx context.Context, targets []target, known *facts) (status int, err error) {
	if err := r.allJudged(); err != nil {
		return 0, err
	}
	var e path.Ends
	if r.command == "explain" {
		if e, err = ends(targets[0], targets[1]); err != nil {
			return 0, err
		}
	}
	if r.recordings, err = os.MkdirTemp("", "lasthop-"); err != nil {
		return 0, fmt.Errorf("keep the recordings: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.recordings)) }()
	j := r.newJudged()
	if r.draws() && len(targets) <= joint.MostDrawn {
		j.snapshots = map[string]*model.Snapshot{}
	}
	j.past = r.past()
	if r.redact {
		j.hide = redact.New(os.Getenv(flags.RedactKey))
	}
	j.focus = model.Flat(targets, func(t target) []netip.Addr { return addresses(t.pods) })
	if r.cluster.explicit && len(j.focus) == 0 {
		if j.focus, err = r.namespaced(ctx); err != nil {
			return 0, err
		}
	}
	boundMemory(len(targets))
	nodeNames := model.Map(targets, func(t target) string { return j.hide.Node(t.node) })
	var group join.Group
	sources, spans := make([]join.Source, len(targets)), make([]joint.Span, len(targets))
	// Of a recording that has come only what the verdict needs is kept in memory.
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	r.ended = func(i int, o *outcome) {
		room <- struct{}{}
		defer func() { <-room }()
		if r.asked.Err() == nil && ctx.Err() == nil {
			o.fail()
			sources[i], spans[i] = j.source(nodeNames[i], r.recording(i), o.err), r.span(i)
			group.Add(sources[i])
		}
	}
	outcomes := r.onAll(ctx, targets, known)
	if r.asked.Err() != nil || ctx.Err() != nil {
		return r.join(targets, outcomes)
	}
	j.focus = j.hide.Addrs(j.focus)
	e.Pod, e.To = j.hide.Addr(e.Pod), j.hide.Addr(e.To)
	result := group.Judge()
	status, err = r.join(targets, outcomes)
	if j.read == 0 {
		return status, err
	}
	found := report.Joint{Nodes: result.Nodes, Names: j.names, Focus: j.focus, Limits: j.Limits()}
	found.Findings = j.Choose(joint.Told(sources, spans, result, j.told), j.focus)
	if r.command == "check" {
		found.Paths = joint.Paths(found.Nodes, j.snapshots, found.Findings)
		return worst(j.verdict(found), status), errors.Join(err, r.tell(found))
	}
	near, far := join.End{Name: j.hide.Node(targets[0].node)}, join.End{Name: j.hide.Node(targets[1].node)}
	if unread := errors.Join(j.unread[near.Name], j.unread[far.Name]); unread != nil {
		return status, errors.Join(err, unread)
	}
	near.Snapshot, far.Snapshot = j.snapshots[near.Name], j.snapshots[far.Name]
	p := j.Between(result, near, far, e)
	return worst(j.pathVerdict(p, found), status), errors.Join(err, r.tell(p))
}

// span reads a part of the i-th node's recording.
func (r *runner) span(i int) joint.Span {
	return func(w model.Window) (*model.Snapshot, error) {
		var s model.Snapshot
		err := openRecording(r.recording(i), func(f *record.File) (err error) {
			s, err = f.Span(w)
			return err
		})
		return &s, err
	}
}

// replay judges recordings of this machine together. It needs no cluster.
func (r *runner) replay() (int, error) {
	j := r.newJudged()
	j.last, j.plain = time.Duration(r.window), r.redact
	if r.draws() && len(r.words) <= joint.MostDrawn {
		j.snapshots = map[string]*model.Snapshot{}
	}
	var sources []join.Source
	for i, file := range r.words {
		name := file
		if r.redact {
			name = fmt.Sprintf("recording %d", i+1) // a file is often named after its node
		}
		sources = append(sources, j.source(name, file, nil))
	}
	result := join.Judge(sources)
	if j.read == 0 {
		return exitUsage, &usageError{errors.Join(slices.Collect(maps.Values(j.unread))...)}
	}
	found := report.Joint{Nodes: result.Nodes, Names: j.names, Limits: j.Limits()}
	found.Findings = j.Choose(result.Findings, nil)
	found.Paths = joint.Paths(found.Nodes, j.snapshots, found.Findings)
	return j.verdict(found), r.tell(found)
}

// draws reports whether a document will draw paths.
func (r *runner) draws() bool {
	return r.github || r.reports[string(report.HTML)] != "" || flags.Drawn(r.output.Value)
}

// tell prints a report, and writes what a CI job wants of it.
func (r *runner) tell(found report.Document) error {
	printed := flags.Print(r.stdout, found, report.Format(r.output.Value), r.color.Value)
	return errors.Join(printed, r.writeForCI(found))
}

// Near a limit garbage is collected more often. What is kept of a node with 100 pods takes about
// 1 MiB, so the limit leaves room for that.
const (
	memoryLimit  = 640 << 20
	memoryOfNode = 1400 << 10
)

func boundMemory(nodes int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(memoryLimit, int64(nodes)*memoryOfNode))
	}
}

// fail makes an error of a status that says that a recording is not whole.
func (o *outcome) fail() {
	switch {
	case o.err != nil || o.status == exitClean:
		return
	case o.status == exitUsage || o.status == exitCannot:
		o.err = errors.New(strings.TrimPrefix(o.said, "lasthop: "))
		return
	}
	// It was not ended here.
	o.err, o.status = fmt.Errorf("the recording ended early, with status %d", o.status), exitCannot
}

type judged struct {
	flags.Verdict
	// hide replaces names and addresses, as each node does in its recording.
	hide *redact.Redactor
	// names are those of addresses on any node. focus are the addresses that were asked about; empty means all.
	names map[netip.Addr]string
	focus []netip.Addr
	// past says that the recordings are of agents, told are the findings that these had, by node.
	past bool
	told map[string][]model.Tracked
	// read counts what could be read; unread is why not, by node.
	read   int
	unread map[string]error
	// last is how much of each recording's end is judged, 0 for all. plain: the recordings have
	// the real names, and hide is for what is shown.
	last  time.Duration
	plain bool
	// snapshots are those of the nodes, unless nil.
	snapshots map[string]*model.Snapshot
	// mu guards the rest: recordings are read at the same time.
	mu sync.Mutex
}

func (r *runner) newJudged() *judged {
	j := &judged{Verdict: r.Verdict, names: map[netip.Addr]string{}, told: map[string][]model.Tracked{}, unread: map[string]error{}}
	if r.command == "explain" {
		j.snapshots = map[string]*model.Snapshot{}
	}
	return j
}

// source is a node's recording. It is read anew each time, so that not all are held in
// memory at once. failed is why there is none, or one that is not whole.
func (j *judged) source(node, file string, failed error) join.Source {
	src, first := join.Source{Name: node}, true
	if failed != nil {
		src.Cut, _, _ = strings.Cut(failed.Error(), "\n") // what follows is advice
		if j.hide != nil {
			src.Cut = "its recording failed" // the error may name it
		}
	}
	src.Read = func() (*model.Snapshot, error) {
		read, told, err := j.readRecording(file)
		s := &read
		if err == nil && j.plain {
			s = redact.New(os.Getenv(flags.RedactKey)).Snapshot(s)
		}
		if first {
			j.learn(node, s, told, err)
		}
		first = false
		if err != nil && failed != nil {
			err = errors.New(src.Cut)
		}
		return s, err
	}
	return src
}

// readRecording reads a node's recording and, of an agent's, the findings that it had at its end.
func (j *judged) readRecording(name string) (s model.Snapshot, told []model.Tracked, err error) {
	err = openRecording(name, func(f *record.File) (err error) {
		if j.past {
			told, err = f.Findings(f.Len() - 1)
		}
		if err == nil {
			s, err = f.Window(j.last)
		}
		return err
	})
	return s, told, err
}

func openRecording(name string, read func(*record.File) error) error {
	file, err := input.Open(name, input.Regular)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	f, err := record.Open(file, info.Size())
	if err != nil {
		return err
	}
	defer f.Close()
	return read(f)
}

// learn takes what a node's recording shows, or why it cannot be read.
func (j *judged) learn(node string, s *model.Snapshot, told []model.Tracked, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.unread[node] = err
		return
	}
	j.read++
	for _, x := range told {
		if x.Last.After(s.Window.Start) {
			j.told[node] = append(j.told[node], x)
		}
	}
	if j.snapshots != nil {
		j.snapshots[node] = s
	}
	flags.Call(j.names, s)
}

// verdict is the exit status, as that of lasthop.
func (j *judged) verdict(r report.Joint) int {
	switch {
	case j.Judgement().Fails(r.Findings):
		return exitFindings
	case j.Strict && r.Incomplete() != nil:
		return exitIncomplete
	}
	return exitClean
}

// namespaced are the addresses of the pods in the namespace that the user names.
func (r *runner) namespaced(ctx context.Context) ([]netip.Addr, error) {
	var texts []string
	err := eachPod(ctx, r.cluster.API, r.cluster.namespace, metav1.ListOptions{}, func(p *corev1.Pod) {
		texts = append(texts, p.Status.PodIP)
	})
	return addresses(texts), session.ExplainLookup(err, "list the pods", r.cluster.namespace)
}

// addresses are those that the API has as text.
func addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// ends are those of a path between pods on two nodes.
func ends(near, far target) (e path.Ends, err error) {
	place, proto, named := strings.Cut(near.to, "/")
	if named && flags.Protocols[strings.ToLower(proto)] == 0 {
		return e, usagef("--to %s: no protocol %q; want tcp, udp, icmp, icmpv6 or sctp", near.to, proto)
	}
	e.Proto = flags.Protocols[strings.ToLower(proto)]
	if _, err := netip.ParseAddr(place); err != nil {
		to, err := netip.ParseAddrPort(place)
		if err != nil || to.Port() == 0 {
			return e, usagef("--to %s: want pod/NAME[:PORT][/PROTO]", near.to)
		}
		e.Port = to.Port()
	}
	both := addresses([]string{near.pods[0], far.pods[0]})
	if len(both) < 2 || both[0].Is4() != both[1].Is4() {
		return e, usagef("the pods have no addresses of the same family: %s and %s", near.pods[0], far.pods[0])
	}
	e.Pod, e.To = both[0], both[1]
	return e, nil
}

// pathVerdict is the exit status, as that of lasthop's explain: a hop at which packets
// end for a finding below --fail-on is no failure.
func (j *judged) pathVerdict(p report.Path, all report.Joint) int {
	if p.Fails(j.Judgement().FailOn) {
		return exitFindings
	}
	all.Findings = p.Findings
	return j.verdict(all)
}
