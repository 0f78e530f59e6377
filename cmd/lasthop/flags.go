package main

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/traffic"
)

// observing holds the flags of every command that observes.
type observing struct {
	netns    string
	hostRoot string
	engine   flags.Choice
	attach   flags.Choice
	window   flags.Window
	uplinks  []string
	podCIDRs flags.Prefixes
	nodes    string
	pods     string
	routes   []string
	azure    bool
	active   bool
	// first is session.Options.First.
	first func(*model.Snapshot) ([]netip.Addr, error)
	// tables: what had no traffic is judged by the tables.
	tables bool

	namespace     string
	allNamespaces bool
	selector      selector

	flags.Verdict
	output flags.Choice
	color  flags.Choice
	debug  bool

	// idle is how long without a key the screen stays.
	idle time.Duration

	// replay are the recordings to judge instead of the node. pcap is the file for samples. given are the command's flags.
	replay []string
	past   past
	pcap   string
	beside beside

	// redact replaces names and addresses in all that is written.
	redact bool
	given  *pflag.FlagSet
}

// define defines all flags. Each command has some of them.
func (o *observing) define() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.netns, "netns", "", "the node's network namespace, a `NAME|PATH` "+
		"(default the current one; in a container with hostPID, PID 1's)")
	f.StringVar(&o.hostRoot, "host-root", "", "the `DIR` that holds the node's files (default /host if present, else /)")
	o.engine = flags.Choice{Value: session.EngineAuto, Of: []string{session.EngineAuto, session.EngineTC, session.EngineState}}
	f.Var(&o.engine, "engine", "how to watch packets: with BPF at tc (auto, tc), or not at all (state)")
	o.attach = flags.Choice{Value: traffic.AttachAuto, Of: []string{traffic.AttachAuto, traffic.AttachTCX, traffic.AttachClsact}}
	f.Var(&o.attach, "attach", "how to attach BPF at tc: tcx (Linux 6.6 or later), or clsact, which loses packets "+
		"while its qdisc is created; auto uses tcx if available")
	o.window = flags.Window(10 * time.Second)
	f.Var(&o.window, "for", "how long to observe")
	f.StringArrayVar(&o.uplinks, "uplink", nil,
		"use link `IF` as an uplink; repeatable (default the links of default routes, and other NICs)")
	f.Var(&o.podCIDRs, "pod-cidr", "a pod range of the cluster; repeatable (default learned from the node)")
	f.StringVar(&o.nodes, "nodes", "", "a `FILE` with the output of kubectl get nodes -o json; - is standard input")
	f.StringVar(&o.pods, "pods", "", "a `FILE` with the output of kubectl get pods -A -o json, for labels and the "+
		"names of pods on other nodes; - is standard input")
	f.StringArrayVar(&o.routes, "routes", nil, "a `FILE` with the output of az network … -o json: route tables, routes, "+
		"subnet, NIC, security groups, effective routes or rules; repeatable; - is standard input")
	f.BoolVar(&o.azure, "azure", false,
		"ask Azure for the same, with the node's managed identity: read-only, within 10s; what a role denies is named")
	f.BoolVar(&o.active, "active", false,
		"after the window, send up to 16 probes and report them: ICMP echo and ARP requests from the node's own addresses")
	f.StringVarP(&o.namespace, "namespace", "n", "", "select pods in this `NAMESPACE`")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "select pods in all namespaces (default)")
	f.VarP(&o.selector, "selector", "l", "select pods by labels, as kubectl does; needs --pods")
	f.Var(&o.Only, "only", "report only this finding; repeatable")
	f.Var(&o.Skip, "skip", "do not report this finding; repeatable")
	o.FailOn = flags.Severities()
	f.Var(&o.FailOn, "fail-on", "the lowest severity for exit status 1")
	f.BoolVar(&o.Strict, "strict", false, "exit with status 4 if a source could not be read completely")
	o.output = flags.Formats()
	f.VarP(&o.output, "output", "o", "output format")
	f.BoolVar(&o.redact, "redact", false, "replace names and addresses consistently; with "+flags.RedactKey+
		" in the environment, the originals cannot be guessed")
	o.color = flags.Colors()
	f.Var(&o.color, "color", "when to use colours; a non-empty NO_COLOR means never")
	f.BoolVar(&o.debug, "debug", false, "print details of failures, such as the BPF verifier log")
	f.Var(&o.beside.reports, "report", "also write the verdict to a new file: html to forward, junit for CI; repeatable")
	f.BoolVar(&o.beside.github, "github", false,
		"annotate a GitHub Actions run on standard error, and append to the job summary")
	f.DurationVar(&o.idle, "idle-exit", 30*time.Minute, "leave the screen after this `DURATION` without a key; 0 means never")
	f.StringArrayVar(&o.replay, "replay", nil, "judge the recording `FILE` instead of the node: all of it, or the last "+
		"--for; repeatable: recordings of several nodes at the same time are judged together; - is standard input")
	f.Var(&o.past.last, "last", "judge the last `DURATION` that this node's agent recorded, without waiting")
	f.Var(&o.past.at, "at",
		"judge what this node's agent recorded from this `TIME` on, for --for (default 5m): 03:12, or with a date")
	f.StringVar(&o.past.dir, "dir", "", "the agent's `DIR` (default "+agentDir+")")
	f.StringVar(&o.pcap, "pcap", "", "write samples of dropped packets to a new `FILE`, as pcapng; - is standard "+
		"output, and the report then goes to standard error")
	return f
}

