package traffic

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// rights are the capabilities that the tc programs need. CAP_SYS_ADMIN implies
// the first two.
//
// tc programs can load without CAP_PERFMON, but the verifier then also explores
// speculative paths, too many for these programs.
var rights = []struct {
	name string
	bit  uint
	root bool // CAP_SYS_ADMIN implies it
}{
	{"CAP_BPF", unix.CAP_BPF, true},
	{"CAP_PERFMON", unix.CAP_PERFMON, true},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, false},
}

// checkRights returns an UnsupportedError that names missing capabilities.
func checkRights(feature string) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	has := func(bit uint) bool { return data[bit/32].Effective>>(bit%32)&1 != 0 }
	var missing []string
	for _, r := range rights {
		if !has(r.bit) && !(r.root && has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, r.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &model.UnsupportedError{
		Feature: feature,
		Remedy:  "needs " + strings.Join(missing, " and "),
		Err:     unix.EPERM,
	}
}

// refused returns an UnsupportedError with the remedy: privileges or a newer
// kernel.
func refused(feature string, err error) error {
	remedy := "needs Linux 5.10 or later with BTF"
	if errors.Is(err, unix.EPERM) {
		remedy = "needs root in the first user namespace"
	}
	return &model.UnsupportedError{Feature: feature, Remedy: remedy, Err: err}
}
