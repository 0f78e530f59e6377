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

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
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

	// idle is after how long without a key the screen is left.
	idle time.Duration

	// replay is the recording to judge instead of the node; given are the
	// flags that it was given with. pcap is where samples go.
	replay, pcap string
	given        *pflag.FlagSet
}

func (o *observing) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.netns, "netns", "", "the network namespace that is the node, a `NAME|PATH` (default the current one; in a container with hostPID, PID 1's)")
	f.StringVar(&o.hostRoot, "host-root", "", "the `DIR` where the node's files are (default /host if present, else /)")
	o.engine = choice{value: "auto", of: []string{"auto", "tc", "packet", "state"}}
	f.Var(&o.engine, "engine", "how packets are watched: tc BPF, packet socket (not in this version), or not at all; auto is the best that the rights allow")
	o.window = window(10 * time.Second)
	f.Var(&o.window, "for", "the window to observe")
	f.StringArrayVar(&o.uplinks, "uplink", nil, "the `IF` that leads off the node; repeatable (default the links of the default routes)")
	f.Var(&o.podCIDRs, "pod-cidr", "the cluster's pod range; repeatable (default learned)")
	f.StringVar(&o.nodes, "nodes", "", "the `FILE` with the output of kubectl get nodes -o json")
	f.StringArrayVar(&o.routes, "routes", nil, "a `FILE` with what az network … -o json printed of route tables, subnet, network card or effective routes; repeatable")
	f.BoolVar(&o.active, "active", false, "may send probes after the window, 16 at most, each reported: ICMP echo and ARP requests from the node's own addresses")
	f.StringVarP(&o.namespace, "namespace", "n", "", "the `NAMESPACE` of the pods that are meant")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "pods of any namespace are meant")
	f.Var(&o.only, "only", "judge this finding alone; repeatable")
	f.Var(&o.skip, "skip", "leave this finding out; repeatable")
	o.failOn = choice{value: string(model.Warning), of: []string{string(model.Critical), string(model.Warning), string(model.Info)}}
	f.Var(&o.failOn, "fail-on", "the severity that makes the verdict 1")
	f.BoolVar(&o.strict, "strict", false, "sources that could not be read whole are a failure (4)")
	o.output = choice{value: string(report.Text)}
	for _, format := range report.Formats() {
		o.output.of = append(o.output.of, string(format))
	}
	f.VarP(&o.output, "output", "o", "what to print")
	registerColor(f, &o.color)
	f.BoolVar(&o.debug, "debug", false, "tell more when something fails, as the BPF verifier's log")
}

func registerColor(f *pflag.FlagSet, c *choice) {
	*c = choice{value: "auto", of: []string{"auto", "always", "never"}}
	f.Var(c, "color", "colours in text; any non-empty NO_COLOR means never")
}

// validate checks what no single flag can tell.
func (o *observing) validate() error {
	if o.engine.value == "packet" {
		return usagef("--engine packet is not in this version: tc watches packets, state reads the node's state alone")
	}
	if o.allNamespaces && o.namespace != "" {
		return usagef("--namespace and --all-namespaces exclude each other")
	}
	if len(o.only) > 0 && !slices.ContainsFunc(o.only, o.judges) {
		return usagef("--skip leaves out all that --only names: nothing is left to judge")
	}
	if err := checkTexts(o.given); err != nil {
		return err
	}
	if err := checkHostRoot(o.hostRoot); err != nil {
		return err
	}
	return o.validateReplay()
}

// checkTexts refuses flags that were given an empty text: that most often is a
// variable which was not set, and would mean another node, or the node in place
// of a recording.
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

// checkHostRoot refuses what is no directory: without the node's files less is
// known, and nothing would say so.
func checkHostRoot(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return usagef("--host-root %s: %w", dir, path.Err)
	case err != nil:
		return usagef("--host-root %s: %w", dir, err)
	case !info.IsDir():
		return usagef("--host-root %s: want a directory", dir)
	}
	return nil
}

// judges reports whether findings of the code are asked for.
func (o *observing) judges(code model.Code) bool {
	return (len(o.only) == 0 || slices.Contains(o.only, code)) && !slices.Contains(o.skip, code)
}

// limits says what was left out by request.
func (o *observing) limits() []string {
	var out []string
	if len(o.only) > 0 {
		out = append(out, "judged "+o.only.String()+" alone")
	}
	if len(o.skip) > 0 {
		out = append(out, "not judged: "+o.skip.String())
	}
	return out
}

// choice is a flag with a few words to choose from.
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

// maxWindow bounds --for: a longer look is a monitor's work.
const maxWindow = 24 * time.Hour

// window is a flag for a length of time that a run can take.
type window time.Duration

func (w *window) String() string { return time.Duration(*w).String() }
func (w *window) Type() string   { return "DURATION" }

func (w *window) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("want a number with a unit, as in 10s, 2m or 1h30m")
	case d <= 0:
		return fmt.Errorf("want more than nothing, as in 10s")
	case d > maxWindow:
		return fmt.Errorf("want at most %v", maxWindow)
	}
	*w = window(d)
	return nil
}

// prefixes is a repeatable flag for ranges of addresses.
type prefixes []netip.Prefix

func (p *prefixes) Type() string { return "CIDR" }

func (p *prefixes) String() string {
	words := make([]string, len(*p))
	for i, x := range *p {
		words[i] = x.String()
	}
	return strings.Join(words, ",")
}

func (p *prefixes) Set(s string) error {
	x, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return fmt.Errorf("want a range, as in 10.244.0.0/16 or fd00:10::/56")
	case x != x.Masked():
		return fmt.Errorf("has bits beyond its length set; did you mean %s?", x.Masked())
	}
	*p = append(*p, x)
	return nil
}

// codes is a repeatable flag for codes of findings.
type codes []model.Code

func (c *codes) Type() string { return "CODE" }
func (c *codes) String() string {
	out := make([]string, len(*c))
	for i, code := range *c {
		out[i] = string(code)
	}
	return strings.Join(out, ", ")
}

func (c *codes) Set(s string) error {
	page, err := findPage(s)
	if err != nil {
		return err
	}
	*c = append(*c, page.Code)
	return nil
}

// findPage looks a code up in the catalogue, in any case. An unknown one is
// answered with the nearest.
func findPage(code string) (diagnose.Page, error) {
	var nearest model.Code
	best := len(code)/3 + 1
	for _, p := range diagnose.Catalogue() {
		if strings.EqualFold(string(p.Code), code) {
			return p, nil
		}
		if d := distance(strings.ToLower(string(p.Code)), strings.ToLower(code)); d <= best {
			nearest, best = p.Code, d
		}
	}
	if nearest != "" {
		return diagnose.Page{}, fmt.Errorf("no finding %q: did you mean %s?", code, nearest)
	}
	return diagnose.Page{}, fmt.Errorf("no finding %q: `lasthop findings` lists them", code)
}

// distance is Levenshtein's: how many letters to add, remove or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(above+1, row[j]+1, diagonal+cost)
			diagonal = above
		}
	}
	return row[len(b)]
}
