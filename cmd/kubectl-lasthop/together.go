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

// wishes are lasthop's flags about the verdict of several nodes, which is made here.
type wishes struct {
	only, skip flags.Codes
	failOn     model.Severity
	strict     bool
	format     report.Format
	color      string
	github     bool
	// hide replaces names and addresses, as each node does in its recording.
	hide *redact.Redactor
}

// recorded are the flags that reach each node when several are judged together: those
// that `lasthop record` has. judging are those about the verdict.
var (
	recorded = []string{"for", "uplink", "pod-cidr", "engine", "attach", "redact", "debug"}
	judging  = []string{"only", "skip", "fail-on", "output", "color", "strict", "github"}
)

// wish collects the flags about the verdict.
func (o *options) wish() (wishes, error) {
	for _, arg := range o.passed {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !slices.Contains(recorded, name) && !slices.Contains(judging, name) {
			return wishes{}, usagef("--%s %s: of several nodes that is not possible: name one", name, value)
		}
	}
	w := wishes{
		only: o.only, skip: o.skip, failOn: model.Severity(o.failOn.Value),
		strict: o.has("strict"), format: report.Format(o.output.Value), color: o.color.Value, github: o.has("github"),
	}
	if o.has("redact") {
		w.hide = redact.New(os.Getenv(redactKey))
	}
	return w, nil
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
	w, err := r.wish()
	if err != nil {
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
	j := &joint{names: map[netip.Addr]string{}, wishes: w}
	for _, t := range targets {
		j.focus = append(j.focus, addresses(t.pods)...)
	}
	if r.cluster.explicit && len(j.focus) == 0 {
		if j.focus, err = r.namespaced(ctx); err != nil {
			return 0, err
		}
	}
	outcomes := r.onAll(ctx, targets, known)
	if isClosed(r.asked) || ctx.Err() != nil {
		return r.join(targets, outcomes)
	}
	var sources []join.Source
	for i, t := range targets {
		o := &outcomes[i]
		o.fail()
		sources = append(sources, j.source(w.hide.Node(t.node), r.recording(i), o.err))
	}
	j.focus = w.hide.Addrs(j.focus)
	e.Pod, e.To = w.hide.Addr(e.Pod), w.hide.Addr(e.To)
	result := join.Judge(sources)
	status, err = r.join(targets, outcomes)
	if j.read == 0 {
		return status, err
	}
	style := report.Style{Color: colored(w.color, r.stdout)}
	found := j.report(result)
	if r.command == "check" {
		return worst(j.verdict(found), status), errors.Join(err, found.Write(r.stdout, w.format, style), r.writeForCI(found, w))
	}
	near, far, unread := r.end(targets, 0), r.end(targets, 1), error(nil)
	near.node, far.node = w.hide.Node(near.node), w.hide.Node(far.node)
	if unread = errors.Join(near.err, far.err); unread != nil {
		return status, errors.Join(err, unread)
	}
	p := between(result, found, near, far, e)
	return worst(j.pathVerdict(p, found), status), errors.Join(err, p.Write(r.stdout, w.format, style), r.writeForCI(p, w))
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
	wishes
	// names are those of addresses on any node. focus are the addresses that were
	// asked about; empty means all.
	names map[netip.Addr]string
	focus []netip.Addr
	// read counts what could be read.
	read int
	// mu guards names and read: recordings are read at the same time.
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
		switch {
		case err != nil && failed != nil:
			return nil, errors.New(src.Cut)
		case err != nil:
			return nil, err
		case first:
			j.learn(s)
		}
		first = false
		return s, nil
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

// learn takes the names of addresses from a node.
func (j *joint) learn(s *model.Snapshot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.read++
	for a, name := range report.Called(s) {
		if name == report.ThisNode {
			name = "node " + s.Node.Name
		}
		if j.names[a] == "" {
			j.names[a] = name
		}
	}
}

// report has the findings that were asked for.
func (j *joint) report(result join.Result) report.Joint {
	r := report.Joint{Nodes: result.Nodes, Names: j.names, Focus: j.focus}
	for _, f := range result.Findings {
		if (len(j.only) == 0 || slices.Contains(j.only, f.Code)) && !slices.Contains(j.skip, f.Code) && (len(j.focus) == 0 || f.Concerns(j.focus)) {
			r.Findings = append(r.Findings, f)
		}
	}
	if len(j.only) > 0 {
		r.Limits = append(r.Limits, "judged only: "+j.only.String())
	}
	if len(j.skip) > 0 {
		r.Limits = append(r.Limits, "not judged: "+j.skip.String())
	}
	return r
}

// verdict is the exit status, as that of lasthop.
func (j *joint) verdict(r report.Joint) int {
	if slices.ContainsFunc(r.Findings, func(f model.Finding) bool { return f.Severity.Rank() >= j.failOn.Rank() }) {
		return exitFindings
	}
	if j.strict && slices.ContainsFunc(r.Nodes, func(n model.NodeSeen) bool {
		return n.Reason != "" || len(report.Gaps(&model.Snapshot{Sources: n.Sources})) > 0
	}) {
		return exitIncomplete
	}
	return exitClean
}

// namespaced are the addresses of the pods in the namespace that the user names.
func (r *runner) namespaced(ctx context.Context) ([]netip.Addr, error) {
	var texts []string
	err := eachPage(ctx, metav1.ListOptions{}, r.cluster.Pods(r.cluster.namespace).List, func(page *corev1.PodList) {
		for i := range page.Items {
			if p := &page.Items[i]; without(p) == "" {
				texts = append(texts, p.Status.PodIP)
			}
		}
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
