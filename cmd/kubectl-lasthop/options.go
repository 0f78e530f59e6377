package main

import (
	"cmp"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/model"
)

type options struct {
	kube kube

	image, debugNamespace string
	profile               flags.Choice
	deadline, within      time.Duration

	all bool
	// atOnce is how many debug pods start at once; more nodes than maxNodes are refused, unless that is 0.
	atOnce, maxNodes int

	// Observing are lasthop's own flags. Those about the verdict are read here too, for that of several nodes; files are of
	// this machine: what lasthop reads, and where its samples go.
	flags.Observing
	// incidents: those that the agents keep are asked for.
	incidents bool
	// to is the destination of explain, or the pod at the other end of a check.
	to string
}

const imageVariable = "LASTHOP_IMAGE"

// releaseImage is the image of a release, by its digest; the linker sets it.
var releaseImage string

const noImage = "no image for the debug pods: set --image or $%[1]s.\n" +
	"Release builds of the plugin have one built in. With a registry that the nodes pull from:\n" +
	"  make image IMAGE=REGISTRY/lasthop:1 && docker push REGISTRY/lasthop:1 && export %[1]s=REGISTRY/lasthop:1\n" +
	"Without one, `make image-archive`, and on each node:\n" +
	"  ctr -n k8s.io images import lasthop-amd64.tar    # then here: export %[1]s=docker.io/library/lasthop:dev"

func (o *options) register(f *pflag.FlagSet) {
	f.SortFlags = false
	o.Given = f
	f.StringVar(&o.image, "image", cmp.Or(os.Getenv(imageVariable), releaseImage),
		"the `IMAGE` with lasthop, as the nodes pull it (default $"+imageVariable+")")
	o.profile = flags.Choice{Value: session.Least, Of: []string{session.Least, session.Sysadmin}}
	f.Var(&o.profile, "profile", "the rights of the debug pod: the least that suffice (least), or all (sysadmin)")
	f.StringVar(&o.debugNamespace, "debug-namespace", "",
		"the `NAMESPACE` of the debug pod (default --namespace, or the context's)")
	f.DurationVar(&o.deadline, "deadline", 0, "how long the debug pod may run, a `DURATION` (default --for plus ten minutes, or one hour)")
	f.DurationVar(&o.within, "start-within", 0,
		"how long a debug pod may take to start, a `DURATION`; five times that while its image is pulled (default 1m)")
	f.BoolVar(&o.all, "all", false, "all nodes")
	f.IntVar(&o.atOnce, "at-once", 50,
		"start at most this `NUMBER` of debug pods at once; all nodes are then watched in the same window")
	f.IntVar(&o.maxNodes, "max-nodes", 0, "refuse more nodes than this `NUMBER`; 0 is no limit, mcp has 50")
	f.StringVar(&o.to, "to", "", "the destination: `IP[:PORT][/PROTO]`, or pod/NAME or svc/NAME with [:PORT][/PROTO] "+
		"in the same namespace; with check, a pod")
	o.Pick(f, slices.Concat([]string{"selector", "all-namespaces", "report"}, fileFlags, passes)...)
	for name, usage := range map[string]string{
		"selector":       "select pods by labels, on all their nodes",
		"all-namespaces": "select pods in all namespaces",
		"for":            "how long to observe; without it, record goes on until interrupted",
		"last":           "judge the last `DURATION` of what the nodes' agents observed; no pod is created",
		"at":             "judge what the nodes' agents observed from this `TIME` on, for --for (default 5m)",
		"nodes":          "read nodes from this `FILE` instead of the cluster; - is standard input",
		"pods":           "read pods from this `FILE` instead of the cluster; - is standard input",
		"azure":          "ask Azure for the same, with your login (az login, or another that azidentity finds): read-only, within 10s",
		"pcap":           "write samples of dropped packets to a new `FILE`",
	} {
		f.Lookup(name).Usage = usage
	}
	o.kube.register(f)
}

