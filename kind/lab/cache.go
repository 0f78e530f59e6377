package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"

	"github.com/lasthop/lasthop/kind/scenario"
)

// hostFiles makes the directory of a node's files. The kernel's modules are those of
// the machine.
func (l *Lab) hostFiles(n *scenario.Node) error {
	lib := filepath.Join(l.cniRoot(n), "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return fmt.Errorf("make the files of node %s: %w", n.Name, err)
	}
	return wrap(os.Symlink("/lib/modules", filepath.Join(lib, "modules")), "make the files of node %s", n.Name)
}

// container is how the runtime calls a pod, with the names that it has in Kubernetes.
func (l *Lab) container(n *scenario.Node, p *scenario.Pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: l.id + "-" + n.Name + "-" + p.Name, IfName: podInterface,
		NetNS: filepath.Join(netnsDir, l.netns(n.Name+"/"+p.Name)),
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", scenario.PodNamespace}, {"K8S_POD_NAME", p.Name},
		},
	}
}

// played stands for a plugin whose work the lab itself does: it reports the result.
type played struct {
	invoke.DefaultExec
	result types.Result
}

func (e *played) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (e *played) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return json.Marshal(e.result)
}

// remember has libcni keep the result of a pod's plugin in its cache, as it does for
// a container runtime; or forget it.
func (l *Lab) remember(ctx context.Context, n *scenario.Node, p *scenario.Pod, forget bool) error {
	const inside = 1
	r := &result.Result{CNIVersion: result.ImplementedSpecVersion, Interfaces: []*result.Interface{
		{Name: p.Link}, {Name: podInterface, Mac: p.MAC.String(), Sandbox: l.container(n, p).NetNS},
	}}
	for _, q := range podFamilies(p) {
		r.IPs = append(r.IPs, &result.IPConfig{Interface: result.Int(inside), Address: *ipNet(host(q.IP))})
	}
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": %q, "plugins": [{"type": %q}]}`, r.CNIVersion, cniNetwork, n.Plugin))
	if err != nil {
		return err
	}
	runtime := libcni.NewCNIConfigWithCacheDir(nil, filepath.Join(l.cniRoot(n), cniCacheDir), &played{result: r})
	if forget {
		err = runtime.DelNetworkList(ctx, list, l.container(n, p))
	} else {
		_, err = runtime.AddNetworkList(ctx, list, l.container(n, p))
	}
	return wrap(err, "keep the result of pod %s/%s", n.Name, p.Name)
}
