package scenario

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// Error is one thing wrong in a file, and where.
type Error struct {
	File         string
	Line, Column int
	Msg          string
}

func (e Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// Errors are all that is wrong in a file, in the order of its lines.
type Errors []Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// maxErrors is where reading stops to complain: the rest is seldom news.
const maxErrors = 100

// value is what was read and where; at is nil when it was not in the file.
type value[T any] struct {
	v  T
	at *yaml.Node
}

func (v value[T]) set() bool { return v.at != nil }

// or returns the value, or the default when it was not in the file.
func (v value[T]) or(def T) T {
	if v.set() {
		return v.v
	}
	return def
}

// where is the value's place, or that of what should have held it.
func (v value[T]) where(parent *yaml.Node) *yaml.Node {
	if v.set() {
		return v.at
	}
	return parent
}

// decoder walks the YAML tree, because only its nodes know line and column.
type decoder struct {
	file string
	errs Errors
}

func (d *decoder) errorf(at *yaml.Node, format string, args ...any) {
	if len(d.errs) < maxErrors {
		d.errs = append(d.errs, Error{d.file, max(at.Line, 1), max(at.Column, 1), fmt.Sprintf(format, args...)})
	}
}

// err is everything that was wrong, sorted by place; nil when nothing was.
func (d *decoder) err() error {
	if len(d.errs) == 0 {
		return nil
	}
	sort.SliceStable(d.errs, func(i, j int) bool {
		a, b := d.errs[i], d.errs[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	return d.errs
}

// fields maps the names that a mapping may hold to what reads them.
type fields map[string]func(*yaml.Node)

// mapping reads a mapping's fields. It complains of unknown and repeated ones.
func (d *decoder) mapping(n *yaml.Node, what string, f fields) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.errorf(n, "%s: want a mapping, got %s", what, describe(n))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		read, ok := f[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			d.errorf(key, "%s: unknown field %s, want one of %s", what, describe(key), names(f))
		case lines[key.Value] != 0:
			d.errorf(key, "%s: field %q is already set in line %d", what, key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			read(val)
		}
	}
}

// list calls f for each item of a sequence.
func (d *decoder) list(n *yaml.Node, what string, f func(*yaml.Node)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.errorf(n, "%s: want a list, got %s", what, describe(n))
		return
	}
	for _, item := range n.Content {
		f(item)
	}
}

// oneOrMore calls f for each item of a sequence, or for a lone scalar.
func (d *decoder) oneOrMore(n *yaml.Node, what string, f func(*yaml.Node)) {
	if n.Kind == yaml.ScalarNode && !isNull(n) {
		f(n)
		return
	}
	d.list(n, what, f)
}

// scalar reads a value by parse, whose error says what was wanted.
func scalar[T any](d *decoder, n *yaml.Node, what string, parse func(string) (T, error)) value[T] {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.errorf(n, "%s: want a value, got %s", what, describe(n))
		return value[T]{}
	}
	v, err := parse(n.Value)
	if err != nil {
		d.errorf(n, "%s: %v", what, err)
		return value[T]{}
	}
	return value[T]{v, n}
}

// into returns what reads a scalar field into dst.
func into[T any](d *decoder, what string, dst *value[T], parse func(string) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) { *dst = scalar(d, n, what, parse) }
}

// each returns what reads a scalar or a list of them onto dst.
func each[T any](d *decoder, what string, dst *[]value[T], parse func(string) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		d.oneOrMore(n, what, func(item *yaml.Node) {
			if v := scalar(d, item, what, parse); v.set() {
				*dst = append(*dst, v)
			}
		})
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if isNull(n) {
		return "nothing"
	}
	return strconv.Quote(short(n.Value))
}

