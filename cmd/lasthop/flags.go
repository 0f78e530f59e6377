package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
)

// observing holds the flags of every command that observes.
type observing struct {
	netns    string
	hostRoot string
	engine   choice
	window   window
	uplinks  []string
	podCIDRs prefixes
	nodes    string
	routes   []string
	active   bool

	namespace     string
	allNamespaces bool

	only, skip codes
	failOn     choice
	strict     bool
	output     choice
	color      choice
	debug      bool

	// idle is how long without a key the screen stays.
	idle time.Duration

	// replay is the recording to judge instead of the node. pcap is the file
	// for samples. given are the command's flags.
	replay, pcap string
	given        *pflag.FlagSet
}

func (o *observing) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.netns, "netns", "", "the node's network namespace, a `NAME|PATH` (default the current one; in a container with hostPID, PID 1's)")
	f.StringVar(&o.hostRoot, "host-root", "", "the `DIR` that holds the node's files (default /host if present, else /)")
	o.engine = choice{value: session.EngineAuto, of: []string{session.EngineAuto, session.EngineTC, session.EngineState}}
	f.Var(&o.engine, "engine", "how to watch packets: with BPF at tc (auto, tc), or not at all (state)")
	o.window = window(10 * time.Second)
	f.Var(&o.window, "for", "how long to observe")
	f.StringArrayVar(&o.uplinks, "uplink", nil, "a link `IF` that leads off the node; repeatable (default the links of the default routes, and other network cards)")
	f.Var(&o.podCIDRs, "pod-cidr", "a pod range of the cluster; repeatable (default learned from the node)")
	f.StringVar(&o.nodes, "nodes", "", "a `FILE` with the output of kubectl get nodes -o json")
	f.StringArrayVar(&o.routes, "routes", nil, "a `FILE` with the output of az network … -o json: route tables, routes, subnet, NIC or effective routes; repeatable")
	f.BoolVar(&o.active, "active", false, "send up to 16 probes after the window, all reported: ICMP echo and ARP requests from the node's own addresses")
	f.StringVarP(&o.namespace, "namespace", "n", "", "consider pods of this `NAMESPACE`")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "consider pods of all namespaces (default)")
	f.Var(&o.only, "only", "report this finding alone; repeatable")
	f.Var(&o.skip, "skip", "do not report this finding; repeatable")
	o.failOn = choice{value: string(model.Warning), of: []string{string(model.Critical), string(model.Warning), string(model.Info)}}
	f.Var(&o.failOn, "fail-on", "the lowest severity for exit status 1")
	f.BoolVar(&o.strict, "strict", false, "exit with status 4 if a source could not be read whole")
	o.output = choice{value: string(report.Text)}
	for _, format := range report.Formats() {
		o.output.of = append(o.output.of, string(format))
	}
	f.VarP(&o.output, "output", "o", "output format")
	registerColor(f, &o.color)
	f.BoolVar(&o.debug, "debug", false, "print more on failure, such as the BPF verifier's log")
}

func registerColor(f *pflag.FlagSet, c *choice) {
	*c = choice{value: "auto", of: []string{"auto", "always", "never"}}
	f.Var(c, "color", "when to use colours; a non-empty NO_COLOR means never")
}

// pick gives a command some of the flags that register defines.
func (o *observing) pick(f *pflag.FlagSet, names ...string) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(all)
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
	if len(o.only) > 0 && !slices.ContainsFunc(o.only, o.judges) {
		return usagef("--skip excludes everything that --only names: nothing is left to judge")
	}
	if err := checkTexts(o.given); err != nil {
		return err
	}
	if err := checkHostRoot(o.hostRoot); err != nil {
		return err
	}
	return o.validateReplay()
}

