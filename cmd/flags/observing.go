package flags

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
)

// AgentDir is where the agent keeps its ring, on the node.
const AgentDir = "/var/lib/lasthop"

// Observing holds the flags of every command that observes, here or by the plugin. Each command has some of them.
type Observing struct {
	Netns    string
	HostRoot string
	Engine   Choice
	Attach   Choice
	Window   Window
	Uplinks  []string
	PodCIDRs Prefixes
	// Nodes, Pods and Routes are files, Azure asks for what is in the last.
	Nodes  string
	Pods   string
	Routes []string
	Azure  bool
	Active bool

	Namespace     string
	AllNamespaces bool
	Selector      Selector

	Verdict
	Beside
	Output Choice
	Color  Choice
	Debug  bool
	// Redact replaces names and addresses in all that is written.
	Redact bool

	// Idle is how long without a key the screen stays.
	Idle time.Duration

	// Replay are the recordings to judge instead of the node; Last and At ask for what the agent has in Dir. Pcap is the
	// file for samples.
	Replay []string
	Last   Window
	At     Time
	Dir    string
	Pcap   string

	// Given are the command's flags.
	Given *pflag.FlagSet
}

func (o *Observing) define() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.Netns, "netns", "", "the node's network namespace, a `NAME|PATH` "+
		"(default the current one; in a container with hostPID, PID 1's)")
	f.StringVar(&o.HostRoot, "host-root", "", "the `DIR` that holds the node's files (default /host if present, else /)")
	o.Engine = Choice{Value: "auto", Of: []string{"auto", "tc", "state"}}
	f.Var(&o.Engine, "engine", "how to watch packets: with BPF at tc (auto, tc), or not at all (state)")
	o.Attach = Choice{Value: "auto", Of: []string{"auto", "tcx", "clsact"}}
	f.Var(&o.Attach, "attach", "how to attach BPF at tc: tcx (Linux 6.6 or later), or clsact, which loses packets "+
		"while its qdisc is created; auto uses tcx if available")
	o.Window = Window(10 * time.Second)
	f.Var(&o.Window, "for", "how long to observe")
	f.StringArrayVar(&o.Uplinks, "uplink", nil,
		"use link `IF` as an uplink; repeatable (default the links of default routes, and other NICs)")
	f.Var(&o.PodCIDRs, "pod-cidr", "a pod range of the cluster; repeatable (default learned from the node)")
	f.StringVar(&o.Nodes, "nodes", "", "a `FILE` with the output of kubectl get nodes -o json; - is standard input")
	f.StringVar(&o.Pods, "pods", "", "a `FILE` with the output of kubectl get pods -A -o json, for labels and the "+
		"names of pods on other nodes; - is standard input")
	f.StringArrayVar(&o.Routes, "routes", nil, "a `FILE` with the output of az network … -o json: route tables, routes, "+
		"subnet, NIC, security groups, effective routes or rules; repeatable; - is standard input")
	f.BoolVar(&o.Azure, "azure", false,
		"ask Azure for the same, with the node's managed identity: read-only, within 10s; what a role denies is named")
	f.BoolVar(&o.Active, "active", false,
		"after the window, send up to 16 probes and report them: ICMP echo and ARP requests from the node's own addresses")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "select pods in this `NAMESPACE`")
	f.BoolVarP(&o.AllNamespaces, "all-namespaces", "A", false, "select pods in all namespaces (default)")
	f.VarP(&o.Selector, "selector", "l", "select pods by labels, as kubectl does; needs --pods")
	f.Var(&o.Only, "only", "report only this finding; repeatable")
	f.Var(&o.Skip, "skip", "do not report this finding; repeatable")
	o.FailOn = Severities()
	f.Var(&o.FailOn, "fail-on", "the lowest severity for exit status 1")
	f.BoolVar(&o.Strict, "strict", false, "exit with status 4 if a source could not be read completely")
	o.Output = Formats()
	f.VarP(&o.Output, "output", "o", "output format")
	f.BoolVar(&o.Redact, "redact", false, "replace names and addresses consistently; with "+RedactKey+
		" in the environment, the originals cannot be guessed")
	o.Color = Choice{Value: "auto", Of: []string{"auto", "always", "never"}}
	f.Var(&o.Color, "color", "when to use colours; a non-empty NO_COLOR means never")
	f.BoolVar(&o.Debug, "debug", false, "print details of failures, such as the BPF verifier log")
	f.Var(&o.Reports, "report", "also write the verdict to a new file: html to forward, junit for CI; repeatable")
	f.BoolVar(&o.GitHub, "github", false,
		"annotate a GitHub Actions run on standard error, and append to the job summary")
	f.DurationVar(&o.Idle, "idle-exit", 30*time.Minute, "leave the screen after this `DURATION` without a key; 0 means never")
	f.StringArrayVar(&o.Replay, "replay", nil, "judge the recording `FILE` instead of the node: all of it, or the last "+
		"--for; repeatable: recordings of several nodes at the same time are judged together; - is standard input")
	f.Var(&o.Last, "last", "judge the last `DURATION` that this node's agent recorded, without waiting")
	f.Var(&o.At, "at",
		"judge what this node's agent recorded from this `TIME` on, for --for (default 5m): 03:12, or with a date")
	f.StringVar(&o.Dir, "dir", "", "the agent's `DIR` (default "+AgentDir+")")
	f.StringVar(&o.Pcap, "pcap", "", "write samples of dropped packets to a new `FILE`, as pcapng; - is standard "+
		"output, and the report then goes to standard error")
	return f
}

// Register gives a command all flags but some.
func (o *Observing) Register(f *pflag.FlagSet, but ...string) {
	f.SortFlags = false
	o.Given = f
	o.define().VisitAll(func(x *pflag.Flag) {
		if !slices.Contains(but, x.Name) {
			f.AddFlag(x)
		}
	})
}

// Pick gives a command some flags.
func (o *Observing) Pick(f *pflag.FlagSet, names ...string) {
	all := o.define()
	o.Given = f
	for _, name := range names {
		f.AddFlag(all.Lookup(name))
	}
}

// Asked is how long --for asks for, 0 where it is not given.
func (o *Observing) Asked() time.Duration {
	if o.Given.Changed("for") {
		return time.Duration(o.Window)
	}
	return 0
}

// Past reports whether what an agent recorded is asked for.
func (o *Observing) Past() bool { return o.Last > 0 || !o.At.IsZero() }

// Selector is a flag for a selector of labels in the syntax of kubectl.
type Selector struct {
	// Selector is nil, or parsed from text.
	labels.Selector
	text string
}

// Type is what the usage calls the flag's value.
func (s *Selector) Type() string   { return "SELECTOR" }
func (s *Selector) String() string { return s.text }

// Set takes what kubectl takes.
func (s *Selector) Set(text string) (err error) {
	s.text = text
	s.Selector, err = labels.Parse(text)
	return err
}

// Empty reports whether all pods are selected.
func (s *Selector) Empty() bool { return s.Selector == nil || s.Selector.Empty() }
