package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
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
	recorded = []string{"for", "uplink", "pod-cidr", "engine", "attach", "redact", "debug"}
	judging  = []string{"only", "skip", "fail-on", "output", "color", "strict", "github"}
)

// allJudged refuses flags about the verdict that several nodes cannot have.
func (o *options) allJudged() error {
	for _, arg := range o.passed {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !slices.Contains(recorded, name) && !slices.Contains(judging, name) {
			return usagef("--%s %s: of several nodes that is not possible: name one", name, value)
		}
	}
	return nil
}

// recordArgs is the command line that records a node for a verdict here.
func (r *runner) recordArgs(t target, known *facts) []string {
	args := []string{"record", "-"}
	if r.command == "explain" {
		args = append(args, pairs(t.pods)...)
	}
	if !r.given.Changed("for") {
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
	if len(pods) == 0 {
		return nil
	}
	return []string{"--pairs=" + strings.Join(pods, ",")}
}

// recording is the file of the i-th node's recording.
func (r *runner) recording(i int) string {
	return filepath.Join(r.recordings, fmt.Sprintf("%d.rec", i))
}

// together records several nodes in the same window, and judges the recordings
// together.
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
	j := &joint{Verdict: r.Verdict, names: map[netip.Addr]string{}, unread: map[string]error{}}
	if r.command == "explain" {
		j.snapshots = map[string]*model.Snapshot{}
	}
	if r.redact {
		j.hide = redact.New(os.Getenv(flags.RedactKey))
	}
	for _, t := range targets {
		j.focus = append(j.focus, addresses(t.pods)...)
	}
	if r.cluster.explicit && len(j.focus) == 0 {
		if j.focus, err = r.namespaced(ctx); err != nil {
			return 0, err
		}
	}
	outcomes := r.onAll(ctx, targets, known)
	if r.asked.Err() != nil || ctx.Err() != nil {
		return r.join(targets, outcomes)
	}
	var sources []join.Source
	for i, t := range targets {
		o := &outcomes[i]
		o.fail()
		sources = append(sources, j.source(j.hide.Node(t.node), r.recording(i), o.err))
	}
	j.focus = j.hide.Addrs(j.focus)
	e.Pod, e.To = j.hide.Addr(e.Pod), j.hide.Addr(e.To)
	result := join.Judge(sources)
	status, err = r.join(targets, outcomes)
	if j.read == 0 {
		return status, err
	}
	found := report.Joint{Nodes: result.Nodes, Names: j.names, Focus: j.focus, Limits: j.Limits()}
	found.Findings = j.Choose(result.Findings, j.focus)
	if r.command == "check" {
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

// tell prints a report, and writes what a CI job wants of it.
func (r *runner) tell(found report.Document) error {
	style := report.Style{Color: flags.Colored(r.color.Value, r.stdout)}
	return errors.Join(found.Write(r.stdout, report.Format(r.output.Value), style), r.writeForCI(found))
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
	// Nobody here has ended it.
	o.err, o.status = fmt.Errorf("the recording was ended early, with status %d", o.status), exitCannot
}

// joint is what several nodes' recordings are judged with.
type joint struct {
	flags.Verdict
	// hide replaces names and addresses, as each node does in its recording.
	hide *redact.Redactor
	// names are those of addresses on any node. focus are the addresses that were
	// asked about; empty means all.
	names map[netip.Addr]string
	focus []netip.Addr
	// read counts what could be read; unread is why not, by node.
	read   int
	unread map[string]error
	// snapshots are those of the nodes, unless nil.
	snapshots map[string]*model.Snapshot
	// mu guards the rest: recordings are read at the same time.
	mu sync.Mutex
}

// source is a node's recording. It is read anew each time, so that not all are held in
// memory at once. failed is why there is none, or one that is not whole.
func (j *joint) source(node, file string, failed error) join.Source {
	src, first := join.Source{Name: node}, true
	if failed != nil {
		src.Cut, _, _ = strings.Cut(failed.Error(), "\n") // what follows is advice
		if j.hide != nil {
			src.Cut = "its recording failed" // the error may name it
		}
	}
	src.Read = func() (*model.Snapshot, error) {
		s, err := readRecording(file)
		if first {
			j.learn(node, s, err)
		}
		first = false
		if err != nil && failed != nil {
			err = errors.New(src.Cut)
		}
		return s, err
	}
	return src
}

func readRecording(name string) (*model.Snapshot, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f, err := record.Open(file, info.Size())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Window(0)
}

// learn takes what a node's recording shows, or why it cannot be read.
func (j *joint) learn(node string, s *model.Snapshot, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.unread[node] = err
		return
	}
	j.read++
	if j.snapshots != nil {
		j.snapshots[node] = s
	}
	flags.Call(j.names, s)
}

// verdict is the exit status, as that of lasthop.
func (j *joint) verdict(r report.Joint) int {
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
		return e, usagef("the pods have no addresses of one family: %s and %s", near.pods[0], far.pods[0])
	}
	e.Pod, e.To = both[0], both[1]
	return e, nil
}

// pathVerdict is the exit status, as that of lasthop's explain: a hop at which packets
// end for a finding below --fail-on is no failure.
func (j *joint) pathVerdict(p report.Path, all report.Joint) int {
	if p.Fails(j.Judgement().FailOn) {
		return exitFindings
	}
	all.Findings = p.Findings
	return j.verdict(all)
}
