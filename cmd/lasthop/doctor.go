package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/traffic"
)

// glance is the window of doctor's trial, in which it loads, attaches, reads every source once and detaches.
const glance = time.Millisecond

// examination is what doctor found; it is the document of -o json.
type examination struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Node       struct {
		Name   string `json:"name"`
		Kernel string `json:"kernel,omitempty"`
		Plugin string `json:"plugin,omitempty"`
		// Programs made chains, rules or routes of the node's.
		Programs []string `json:"programs,omitempty"`
	} `json:"node"`
	// Engine is what `check` would watch packets with.
	Engine   string  `json:"engine"`
	Attach   string  `json:"attach,omitempty"`
	Watches  bool    `json:"watchesPackets"`
	Rights   []right `json:"capabilities"`
	Features []row   `json:"features"`
	Sources  []row   `json:"sources"`
	// Maps are what the BPF maps take.
	Maps []traffic.MapSize `json:"maps,omitempty"`
	// missing is why packets cannot be watched, if they cannot.
	missing string
}

type right struct {
	Name  string `json:"name"`
	Held  bool   `json:"held"`
	Gives string `json:"gives"`
}

type row struct {
	Name   string       `json:"name"`
	Status model.Status `json:"status"`
	Detail string       `json:"detail,omitempty"`
	Remedy string       `json:"remedy,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var node, root string
	output := flags.Choice{Value: "text", Of: []string{"text", "wide", "json", "mcp"}}
	cmd := &cobra.Command{
		Use:  "doctor",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkTexts(cmd.Flags()), checkHostRoot(root)); err != nil {
				return err
			}
			return a.doctor(cmd.Context(), node, root, output.Value)
		},
	}
	cmd.Flags().StringVar(&node, "netns", "", "the node's network namespace, a `NAME|PATH`")
	cmd.Flags().StringVar(&root, "host-root", "", "the `DIR` that holds the node's files")
	cmd.Flags().VarP(&output, "output", "o", "output format")
	return cmd
}

func (a *app) doctor(ctx context.Context, netns, root, output string) error {
	e := examination{APIVersion: report.APIVersion, Kind: "Doctor", Engine: "none", Sources: []row{}}
	if err := e.examine(ctx, netns, root); err != nil {
		return err
	}
	if err := ignoreClosedPipe(a.examined(e, output)); err != nil {
		return err
	}
	if !e.Watches {
		return &statusError{exitCannot, "cannot watch packets here: " + e.missing}
	}
	return nil
}

// examine looks at rights, kernel and sources.
func (e *examination) examine(ctx context.Context, name, root string) error {
	e.Rights = model.Map(capabilities, func(c capability) right { return right{c.name, traffic.Holds(c.value), c.gives} })
	ns, node, err := openNode(ctx, name)
	place, elsewhere := row{Name: "node's network namespace", Status: model.OK}, errors.Is(err, errNotNode)
	if elsewhere {
		// What the kernel and the rights allow can be tried here as well.
		e.missing, place.Status, place.Detail = errors.Unwrap(err).Error(), model.Missing, errNotNode.Error()
		ns, err = netns.Current()
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	e.Node.Name = node
	e.Features = append([]row{place}, model.Map(traffic.Features(ns), func(f model.Feature) row { return row(f) })...)
	// Why they cannot be made, the features tell.
	e.Maps, _ = traffic.MapSizes(ns)
	if elsewhere {
		e.unread("not read: " + errNotNode.Error())
		return nil
	}
	return e.try(ctx, session.Options{
		Options:  collect.Options{NS: ns, HostRoot: hostRoot(root), NodesHint: "use check --nodes FILE, or kubectl lasthop check"},
		NodeName: node, For: glance, Engine: session.EngineTC, Janitor: newJanitor, KeepLeftovers: true,
	})
}

// try observes for a moment, without watching packets where that is not allowed.
func (e *examination) try(ctx context.Context, o session.Options) error {
	s, err := session.Observe(ctx, o)
	if err != nil {
		e.missing = err.Error() + "\n" + remedy()
	}
	if wraps[*model.UnsupportedError](err) {
		o.Engine = session.EngineState
		if s, failed := session.Observe(ctx, o); failed == nil {
			e.take(s)
			e.Engine = "none"
			for i, src := range e.Sources {
				if src.Name == model.SourceTC || src.Name == model.SourceDrops {
					e.Sources[i].Detail = err.Error()
				}
			}
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		e.unread(err.Error())
	default:
		e.take(s)
	}
	return nil
}

// unread says why no source was read.
func (e *examination) unread(why string) {
	e.Sources = append(e.Sources, row{Name: "all", Status: model.Missing, Detail: why})
}

// take copies what a trial observation found.
func (e *examination) take(s *model.Snapshot) {
	e.Node.Kernel, e.Node.Plugin, e.Node.Programs = s.Node.Kernel, s.Node.Plugin, s.Node.Beside
	e.Engine, e.Attach, e.Watches = s.Node.Engine, s.Node.Attach, s.Status(model.SourceTC) != model.Missing
	if !slices.ContainsFunc(s.Links, func(l model.Link) bool { return l.Name != "lo" }) {
		e.missing = "this network namespace has only the loopback link; --netns selects another"
	}
	e.Sources = model.Map(s.Sources, func(src model.Source) row { return row{src.Name, src.Status, src.Detail, ""} })
}

func (a *app) examined(e examination, output string) error {
	if output == "json" {
		enc := json.NewEncoder(flags.Document(a.stdout))
		enc.SetIndent("", "  ")
		return enc.Encode(e)
	}
	if output == "mcp" {
		var text bytes.Buffer
		return errors.Join(e.text(&text, false), report.Tool(flags.Document(a.stdout), text.String(), e))
	}
	return e.text(a.stdout, output == "wide")
}

// text is the examination in tables; wide has those of the BPF maps.
func (e examination) text(to io.Writer, wide bool) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	engine := report.EngineText(model.Node{Engine: e.Engine, Attach: e.Attach})
	if !e.Watches {
		engine += ": cannot watch packets"
	}
	for _, line := range [][2]string{{"node", e.Node.Name}, {"kernel", e.Node.Kernel}, {"plugin", e.Node.Plugin},
		{"programs", strings.Join(e.Node.Programs, ", ")}, {"engine", engine}} {
		if line[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", line[0], report.Clean(line[1]))
		}
	}
	fmt.Fprint(w, "\nRIGHT\tHELD\tGIVES\n")
	for _, r := range e.Rights {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, model.Either(r.Held, "yes", "no"), r.Gives)
	}
	for _, t := range []struct {
		title string
		rows  []row
	}{{"FEATURE", e.Features}, {"SOURCE", e.Sources}} {
		fmt.Fprintf(w, "\n%s\tSTATUS\tDETAIL\n", t.title)
		for _, r := range t.rows {
			detail := r.Detail
			if r.Remedy != "" && r.Status != model.OK {
				detail = strings.TrimPrefix(detail+"; remedy: "+r.Remedy, "; ")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", report.Clean(r.Name), r.Status, report.Clean(detail))
		}
	}
	if wide {
		total := model.Sum(e.Maps, func(m traffic.MapSize) uint64 { return m.Bytes })
		fmt.Fprint(w, "\nBPF MAP\tMEMORY\tSHARE\n")
		for _, m := range append(e.Maps, traffic.MapSize{Name: "all", Bytes: total}) {
			if m.Bytes >= 1<<10 {
				fmt.Fprintf(w, "%s\t%d KiB\t%.1f %%\n", m.Name, m.Bytes>>10, 100*float64(m.Bytes)/float64(total))
			}
		}
	}
	return w.Flush()
}