// register gives a command all flags but some.
func (o *observing) register(f *pflag.FlagSet, but ...string) {
	f.SortFlags = false
	o.given = f
	o.define().VisitAll(func(x *pflag.Flag) {
		if !slices.Contains(but, x.Name) {
			f.AddFlag(x)
		}
	})
}

func (o *observing) pick(f *pflag.FlagSet, names ...string) {
	all := o.define()
	o.given = f
	for _, name := range names {
		f.AddFlag(all.Lookup(name))
	}
}

// validate checks what concerns several flags.
func (o *observing) validate() error {
	if o.allNamespaces && o.namespace != "" {
		return usagef("--namespace and --all-namespaces exclude each other")
	}
	if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, o.Judges) {
		return usagef("--skip excludes everything in --only: nothing is left to judge")
	}
	if !o.selector.empty() && o.pods == "" && len(o.replay) == 0 && !o.past.asked() {
		return errLabels
	}
	if err := cmp.Or(checkTexts(o.given), checkHostRoot(o.hostRoot), o.checkStdin()); err != nil {
		return err
	}
	return o.validateReplay()
}

var stdinNames = []string{"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}

// checkStdin refuses standard input for several files, since it can be read once. Its
// other names are made "-": not every standard input can be opened by a path.
func (o *observing) checkStdin() error {
	var of []string
	isStdin := func(flag string, name *string) {
		if slices.Contains(stdinNames, *name) {
			*name, of = "-", append(of, "--"+flag)
		}
	}
	isStdin("nodes", &o.nodes)
	isStdin("pods", &o.pods)
	for i := range o.routes {
		isStdin("routes", &o.routes[i])
	}
	switch {
	case len(of) > 1:
		return usagef("%s: only one file can be standard input", strings.Join(of, " and "))
	case len(of) == 1 && flags.Terminal(os.Stdin):
		return usagef("%s -: standard input is a terminal; want a pipe or a file, such as kubectl … -o json | lasthop …", of[0])
	}
	return nil
}

// mayBeEmpty is the annotation of a flag for which an empty value means none.
const mayBeEmpty = "lasthop_empty"

// checkTexts refuses empty values. They mostly come from an unset variable, and
// would mean another node, or the node instead of a recording. Some flags have a meaning for it.
func checkTexts(given *pflag.FlagSet) error {
	var err error
	given.Visit(func(f *pflag.Flag) {
		if what, _ := pflag.UnquoteUsage(f); err == nil && f.Annotations[mayBeEmpty] == nil && slices.Contains(flags.Values(f), "") {
			err = usagef("--%s: want a %s, got an empty value", f.Name, what)
		}
	})
	return err
}

// checkHostRoot refuses what is not a directory. Without the node's files less is known, and nothing would say so.
func checkHostRoot(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if path, is := errors.AsType[*fs.PathError](err); is {
		// Its Error would repeat the name.
		err = path.Err
	}
	switch {
	case err != nil:
		return usagef("--host-root %s: %w", dir, err)
	case !info.IsDir():
		return usagef("--host-root %s: want a directory", dir)
	}
	return nil
}

// redactor is nil unless names and addresses are to be replaced. What a command is asked
// about is chosen by the real ones. Each goroutine takes its own.
func (o *observing) redactor() *redact.Redactor { return flags.Redactor(o.redact) }

// diagnose judges what is shown: with other names and addresses, if they are replaced.
func (o *observing) diagnose() func(*model.Snapshot) model.Verdict {
	return joint.Diagnose(o.redactor())
}
