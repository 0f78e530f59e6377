package flags

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/report"
)

// helpWidth is that of a terminal.
const helpWidth = 80

type group struct{ title, names string }

// groups are the flags by what they are for, as help shows them. The first has those of no other.
var groups = []group{
	{"Flags", ""},
	{"Which pods", "namespace all-namespaces selector all"},
	{"The verdict", "only skip fail-on strict"},
	{"Output", "output redact color debug report github pcap idle-exit"},
	{"Instead of watching now", "replay last at dir"},
	{"What lasthop cannot see on the node", "nodes pods routes azure uplink pod-cidr active"},
	{"Where and how to watch", "netns host-root engine attach"},
}

func groupOf(flag string) int {
	return max(0, slices.IndexFunc(groups, func(g group) bool { return slices.Contains(strings.Fields(g.names), flag) }))
}

// helpPage is what a file says of a command: below its path, and indented, what it does in a line, then the whole, then
// examples.
var helpPage = regexp.MustCompile(`(?m)^(\S.*)\n((?:\t.*\n|\n)*)`)

// Help has a command, and those below it, print what the pages of a file say of them, and flags in groups.
func Help(root *cobra.Command, pages string) {
	for _, page := range helpPage.FindAllStringSubmatch(pages, -1) {
		cmd, _, err := root.Find(strings.Fields(strings.TrimPrefix(page[1], root.CommandPath())))
		if err != nil {
			panic(err) // any run of the command meets it
		}
		text := strings.ReplaceAll("\n"+page[2], "\n\t", "\n")
		text, cmd.Example, _ = strings.Cut(text, "\nExamples:\n")
		cmd.Short, cmd.Long, _ = strings.Cut(strings.TrimSpace(text), "\n\n")
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		var b strings.Builder
		about := strings.Split(cmp.Or(cmd.Long, cmd.Short), "\n\n")
		for i, text := range about {
			if !strings.ContainsAny(text, "\t") && !strings.Contains(text, "\n ") { // what is indented stays
				about[i] = strings.Join(report.Wrap(text, helpWidth), "\n")
			}
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(strings.Join(about, "\n\n"), "\n"))
		section := func(title, text string) {
			if text != "" {
				fmt.Fprintf(&b, "\n%s:\n%s\n", title, strings.TrimRight(text, "\n"))
			}
		}
		section("Examples", cmd.Example)
		usage := "  " + strings.Join(report.Wrap(cmd.UseLine(), helpWidth-4), "\n    ")
		if cmd.HasAvailableSubCommands() && cmd.Runnable() {
			usage += "\n  " + cmd.CommandPath() + " COMMAND"
		}
		section("Usage", usage)
		var commands strings.Builder
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				pad := c.NamePadding()
				rows := report.Wrap(c.Short, helpWidth-3-pad)
				fmt.Fprintf(&commands, "  %-*s %s\n", pad, c.Name(), strings.Join(rows, "\n"+strings.Repeat(" ", 3+pad)))
			}
		}
		section("Commands", commands.String())
		for i, g := range groups {
			section(g.title, describe(cmd, i))
		}
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&b, "\n`%s COMMAND --help` says more of a command.\n", cmd.CommandPath())
		}
		fmt.Fprint(cmd.OutOrStdout(), b.String())
	})
	help := &cobra.Command{
		Use: "help [COMMAND]", Short: "Say more of a command",
		Args: func(_ *cobra.Command, args []string) error {
			if _, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				return nil
			}
			message := fmt.Sprintf("unknown command %q", strings.Join(args, " "))
			if near := root.SuggestionsFor(args[0]); len(near) > 0 {
				message += ": did you mean " + strings.Join(near, " or ") + "?"
			}
			return errors.New(message)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			found, _, err := root.Find(args)
			if err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
	root.SetHelpCommand(help)
}

// describe is each flag of a group, and below it what it is for.
func describe(cmd *cobra.Command, group int) string {
	var b strings.Builder
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || groupOf(f.Name) != group {
			return
		}
		value, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(&b, "  %s\n", strings.TrimRight(name+" "+value, " "))
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0s" && f.DefValue != "[]" && !strings.Contains(text, "(default") {
			text += " (default " + f.DefValue + ")"
		}
		for _, row := range report.Wrap(text, helpWidth-8) {
			fmt.Fprintf(&b, "        %s\n", row)
		}
	})
	return b.String()
}
