package traffic

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/probe/model"
)

// TestRemedy wants nothing suggested that this kernel and process have.
func TestRemedy(t *testing.T) {
	for _, tt := range []struct {
		name  string
		needs needs
		err   error
		want  string
	}{
		{"older kernel", needs{99, 1, rights, "x"}, unix.EPERM, "Linux 99.1 or later"},
		{"this kernel, another cause", needs{5, 10, rights, "another cause"}, unix.EINVAL, "another cause"},
		{"a capability that does not exist", needs{5, 10, []cap.Value{63}, "x"}, unix.EPERM, "63"},
	} {
		if got := tt.needs.remedy(tt.err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for _, f := range Features(newNS(t)) {
		if f.Status != model.OK {
			t.Errorf("as root: %+v", f)
		}
	}
	// What is refused to root has another cause than a capability.
	for _, words := range []string{"needs CAP_", "Linux", "MEMLOCK"} {
		if err := refused("load", unix.EPERM); strings.Contains(err.Error(), words) {
			t.Errorf("%v", err)
		}
	}
}
