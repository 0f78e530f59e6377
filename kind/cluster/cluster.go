// Package cluster makes clusters of kind and pods in them, by the programs kind and
// docker, and tells where on this machine the network namespaces of both are.
//
// The nodes are containers of this machine's Docker engine: their namespaces can be
// entered as any others. No image comes from a registry but kind's own node image,
// and that only where the engine does not have it.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// Spec is what a cluster shall have.
type Spec struct {
	// Name is kind's for the cluster.
	Name string
	// Image is the nodes' image; empty for kind's own.
	Image string
	// Binary is a static program, which each pod runs with the arguments Args.
	Binary string
	Args   []string
	// Dir is a directory for files that the cluster needs while it is made.
	Dir string
	// PodCIDR is the range of all pods.
	PodCIDR netip.Prefix
	// Nodes are the nodes' names for the caller, the control plane's first, and
	// Pods the pods of each.
	Nodes []string
	Pods  map[string][]string
	// Log receives what is being done, a line a call.
	Log func(format string, args ...any)
}

// Cluster is one that is up.
type Cluster struct {
	// Subnet is the network of the nodes and Gateway its router: this machine.
	Subnet  netip.Prefix
	Gateway netip.Addr
	// Nodes are in the order of the Spec's.
	Nodes []Node
}

// Node is one of a cluster's nodes.
type Node struct {
	// Name is the caller's, Container that of the container and of the node in
	// Kubernetes.
	Name, Container string
	// PID is the node's first process.
	PID     int
	IP      netip.Addr
	PodCIDR netip.Prefix
	Pods    []Pod
}

// Pod is one of a node's pods.
type Pod struct {
	Name string
	IP   netip.Addr
	// PID is a process in the pod.
	PID int
}

// errNotHere says that the engine's containers are not on this machine.
var errNotHere = errors.New("the Docker engine runs its containers on another machine, or in a virtual one")

// Ready says what lacks to make a cluster of this name, as a model.UnsupportedError: the
// program kind or docker, an engine that answers, the image where one is named, or that
// the pods' program is static. A cluster that has the name is an error too.
func Ready(ctx context.Context, name, image, binary string) error {
	const feature = "make a cluster of kind"
	if unix.Geteuid() != 0 {
		return &model.UnsupportedError{Feature: feature, Remedy: "run as root: the nodes' network namespaces are entered", Err: unix.EPERM}
	}
	for _, tool := range []struct{ name, remedy string }{
		{"docker", "install Docker, its command and its engine: apt-get install docker.io docker-cli"},
		{"kind", "install kind: go install sigs.k8s.io/kind@latest"},
	} {
		if _, err := exec.LookPath(tool.name); err != nil {
			return &model.UnsupportedError{Feature: feature, Remedy: tool.remedy, Err: fmt.Errorf("no program %s on PATH", tool.name)}
		}
	}
	if _, err := run(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return &model.UnsupportedError{Feature: feature, Remedy: "start the Docker engine, or say where it is by DOCKER_HOST", Err: err}
	}
	if there, err := containersOf(ctx, name); err != nil || there != "" {
		return cmp.Or(err, fmt.Errorf("make a cluster of kind: one called %s is there already (kind delete cluster --name %s)", name, name))
	}
	if err := isStatic(binary); err != nil {
		return &model.UnsupportedError{Feature: feature, Remedy: "build lasthop with CGO_ENABLED=0", Err: err}
	}
	if image == "" {
		return nil
	}
	if _, err := run(ctx, nil, "docker", "image", "inspect", "--format", "{{.Id}}", image); err != nil {
		return &model.UnsupportedError{Feature: feature, Remedy: "docker pull " + image + ", docker load, or --image one that `docker images` shows", Err: err}
	}
	return nil
}

// Create makes a cluster with its pods. What is there when it fails, Delete removes.
func Create(ctx context.Context, s Spec) (*Cluster, error) {
	s.Log("cluster %s of kind: %d nodes", s.Name, len(s.Nodes))
	if err := create(ctx, s); err != nil {
		return nil, err
	}
	c, err := nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	s.Log("pods, of an image that is made of this program")
	archive := filepath.Join(s.Dir, "image.tar")
	if err := writeImage(archive, s.Binary); err != nil {
		return nil, fmt.Errorf("pack %s as an image: %w", s.Binary, err)
	}
	_, err = run(ctx, nil, "kind", "load", "image-archive", archive, "--name", s.Name)
	if err := errors.Join(err, os.Remove(archive)); err != nil {
		return nil, err
	}
	return c, c.pods(ctx, s)
}

