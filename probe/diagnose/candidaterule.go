package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// candidateRule is a rule, or a chain's policy, that may have dropped packets in
// the window.
type candidateRule struct {
	// One of these is set; a chain stands for its policy.
	rule  *model.PacketRule
	frame *model.FrameRule
	chain *model.Chain
	// key is its chain, or the chain whose policy it is.
	key     path.ChainKey
	counter model.Counter
	// native: only nft can edit it.
	native bool
	// unknown are its matches that were not decoded.
	unknown []string
	// path are the chains that lead to it, its own last; jumps are the rules
	// between them.
	path  []string
	jumps []*model.PacketRule
	// counted: its counter covers the window. left is what that counted and
	// no drop was attributed to it for.
	counted bool
	left    uint64
}

func newCandidateRule(k path.ChainKey, native bool, c model.Counter, counted bool, unknown []string) *candidateRule {
	return &candidateRule{key: k, native: native, counter: c, counted: counted, left: c.Delta, unknown: unknown}
}

// maker is the program that made it; empty where no known program did.
func (c *candidateRule) maker() string {
	switch {
	case c.chain != nil && madeByIptables(c.chain):
		return ""
	case c.rule != nil:
		return words.Maker(c.path, c.rule.Comment, c.key.Table)
	}
	return words.Maker(c.path, "", c.key.Table)
}

// madeByIptables reports whether iptables made the base chain.
func madeByIptables(c *model.Chain) bool {
	return c.Hook == c.Name && slices.Contains([]string{"raw", "mangle", "nat", "filter", "security", "broute"}, c.Table)
}

// text is the rule as its own tool prints it.
func (c *candidateRule) text() string {
	switch {
	case c.rule != nil:
		return fmt.Sprintf("rule %d: %s", c.rule.Number, c.rule.Text)
	case c.frame != nil:
		return fmt.Sprintf("rule %d: %s", c.frame.Number, c.frame.Text)
	}
	return "policy DROP"
}

// String is the rule with its place.
func (c *candidateRule) String() string { return c.key.Table + " " + c.key.Chain + " " + c.text() }

// undo ends what the rule does, or sets the policy to accept.
func (c *candidateRule) undo() string {
	by := c.maker()
	switch {
	case c.rule != nil:
		return words.UndoPacketRule(c.rule, c.path...)
	case c.frame != nil:
		return words.UndoFrameRule(c.frame, c.path...)
	case by != "":
		return words.ChangeInstead(by)
	case c.native:
		return fmt.Sprintf("nft chain %s %s %s '{ policy accept; }'", c.key.Family, words.Quote(c.key.Table), words.Quote(c.key.Chain))
	}
	tool := words.RuleTool(&model.PacketRule{Backend: c.key.Backend, Family: c.key.Family})
	if c.key.Family == "bridge" {
		tool = words.FrameRuleTool(&model.FrameRule{Backend: c.key.Backend})
	}
	return fmt.Sprintf("%s -t %s -P %s ACCEPT", tool, words.Quote(c.key.Table), words.Quote(c.key.Chain))
}

// names reports whether the rule, or a jump to it, names one sender or one
// receiver.
func (c *candidateRule) names() (src, dst bool) {
	one := func(m model.AddrMatch) bool { return !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() }
	port := func(m model.IfMatch) bool {
		return m.Name != "" && !m.Not && !strings.HasSuffix(m.Name, "+")
	}
	rules := slices.Clone(c.jumps)
	if c.rule != nil {
		rules = append(rules, c.rule)
	}
	for _, r := range rules {
		src = src || one(r.Src) || port(r.In)
		dst = dst || one(r.Dst) || port(r.Out)
	}
	if c.frame != nil {
		src = one(c.frame.IPSrc) || port(c.frame.In)
		dst = one(c.frame.IPDst) || port(c.frame.Out)
	}
	return src, dst
}

// sides reports whether the jumps to the rule are for what comes in by links, or
// for what goes out by them, whichever links these are.
func (c *candidateRule) sides() (in, out bool) {
	for _, r := range c.jumps {
		in = in || r.In.Name != "" && !r.In.Not
		out = out || r.Out.Name != "" && !r.Out.Not
	}
	return in, out
}

// dropsInvalid reports whether the rule drops what connection tracking calls
// invalid, as kube-proxy does.
func (c *candidateRule) dropsInvalid() bool {
	return c.rule != nil && slices.ContainsFunc(c.unknown, func(m string) bool {
		return strings.Contains(strings.ToLower(m), "state invalid") && !strings.HasPrefix(m, "!")
	})
}

// dropsUnknownLink reports whether the rule is the one by which Calico drops
// what comes from, or goes to, a link that it has no chain for.
func (c *candidateRule) dropsUnknownLink() bool {
	return c.rule != nil && strings.Contains(c.rule.Text+c.rule.Comment, "Unknown interface") && c.maker() == words.Calico
}

// evidence is the rule itself.
func (c *candidateRule) evidence() model.Evidence {
	e := model.Evidence{Source: model.SourceNAT, Text: fmt.Sprintf("%s (%s)", c, c.key.Backend)}
	if c.key.Family == "bridge" {
		e.Source = model.SourceEbtables
	}
	if len(c.path) > 1 {
		e.Text += ", reached by " + strings.Join(c.path, " > ")
	}
	for _, r := range c.jumps {
		for _, l := range r.Lookups {
			if l.Element != "" && !strings.HasPrefix(l.Set, "__") {
				e.Text += fmt.Sprintf(", by element %s of %s", l.Element, l.Set)
			}
		}
	}
	if c.rule != nil && c.rule.Comment != "" && !strings.Contains(c.text(), c.rule.Comment) {
		e.Text += fmt.Sprintf(" — its comment: %q", c.rule.Comment)
	}
	switch {
	case c.counter.Delta > 0:
		e.Text += fmt.Sprintf(" — counted %s in the window", words.Count(c.counter.Delta, "packet"))
	case c.counter.Restarted:
		e.Text += " — was written anew in the window, and its counter with it, or not read when it began"
	case !c.counted:
		e.Text += " — has no counter; no rule with one counted these drops"
	}
	return e
}

// fix are the commands that end the drops. What a program writes is changed where that
// program takes it from.
func (c *candidateRule) fix() []string {
	if c.maker() == "" {
		return []string{words.UnlessMeant(c.undo())}
	}
	return []string{c.undo()}
}
