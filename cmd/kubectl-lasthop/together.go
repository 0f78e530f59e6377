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
	"slices"
	"strings"
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
	more := o.passed(func(name string) bool { return !slices.Contains(slices.Concat(recorded, judging), name) })
	if len(more) > 0 {
		flag, value, _ := strings.Cut(more[0], "=")
		return usagef("%s %s: not possible for several nodes: use one", flag, value)
	}
	return nil
}

// recordArgs is the command line that records a node for a verdict here.
func (r *runner) recordArgs(t target, known *facts) []string {
	args := []string{"record", "-"}
	if r.command == "explain" && !r.past() {
		args = append(args, pairs(t.pods)...)
	}
	if !r.Given.Changed("for") && !r.past() {
		args = append(args, "--for=10s") // as check does
	}
	args = append(args, r.passed(func(name string) bool { return slices.Contains(recorded, name) })...)
	args = append(args, known.args...)
	if r.Pcap != "" {
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
	hide := flags.Redactor(r.Redact) // as each node does in its recording
	j := joint.New()
	j.Draw(r.command == "explain" || r.Draws(r.Output.Value), len(targets))
	if r.past() {
		// An agent had judged what it recorded.
		j.Told = func(f *record.File, _ time.Time) ([]model.Tracked, error) { return f.Findings(f.Len() - 1) }
	}
	focus := model.Flat(targets, func(t target) []netip.Addr { return addresses(t.pods) })
	if r.cluster.explicit && len(focus) == 0 {
		if focus, err = r.namespaced(ctx); err != nil {
			return 0, err
		}
	}
	joint.BoundGarbage(len(targets))
	names := model.Map(targets, func(t target) string { return hide.Node(t.node) })
	var group join.Group
	// Of a recording that has come only what the verdict needs is kept in memory.
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	r.ended = func(i int, o *outcome) {
		room <- struct{}{}
		defer func() { <-room }()
		if r.asked.Err() == nil && ctx.Err() == nil {
			group.Add(j.Add(names[i], o.fail(r.Redact), opener(r.recording(i))))
		}
	}
	outcomes := r.onAll(ctx, targets, known)
	if r.asked.Err() != nil || ctx.Err() != nil {
		return r.join(targets, outcomes)
	}
	focus = hide.Addrs(focus)
	e.Pod, e.To = hide.Addr(e.Pod), hide.Addr(e.To)
	result := group.Judge()
	status, err = r.join(targets, outcomes)
	if j.Read == 0 {
		return status, err
	}
	found := j.Report(result, &r.Verdict, focus)
	if r.command == "check" {
		return worst(r.verdict(found.Findings, found.Incomplete() != nil), status), errors.Join(err, r.tell(found))
	}
	if unread := errors.Join(j.Unread[names[0]], j.Unread[names[1]]); unread != nil {
		return status, errors.Join(err, unread)
	}
	near, far := join.End{Name: names[0], Snapshot: j.Snapshots[names[0]]}, join.End{Name: names[1], Snapshot: j.Snapshots[names[1]]}
	p := r.Between(result, near, far, e)
	return worst(r.pathVerdict(p, found), status), errors.Join(err, r.tell(p))
}

// replay judges recordings of this machine, as lasthop does: one as a node's own report, several together. It needs no
// cluster.
func (r *runner) replay() (int, error) {
	hide := func() *redact.Redactor { return flags.Redactor(r.Redact) }
	last := r.Asked()
	if len(r.words) == 1 {
		var found report.Report
		err := opener(r.words[0])(func(f *record.File) error {
			if f.Damage != nil {
				r.say("warning: recording %s: %v; the %d readings before that are valid", r.words[0], f.Damage, f.Len())
			}
			s, past, err := joint.Recorded(f, last, hide())
			found = joint.Node(hide().Snapshot(&s), past, &r.Verdict, nil, r.Draws(r.Output.Value), true)
			return err
		})
		if err != nil {
			return exitUsage, usagef("recording %s: %w", r.words[0], err)
		}
		return r.verdict(found.Findings, len(report.Gaps(found.Snapshot)) > 0), r.tell(found)
	}
	j := joint.New()
	j.Last = last
	j.Draw(r.Draws(r.Output.Value), len(r.words))
	defer j.AddFiles(r.words, openRecording, hide)()
	result := j.Judge()
	if j.Read == 0 {
		return exitUsage, &usageError{errors.Join(slices.Collect(maps.Values(j.Unread))...)}
	}
	found := j.Report(result, &r.Verdict, nil)
	return r.verdict(found.Findings, found.Incomplete() != nil), r.tell(found)
}

// tell prints a report, and writes what a CI job wants of it.
func (r *runner) tell(found report.Document) error {
	return errors.Join(flags.Print(r.stdout, found, report.Format(r.Output.Value), r.Color.Value), r.writeForCI(found))
}

// fail makes an error of a status that says that a recording is not whole, and says why it is not, as a report does.
func (o *outcome) fail(redacted bool) string {
	switch {
	case o.err != nil || o.status == exitClean:
	case o.status == exitUsage || o.status == exitCannot:
		o.err = errors.New(strings.TrimPrefix(o.said, "lasthop: "))
	default:
		// It was not ended here.
		o.err, o.status = fmt.Errorf("the recording ended early, with status %d", o.status), exitCannot
	}
	switch {
	case o.err == nil:
		return ""
	case redacted:
		return "its recording failed" // the error may name it
	}
	why, _, _ := strings.Cut(o.err.Error(), "\n") // what follows is advice
	return why
}

// openRecording opens a recording of this machine. closeFile is to be called in any case.
func openRecording(name string) (f *record.File, closeFile func(), err error) {
	file, err := input.Open(name, input.Regular)
	if err != nil {
		return nil, func() {}, err
	}
	return joint.OpenFile(file)
}

func opener(name string) func(use func(*record.File) error) error {
	return func(use func(*record.File) error) error {
		f, closeFile, err := openRecording(name)
		defer closeFile()
		if err != nil {
			return err
		}
		return use(f)
	}
}

// verdict is the exit status, as that of lasthop.
func (r *runner) verdict(findings []model.Finding, incomplete bool) int {
	switch {
	case r.Judgement().Fails(findings):
		return exitFindings
	case r.Strict && incomplete:
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
func addresses(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// ends are those of a path between pods on two nodes.
func ends(near, far target) (e path.Ends, err error) {
	to, err := flags.ParseTarget(near.to)
	if err != nil {
		return e, &usageError{err}
	}
	e.Port, e.Proto = to.Port, to.Proto
	both := addresses([]string{near.pods[0], far.pods[0]})
	if len(both) < 2 || both[0].Is4() != both[1].Is4() {
		return e, usagef("the pods have no addresses of the same family: %s and %s", near.pods[0], far.pods[0])
	}
	e.Pod, e.To = both[0], both[1]
	return e, nil
}

// pathVerdict is the exit status, as that of lasthop's explain: a hop at which packets
// end for a finding below --fail-on is no failure.
func (r *runner) pathVerdict(p report.Path, all report.Joint) int {
	if p.Fails(r.Judgement().FailOn) {
		return exitFindings
	}
	return r.verdict(p.Findings, all.Incomplete() != nil)
}
