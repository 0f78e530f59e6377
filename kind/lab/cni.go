package lab

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	result "github.com/containernetworking/cni/pkg/types/100"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// cniNetwork is what the labs' CNI configuration calls its network.
const cniNetwork = "pods"

// cniPackage is the Debian package that has the plugins.
const cniPackage = "containernetworking-plugins"

// The plugins beside the one that makes links.
const (
	hostLocal = "host-local"
	portMap   = "portmap"
)

// cniDirs are where the plugins may be: CNI_PATH, the container runtimes'
// directory, Debian's.
func cniDirs() []string {
	return append(filepath.SplitList(os.Getenv("CNI_PATH")), "/opt/cni/bin", "/usr/lib/cni")
}

// findPlugins says which of a scenario's CNI plugins is not installed.
func findPlugins(s *scenario.Scenario) error {
	for _, n := range s.Topology.Nodes {
		if !n.Plugin.CNI() {
			continue
		}
		for _, name := range []string{n.Plugin.Executable(), hostLocal, portMap} {
			if err := findPlugin(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func findPlugin(name string) error {
	if _, err := invoke.FindInPath(name, cniDirs()); err != nil {
		return &MissingToolError{Tool: "the CNI plugin " + name, Package: cniPackage}
	}
	return nil
}

// inside runs CNI plugins in a node's namespace, with the firewall's tools in a
// directory that comes first on the path.
type inside struct {
	invoke.Exec
	sp    *space
	tools string
}

func (e inside) ExecPlugin(ctx context.Context, file string, stdin []byte, env []string) (out []byte, err error) {
	for i, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			env[i] = "PATH=" + e.tools + ":" + path + ":/usr/sbin:/sbin"
		}
	}
	err = e.sp.ns.Do(func() (err error) {
		out, err = e.Exec.ExecPlugin(ctx, file, stdin, env)
		return err
	})
	return out, err
}

// cni is a node as a container runtime sees it.
type cni struct {
	l       *Lab
	node    *scenario.Node
	sp      *space
	runtime *libcni.CNIConfig
	list    *libcni.NetworkConfigList
}

// cniRoot is the directory of a node's files, as on the node below /.
func (l *Lab) cniRoot(n *scenario.Node) string { return filepath.Join(pathOf(l.id), "nodes", n.Name) }

// Where plugins keep what they have given out, below the node's root.
const (
	cniConfigDir = "etc/cni/net.d"
	cniStateDir  = "var/lib/cni/networks"
	cniCacheDir  = "var/lib/cni"
	cniToolsDir  = "usr/sbin"
)

func (l *Lab) cni(n *scenario.Node, sp *space) (*cni, error) {
	root := l.cniRoot(n)
	list, err := writeCNIConfig(filepath.Join(root, cniConfigDir), cniConfig(n, filepath.Join(root, cniStateDir)))
	if err != nil {
		return nil, fmt.Errorf("write CNI configuration: %w", err)
	}
	tools := filepath.Join(root, cniToolsDir)
	if err := linkTools(tools, sp); err != nil {
		return nil, fmt.Errorf("link the tools of CNI plugins: %w", err)
	}
	exec := inside{&invoke.DefaultExec{RawExec: &invoke.RawExec{}}, sp, tools}
	return &cni{l, n, sp, libcni.NewCNIConfigWithCacheDir(cniDirs(), filepath.Join(root, cniCacheDir), exec), list}, nil
}

// linkTools makes links to the variants that keep their rules in the node's tables, by
// the names that plugins run.
func linkTools(dir string, sp *space) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, tool := range []string{iptables, ip6tables} {
		name, _ := variant(tool, sp.tables)
		file, err := findTool(name)
		if err != nil {
			return err
		}
		link := filepath.Join(dir, strings.TrimSuffix(tool, nftVariant))
		if err := os.Symlink(file, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// writeCNIConfig writes a configuration and reads it as a runtime does.
func writeCNIConfig(dir string, config map[string]any) (*libcni.NetworkConfigList, error) {
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "10-"+cniNetwork+".conflist")
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return nil, err
	}
	return libcni.ConfListFromFile(file)
}

// cniConfig is the configuration of a node's network, as an installer writes
// it.
func cniConfig(n *scenario.Node, state string) map[string]any {
	type thing = map[string]any
	var ranges [][]thing
	var routes []thing
	for _, n := range families(n) {
		ranges = append(ranges, []thing{{"subnet": n.PodCIDR.String()}})
		routes = append(routes, thing{"dst": defaultFor(n.IP).String()})
	}
	plugin := thing{
		"type": n.Plugin.Executable(), "ipMasq": n.IPMasq,
		"capabilities": thing{"ips": true, "mac": n.Bridge != ""},
		"ipam": thing{
			"type": hostLocal, "dataDir": state,
			"ranges": ranges, "routes": routes,
		},
	}
	if n.Bridge != "" {
		plugin["bridge"], plugin["isGateway"], plugin["hairpinMode"] = n.Bridge, true, n.Hairpin
	}
	return thing{"cniVersion": "1.0.0", "name": cniNetwork, "plugins": []thing{
		plugin, {"type": portMap, "capabilities": thing{"portMappings": true}, "snat": true},
	}}
}

// container is how the runtime calls a pod.
func (c *cni) container(p *scenario.Pod) *libcni.RuntimeConf {
	ips := []string{p.IP.String()}
	if p.IP6.IsValid() {
		ips = append(ips, p.IP6.String())
	}
	args := map[string]any{"ips": ips}
	if c.node.Bridge != "" {
		args["mac"] = p.MAC.String()
	}
	conf := c.l.container(c.node, p)
	conf.CapabilityArgs = args
	return conf
}

// add connects a pod, whose address it asks for, and notes what the plugin
// called its link.
func (c *cni) add(ctx context.Context, p *scenario.Pod) (err error) {
	defer func() { err = wrap(err, "add pod %s/%s to the network", c.node.Name, p.Name) }()
	got, err := c.runtime.AddNetworkList(ctx, c.list, c.container(p))
	if err != nil {
		return err
	}
	r, err := result.GetResult(got)
	if err != nil {
		return err
	}
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != "":
			if p.MAC, err = model.ParseMAC(i.Mac); err != nil {
				return err
			}
		case i.Name != c.node.Bridge:
			p.Link = i.Name
		}
	}
	return nil
}

