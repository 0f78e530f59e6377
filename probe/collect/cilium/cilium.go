// Package cilium reads what Cilium's agent keeps on its node: its endpoints, in files below
// /run/cilium/state, and the maps that its programs decide by, below /sys/fs/bpf.
//
// Both are read without the agent, and stay when it is down. Files and maps need root, maps
// CAP_BPF too (CAP_SYS_ADMIN before Linux 5.8). The maps are opened for reading alone. Fields are
// found by their names in a map's BTF; a map without BTF is read only where its sizes are those of a known layout.
package cilium

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/collect/names"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// stateDirs are where the agent keeps a directory for each endpoint, below the root: /var/run
// may be a link that leads out of a container's view of it.
var stateDirs = []string{"run/cilium/state", "var/run/cilium/state"}

// Bounds of the files. One has some 10 KiB, more with many names that were resolved.
const (
	maxFile   = 8 << 20 // bytes
	maxLabels = 32
	maxLabel  = 256 // bytes
)

// ErrNone says that the node has no Cilium.
var ErrNone = errors.New("no Cilium")

// Reader reads again only the files that have changed: that of an endpoint takes longer than
// all of its entries in maps. The zero Reader is ready.
type Reader struct {
	mu    sync.Mutex
	files input.Known[model.CiliumEndpoint]
}

// Read reads the endpoints and maps below root. With an error, what could be read is returned too.
func (r *Reader) Read(ctx context.Context, root string) (c model.Cilium, detail string, err error) {
	for _, dir := range stateDirs {
		entries, err := input.Entries(filepath.Join(root, dir), maxEntries, "endpoints")
		if entries == nil && err == nil {
			continue
		}
		var failed error
		c.Endpoints, failed = r.endpoints(filepath.Join(root, dir), entries)
		found, refused := readMaps(ctx, filepath.Join(root, mapDir), &c)
		read := model.Quantity(len(c.Endpoints), "endpoint") + " from /" + dir
		detail = strings.Join(append([]string{read}, found...), ", ")
		return c, detail, errors.Join(err, failed, refused)
	}
	return c, "", ErrNone
}

// Config is what the agent's own configuration says.
type Config struct {
	// PassesBy: the node's programs forward pods' packets past netfilter (eBPF host routing).
	PassesBy bool
	// Untranslated are the families (4, 6) that its programs do not masquerade.
	Untranslated []int
}

// ReadConfig reads the configuration below root: agent-runtime-config.json, which the agent writes. Where AKS refuses new
// rules by a program, its maps say as well that netfilter is passed by.
func ReadConfig(root string) Config {
	type options struct{ EnableHostLegacyRouting, EnableIPv4Masquerade, EnableIPv6Masquerade *bool }
	var config struct {
		options
		UnsafeDaemonConfigOption options // since Cilium 1.18
	}
	for _, dir := range stateDirs {
		text, err := input.Read(filepath.Join(root, dir, "agent-runtime-config.json"), input.NoLink, maxFile)
		if err == nil && json.Unmarshal(text, &config) == nil {
			break
		}
	}
	old, now := config.options, config.UnsafeDaemonConfigOption
	off := func(b *bool) bool { return b != nil && !*b }
	_, err := os.Lstat(filepath.Join(root, "sys/fs/bpf/block-iptables"))
	c := Config{PassesBy: err == nil || off(cmp.Or(now.EnableHostLegacyRouting, old.EnableHostLegacyRouting))}
	if off(cmp.Or(now.EnableIPv4Masquerade, old.EnableIPv4Masquerade)) {
		c.Untranslated = append(c.Untranslated, 4)
	}
	if off(cmp.Or(now.EnableIPv6Masquerade, old.EnableIPv6Masquerade)) {
		c.Untranslated = append(c.Untranslated, 6)
	}
	return c
}

// endpoints reads the endpoints of a directory. What cannot be read is left out, and the error says so.
func (r *Reader) endpoints(dir string, entries []string) ([]model.CiliumEndpoint, error) {
	var out []model.CiliumEndpoint
	var loss input.Loss
	slices.Sort(entries)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.files.Forget()
	for _, name := range entries {
		// Beside them are directories of programs, and those of endpoints that are being made.
		if _, err := strconv.ParseUint(name, 10, 16); err != nil {
			continue
		}
		// The agent puts a new file in its place to change it.
		e, err := r.files.Read(filepath.Join(dir, name, "ep_config.json"), maxFile, decodeEndpoint)
		switch {
		case err == nil:
			out = append(out, e)
		case !errors.Is(err, fs.ErrNotExist): // then it went away, or is not yet there
			loss.Add(fmt.Errorf("endpoint %s: %w", name, err))
		}
	}
	return out, loss.Err()
}

// endpoint is the JSON of a file, as far as it is of use.
type endpoint struct {
	ID                                   uint16
	IfIndex                              int
	IPv4, IPv6, K8sPodName, K8sNamespace string
	SecLabel                             *struct {
		ID     uint32          `json:"id"`
		Labels json.RawMessage `json:"labels"`
	}
	Options *struct {
		Map map[string]int `json:"map"`
	}
}

func decodeEndpoint(text []byte, _ time.Time) (out model.CiliumEndpoint, err error) {
	var e endpoint
	if err := json.Unmarshal(text, &e); err != nil {
		return out, err
	}
	if e.ID == 0 {
		return out, errors.New("it has no ID")
	}
	out = model.CiliumEndpoint{ID: e.ID, IfIndex: e.IfIndex}
	if names.Check(e.K8sNamespace, e.K8sPodName) == nil {
		out.Namespace, out.Name = e.K8sNamespace, e.K8sPodName
	}
	for _, text := range []string{e.IPv4, e.IPv6} {
		if text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			return out, err
		}
		out.Addresses = append(out.Addresses, a.Unmap())
	}
	if e.SecLabel != nil {
		out.Identity = model.CiliumIdentity(e.SecLabel.ID)
		out.Labels = labels(e.SecLabel.Labels)
	}
	if e.Options != nil {
		on, told := e.Options.Map["DropNotification"]
		out.Quiet = told && on == 0
	}
	return out, nil
}

// labels are KEY=VALUE of what a person gave the pod, of some many, in order: not what
// Cilium and Kubernetes add. Versions keep them as a list of texts, or as objects.
func labels(raw json.RawMessage) []string {
	var list []string
	var objects map[string]struct{ Key, Value, Source string }
	if json.Unmarshal(raw, &list) != nil && json.Unmarshal(raw, &objects) == nil {
		for _, l := range objects {
			list = append(list, l.Source+":"+l.Key+"="+l.Value)
		}
	}
	var out []string
	for _, l := range list {
		source, label, _ := strings.Cut(l, ":")
		label = strings.TrimSuffix(label, "=")
		added := source == "reserved" || strings.HasPrefix(label, "io.kubernetes.") || strings.HasPrefix(label, "io.cilium.")
		if label != "" && len(label) < maxLabel && !added {
			out = append(out, label)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxLabels)]
}
