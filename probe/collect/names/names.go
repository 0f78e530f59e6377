// Package names finds the Kubernetes names of a node's pods without its API: from what libcni keeps of each pod's
// network, below /var/lib/cni; where that has no answer, from the cgroup of a process in the pod's network
// namespace, which holds the pod's UID, and the folder of that UID below /var/log/pods.
//
// The files need the right to read them, cgroups a view of the node's processes (hostPID). The files may be
// stale, half written, or lie: a name counts only if nothing that the kernel tells contradicts it, and where two
// pods could be meant there is none. What could not be read is counted.
package names

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// owner is a pod as Kubernetes knows it. The UID may be unknown.
type owner struct{ namespace, name, uid string }

// uidForm is that of UIDs, which are UUIDs, or hashes for pods that the kubelet reads from files.
var uidForm = regexp.MustCompile(`^[0-9a-fA-F-]{1,64}$`)

// Check reports whether these could be the names of a pod.
func Check(namespace, name string) error {
	switch {
	case len(validation.IsDNS1123Label(namespace)) > 0:
		return fmt.Errorf("%.80q is not a valid namespace name", namespace)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return fmt.Errorf("%.80q is not a valid pod name", name)
	}
	return nil
}

func (o owner) check() error {
	if o.uid != "" && !uidForm.MatchString(o.uid) {
		return fmt.Errorf("%.80q is not a valid UID", o.uid)
	}
	return Check(o.namespace, o.name)
}

// same reports whether both may be the same pod.
func (o owner) same(x owner) bool {
	return o.namespace == x.namespace && o.name == x.name && (o.uid == "" || x.uid == "" || o.uid == x.uid)
}

// Finder finds names below one root. It is safe for concurrent use.
type Finder struct {
	root  string
	mu    sync.Mutex
	cache cache
	// groups are the UIDs of the pods of cgroups, by the cgroups' numbers, as they were walked.
	groups map[uint64]string
	walked time.Time
}

// New returns a finder for the node's files below root.
func New(root string) *Finder { return &Finder{root: root, cache: cache{root: root}} }

// Pods names pods, and sets the UIDs of those whose name stays unknown. processes are directories of /proc, such
// as /proc/17, of processes in each network namespace, by its inode.
func (f *Finder) Pods(pods []model.Pod, processes map[uint32][]string) Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cache.read()
	r, uids, own := Result{dirs: c.dirs, loss: c.loss}, map[uint32]string{}, readUID("/proc/self")
	for i := range pods {
		ns := pods[i].Netns
		if _, done := uids[ns]; !done && ns != 0 {
			uids[ns] = podUID(ns, processes[ns], own)
		}
	}
	chosen := choose(pods, c.records, uids, f.netns)
	var logs map[string]owner
	for i := range pods {
		p := &pods[i]
		o, cached := chosen[i]
		if !cached && uids[p.Netns] != "" {
			if logs == nil {
				var err error
				logs, err = logFolders(f.root)
				r.loss.Add(err)
			}
			o = logs[uids[p.Netns]]
		}
		p.UID = cmp.Or(o.uid, uids[p.Netns])
		switch {
		case o.name == "":
			if len(processes[p.Netns]) == 0 {
				r.unseen++
			}
			continue
		case cached:
			r.Cached++
		default:
			r.Grouped++
		}
		p.Namespace, p.Name = o.namespace, o.name
	}
	return r
}

// netns is the inode of a network namespace that has a name, 0 if there is none.
func (f *Finder) netns(name string) uint32 {
	for _, root := range []string{"/", f.root} {
		if ns, err := netns.Open(filepath.Join(root, "run/netns", name)); err == nil {
			defer ns.Close()
			return ns.Inode()
		}
	}
	return 0
}

// Result says where the names came from.
type Result struct {
	// Cached and Grouped are how many pods were named by libcni's cache, and by their cgroups.
	Cached, Grouped int
	dirs            []string
	// unseen is how many unnamed pods have no process that is visible.
	unseen int
	loss   input.Loss
}

// Err is what could not be read, nil if nothing.
func (r Result) Err() error {
	if err := r.loss.Err(); err != nil {
		return fmt.Errorf("skipped: %w", err)
	}
	return nil
}

// Detail says in words how many names came from where.
func (r Result) Detail() []string {
	var out []string
	if r.Cached > 0 {
		out = append(out, fmt.Sprintf("%d from %s", r.Cached, strings.Join(r.dirs, ", ")))
	}
	if r.Grouped > 0 {
		out = append(out, fmt.Sprintf("%d from cgroups and /%s", r.Grouped, logDir))
	}
	return out
}

// Lack says why pods that stayed without a name have none, as far as something
// would help: behind a semicolon, or empty.
func (r Result) Lack() string {
	var out string
	if r.unseen > 0 {
		out += " (their processes are not visible, as in a container without hostPID)"
	}
	if len(r.dirs) == 0 && r.loss.Err() == nil {
		out += "; no /" + cacheDirs[0]
	}
	return out
}