// passes are the flags that lasthop gets as they are. A mistake in one is refused here, before anything is started.
var passes = []string{
	"for", "last", "at", "output", "active", "only", "skip", "fail-on", "strict", "uplink", "pod-cidr", "engine", "attach", "color", "redact",
	"github", "idle-exit", "debug",
}

// passed are lasthop's own flags as they were given, as far as they are wanted.
func (o *options) passed(wanted func(name string) bool) []string {
	return flags.Given(o.Given, func(f *pflag.Flag) bool { return slices.Contains(passes, f.Name) && wanted(f.Name) })
}

// past says that the agents are asked.
func (o *options) past() bool { return o.Past() || o.incidents }

// plan is what the command line asks for.
type plan struct {
	command string
	// file is that of record.
	file string
	// words name nodes and pods.
	words []string
}

// screen is the command of the plugin that lasthop has no word for.
const screen = "screen"

var commands = []string{"check", "audit", "explain", "watch", "record", "past", "doctor", "replay", "mcp", screen}

// fileFlags are the flags that name files for lasthop. takes are, of the commands that do not
// take all of lasthop's flags, those that they take.
var (
	fileFlags = []string{"nodes", "pods", "routes", "azure", "pcap"}
	takes     = map[string][]string{
		"watch":  slices.Concat(recorded, fileFlags, []string{"only", "skip"}),
		"record": slices.Concat(recorded, fileFlags),
		"past":   {},
		"audit": slices.Concat([]string{"uplink", "pod-cidr", "redact", "debug", "only", "skip", "fail-on", "output", "color", "strict"},
			fileFlags[:3]),
		"doctor": {"output"},
		"replay": append([]string{"for", "redact"}, judging...),
		"mcp":    slices.Concat([]string{"uplink", "pod-cidr", "engine", "attach", "redact", "debug"}, fileFlags[:3]),
	}
)

// elsewhere are commands of lasthop that need no node. A node of such a name is node/NAME.
var elsewhere = []string{"findings", "schema", "lab", "demo", "completion", "version"}

func (o *options) plan(args []string, stdin io.Reader, stdout io.Writer) (plan, error) {
	p := plan{command: "check"}
	if flags.Terminal(stdin) && flags.Terminal(stdout) && !o.Given.Changed("output") {
		p.command = screen
	}
	if len(args) > 0 && slices.Contains(commands, args[0]) {
		p.command, args = args[0], args[1:]
	}
	if p.command == "record" {
		if len(args) == 0 {
			return p, usagef("record: want a FILE before the node")
		}
		p.file, args = args[0], args[1:]
	}
	if len(args) > 0 && slices.Contains(elsewhere, args[0]) {
		return p, usagef("%s needs no cluster: run `lasthop %s`", args[0], args[0])
	}
	p.words, o.incidents = args, p.command == "past"
	err := o.validate(p, stdin, stdout)
	if hint := misspelt(args); err != nil && hint != "" {
		err = usagef("%s\n%w", strings.TrimSpace(hint), err)
	}
	return p, err
}

// misspelt asks whether the first of the words, which is taken for a node, was meant as a command; empty if it is
// like none.
func misspelt(words []string) string {
	if len(words) == 0 || slices.Contains(commands, words[0]) {
		return ""
	}
	near := flags.Nearest(words[0], commands)
	return model.Either(near == "", "", "\n"+words[0]+" is taken for a node: did you mean the command "+near+"?")
}

