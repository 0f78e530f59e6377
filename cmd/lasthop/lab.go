package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
)

// cleanUp bounds the work after an interrupt.
const cleanUp = 30 * time.Second

func (a *app) labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Build nodes in network namespaces, and break them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("lab: want list, up or down; see `%s --help`", cmd.CommandPath())
		},
	}
	cmd.AddCommand(a.labListCommand(), a.labUpCommand(), a.labDownCommand(), a.labTrafficCommand())
	return cmd
}

func (a *app) labListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios, and the labs that are up",
		Args:  cobra.NoArgs,
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
	cmd := &cobra.Command{
		Use:               "up SCENARIO|FILE",
		Short:             "Build a lab, break it as the scenario says, and start its traffic",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.labUp(cmd.Context(), args[0], id)
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "the lab's name (default the scenario's)")
	return cmd
}

func (a *app) labUp(ctx context.Context, nameOrPath, id string) error {
	s, err := load(nameOrPath)
	if err != nil {
		return err
	}
	if id == "" {
		id = s.Name
	}
	if err := scenario.CheckName(id); err != nil {
		return usagef("--id: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	l, err := lab.Up(ctx, s, lab.Options{ID: id, Log: a.say})
	if errors.Is(err, lab.ErrExists) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	if err := lab.StartTraffic(ctx, id, []string{self, "lab", "traffic", id}); err != nil {
		return errors.Join(err, down(ctx, l))
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPLUGIN\tWATCH IT WITH")
	for _, n := range l.Nodes() {
		fmt.Fprintf(w, "%s\t%s\tlasthop check --netns %s\n", n.Name, n.Plugin, n.Netns)
	}
	if err := ignoreClosedPipe(w.Flush()); err != nil {
		return err
	}
	a.say("lab %s is up, with traffic for %v; `lasthop lab down %s` takes it down", id, s.Duration, id)
	return nil
}

// say prints a line about progress to the standard error.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "lasthop: "+format+"\n", args...)
}

// load reads a scenario. Its errors are usage errors.
func load(nameOrPath string) (*scenario.Scenario, error) {
	s, err := kind.Load(nameOrPath)
	if errors.Is(err, kind.ErrUnknown) {
		var names []string
		for _, s := range kind.Scenarios() {
			names = append(names, s.Name)
		}
		return nil, usagef("%w; there are: %s", err, strings.Join(names, ", "))
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
	return l.Down(ctx)
}

func (a *app) labDownCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down [ID…]",
		Short: "Take labs down, including what a crash left behind",
		RunE: func(cmd *cobra.Command, ids []string) error {
			if (len(ids) == 0) != all {
				return usagef("want the ids of labs or --all; `lasthop lab list` shows what is up")
			}
			if all {
				// An empty id means every lab.
				return lab.Down(cmd.Context(), "")
			}
			for _, id := range ids {
				err := lab.Down(cmd.Context(), id)
				if errors.Is(err, lab.ErrNotFound) {
					return usagef("%w; `lasthop lab list` shows what is up", err)
				}
				if err != nil {
					return err
				}
				a.say("lab %s is down", id)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every lab")
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return lab.ServeTraffic(cmd.Context(), args[0])
		},
	}
}

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, s := range kind.Scenarios() {
		out = append(out, s.Name+"\t"+s.Title)
	}
	return out, cobra.ShellCompDirectiveDefault
}