// short keeps a value from the file printable in a message.
func short(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func names[T any](f map[string]T) string {
	keys := make([]string, 0, len(f))
	for k := range f {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return strings.Join(keys, ", ")
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	linkPattern = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*$`)
	codePattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
)

// maxName bounds names, so that those composed of several stay file names.
const maxName = 40

// CheckName says whether s can name a scenario, a lab, a node or a pod: lower
// case letters, digits and inner hyphens, as in Kubernetes.
func CheckName(s string) error {
	if len(s) > maxName || !namePattern.MatchString(s) {
		return fmt.Errorf("want a name of at most %d lower-case letters, digits and inner hyphens, got %q", maxName, short(s))
	}
	return nil
}

func parseName(s string) (string, error) { return s, CheckName(s) }

// maxLink is IFNAMSIZ without the terminating zero.
const maxLink = 15

func parseLink(s string) (string, error) {
	switch {
	case len(s) > maxLink || !linkPattern.MatchString(s):
		return "", fmt.Errorf("want a link name of at most %d letters, digits, '-', '_' and '.', got %q", maxLink, short(s))
	case s == "lo" || s == "all" || s == "default":
		return "", fmt.Errorf("%q is a name that the kernel keeps for itself", s)
	}
	return s, nil
}

func parseCode(s string) (model.Code, error) {
	if !codePattern.MatchString(s) {
		return "", fmt.Errorf("want a finding's code in CamelCase, got %q", short(s))
	}
	return model.Code(s), nil
}

func parseText(s string) (string, error) { return strings.TrimSpace(s), nil }

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || !a.Is4() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.Addr{}, fmt.Errorf("want a unicast IPv4 address, got %q", short(s))
	}
	return a, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("want a prefix, as 10.244.0.0/24, got %q", short(s))
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("prefix %s has host bits set, want %s", p, p.Masked())
	}
	return p, nil
}

// parseRange is parsePrefix for a range that machines live in.
func parseRange(s string) (netip.Prefix, error) {
	p, err := parsePrefix(s)
	if err != nil {
		return p, err
	}
	if a := p.Addr(); !a.Is4() || p.Bits() < 8 || p.Bits() > 29 || a.IsLoopback() || a.IsMulticast() || a.As4()[0] == 0 || a.As4()[0] >= 240 {
		return netip.Prefix{}, fmt.Errorf("want a unicast IPv4 range between /8 and /29, got %s", p)
	}
	return p, nil
}

func parseFamily(s string) (int, error) {
	switch s {
	case "4":
		return 4, nil
	case "6":
		return 6, nil
	}
	return 0, fmt.Errorf("want 4 or 6, got %q", short(s))
}

func parseMAC(s string) (model.MAC, error) {
	m, err := model.ParseMAC(s)
	if err != nil || m.IsZero() || m.IsMulticast() {
		return model.MAC{}, fmt.Errorf("want a unicast MAC, got %q", short(s))
	}
	return m, nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("want true or false, got %q", short(s))
}

// parseInt returns what reads a whole number within the bounds.
func parseInt(lo, hi int) func(string) (int, error) {
	return func(s string) (int, error) {
		v, err := strconv.Atoi(s)
		if err != nil || v < lo || v > hi {
			return 0, fmt.Errorf("want a whole number from %d to %d, got %q", lo, hi, short(s))
		}
		return v, nil
	}
}

// parseDuration returns what reads a duration within the bounds.
func parseDuration(lo, hi time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		v, err := time.ParseDuration(s)
		if err != nil || v < lo || v > hi {
			return 0, fmt.Errorf("want a duration from %v to %v, as 1m30s, got %q", lo, hi, short(s))
		}
		return v, nil
	}
}

// The bounds of a flow's rate, in requests per second.
const (
	minRate = 0.1
	maxRate = 100
)

func parseRate(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v < minRate || v > maxRate {
		return 0, fmt.Errorf("want requests per second from %v to %v, got %q", minRate, maxRate, short(s))
	}
	return v, nil
}

// choice returns what reads one of the given words.
func choice[T ~string](words ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		for _, w := range words {
			if s == string(w) {
				return w, nil
			}
		}
		return "", fmt.Errorf("want one of %v, got %q", words, short(s))
	}
}
