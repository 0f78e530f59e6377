// Package report shows what was observed and judged: as text for people, as
// the documents that other programs read.
//
// It is pure: values in, bytes out. Everything that comes from outside, the
// names of links and pods, the comments of rules, is written so that no
// terminal takes it for an order.
package report

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// Report is one judged observation.
type Report struct {
	Snapshot *model.Snapshot
	// Findings are shown in this order: the worst first.
	Findings []model.Finding
	Rewrites []model.MACRewrite
	// Ledger is the account of each pod's packets; nil where none was made.
	Ledger []model.LedgerRow
	// Focus are the addresses that were asked about; empty means the whole
	// node. The text forms list the traffic of these alone. Which findings
	// concern them is for the caller to say.
	Focus []netip.Addr
	// Limits say in words what was left out of the judgement by request.
	Limits []string
}

// Format is a way to write a report.
type Format string

// The formats.
const (
	Text     Format = "text"
	Wide     Format = "wide"
	JSON     Format = "json"
	YAML     Format = "yaml"
	NDJSON   Format = "ndjson"
	Markdown Format = "markdown"
)

// Formats lists the formats in the order in which help names them.
func Formats() []Format { return []Format{Text, Wide, JSON, YAML, NDJSON, Markdown} }

// Style is how text is drawn.
type Style struct {
	// Color marks words with the terminal's 16 colours. It never carries
	// anything that the words do not say.
	Color bool
}

// Write writes the report. Only Text and Wide heed the style.
func (r Report) Write(w io.Writer, f Format, style Style) error {
	buf := bufio.NewWriter(w)
	if err := r.write(buf, f, style); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r Report) write(w *bufio.Writer, f Format, style Style) error {
	switch f {
	case Text:
		r.text(&printer{w: w, style: style})
	case Wide:
		p := &printer{w: w, style: style}
		r.text(p)
		r.wide(p)
	case JSON:
		return r.json(w)
	case YAML:
		return r.yaml(w)
	case NDJSON:
		return r.ndjson(w)
	case Markdown:
		r.markdown(w)
	default:
		return fmt.Errorf("no format %q", f)
	}
	return nil
}

// inFocus reports whether the traffic of an address is asked for.
func (r Report) inFocus(a netip.Addr) bool {
	if len(r.Focus) == 0 {
		return true
	}
	for _, f := range r.Focus {
		if f == a {
			return true
		}
	}
	return false
}

// allPods are the pods of the window, the gone ones last.
func allPods(s *model.Snapshot) []model.Pod {
	pods := make([]model.Pod, 0, len(s.Pods)+len(s.PastPods))
	return append(append(pods, s.Pods...), s.PastPods...)
}

// locals gives the name that a local address goes by among people: a pod's
// namespace and name, or the name of its network namespace. Living pods win
// over gone ones. The node's own addresses are in it as thisNode.
func locals(s *model.Snapshot) map[netip.Addr]string {
	names := make(map[netip.Addr]string)
	for _, p := range allPods(s) {
		name := PodName(p)
		for _, prefix := range p.Addresses {
			if names[prefix.Addr()] == "" {
				names[prefix.Addr()] = name
			}
		}
	}
	for _, l := range s.Links {
		for _, prefix := range l.Addresses {
			if _, ok := names[prefix.Addr()]; !ok {
				names[prefix.Addr()] = thisNode
			}
		}
	}
	return names
}

// thisNode is the name of the node's own addresses. No pod is called so: the
// names of pods and of network namespaces hold no spaces.
const thisNode = "this node"

// PodName is the pod's namespace and name, or what else it is known by; empty
// when there is nothing but its address.
func PodName(p model.Pod) string {
	switch {
	case p.Name != "" && p.Namespace != "":
		return p.Namespace + "/" + p.Name
	case p.Name != "":
		return p.Name
	}
	return p.NetnsName
}

// role is what the link does for pod traffic, as far as the node's links tell.
func role(s *model.Snapshot, ifindex int, link string) model.Role {
	for _, l := range s.Links {
		if l.Index == ifindex && l.Name == link {
			return l.Role
		}
	}
	return model.RoleOther
}
