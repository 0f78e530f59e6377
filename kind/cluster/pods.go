package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The labels by which the pods are known.
const (
	labelLab  = "lasthop.io/lab"
	labelNode = "lasthop.io/node"
	labelPod  = "lasthop.io/pod"
)

// kubectl runs the one of the control plane's container, as the cluster's
// administrator.
func (c *Cluster) kubectl(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	return run(ctx, stdin, "docker", append([]string{"exec", "-i", c.Nodes[0].Container, "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf"}, args...)...)
}

type object = map[string]any

// pods makes the pods, waits for them, and finds their processes.
func (c *Cluster) pods(ctx context.Context, s Spec) error {
	// A pod wants the account, which a controller makes.
	if err := await(ctx, func() (bool, error) {
		_, err := c.kubectl(ctx, nil, "get", "serviceaccount", "default")
		return err == nil, nil
	}); err != nil {
		return fmt.Errorf("wait for the service account of pods: %w", err)
	}
	manifest, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": c.manifests(s)})
	if err != nil {
		return fmt.Errorf("write pods: %w", err)
	}
	if _, err := c.kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout=180s", "node", "--all"); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout=180s", "pod", "-l", labelLab); err != nil {
		return err
	}
	if err := c.readRanges(ctx); err != nil {
		return err
	}
	return c.readPods(ctx)
}

// manifests are the pods. Where two nodes have pods of one name, theirs is the node's
// and the pod's.
func (c *Cluster) manifests(s Spec) []object {
	count := map[string]int{}
	for _, pods := range s.Pods {
		for _, p := range pods {
			count[p]++
		}
	}
	var out []object
	for _, n := range c.Nodes {
		for _, p := range s.Pods[n.Name] {
			name := p
			if count[p] > 1 {
				name = n.Name + "-" + p
			}
			out = append(out, object{
				"apiVersion": "v1", "kind": "Pod",
				"metadata": object{"name": name, "labels": object{labelLab: s.Name, labelNode: n.Name, labelPod: p}},
				"spec": object{
					"nodeName": n.Container, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
					"tolerations": []object{{"operator": "Exists"}},
					"containers":  []object{{"name": "lasthop", "image": Image, "imagePullPolicy": "Never", "args": s.Args}},
				},
			})
		}
	}
	return out
}

// readRanges reads the ranges that the cluster gave to its nodes.
func (c *Cluster) readRanges(ctx context.Context) error {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDR string }
		}
	}
	if err := c.get(ctx, &list, "nodes"); err != nil {
		return err
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		for _, item := range list.Items {
			if item.Metadata.Name == n.Container {
				var err error
				if n.PodCIDR, err = netip.ParsePrefix(item.Spec.PodCIDR); err != nil {
					return fmt.Errorf("read range of node %s: %w", n.Container, err)
				}
			}
		}
	}
	return nil
}

// readPods finds the pods' addresses and processes.
func (c *Cluster) readPods(ctx context.Context) error {
	var list struct {
		Items []struct {
			Metadata struct {
				UID    string
				Labels map[string]string
			}
			Status struct{ PodIP string }
		}
	}
	if err := c.get(ctx, &list, "pods", "-l", labelLab); err != nil {
		return err
	}
	found, err := processes()
	if err != nil {
		return err
	}
	for _, item := range list.Items {
		labels := item.Metadata.Labels
		p := Pod{Name: labels[labelPod], PID: found[strings.ReplaceAll(item.Metadata.UID, "-", "_")]}
		if p.IP, err = netip.ParseAddr(item.Status.PodIP); err != nil {
			return fmt.Errorf("read address of pod %s: %w", p.Name, err)
		}
		if p.PID == 0 {
			return fmt.Errorf("find a process of pod %s: none has its UID %s in its cgroup", p.Name, item.Metadata.UID)
		}
		for i := range c.Nodes {
			if n := &c.Nodes[i]; n.Name == labels[labelNode] {
				n.Pods = append(n.Pods, p)
			}
		}
	}
	return nil
}

func (c *Cluster) get(ctx context.Context, list any, args ...string) error {
	out, err := c.kubectl(ctx, nil, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, list); err != nil {
		return fmt.Errorf("read what kubectl get %s prints: %w", args[0], err)
	}
	return nil
}

// processes are processes of pods, by the UIDs in their cgroups with underscores, as
// the kubelet's systemd driver writes them.
func processes() (map[string]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	out := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if uid := podUID(string(text)); uid != "" {
			out[uid] = pid
		}
	}
	return out, nil
}

// podUID is the UID in the cgroup of a pod's process: …/kubepods-besteffort-podUID.slice/…
// (systemd), …/podUID/… (cgroupfs).
func podUID(cgroup string) string {
	const length = len("00000000-0000-0000-0000-000000000000")
	for rest, ok := cgroup, true; ok; {
		if _, rest, ok = strings.Cut(rest, "pod"); ok && len(rest) > length && strings.Count(strings.ReplaceAll(rest[:length], "-", "_"), "_") == 4 && strings.ContainsRune("./", rune(rest[length])) {
			return strings.ReplaceAll(rest[:length], "-", "_")
		}
	}
	return ""
}

// await asks again and again until it is so, there is an error, or ctx ends.
func await(ctx context.Context, so func() (bool, error)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