func (o *options) validate(p plan, stdin io.Reader, stdout io.Writer) error {
	ways := []bool{len(p.words) > 0, !o.Selector.Empty(), o.all}
	first := slices.Index(ways, true)
	verdict := slices.Contains([]string{"check", "explain"}, p.command)
	switch {
	case p.command == "replay" && len(p.words) == 0:
		return usagef("replay: want a FILE, or several nodes' of one time")
	case p.command == "mcp" && first >= 0:
		return usagef("mcp: the calls name pods and nodes, not the command line")
	case o.past() && slices.Contains([]string{"watch", "doctor", "audit"}, p.command):
		return usagef("%s takes no --last and no --at", p.command)
	case o.image == "" && !o.past() && p.command != "replay":
		return usagef(noImage, imageVariable)
	case o.Given.Changed("deadline") && o.deadline < time.Second:
		return usagef("--deadline %v: want at least one second", o.deadline)
	case o.within < 0:
		return usagef("--start-within %v: want a time above zero", o.within)
	case first < 0 && p.command != "mcp":
		return usagef("want a NODE, pod/NAME, -l SELECTOR or --all; `kubectl get nodes` lists the nodes")
	case slices.Contains(ways[first+1:], true):
		return usagef("names, --selector and --all exclude each other")
	case p.command == screen && (!flags.Terminal(stdin) || !flags.Terminal(stdout)):
		return usagef("screen: standard input and output must be a terminal")
	case o.maxNodes < 0:
		return usagef("--max-nodes %d: want 0 or more", o.maxNodes)
	case o.atOnce < 1:
		return usagef("--at-once %d: want at least one", o.atOnce)
	case o.to != "" && !verdict:
		return usagef("--to is for check and explain")
	case len(o.Reports) > 0 && !verdict:
		return usagef("--report is for check and explain")
	case p.command == "doctor" && !slices.Contains([]string{"text", "json", "mcp"}, o.Output.Value):
		return usagef("doctor: -o %s: want text, json or mcp", o.Output.Value)
	case p.command == "audit" && !slices.Contains([]string{"text", "json"}, o.Output.Value):
		return usagef("audit: -o %s: want text or json", o.Output.Value)
	case p.file == "-" && flags.Terminal(stdout):
		return usagef("record -: standard output is a terminal")
	}
	var foreign, empty []string
	taken, fewer := takes[p.command]
	o.Given.Visit(func(f *pflag.Flag) {
		if !slices.Contains(slices.Concat(passes, fileFlags), f.Name) {
			return
		}
		if fewer && !slices.Contains(taken, f.Name) {
			foreign = append(foreign, "--"+f.Name)
		}
		if slices.Contains(flags.Values(f), "") {
			empty = append(empty, "--"+f.Name)
		}
	})
	if len(foreign) > 0 {
		return usagef("%s takes no %s", p.command, strings.Join(foreign, " and no "))
	}
	if len(empty) > 0 {
		return usagef("%s: want a value, got an empty one", empty[0])
	}
	for _, file := range append(slices.Collect(maps.Values(o.Reports)), p.file, o.Pcap) {
		if err := writable(file); err != nil {
			return err
		}
	}
	read := append([]string{o.Nodes, o.Pods}, o.Routes...)
	if first := slices.Index(read, "-"); first >= 0 && slices.Contains(read[first+1:], "-") {
		return usagef("only one file can be standard input")
	}
	return nil
}

// writable refuses a file that cannot be made anew, before anything is started for it.
func writable(file string) error {
	if file == "" || file == "-" {
		return nil
	}
	if _, err := os.Lstat(file); err == nil {
		return usagef("%s: the file exists, and lasthop does not overwrite files: use another name, or remove it", file)
	}
	dir := filepath.Dir(file)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return usagef("%s: no directory %s", file, dir)
	}
	return nil
}

// limit is how long the debug pod may run.
func (o *options) limit() time.Duration {
	switch {
	case o.deadline > 0:
		return o.deadline
	case o.Asked() > 0:
		return o.Asked() + 10*time.Minute
	}
	return time.Hour
}

// colors has lasthop colour its report where the terminal here takes it.
func (o *options) colors(p plan, stdout io.Writer) []string {
	judges := slices.Contains([]string{"check", "audit", "explain"}, p.command)
	return model.Either(judges && !o.Given.Changed("color") && flags.Colored("auto", stdout), []string{"--color=always"}, nil)
}

// beside is the name of a file for one of several nodes.
func beside(file, node string, several bool) string {
	if !several || file == "" || file == "-" {
		return file
	}
	ext := filepath.Ext(file)
	return strings.TrimSuffix(file, ext) + "-" + node + ext
}
