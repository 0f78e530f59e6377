package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
)

// bpffs is where a node has its file system of BPF objects, below its root.
const bpffs = "sys/fs/bpf"

// ciliumMaps are the tables of services, as Cilium 1.14 to 1.18 have them, pinned below bpffs.
const ciliumMaps = bpffs + "/tc/globals"

// ciliumService has Cilium's tables on a node lead port 53 of a service to the fault's via, or to
// nobody. No program looks at the tables: pods' sockets are as they are.
func ciliumService(x *target) error {
	root := x.cniRoot(x.node)
	if err := errors.Join(x.mountBPF(root), x.ciliumEndpoints(root)); err != nil {
		return err
	}
	services, err := pinnedMap(root, "cilium_lb4_services_v2", 12)
	if err != nil {
		return err
	}
	defer services.Close()
	backends, err := pinnedMap(root, "cilium_lb4_backends_v3", 4)
	if err != nil {
		return err
	}
	defer backends.Close()
	const port, udp = 53, 17
	key := func(slot uint16) []byte {
		out := append(x.Prefix.Addr().AsSlice(), 0, port)
		return append(binary.NativeEndian.AppendUint16(out, slot), udp, 0, 0, 0)
	}
	value := func(backend uint32, count uint16) []byte {
		out := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint32(nil, backend), count)
		return append(out, make([]byte, 6)...)
	}
	if x.undo {
		return errors.Join(ignoreAbsent(services.Delete(key(0))), ignoreAbsent(services.Delete(key(1))))
	}
	if !x.Via.IsValid() {
		return services.Put(key(0), value(0, 0))
	}
	id := binary.BigEndian.Uint32(x.Via.AsSlice())
	end := append(x.Via.AsSlice(), 0, port, udp, 0, 0, 0, 0, 0)
	return errors.Join(backends.Put(binary.NativeEndian.AppendUint32(nil, id), end),
		services.Put(key(1), value(id, 0)), services.Put(key(0), value(0, 1)))
}

func ignoreAbsent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// mountBPF mounts a file system of BPF objects for a node, once.
func (l *Lab) mountBPF(root string) error {
	if _, err := os.Stat(filepath.Join(root, ciliumMaps)); err == nil {
		return nil
	}
	dir := filepath.Join(root, bpffs)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return os.MkdirAll(filepath.Join(root, ciliumMaps), 0o755)
}

// unmountBPF takes the file systems of BPF objects of a lab's nodes down.
func unmountBPF(lab string) error {
	mounts, err := filepath.Glob(filepath.Join(lab, "nodes", "*", bpffs))
	errs := []error{err}
	for _, dir := range mounts {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// pinnedMap opens a map, or makes it.
func pinnedMap(root, name string, key uint32) (*ebpf.Map, error) {
	path := filepath.Join(root, ciliumMaps, name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	const entries, value = 1024, 12
	m, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: key, ValueSize: value, MaxEntries: entries})
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", name, err)
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(fmt.Errorf("pin map %s: %w", name, err), m.Close())
	}
	return m, nil
}

// ciliumEndpoints writes the files of the agent's endpoints.
func (x *target) ciliumEndpoints(root string) error {
	for i := range x.node.Pods {
		p := &x.node.Pods[i]
		l, err := x.sp.link(p.Link)
		if err != nil {
			return err
		}
		dir := filepath.Join(root, "run/cilium/state", fmt.Sprint(100+i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		label := map[string]any{"key": "app", "value": p.Name, "source": "k8s"}
		err = writeJSON(filepath.Join(dir, "ep_config.json"), map[string]any{
			"ID": 100 + i, "IfIndex": l.Attrs().Index, "IPv4": p.IP.String(),
			"K8sPodName": p.Name, "K8sNamespace": scenario.PodNamespace,
			"SecLabel": map[string]any{"id": 9000 + i, "labels": map[string]any{"app": label}},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
