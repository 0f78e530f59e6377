package words

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// UndoFrameRule ends what a bridge rule does: the command that deletes it, with the
// variant of ebtables that holds it, or what to change where a program keeps it.
func UndoFrameRule(r *model.FrameRule, chains ...string) Command {
	switch by := model.Keeper(append(chains, r.Chain), "", r.Table); {
	case by != "":
		return ChangeInstead(by, r.Chain)
	case r.Native:
		return DeleteByHandle("bridge", r.Table, r.Chain, r.Handle)
	}
	return DeleteRule(FrameRuleTool(r), "bridge", ruleText{r.Table, r.Chain, r.Text, r.Number, r.Handle})
}

// FrameRuleTool is the variant that holds the rule.
func FrameRuleTool(r *model.FrameRule) Command {
	switch r.Backend {
	case model.NFT:
		return "ebtables-nft"
	case model.Legacy:
		return "ebtables-legacy"
	}
	return "ebtables"
}

// UndoPacketRule does the same for a rule of IP's tables. Of a rule with a map it ends one
// element. Chains are those that lead to the rule.
func UndoPacketRule(r *model.PacketRule, chains ...string) Command {
	if by := model.Keeper(append(chains, r.Chain), r.Comment, r.Table); by != "" {
		return ChangeInstead(by, r.Chain)
	}
	for _, l := range r.Lookups {
		switch named := !strings.HasPrefix(l.Set, "__"); {
		case l.Element != "" && named:
			return Shell("nft delete element %s %s", nftNames(r.Family, r.Table, l.Set), nftText("{ "+l.Element+" }"))
		case l.Shared:
			// What else the map leads to would end with the rule.
			return Shell("nft -a list chain %s", nftNames(r.Family, r.Table, r.Chain)) + Command(" # replace the rule of this handle by one"+
				" without the element, and keep the others: "+strconv.FormatUint(r.Handle, 10)+", "+l.Element)
		}
	}
	if r.Native {
		return DeleteByHandle(r.Family, r.Table, r.Chain, r.Handle)
	}
	return DeleteRule(RuleTool(r), r.Family, ruleText{r.Table, r.Chain, r.Text, r.Number, r.Handle})
}

// byIptables reports whether iptables or ebtables may have made a base chain. Only nft can edit others.
func byIptables(c *model.Chain) bool {
	return c.Backend == model.Legacy ||
		c.Hook == c.Name && slices.Contains([]string{"raw", "mangle", "nat", "filter", "security", "broute"}, c.Table)
}

// AcceptPackets has a base chain accept those of a range and protocol, of any where that is 0, to one port of UDP where that
// is not 0.
func AcceptPackets(c *model.Chain, from netip.Prefix, proto uint8, port uint16) Command {
	addr, native := Shell("%s", from), !byIptables(c)
	if from.IsSingleIP() {
		addr = Shell("%s", from.Addr())
	}
	what := when(port > 0, model.Either(native, " udp dport %s", " -p udp --dport %s"), port) +
		when(port == 0 && proto > 0, model.Either(native, " meta l4proto %s", " -p %s"), proto)
	if native {
		ip := model.Either(from.Addr().Is4(), "ip", "ip6")
		return Shell("nft insert rule %s %s saddr %s%s accept", nftNames(c.Family, c.Table, c.Name), ip, addr, what)
	}
	tool := RuleTool(&model.PacketRule{Backend: c.Backend, Family: c.Family})
	return Shell("%s -t %s -I %s -s %s%s -j ACCEPT", tool, c.Table, c.Name, addr, what)
}

// AcceptPolicy sets the policy of a base chain to accept.
func AcceptPolicy(c *model.Chain) Command {
	if !byIptables(c) {
		return Shell("nft chain %s '{ policy accept; }'", nftNames(c.Family, c.Table, c.Name))
	}
	tool := RuleTool(&model.PacketRule{Backend: c.Backend, Family: c.Family})
	if c.Family == "bridge" {
		tool = FrameRuleTool(&model.FrameRule{Backend: c.Backend})
	}
	return Shell("%s -t %s -P %s ACCEPT", tool, c.Table, c.Name)
}

// ruleText is what a rule of iptables or ebtables is deleted by.
type ruleText struct {
	table, chain, text string
	number             int
	handle             uint64
}

// DeleteRule deletes a rule by its text. One whose text no tool takes, since something in it was not decoded or cannot
// be typed, is deleted by its handle or, where it has none, by its number, which is that of another rule once one in
// front of it is gone.
func DeleteRule(tool Command, family string, r ruleText) Command {
	typed, comment := ShellRule(r.text)
	switch {
	case typed != "":
		return Shell("%s -t %s -D %s %s", tool, r.table, r.chain, typed)
	case r.handle != 0:
		return DeleteByHandle(family, r.table, r.chain, r.handle) + comment
	}
	return Shell("%s -t %s -D %s %s", tool, r.table, r.chain, r.number) + comment
}

// ReplacePacketRule is the command that puts another rule, by its text, in the place of one. It undoes the one where
// the text does not differ or a shell cannot take it. A program that keeps it has to write the other one.
func ReplacePacketRule(r *model.PacketRule, text string) Command {
	words, _ := ShellRule(text)
	switch by := r.Keeper(); {
	case text == r.Text || words == "":
		return UndoPacketRule(r)
	case by != "":
		return "# " + Command(by) + " manages the rule: change its configuration, so that it writes: " + words
	case r.Native:
		return Shell("nft replace rule %s handle %s %s", nftNames(r.Family, r.Table, r.Chain), r.Handle, nftText(text))
	}
	return Shell("%s -t %s -R %s %s %s", RuleTool(r), r.Table, r.Chain, r.Number, words)
}