// del disconnects a pod.
func (c *cni) del(ctx context.Context, p *scenario.Pod) error {
	return wrap(c.runtime.DelNetworkList(ctx, c.list, c.container(p)), "delete pod %s/%s from the network", c.node.Name, p.Name)
}

// cniPod connects a pod whose namespace is there.
func (b *builder) cniPod(ctx context.Context, n *scenario.Node, p *scenario.Pod, node, pod *space) error {
	c, err := b.cni(n, node)
	if err != nil {
		return err
	}
	if err := c.add(ctx, p); err != nil {
		return err
	}
	if err := joinUp(ctx, node, p.Link, pod, podInterface); err != nil || n.Bridge == "" {
		return err
	}
	return node.awaitUp(ctx, n.Bridge)
}

// pluginMasquerade adds (-A) or removes (-D) the jumps by which the plugin
// masquerades each pod of a node.
func (l *Lab) pluginMasquerade(op string, n *scenario.Node) [][]string {
	var lists [][]string
	for i := range n.Pods {
		id := l.id + "-" + n.Name + "-" + n.Pods[i].Name
		// As the plugins' library names it.
		chain := fmt.Sprintf("CNI-%x", sha512.Sum512([]byte(cniNetwork+id)))[:28]
		lists = append(lists, words("-t nat ? POSTROUTING -s ? -m comment --comment ? -j ?", op, host(n.Pods[i].IP), fmt.Sprintf("name: %q id: %q", cniNetwork, id), chain))
	}
	return lists
}

// reuse has the node forget which addresses are taken, and then give the pod's
// to another anew; or gives the other its own again.
func reuse(x *target) error {
	place, other, err := x.viaPod()
	if err != nil {
		return err
	}
	c, err := x.cni(x.node, x.sp)
	if err != nil {
		return err
	}
	both := *other
	both.IP, both.IP6 = x.pod.IP, x.pod.IP6
	was, now := pick(x, *other, both), pick(x, both, *other)
	if err := c.del(x.ctx, &was); err != nil {
		return err
	}
	if !x.undo {
		if err := os.RemoveAll(filepath.Join(x.cniRoot(x.node), cniStateDir, cniNetwork)); err != nil {
			return fmt.Errorf("forget addresses: %w", err)
		}
	}
	if err := c.add(x.ctx, &now); err != nil {
		return err
	}
	other.Link, other.MAC = now.Link, now.MAC
	return x.with(place, func(pod *space) error { return joinUp(x.ctx, x.sp, other.Link, pod, podInterface) })
}

// HostRoot is the directory of a node's files, as they stand below / there; empty if
// there is no such node.
func (l *Lab) HostRoot(node string) string {
	if root := l.roots[node]; root != "" {
		return root
	}
	if n := l.s.Topology.Node(node); n != nil {
		return l.cniRoot(n)
	}
	return ""
}

// nodeRoute is a node's route to another's pods.
func nodeRoute(t *scenario.Topology, n *scenario.Node, p netip.Prefix) (route, error) {
	for _, other := range t.Nodes {
		for _, other := range families(&other) {
			if other.Name != n.Name && other.PodCIDR == p {
				return route{dst: p, via: other.IP, link: n.NIC}, nil
			}
		}
	}
	return route{}, fmt.Errorf("no other node's pods have %s", p)
}
