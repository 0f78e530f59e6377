package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// samplesFile is where lasthop writes the samples of dropped packets.
const samplesFile = "samples.pcapng"

var samplesFlag = "--pcap=" + path.Join(remote.Dir, samplesFile)

type runner struct {
	*options
	plan
	cluster        *connected
	asked          context.Context
	stdin          io.Reader
	stdout, stderr io.Writer

	mu sync.Mutex // of stdout and stderr, which several nodes share
	// raw says that the terminal is the screen's.
	raw atomic.Bool
	// several says that there are several nodes. Then gate lets them begin together,
	// and room bounds how many start at once.
	several bool
	gate    *gate
	room    chan struct{}
	trial   *session.Trial
	// recordings is the directory of the nodes' recordings that are judged together;
	// empty where each node judges for itself.
	recordings string
	// ended is called as the command has ended on the i-th node, unless nil.
	ended func(i int, o *outcome)
	// left says that the reader of watch or record has gone away.
	left atomic.Bool
}

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := "\n"
	if r.raw.Load() {
		end = "\r\n" // a raw terminal goes down only
	}
	// It may quote text from the cluster.
	fmt.Fprint(r.stderr, "lasthop: "+report.Clean(fmt.Sprintf(format, args...))+end)
}

// run runs the command on all nodes at once, and returns the worst status.
func (r *runner) run(ctx context.Context) (int, error) {
	find := &finder{api: r.cluster.API, namespace: r.cluster.namespace}
	if err := find.find(ctx, r.options, r.plan); err != nil {
		return 0, err
	}
	targets := find.targets
	if err := r.accept(targets); err != nil {
		return 0, err
	}
	known, err := &facts{}, error(nil)
	if r.command != "doctor" && !r.past() {
		if known, err = r.gather(ctx, targets); err != nil {
			return 0, err
		}
	}
	if r.several && slices.Contains([]string{"check", "explain"}, r.command) {
		return r.together(ctx, targets, known)
	}
	if out, ok := r.stdout.(*pipe); ok && (r.command == "watch" || r.file == "-") {
		return r.whileRead(ctx, out, targets, known)
	}
	return r.each(ctx, targets, known)
}

// whileRead is each, and ends without an error once the reader is gone.
func (r *runner) whileRead(ctx context.Context, out *pipe, targets []target, known *facts) (int, error) {
	asked, end := context.WithCancel(r.asked)
	defer end()
	r.asked = asked
	go func() {
		defer end()
		again := time.NewTicker(time.Second)
		defer again.Stop()
		for !out.gone() {
			select {
			case <-again.C:
			case <-out.left:
			case <-asked.Done():
				return
			}
		}
		r.left.Store(true)
	}()
	status, err := r.each(ctx, targets, known)
	if r.left.Load() {
		if errors.Is(err, session.ErrEarly) {
			err = nil
		}
		return exitClean, err
	}
	return status, err
}

// accept checks what depends on how many nodes there are.
func (r *runner) accept(targets []target) error {
	r.several = len(targets) > 1
	switch {
	case r.maxNodes > 0 && len(targets) > r.maxNodes:
		return usagef("%d nodes, and --max-nodes allows %d: name fewer nodes or pods", len(targets), r.maxNodes)
	case r.several && (r.command == screen || r.file == "-"):
		return usagef("%s: want one node, not %d", r.command, len(targets))
	case r.command == "explain" && (len(targets[0].pods) != 1 || r.several && r.to == ""):
		return usagef("explain: want one pod/NAME")
	}
	return nil
}

// each runs the command on each node, and prints what they print.
func (r *runner) each(ctx context.Context, targets []target, known *facts) (int, error) {
	return r.join(targets, r.onAll(ctx, targets, known))
}

// onAll runs the command on all nodes in the same window.
func (r *runner) onAll(ctx context.Context, targets []target, known *facts) []outcome {
	r.room, r.trial = make(chan struct{}, r.atOnce), new(session.Trial)
	if r.several {
		r.say("starting lasthop on %d nodes", len(targets))
	} else if !r.past() {
		r.say("starting lasthop on %s", targets[0].node)
	}
	wait := &pending{nodes: model.Map(targets, func(t target) string { return t.node })}
	r.gate = &gate{missing: len(targets), open: make(chan struct{}), opened: func(ready, failed int) {
		if r.several && ready > 0 {
			r.say("%d of %d nodes %s", ready, ready+failed, model.Either(ready == 1, "is ready: it starts", "are ready: they start"))
		}
	}}
	outcomes := make([]outcome, len(targets))
	var all, telling sync.WaitGroup
	over := make(chan struct{})
	if r.several {
		telling.Go(func() { wait.tell(r.say, over) })
	}
	for i, t := range targets {
		all.Go(func() {
			outcomes[i] = r.on(ctx, i, t, known)
			if r.ended != nil {
				r.ended(i, &outcomes[i])
			}
			wait.done(t.node)
		})
	}
	all.Wait()
	close(over)
	telling.Wait()
	return outcomes
}

