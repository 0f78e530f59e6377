package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// cleanUp bounds the work after an interrupt. Containers of kind take longer than namespaces.
const cleanUp = 3 * time.Minute

func (a *app) labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:  "lab",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("lab: want list, up or down; see `%s --help`", cmd.CommandPath())
		},
	}
	cmd.AddCommand(a.labListCommand(), a.labUpCommand(), a.labDownCommand(), a.labTrafficCommand(), a.labHoldCommand())
	return cmd
}

func (a *app) labListCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "list",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			labs, err := lab.List()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SCENARIO\tPLUGINS\tWHAT")
			for _, s := range kind.Scenarios() {
				fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, strings.Join(s.Plugins, ", "), s.Title)
			}
			if len(labs) > 0 {
				fmt.Fprintln(w, "\nLAB\tSCENARIO\tDOWN WITH")
			}
			for _, l := range labs {
				fmt.Fprintf(w, "%s\t%s\tlasthop lab down %s\n", l.ID, l.Scenario, l.ID)
			}
			return ignoreClosedPipe(w.Flush())
		},
	}
}

func (a *app) labUpCommand() *cobra.Command {
	var id string
	on := &labPlace{}
	cmd := &cobra.Command{
		Use:               "up SCENARIO|FILE",
		Args:              oneArgument("SCENARIO or FILE"),
		ValidArgsFunction: completeScenarios,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.labUp(cmd.Context(), args[0], id, on) },
	}
	cmd.Flags().StringVar(&id, "id", "", "the lab's `NAME` (default the scenario's)")
	on.register(cmd.Flags())
	return cmd
}

func (a *app) labUp(ctx context.Context, nameOrPath, id string, on *labPlace) error {
	if id != "" {
		if err := scenario.CheckName(id); err != nil {
			return usagef("--id: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find lasthop's own binary: %w", err)
	}
	l, err := a.makeLab(ctx, nameOrPath, id, on)
	if err != nil {
		return model.Either[error](errors.Is(err, lab.ErrExists), &usageError{err}, err)
	}
	if on.kind() {
		if err := l.Break(ctx); err != nil {
			return errors.Join(err, down(ctx, l))
		}
	}
	id = l.ID()
	if err := lab.StartTraffic(ctx, id, []string{self, "lab", "traffic", id}); err != nil {
		return errors.Join(err, down(ctx, l))
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPLUGIN\tWATCH IT WITH")
	for _, observed := range []bool{true, false} {
		for _, n := range l.Nodes() {
			if n.Observed == observed {
				command := fmt.Sprintf("lasthop check --netns %s --host-root %s", n.Netns, l.HostRoot(n.Name))
				fmt.Fprintf(w, "%s\t%s\t%s\n", n.Name, n.Plugin, command)
			}
		}
	}
	if err := ignoreClosedPipe(w.Flush()); err != nil {
		return err
	}
	s := l.Scenario()
	if s.Together() {
		a.say("the nodes of the scenario at the same time: %s", togetherWith(l))
	}
	a.say("lab %s is up, with traffic for %v; `lasthop lab down %s` removes it", id, s.Duration, id)
	return nil
}

// say prints a line about progress to the standard error.
func (a *app) say(format string, args ...any) { a.complain(fmt.Sprintf(format, args...)) }

// kindImageVariable names the image of kind's nodes where no flag does.
const kindImageVariable = "LASTHOP_KIND_IMAGE"

// labPlace is where a lab is made, and where its tools keep their rules.
type labPlace struct {
	on, tables flags.Choice
	image      string
}

func (p *labPlace) register(f *pflag.FlagSet) {
	p.tables = flags.Choice{Value: string(model.NFT), Of: []string{string(model.NFT), string(model.Legacy)}}
	f.Var(&p.tables, "tables", "where the lab's iptables and ebtables keep rules")
	p.on = flags.Choice{Value: "namespaces", Of: []string{"namespaces", "kind"}}
	f.Var(&p.on, "on", "what the lab's nodes are: network namespaces, or a cluster of kind")
	f.StringVar(&p.image, "image", "", "the `IMAGE` of kind's nodes (default what "+kindImageVariable+" names, or kind's own)")
}

func (p *labPlace) kind() bool { return p.on.Value == "kind" }

// makeLab builds a lab. One on kind is not broken yet.
func (a *app) makeLab(ctx context.Context, nameOrPath, id string, on *labPlace) (*lab.Lab, error) {
	o := lab.Options{ID: id, Tables: model.Backend(on.tables.Value), Log: a.say}
	if !on.kind() {
		if on.image != "" {
			return nil, usagef("--image needs --on kind")
		}
		s, err := load(nameOrPath)
		if err != nil {
			return nil, err
		}
		return lab.Up(ctx, s, o)
	}
	parse := func(c *scenario.Cluster) (*scenario.Scenario, error) {
		return loadBy(nameOrPath, func(nameOrPath string) (*scenario.Scenario, error) { return kind.LoadOnKind(nameOrPath, c) })
	}
	return lab.UpOnKind(ctx, parse, lab.KindOptions{Options: o, Image: cmp.Or(on.image, os.Getenv(kindImageVariable)), Hold: []string{"lab", "hold"}})
}

// load reads a scenario. Its errors are usage errors.
func load(nameOrPath string) (*scenario.Scenario, error) { return loadBy(nameOrPath, kind.Load) }

func loadBy(nameOrPath string, read func(string) (*scenario.Scenario, error)) (*scenario.Scenario, error) {
	s, err := read(nameOrPath)
	if errors.Is(err, kind.ErrUnknown) {
		names := model.Map(kind.Scenarios(), func(s scenario.Info) string { return s.Name })
		if near := flags.Nearest(nameOrPath, names); near != "" {
			return nil, usagef("%w: did you mean %s?", err, near)
		}
		return nil, usagef("%w: `lasthop lab list` lists them", err)
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return s, nil
}

// down takes a lab down even when the run was interrupted.
func down(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if err := l.Down(ctx); err != nil {
		return fmt.Errorf("%w; lasthop lab down %s", err, l.ID())
	}
	return nil
}

func (a *app) labDownCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "down [ID…]",
		RunE: func(cmd *cobra.Command, ids []string) error {
			if (len(ids) == 0) != all {
				return usagef("want lab ids or --all; `lasthop lab list` shows the labs that are up")
			}
			if all {
				// An empty id means every lab.
				return lab.Down(cmd.Context(), "")
			}
			for _, id := range ids {
				err := lab.Down(cmd.Context(), id)
				if errors.Is(err, lab.ErrNotFound) {
					return usagef("%w; `lasthop lab list` shows the labs that are up; after a restart of the machine, remove a "+
						"kind lab's cluster: kind delete cluster --name lasthop-%s", err, id)
				}
				if err != nil {
					return err
				}
				a.say("lab %s is down", id)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all labs, and leftovers of killed tests")
	return cmd
}

// labTrafficCommand runs the traffic of a lab until the lab is taken down; `lab
// up` starts it.
func (a *app) labTrafficCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "traffic ID",
		Short:  "Run the traffic of a lab",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return lab.ServeTraffic(cmd.Context(), args[0]) },
	}
}

// labHoldCommand is what runs in the pods of a lab on kind: it holds their namespaces.
func (a *app) labHoldCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "hold",
		Short:  "Do nothing until terminated",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := model.Map(kind.Scenarios(), func(s scenario.Info) string { return s.Name + "\t" + s.Title })
	return names, cobra.ShellCompDirectiveDefault
}
