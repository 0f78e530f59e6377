package scenario

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// parsers read scalars, named as in the tags of the raw structs. Those under
// typeParsers go by the type that they return.
var (
	parsers = map[string]any{
		"name": parseName, "link": parseLink, "range": parseRange, "range6": parseRange6, "family": parseFamily,
		"residue": choice(AzureVNet), "pods": parseInt(0, maxPods), "seed": parseInt(0, maxSeed), "ports": parseInt(1, maxPorts), "spare": parseInt(0, maxSpare),
		"port": parseInt(1, 65535), "size": parseInt(0, maxPayload), "exit": parseInt(0, 255),
		"clock":    parseDuration(-maxDuration, maxDuration),
		"duration": parseDuration(time.Second, maxDuration), "timeout": parseDuration(100*time.Millisecond, 30*time.Second),
	}
	typeParsers = byType(parseBool, parseText, parseAddr, parsePrefix, parseMAC, parseRate, parseCode,
		choice(allPlugins...), choice(DatapathTC, DatapathTCX, DatapathRedirect), choice(CardBond, CardVLAN), choice(PolicyCalico, PolicyCalicoNFT, PolicyNPM),
		choice(IPv4, IPv6, Dual), choice(model.Proven, model.Likely, model.Possible), choice(TCP, UDP, ICMP), choice(RoutesFile, TablesFile, SubnetFile, EffectiveFile, NICsFile, GroupsFile, EffectiveRulesFile),
		choice(FaultTypes()...))
)

func byType(parsers ...any) map[reflect.Type]reflect.Value {
	out := map[reflect.Type]reflect.Value{}
	for _, p := range parsers {
		out[reflect.TypeOf(p).Out(0)] = reflect.ValueOf(p)
	}
	return out
}

// parserOf returns the parser with the name or, without one, that of the type.
func parserOf(name string, t reflect.Type) (reflect.Value, bool) {
	if p, ok := parsers[name]; ok {
		return reflect.ValueOf(p), true
	}
	p, ok := typeParsers[t]
	return p, ok
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
		return "", fmt.Errorf("the kernel reserves the name %q", s)
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

// parseRange is parsePrefix for an IPv4 range that machines live in.
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

// parseRange6 is parseRange for IPv6.
func parseRange6(s string) (netip.Prefix, error) {
	p, err := parsePrefix(s)
	if err != nil {
		return p, err
	}
	if !p.Addr().Is6() || p.Bits() < 16 || p.Bits() > 96 || !p.Addr().IsGlobalUnicast() {
		return netip.Prefix{}, fmt.Errorf("want a unicast IPv6 range between /16 and /96, got %s", p)
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