// outcome is what the command gave on a node. What it printed is kept only of several
// nodes, of what it said the last line.
type outcome struct {
	status  int
	err     error
	printed bytes.Buffer
	said    string
}

// join prints what several nodes found, each whole, and returns the worst status.
func (r *runner) join(targets []target, outcomes []outcome) (int, error) {
	status, err := exitClean, error(nil)
	for i, o := range outcomes {
		if r.several && o.err != nil {
			o.err = fmt.Errorf("%s: %w", targets[i].node, o.err)
		}
		if o.printed.Len() > 0 && !r.Given.Changed("output") {
			fmt.Fprintf(r.stdout, "=== %s\n", targets[i].node)
		}
		_, gone := o.printed.WriteTo(r.stdout)
		status, err = worst(status, o.status), errors.Join(err, o.err, gone)
	}
	return status, err
}

// args is the command line of lasthop on a node.
func (r *runner) args(t target, known *facts) []string {
	if r.recordings != "" {
		return r.recordArgs(t, known)
	}
	var args []string
	if r.command != screen {
		args = append(args, r.command)
	}
	if r.file != "" {
		args = append(args, "-") // this end writes the file
		if !r.past() {
			args = append(args, pairs(t.pods)...)
		}
	}
	args = slices.Concat(args, r.passed(func(string) bool { return true }), r.colors(r.plan, r.stdout), known.args)
	if t.to != "" {
		args = append(args, "--to="+t.to)
	}
	if r.Pcap != "" {
		args = append(args, samplesFlag)
	}
	forCI, _ := r.forCI()
	args = append(args, forCI...)
	if slices.Contains([]string{"check", "audit", "explain", "watch"}, r.command) {
		// An address is the pod's own name on its node.
		if args = append(args, t.pods...); len(t.pods) == 0 && r.cluster.explicit {
			args = append(args, "--namespace="+r.cluster.namespace)
		}
	}
	return args
}

