package names

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// cacheDirs are where libcni keeps the results of plugins, below the root: for
// the container runtimes, for the kubelet's dockershim, for Multus.
var cacheDirs = []string{"var/lib/cni/results", "var/lib/cni/cache/results", "var/lib/cni/multus/results"}

// Bounds of the cache. A file has some 3 KiB, and a node two for each pod: one is of the loopback device.
const (
	maxCached   = 1 << 20 // bytes
	maxFiles    = 4096    // of one directory
	maxAttached = 64      // interfaces, and addresses, of one file
)

// record is what one file of the cache says of a pod's network.
type record struct {
	owner
	// netns is the name of the pod's network namespace, empty if it has none.
	netns string
	// iface is the interface inside the pod, and mac its MAC; zero if unknown.
	iface     string
	mac       model.MAC
	addresses []netip.Addr
	// hostLinks are interfaces of the result that are not inside the pod.
	hostLinks []string
	written   time.Time
}

// cached is the JSON of a file (libcni's cachedInfo). What else is in it, such as
// the plugin's configuration, has no field here and is never decoded.
type cached struct {
	Kind    string      `json:"kind"`
	IfName  string      `json:"ifName"`
	NetNS   string      `json:"netns"` // of newer versions
	CNIArgs [][2]string `json:"cniArgs"`
	Result  struct {
		Interfaces []struct {
			Name    string `json:"name"`
			MAC     string `json:"mac"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Address   string `json:"address"`
			Interface *int   `json:"interface"`
		} `json:"ips"`
		// IP4 and IP6 are those of results before version 0.3.0.
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IP6 struct {
			IP string `json:"ip"`
		} `json:"ip6"`
	} `json:"result"`
}

// errNotOurs says that a file names no pod: it is of the loopback device, of a
// container that Kubernetes does not know, or of a version without arguments.
var errNotOurs = errors.New("names no pod")

// decode reads the text of a file.
func decode(text []byte) (record, error) {
	var c cached
	if err := json.Unmarshal(text, &c); err != nil {
		return record{}, err
	}
	r := record{owner: c.owner(), iface: c.IfName, netns: nameOfNetns(c.NetNS)}
	if c.Kind != "cniCacheV1" || c.IfName == "lo" || r.name == "" {
		return record{}, errNotOurs
	}
	if err := r.check(); err != nil {
		return record{}, err
	}
	if len(c.Result.Interfaces) > maxAttached || len(c.Result.IPs) > maxAttached {
		return record{}, fmt.Errorf("more than %d interfaces or addresses", maxAttached)
	}
	inside := r.attach(&c)
	texts := []string{c.Result.IP4.IP, c.Result.IP6.IP}
	for _, ip := range c.Result.IPs {
		// An address of another interface of the pod is the pod's too, but not of the link that this file is about.
		if ip.Interface == nil || len(inside) == 0 || inside[*ip.Interface] {
			texts = append(texts, ip.Address)
		}
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return record{}, err
		}
		r.addresses = append(r.addresses, p.Addr().Unmap())
	}
	return r, nil
}

// owner is the pod that the runtime named to the plugins.
func (c *cached) owner() (o owner) {
	for _, arg := range c.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			o.namespace = arg[1]
		case "K8S_POD_NAME":
			o.name = arg[1]
		case "K8S_POD_UID":
			o.uid = arg[1]
		}
	}
	return o
}

// attach takes the result's interfaces, and returns the places in its list of those that are the pod's end of the link.
func (r *record) attach(c *cached) (inside map[int]bool) {
	inside = map[int]bool{}
	for i, x := range c.Result.Interfaces {
		switch {
		case x.Sandbox == "":
			r.hostLinks = append(r.hostLinks, x.Name)
		case x.Name == c.IfName:
			inside[i] = true
			r.netns = cmp.Or(r.netns, nameOfNetns(x.Sandbox))
			// Not every interface has an Ethernet address.
			r.mac, _ = model.ParseMAC(x.MAC)
		}
	}
	return inside
}

// nameOfNetns is the name of a namespace by its path, such as /var/run/netns/cni-0a1b. One of a process has none.
func nameOfNetns(path string) string {
	return model.Either(filepath.Base(filepath.Dir(path)) != "netns", "", filepath.Base(path))
}

// cache reads the files of the cache. It is not safe for concurrent use.
type cache struct {
	root  string
	files input.Known[record]
}

type found struct {
	records []record
	// dirs are the directories that were read, below the root.
	dirs []string
	loss input.Loss
}

func (c *cache) read() found {
	var out found
	defer c.files.Forget()
	for _, dir := range cacheDirs {
		path := filepath.Join(c.root, dir)
		names, err := input.Entries(path, maxFiles, "files")
		out.loss.Add(err)
		if names != nil {
			c.readDir(path, names, &out)
			out.dirs = append(out.dirs, "/"+dir)
		}
	}
	return out
}

func (c *cache) readDir(dir string, names []string, out *found) {
	// The order of a directory's names may differ from reading to reading.
	slices.Sort(names)
	for _, name := range names {
		// NETWORK-CONTAINER-INTERFACE; each pod has one of the loopback device.
		if strings.HasSuffix(name, "-lo") {
			continue
		}
		r, err := c.files.Read(filepath.Join(dir, name), maxCached, func(text []byte, written time.Time) (record, error) {
			r, err := decode(text)
			r.written = written
			return r, err
		})
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotOurs):
		case err != nil:
			out.loss.Add(fmt.Errorf("%s: %w", name, err))
		default:
			out.records = append(out.records, r)
		}
	}
}
