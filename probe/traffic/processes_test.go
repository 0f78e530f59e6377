package traffic_test

import (
	"os/exec"
	"testing"

	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/traffic"
)

// TestEndsMeanwhile: a process that ends while it is looked at has the pod of its cgroup, as one that had ended before.
func TestEndsMeanwhile(t *testing.T) {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c := exec.Command("sleep", "60")
	p, err := traffic.OpenProcesses(ns, func(pid int, cgroup uint64) (namespace, name string) {
		if cgroup != 0 {
			return "shop", "cart"
		}
		if c.ProcessState == nil && pid == c.Process.Pid {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		return "", ""
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if got := p.Who(uint32(c.Process.Pid), "sleep"); got.Pod != "cart" || got.Namespace != "shop" {
		t.Errorf("%+v", got)
	}
}
