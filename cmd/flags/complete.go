package flags

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/model"
)

// Worded is a flag whose values are known words.
type Worded interface{ Words() []string }

// Words are all that the flag takes.
func (c *Choice) Words() []string { return c.Of }

// Words are the codes of all findings.
func (c *Codes) Words() []string {
	return model.Map(catalogue.Pages(), func(p catalogue.Page) string { return string(p.Code) })
}

// Complete has the shell propose the words of the command's flags.
func Complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if w, ok := f.Value.(Worded); ok && len(w.Words()) > 0 {
			// It fails only for a flag that is not there.
			cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(w.Words(), cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // see above
		}
	})
}