// environment are the variables that say what the terminal can, and in which words, and what replaces names.
var environment = []string{"TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "LC_CTYPE", flags.RedactKey}

// on runs the command on one node, the i-th.
func (r *runner) on(ctx context.Context, i int, t target, known *facts) (out outcome) {
	start := remote.Start{Args: r.args(t, known), Files: maps.Clone(known.files), ErrorTerminal: flags.Terminal(r.stderr) && !r.several}
	for _, name := range environment {
		if value, set := os.LookupEnv(name); set {
			start.Env = append(start.Env, name+"="+value)
		}
	}
	_, forCI := r.forCI()
	start.Env = append(start.Env, forCI...)
	near := remote.Near{
		Stdout: r.stdout, Stderr: r.stderr, Interrupt: r.asked.Done(),
		File: func(name string, content []byte) error { return r.keep(t.node, name, content) },
	}
	var once sync.Once
	arrive := func(ready bool) {
		once.Do(func() {
			r.gate.arrive(ready)
			<-r.room
		})
	}
	r.room <- struct{}{}
	defer func() { arrive(false) }()
	// A node that is late has the others wait for a while, and no longer.
	within, late := context.WithCancelCause(ctx)
	defer late(nil)
	near.Begun = func() error {
		arrive(true)
		err := r.gate.wait(ctx, r.asked)
		if err == nil && r.recordings != "" {
			grace := cmp.Or(r.within, time.Minute)
			timer := time.AfterFunc(time.Duration(r.Window)+grace, func() {
				late(fmt.Errorf("it did not end within %v of the window", grace))
			})
			context.AfterFunc(within, func() { timer.Stop() })
		}
		return err
	}
	file := model.Either(r.recordings != "", r.recording(i), beside(r.file, t.node, r.several))
	switch {
	case r.command == screen:
		restore, err := r.takeTerminal(&start, &near)
		if err != nil {
			return outcome{err: err}
		}
		defer restore()
	case file != "" && file != "-":
		f, err := create(file)
		if err != nil {
			return outcome{err: err}
		}
		defer func() { out.err = errors.Join(out.err, r.closeRecording(f)) }()
		near.Stdout = f
	case r.several && r.command == "watch":
		lines := &lineWriter{to: r.stdout, mu: &r.mu}
		defer lines.flush()
		near.Stdout = lines
	case r.several:
		near.Stdout = &out.printed
	}
	if r.several {
		lines := &lineWriter{to: r.stderr, mu: &r.mu, prefix: t.node + ": "}
		defer func() {
			lines.flush()
			out.said = lines.last
		}()
		near.Stderr = lines
	}
	// That it was interrupted is no news to who has left.
	near.Stderr = until{near.Stderr, &r.left}
	if r.past() {
		out.status, out.err = r.cluster.Ask(within, r.debugNamespace, t.node, start, near)
		return out
	}
	out.status, out.err = r.cluster.Run(within, session.Options{
		Namespace: cmp.Or(r.debugNamespace, r.cluster.namespace), Node: t.node,
		Image: r.image, Profile: r.profile.Value, Deadline: r.limit(), StartWithin: r.within,
		Trial: r.trial,
	}, start, near, r.say)
	return out
}

// until is a stream that takes no more once over is true.
type until struct {
	to   io.Writer
	over *atomic.Bool
}

func (u until) Write(p []byte) (int, error) {
	if u.over.Load() {
		return len(p), nil
	}
	return u.to.Write(p)
}

// takeTerminal makes the terminal here that of the command, until restore.
func (r *runner) takeTerminal(start *remote.Start, near *remote.Near) (restore func(), err error) {
	in, out := r.stdin.(*os.File), r.stdout.(*os.File)
	columns, rows, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return nil, fmt.Errorf("get the size of the terminal: %w", err)
	}
	start.Terminal = &remote.Size{Rows: uint16(rows), Cols: uint16(columns)}
	sizes, stop := resized(out)
	// Keys go to the command once it runs; until then ^C ends the wait.
	var before *term.State
	near.Keys, near.Sizes = in, sizes
	begun := near.Begun
	near.Begun = func() error {
		if err := begun(); err != nil {
			return err
		}
		before, err = term.MakeRaw(int(in.Fd()))
		r.raw.Store(err == nil)
		return err
	}
	return func() {
		stop()
		if before != nil {
			term.Restore(int(in.Fd()), before) //nolint:errcheck // there is nothing else to try
			r.raw.Store(false)
		}
	}, nil
}

// exports are the names of the files that the screen writes.
var exports = regexp.MustCompile(`^lasthop-[0-9.-]+\.html$`)

// keep writes a file that lasthop has left on a node. The node does not choose its
// name: what is not expected is not taken.
func (r *runner) keep(node, name string, content []byte) error {
	local := name
	switch {
	case name == samplesFile && r.Pcap != "":
		local = beside(r.Pcap, node, r.several)
	case name == junitFile && r.Reports[flags.ReportJUnit] != "":
		local = r.Reports[flags.ReportJUnit]
	case name == htmlFile && r.Reports[string(report.HTML)] != "":
		local = r.Reports[string(report.HTML)]
	case name == summaryFile && r.GitHub:
		return flags.Summarize(r.say, content, 0)
	case r.command != screen || !exports.MatchString(name):
		r.say("%s sent an unexpected file %q: discarded", node, name)
		return nil
	}
	return r.write(local, content)
}

// write writes a new file, and says so.
func (r *runner) write(name string, content []byte) error {
	f, err := create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		r.say("%s: %d KiB", name, (len(content)+1023)/1024)
	}
	return err
}

// create creates a file that only its owner may read, and overwrites none.
func create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return f, nil
}

// closeRecording closes a recording. Of one that is to stay it says where it is, or removes it if nothing is in it.
func (r *runner) closeRecording(f *os.File) error {
	info, err := f.Stat()
	err = errors.Join(err, f.Close())
	switch {
	case err != nil || r.recordings != "":
	case info.Size() == 0:
		err = os.Remove(f.Name())
	default:
		r.say("%s: %d KiB", f.Name(), (info.Size()+1023)/1024)
	}
	return err
}

// lineWriter writes whole lines to what several nodes share.
type lineWriter struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix string
	rest   []byte
	// last is the last line of them.
	last string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	err := w.print(w.rest[:end])
	w.rest = w.rest[end:]
	return len(p), err
}

func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.print(append(w.rest, '\n')) //nolint:errcheck // a reader that is gone wants nothing
	}
}

func (w *lineWriter) print(text []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		w.last = strings.TrimSpace(line)
		out.WriteString(w.prefix + line)
	}
	_, err := io.WriteString(w.to, out.String())
	return err
}