// checkTexts refuses empty values. They mostly come from an unset variable, and
// would mean another node, or the node instead of a recording.
func checkTexts(given *pflag.FlagSet) error {
	var err error
	given.Visit(func(f *pflag.Flag) {
		texts := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			texts = list.GetSlice()
		}
		if what, _ := pflag.UnquoteUsage(f); err == nil && slices.Contains(texts, "") {
			err = usagef("--%s: want a %s, got nothing", f.Name, what)
		}
	})
	return err
}

// checkHostRoot refuses what is not a directory. Without the node's files less is
// known, and nothing would say so.
func checkHostRoot(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	var path *fs.PathError
	if errors.As(err, &path) {
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

// judges reports whether the user wants findings of that code.
func (o *observing) judges(code model.Code) bool {
	return (len(o.only) == 0 || slices.Contains(o.only, code)) && !slices.Contains(o.skip, code)
}

// limits says what was not judged, by request.
func (o *observing) limits() []string {
	var out []string
	if len(o.only) > 0 {
		out = append(out, "judged only: "+o.only.String())
	}
	if len(o.skip) > 0 {
		out = append(out, "not judged: "+o.skip.String())
	}
	return out
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("want one of %s", strings.Join(c.of, ", "))
	}
	c.value = s
	return nil
}

// maxWindow bounds --for. Watching for longer is the job of a monitor.
const maxWindow = 24 * time.Hour

// window is a flag for a duration.
type window time.Duration

func (w *window) String() string { return time.Duration(*w).String() }
func (w *window) Type() string   { return "DURATION" }

func (w *window) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("want a number with a unit, such as 10s, 2m or 1h30m")
	case d <= 0:
		return fmt.Errorf("want more than nothing, such as 10s")
	case d > maxWindow:
		return fmt.Errorf("want at most %v", maxWindow)
	}
	*w = window(d)
	return nil
}

// prefixes is a repeatable flag for address ranges.
type prefixes []netip.Prefix

func (p *prefixes) Type() string { return "CIDR" }

func (p *prefixes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]netip.Prefix(*p)), " ", ","), "[]")
}

func (p *prefixes) Set(s string) error {
	x, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return fmt.Errorf("want a range, such as 10.244.0.0/16 or fd00:10::/56")
	case x != x.Masked():
		return fmt.Errorf("has host bits set; did you mean %s?", x.Masked())
	}
	*p = append(*p, x)
	return nil
}

// codes is a repeatable flag for finding codes.
type codes []model.Code

func (c *codes) Type() string { return "CODE" }
func (c *codes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]model.Code(*c)), " ", ", "), "[]")
}

func (c *codes) Set(s string) error {
	page, err := findPage(s)
	if err != nil {
		return err
	}
	*c = append(*c, page.Code)
	return nil
}

// findPage looks a code up in the catalogue, in any case. The error for an
// unknown one names the nearest.
func findPage(code string) (diagnose.Page, error) {
	var known []string
	for _, p := range diagnose.Catalogue() {
		if strings.EqualFold(string(p.Code), code) {
			return p, nil
		}
		known = append(known, string(p.Code))
	}
	if near := nearest(code, known); near != "" {
		return diagnose.Page{}, fmt.Errorf("no finding %q: did you mean %s?", code, near)
	}
	return diagnose.Page{}, fmt.Errorf("no finding %q: `lasthop findings` lists them", code)
}

// nearest is the one of the words that is most like another; empty where none is
// near, or several are equally so. A word counts as near also by its part behind
// a slash, and the nearest if it holds the other.
func nearest(word string, words []string) string {
	best := len(word)/3 + 1
	var found []string
	fold := strings.ToLower(word)
	for _, w := range words {
		whole := strings.ToLower(w)
		_, short, _ := strings.Cut(whole, "/")
		far := min(levenshtein.ComputeDistance(whole, fold), levenshtein.ComputeDistance(short, fold))
		if len(word) > 2 && strings.Contains(whole, fold) {
			far = 0
		}
		switch {
		case w == "" || far > best:
		case far < best:
			best, found = far, []string{w}
		case !slices.Contains(found, w):
			found = append(found, w)
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}