// choose returns the owners of pods that the records name, by the pods' places in the list.
func choose(pods []model.Pod, records []record, uids map[uint32]string, netns func(string) uint32) map[int]owner {
	byAddr, byMAC := map[netip.Addr][]*record{}, map[model.MAC][]*record{}
	for r := range model.Each(records) {
		for _, a := range r.addresses {
			byAddr[a] = append(byAddr[a], r)
		}
		if !r.mac.IsZero() {
			byMAC[r.mac] = append(byMAC[r.mac], r)
		}
	}
	out, best := map[int]owner{}, map[int]match{}
	for i := range pods {
		p := &pods[i]
		list := model.Flat(p.Known(), func(a netip.Addr) []*record { return byAddr[a] })
		if !p.MAC.IsZero() {
			list = append(list, byMAC[p.MAC]...)
		}
		if m, ok := fittest(p, list, uids[p.Netns], netns); ok {
			best[i], out[i] = m, m.record.owner
		}
	}
	withdraw(pods, best, out)
	share(pods, out)
	return out
}

// match is a record that may be about a pod, and what speaks for it.
type match struct {
	record *record
	// proof is higher where more of what is in the record is the pod's own.
	proof int
}

// fittest is the record with the best proof, and of those the newest. Two of one
// time that name different pods are none.
func fittest(p *model.Pod, list []*record, uid string, netns func(string) uint32) (match, bool) {
	var best match
	ambiguous := false
	for _, r := range list {
		proof, ok := r.fits(p, uid, netns)
		if !ok || best.record == r {
			continue
		}
		m, order := match{r, proof}, 1
		if best.record != nil {
			order = cmp.Or(cmp.Compare(m.proof, best.proof), m.record.written.Compare(best.record.written))
		}
		switch {
		case order > 0:
			best, ambiguous = m, false
		case order == 0 && !m.record.same(best.record.owner):
			ambiguous = true
		}
	}
	return best, best.record != nil && !ambiguous
}

// fits reports whether nothing that is known of the pod contradicts the record, and how much of it the pod has.
// netns is the inode of a namespace by its name, 0 if there is none.
func (r *record) fits(p *model.Pod, uid string, netns func(string) uint32) (proof int, ok bool) {
	const byMAC, byLink, byAddress, byNetns, byUID = 1, 1, 2, 4, 8
	if r.uid != "" && uid != "" {
		if r.uid != uid {
			return 0, false
		}
		proof += byUID
	}
	if r.netns != "" && p.NetnsName != "" {
		// A namespace may have several names. One that was found by a process has its
		// path for a name, and perhaps others that are not visible here.
		switch inode := netns(r.netns); {
		case r.netns == p.NetnsName, inode == p.Netns && inode != 0:
			proof += byNetns
		case inode != 0, !strings.Contains(p.NetnsName, "/"):
			return 0, false
		}
	}
	if !r.mac.IsZero() && !p.MAC.IsZero() && r.iface == p.Interface {
		if r.mac != p.MAC {
			return 0, false
		}
		proof += byMAC
	}
	known := p.Known()
	switch {
	case slices.ContainsFunc(r.addresses, func(a netip.Addr) bool { return slices.Contains(known, a) }):
		proof += byAddress
	case len(r.addresses) > 0 && len(p.Addresses) > 0:
		return 0, false
	}
	if slices.Contains(r.hostLinks, p.Link) {
		proof += byLink
	}
	return proof, true
}

// withdraw removes the names of pods in different namespaces to which one record was
// given, but for the one with the best proof if there is a single one.
func withdraw(pods []model.Pod, best map[int]match, out map[int]owner) {
	claims := map[*record][]int{}
	for i, m := range best {
		claims[m.record] = append(claims[m.record], i)
	}
	for _, list := range claims {
		top, at := 0, map[uint32]bool{}
		for _, i := range list {
			if proof := best[i].proof; proof > top {
				top, at = proof, map[uint32]bool{pods[i].Netns: true}
			} else if proof == top {
				at[pods[i].Netns] = true
			}
		}
		for _, i := range list {
			if len(at) > 1 || !at[pods[i].Netns] {
				delete(out, i)
			}
		}
	}
}

// share names the other links of a namespace that has a name. Without an inode namespaces cannot be told apart.
// If links of one namespace have the names of different pods, none has.
func share(pods []model.Pod, out map[int]owner) {
	of, differ := map[uint32]owner{}, map[uint32]bool{}
	for i, o := range out {
		ns := pods[i].Netns
		if x, ok := of[ns]; ok && !x.same(o) {
			differ[ns] = true
		}
		of[ns] = o
	}
	for i := range pods {
		ns := pods[i].Netns
		switch o, ok := of[ns]; {
		case ns == 0:
		case differ[ns]:
			delete(out, i)
		case ok:
			out[i] = o
		}
	}
}