func create(ctx context.Context, s Spec) error {
	type object = map[string]any
	list := []object{{"role": "control-plane"}}
	for range s.Nodes[1:] {
		list = append(list, object{"role": "worker"})
	}
	config, err := json.Marshal(object{
		"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4",
		"networking": object{"ipFamily": "ipv4", "podSubnet": s.PodCIDR.String()},
		"nodes":      list,
	})
	if err != nil {
		return fmt.Errorf("write configuration of kind: %w", err)
	}
	args := []string{"create", "cluster", "--name", s.Name, "--config", "-", "--kubeconfig", filepath.Join(s.Dir, "kubeconfig"), "--wait", "3m"}
	if s.Image != "" {
		args = append(args, "--image", s.Image)
	}
	_, err = run(ctx, config, "kind", args...)
	return err
}

// containers are the names that kind gives to the nodes.
func (s Spec) containers() []string {
	out := []string{s.Name + "-control-plane"}
	for i := range s.Nodes[1:] {
		name := s.Name + "-worker"
		if i > 0 {
			name += fmt.Sprint(i + 1)
		}
		out = append(out, name)
	}
	return out
}

// container is what `docker container inspect` says of one.
type container struct {
	Name            string
	State           struct{ Pid int }
	NetworkSettings struct {
		Networks map[string]struct {
			IPAddress, Gateway string
			IPPrefixLen        int
		}
	}
}

// nodes finds the nodes' containers.
func nodes(ctx context.Context, s Spec) (*Cluster, error) {
	names := s.containers()
	out, err := run(ctx, nil, "docker", append([]string{"container", "inspect"}, names...)...)
	if err != nil {
		return nil, err
	}
	// They are in the order of the arguments.
	var all []container
	if err := json.Unmarshal(out, &all); err != nil || len(all) != len(names) {
		return nil, fmt.Errorf("read what docker container inspect prints of %d nodes: %d, %w", len(names), len(all), err)
	}
	c := &Cluster{}
	for i, got := range all {
		n := Node{Name: s.Nodes[i], Container: names[i], PID: got.State.Pid}
		// Docker Desktop has its processes in a virtual machine.
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/kind", n.PID)); err != nil {
			return nil, &model.UnsupportedError{Feature: "enter node " + n.Container, Remedy: "run lasthop where the engine runs", Err: errNotHere}
		}
		for _, on := range got.NetworkSettings.Networks {
			n.IP, err = netip.ParseAddr(on.IPAddress)
			if err == nil {
				c.Gateway, err = netip.ParseAddr(on.Gateway)
			}
			if err != nil {
				return nil, fmt.Errorf("read address of node %s: %w", n.Container, err)
			}
			c.Subnet = netip.PrefixFrom(n.IP, on.IPPrefixLen).Masked()
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c, nil
}

// Delete removes a cluster; one that is not there is no error. dir is that of its Spec.
func Delete(ctx context.Context, name, dir string) error {
	// kind writes to the kubeconfig, and a file beside it, without asking what is there.
	remove := func() error {
		_, err := run(ctx, nil, "kind", "delete", "cluster", "--name", name, "--kubeconfig", filepath.Join(dir, "kubeconfig"))
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	left, err := containersOf(ctx, name)
	if err == nil && left != "" {
		// The engine went on making one when kind was ended.
		err = remove()
	}
	return err
}

// containersOf are the names of a cluster's containers, running or not.
func containersOf(ctx context.Context, name string) (string, error) {
	out, err := run(ctx, nil, "docker", "ps", "--all", "--filter", "label=io.x-k8s.io.kind.cluster="+name, "--format", "{{.Names}}")
	return strings.TrimSpace(string(out)), err
}

// run runs a program, and returns what it prints.
func run(ctx context.Context, stdin []byte, tool string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	// What it has begun it may end, and so may the programs that it runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		const most = 2000
		said := bytes.TrimSpace(stderr.Bytes())
		said = said[max(0, len(said)-most):]
		return nil, fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, said)
	}
	return stdout.Bytes(), nil
}
