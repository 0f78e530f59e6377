package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// maxCgroups limits how many cgroups are queried.
const maxCgroups = 20000

// Cgroups lists the programs that may drop what the processes of a cgroup send, from the top of the hierarchy
// down: a packet passes those of its socket's cgroup and of the cgroups above. It walks the first cgroup2 file
// system that is mounted below one of the roots, and fails with ErrNoCgroups if there is none. With an error,
// what could be read is returned too.
func Cgroups(ctx context.Context, roots ...string) ([]model.Program, error) {
	top, err := Hierarchy(roots...)
	if err != nil {
		return nil, err
	}
	return below(ctx, top)
}

// Hierarchy is where the first cgroup2 file system is mounted below one of the roots.
func Hierarchy(roots ...string) (top string, err error) {
	for _, root := range roots {
		for _, dir := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
			top = filepath.Join(root, dir)
			var st unix.Statfs_t
			if unix.Statfs(top, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
				return top, nil
			}
		}
	}
	return "", ErrNoCgroups
}

// ErrNoCgroups says that there is no unified hierarchy of cgroups.
var ErrNoCgroups = errors.New("no cgroup2 filesystem is mounted")

func below(ctx context.Context, root string) (out []model.Program, err error) {
	queried, n := 0, names{by: map[uint32]string{}}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		}
		if queried++; queried > maxCgroups {
			return fmt.Errorf("more than %d cgroups", maxCgroups)
		}
		list, err := egress(path)
		if err != nil {
			return err
		}
		for _, p := range list {
			out = append(out, model.Program{
				Kind: model.ProgramCgroup, ID: uint32(p.ID), Name: n.of(uint32(p.ID)), Direction: model.Egress,
				Cgroup: filepath.Join("/", strings.TrimPrefix(path, root)),
			})
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("list programs of cgroups: %w", err)
	}
	return out, errors.Join(err, n.refused)
}

// egress lists the programs attached to the egress hook of a cgroup, none if the cgroup is gone.
func egress(path string) ([]link.AttachedProgram, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := Attached(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupInetEgress})
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	return list, err
}
