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

// maxCgroups bounds how many cgroups are asked.
const maxCgroups = 20000

// Cgroups lists the programs that decide over what the processes of a cgroup
// send, from the root down: a packet meets those of its socket's cgroup and of
// the ones above. The unified hierarchy is looked for below each root, and the
// first one taken; ErrNoCgroups says that there is none.
func Cgroups(ctx context.Context, roots ...string) ([]model.Program, error) {
	for _, root := range roots {
		for _, dir := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
			top := filepath.Join(root, dir)
			var st unix.Statfs_t
			if unix.Statfs(top, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
				return below(ctx, top)
			}
		}
	}
	return nil, ErrNoCgroups
}

// ErrNoCgroups says that no unified hierarchy of cgroups is mounted.
var ErrNoCgroups = errors.New("no cgroup2 file system is mounted")

func below(ctx context.Context, root string) (out []model.Program, err error) {
	asked, n := 0, names{}
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
		if asked++; asked > maxCgroups {
			return fmt.Errorf("more than %d cgroups", maxCgroups)
		}
		list, err := sending(path)
		if err != nil {
			return err
		}
		for _, attached := range list {
			id := uint32(attached.ID)
			p := model.Program{Kind: model.ProgramCgroup, ID: id, Name: n.of(id), Direction: model.Egress}
			p.Cgroup = "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
			out = append(out, p)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("list programs of cgroups: %w", err)
	}
	return out, errors.Join(err, n.refused)
}

// sending are the programs at a cgroup's own egress hook.
func sending(path string) ([]link.AttachedProgram, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	defer f.Close()
	list, err := attached(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupInetEgress})
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	return list, err
}