// DeleteByHandle deletes a rule that nft wrote: it takes no text.
func DeleteByHandle(family, table, chain string, handle uint64) Command {
	return Shell("nft delete rule %s handle %s", nftNames(family, table, chain), handle)
}

// ShellRule is a rule's text as a shell takes it. The text quotes words by the rules of iptables-save, which a shell
// reads otherwise: what a comment holds must not run. It is empty for a rule with characters that cannot be typed, or
// with brackets around what was not decoded; comment shows the rule where it can be shown.
func ShellRule(text string) (typed, comment Command) {
	if !typable(text) {
		return "", ""
	}
	var out []Command
	for word, rest := "", strings.TrimSpace(text); rest != ""; {
		quoted := strings.HasPrefix(rest, `"`)
		if word, rest = cutWord(rest); !quoted && bracketed(word) {
			return "", Command(" # " + text)
		}
		out = append(out, Shell("%s", word))
	}
	return Command(strings.Join(texts(out), " ")), ""
}

// bracketed reports whether a word begins what was not decoded. Brackets are around an IPv6 address with a port, too.
func bracketed(word string) bool {
	inner, ok := strings.CutPrefix(word, "[")
	inner, _, _ = strings.Cut(inner, "]")
	_, err := netip.ParseAddr(inner)
	return ok && err != nil
}

// cutWord takes the first word of a rule's text, without its quotes.
func cutWord(text string) (word, rest string) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == '"':
			quoted = !quoted
		case c == ' ' && !quoted:
			return b.String(), strings.TrimLeft(text[i:], " ")
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}

// ReplaceRoute is the command that gives a route another next hop, or says where to if a daemon keeps it.
func ReplaceRoute(r *model.NodeRoute, hop netip.Addr) Command {
	if change := ChangeRoute(r.Protocol, r.Dst); change != "" {
		return change
	}
	return Shell("%s route replace %s via %s dev %s", IP(r.Dst.Addr()), r.Dst, hop, r.Link) + when(r.Table != mainTable, " table %s", r.Table)
}

const mainTable = 254

// SetSysctl is the command that sets a kernel setting. Its name may hold a link's.
func SetSysctl(name, value string) Command { return Shell("sysctl -w %s", name+"="+value) }

// MostForgotten is how many commands delete entries of connection tracking.
const MostForgotten = 8

// Forget are the commands that delete these entries of connection tracking: one for those of one sender, destination
// and translation, which new ones follow meanwhile.
func Forget(flows []*model.Flow) []Command {
	alike := map[model.Flow]int{}
	for _, f := range flows {
		alike[forgottenAs(f)]++
	}
	var out []Command
	more := len(flows)
	for _, f := range flows {
		if n := alike[forgottenAs(f)]; n > 0 && len(out) < MostForgotten {
			out, more, alike[forgottenAs(f)] = append(out, forget(f, n == 1)), more-n, 0
		}
	}
	if more > 0 {
		out = append(out, Command("and "+model.Plural(more, "more entry", "more entries")+" like these"))
	}
	return out
}

// forgottenAs is a flow without its own port: the same for those that one command deletes.
func forgottenAs(f *model.Flow) model.Flow {
	k := model.Flow{Proto: f.Proto, Zone: f.Zone, Original: f.Original, Reply: f.Reply}
	k.Original.SrcPort, k.Reply.DstPort = 0, 0
	return k
}

func forget(f *model.Flow, alone bool) Command {
	line := Shell("conntrack -D -p %s --orig-src %s --orig-dst %s", model.ProtoName(f.Proto), f.Original.Src, f.Original.Dst)
	line += when(f.Original.DstPort != 0 && alone, " --sport %s", f.Original.SrcPort)
	line += when(f.Original.DstPort != 0, " --dport %s", f.Original.DstPort)
	line += when(!alone, " --reply-src %s --reply-dst %s", f.Reply.Src, f.Reply.Dst)
	return line + when(f.Zone != 0, " --zone %s", f.Zone)
}

// Inside is what runs a command in the pod's network namespace, on the node.
func Inside(p *model.Pod) Command {
	path := p.NetnsName
	switch {
	case path == "":
		path = "/proc/PID/ns/net"
	case !strings.ContainsRune(path, '/'):
		path = "/run/netns/" + path
	}
	return Shell("nsenter --net=%s ", path)
}

// AddRoute gives a pod a route of another's, without the source address that was the
// other's. With onLink its gateway needs no route to it.
func AddRoute(p *model.Pod, r *model.Route, onLink bool) Command {
	line := Shell("%s%s route add %s", Inside(p), IP(r.Dst.Addr()), destination(r))
	line += when(r.Gateway.IsValid(), " via %s", r.Gateway) + Shell(" dev %s", p.Interface)
	return line + when(onLink, " onlink") + when(!onLink && !r.Gateway.IsValid() && r.Dst.Addr().Is4(), " scope link")
}

// RuleTool is the tool that edits the rule's table.
func RuleTool(r *model.PacketRule) Command {
	tool := model.Either[Command](r.Family == "ip6", "ip6tables", "iptables")
	return model.Either(r.Backend == model.Legacy, tool+"-legacy", tool+"-nft")
}
