package report_test

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 250 * time.Millisecond: "250ms", 10 * time.Second: "10s", time.Minute: "1m", 90 * time.Second: "1m30s", 59*time.Minute + time.Second: "59m", 2 * time.Hour: "2h", 10*time.Second + 400*time.Millisecond: "10s", 1500 * time.Millisecond: "1.5s", 5*time.Minute + time.Second: "5m1s", 20 * time.Minute: "20m", 90 * time.Minute: "1h30m"} {
		if got := report.Duration(d); got != want {
			t.Errorf("report.Duration(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	for want, p := range map[string]model.Place{
		"not known":     {},
		"a pod egress":  {Role: model.RolePod, Direction: model.Egress},
		"eth0 > fabric": {Link: "eth0", Role: model.RoleUplink, Direction: model.Egress},
		"fabric > eth0": {Link: "eth0", Role: model.RoleUplink, Direction: model.Ingress},
		"pod > veth0":   {Link: "veth0", Role: model.RolePodLink, Direction: model.Ingress},
		"veth0 > pod":   {Link: "veth0", Role: model.RolePodLink, Direction: model.Egress},
		"bridge cbr0":   {Link: "cbr0", Role: model.RoleBridge, Direction: model.Egress},
		"tun0 egress":   {Link: "tun0", Role: model.RoleTunnel, Direction: model.Egress},
		"lo":            {Link: "lo"},
	} {
		if got := report.Place(p); got != want {
			t.Errorf("place(%+v) = %q, want %q", p, got, want)
		}
	}
}
