package diagnose

import (
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// candidateRule is a rule, or a chain's policy, that may have dropped packets in
// the window.
type candidateRule struct {
	// ChainKey is its chain, or the chain whose policy it is.
	path.ChainKey
	// One of these is set; policy is the chain whose policy it is.
	Rule   *model.PacketRule
	Frame  *model.FrameRule
	policy *model.Chain
	// Counted: its counter covers the window. left is what that counted and
	// no drop was attributed to it for.
	Counter model.Counter
	Counted bool
	left    uint64
	// Pod is the pod in whose own namespace it is; nil for the node's.
	Pod *model.Pod
	// unknown are its matches that were not decoded.
	unknown []string
	// Path are the chains that lead to it, its own last; jumps are the rules
	// between them.
	Path  []string
	jumps []*model.PacketRule
}

func newCandidateRule(k path.ChainKey, native bool, c model.Counter, unknown []string) *candidateRule {
	return &candidateRule{ChainKey: k, Counter: c, Counted: counts(native, c), left: c.Delta, unknown: unknown}
}

// Maker is the program that made it; empty where no known program did.
func (c *candidateRule) Maker() string {
	comment := ""
	if c.Rule != nil {
		comment = c.Rule.Comment
	}
	return words.Maker(c.Path, comment, c.Table)
}

// madeByIptables reports whether iptables made the base chain.
func madeByIptables(c *model.Chain) bool {
	return c.Hook == c.Name && slices.Contains([]string{"raw", "mangle", "nat", "filter", "security", "broute"}, c.Table)
}

// IsPolicy reports whether it is a chain's policy.
func (c *candidateRule) IsPolicy() bool { return c.policy != nil }

// Undo is the command that ends what the rule does, or sets the policy to accept. What a
// program writes is changed where that program takes it from.
func (c *candidateRule) Undo() string {
	switch by := c.Maker(); {
	case by == "" && c.Pod != nil:
		own := *c
		own.Pod = nil
		return words.Inside(c.Pod) + own.Undo()
	case c.Rule != nil:
		return words.UndoPacketRule(c.Rule, c.Path...)
	case c.Frame != nil:
		return words.UndoFrameRule(c.Frame, c.Path...)
	case by != "":
		return words.ChangeInstead(by)
	}
	return words.AcceptPolicy(c.Backend, c.Family, c.Table, c.Chain, c.Backend == model.NFT && !madeByIptables(c.policy))
}

// Elements are those of named sets and maps that lead to it.
func (c *candidateRule) Elements() []model.Lookup {
	var out []model.Lookup
	for _, r := range c.jumps {
		for _, l := range r.Lookups {
			if l.Element != "" && !strings.HasPrefix(l.Set, "__") {
				out = append(out, l)
			}
		}
	}
	return out
}

// Remark is its comment, where its text does not have it.
func (c *candidateRule) Remark() string {
	if c.Rule == nil || strings.Contains(c.Rule.Text, c.Rule.Comment) {
		return ""
	}
	return c.Rule.Comment
}

// leading are the rules that lead to it, its own last where that is a packet rule.
func (c *candidateRule) leading() []*model.PacketRule {
	if c.Rule == nil {
		return c.jumps
	}
	return append(slices.Clone(c.jumps), c.Rule)
}

// names reports whether the rule, or a jump to it, names one sender or one
// receiver.
func (c *candidateRule) names() (src, dst bool) {
	one := func(m model.AddrMatch) bool { return !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() }
	port := func(m model.IfMatch) bool { return m.Name != "" && !m.Not && !strings.HasSuffix(m.Name, "+") }
	if r := c.Frame; r != nil {
		return one(r.IPSrc) || port(r.In), one(r.IPDst) || port(r.Out)
	}
	for _, r := range c.leading() {
		src = src || one(r.Src) || port(r.In)
		dst = dst || one(r.Dst) || port(r.Out)
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

// dropsInvalid reports whether a rule drops what connection tracking calls
// invalid, as kube-proxy does.
func dropsInvalid(r *model.PacketRule) bool {
	return r != nil && slices.ContainsFunc(r.Unknown, func(m string) bool {
		return strings.Contains(strings.ToLower(m), "state invalid") && !strings.HasPrefix(m, "!")
	})
}

// dropsUnknownLink reports whether the rule is the one by which Calico drops
// what comes from, or goes to, a link that it has no chain for.
func (c *candidateRule) dropsUnknownLink() bool {
	return c.Rule != nil && strings.Contains(c.Rule.Text+c.Rule.Comment, "Unknown interface") && c.Maker() == words.Calico
}
