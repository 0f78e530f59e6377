package words

import (
	"fmt"
	"regexp"
	"strings"
	"text/template/parse"
	"unicode"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// Command is text for a shell, of which nothing is to be quoted any more.
type Command string

// Shell is a command with values: a shell, also an interactive one with a history, reads each as a part of one word,
// whatever it holds. Only a Command stays as it is.
func Shell(format string, values ...any) Command {
	return Command(fmt.Sprintf(format, model.Map(values, func(v any) any { return quote(v) })...))
}

// when is a part of a command that is there on a condition.
func when(is bool, format string, values ...any) Command {
	if !is {
		return ""
	}
	return Shell(format, values...)
}

func quote(value any) Command {
	switch v := value.(type) {
	case Command:
		return v
	case many:
		return Command(many(model.Map(v, func(one string) string { return string(quote(one)) })).String())
	}
	s := strings.Map(func(r rune) rune { return model.Either(unicode.IsPrint(r), r, untypable) }, fmt.Sprint(value))
	if inert.MatchString(s) {
		return Command(s)
	}
	return Command("'" + strings.ReplaceAll(s, "'", `'\''`) + "'")
}

// inert is what no shell reads more into. An exclamation mark before a letter recalls a command from the history, but
// not within single quotes.
var inert = regexp.MustCompile(`^([A-Za-z0-9_./:+,=@%-]+|!)$`)

// untypable stands for what no shell takes from a keyboard and no terminal shows: control characters, line ends, bytes
// that are not UTF-8. sh has no quotes for them, and a name with another character in it is another name.
const untypable = utf8.RuneError

func typable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r == untypable || !unicode.IsPrint(r) })
}

// fix is a line of a fix, which may be pasted into a shell with others: what cannot be typed is a comment there.
func fix(line string) string {
	if !typable(line) {
		return "# no command can be given, as a name or text in it has characters that cannot be typed: " + line
	}
	return line
}

// OnNodes says on which nodes the next lines of a fix are run.
func OnNodes(names []string) string {
	return fix("on " + strings.Join(model.Map(names, func(n string) string { return string(quote(n)) }), ", ") + ":")
}

// nftNames are names for nft, which joins its arguments and parses them again: other characters could be other commands.
func nftNames(names ...string) Command {
	for i, name := range names {
		if !nftName.MatchString(name) {
			names[i] = string(untypable) + name
		}
	}
	return Command(strings.Join(texts(model.Map(names, func(n string) Command { return quote(n) })), " "))
}

// nftText is a part of nft's language, in which only strings hold any character.
func nftText(s string) Command {
	return quote(model.Either(strings.ContainsAny(nftString.ReplaceAllString(s, ""), "\";#\\"), string(untypable), "") + s)
}

var (
	nftName   = regexp.MustCompile(`^[A-Za-z_.][A-Za-z0-9_./-]*$`)
	nftString = regexp.MustCompile(`"[^"]*"`)
)

// quoting has texts put each of their values, and those of the shared texts in them, in a shell's words.
func quoting(lists ...*parse.ListNode) {
	for _, list := range lists {
		if list == nil {
			continue
		}
		for _, node := range list.Nodes {
			switch n := node.(type) {
			case *parse.ActionNode:
				if len(n.Pipe.Decl) == 0 && n.Pipe.Cmds[0].Args[0].Type() != parse.NodeString {
					sh := parse.NewIdentifier("sh").SetPos(n.Pos)
					n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{sh}})
				}
			case *parse.TemplateNode:
				n.Name = inCommand + n.Name
			case *parse.IfNode:
				quoting(n.List, n.ElseList)
			case *parse.RangeNode:
				quoting(n.List, n.ElseList)
			case *parse.WithNode:
				quoting(n.List, n.ElseList)
			}
		}
	}
}

// inCommand begins the names of shared texts as commands have them.
const inCommand = "command/"
