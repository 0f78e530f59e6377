//go:build neighbors

package neighbortest

import (
	"strings"
	"testing"
)

// TestBIRD: BIRD writes the routes to other nodes' pods. What it is not told of is missing; what somebody deletes comes back.
func TestBIRD(t *testing.T) {
	h := up(t).host("node-1")
	configure := func(routes ...string) {
		text := "router id 10.240.0.4;\nprotocol device {}\nprotocol kernel { ipv4 { export all; import none; }; scan time 1; }\nprotocol static { ipv4;\n"
		for _, r := range routes {
			text += "route " + r + ";\n"
		}
		h.write("/etc/bird/bird.conf", text+"}\n")
	}
	h.sh("ip route del " + range2 + "; ip route del " + range3 + "; mkdir -p /run/bird")
	configure(to2, to3)
	start(t, h.command("bird", "-f"))
	h.routes.await(to3 + " dev eth0 proto bird")
	h.healthy("BIRD")

	configure(to2)
	h.sh("birdc configure")
	h.routes.await("Deleted " + range3)
	f := h.told("MissingNodeRoute", "BIRD keeps these routes")
	// It says that BIRD has none, and exits with 1.
	if out, err := h.command("sh", "-c", f.Fix[0]).CombinedOutput(); !strings.Contains(string(out), "Network not found") {
		t.Errorf("%q: %v, %s", f.Fix, err, out)
	}

	configure(to2, to3)
	h.sh("birdc configure")
	h.routes.await(to3 + " dev eth0 proto bird")
	h.sh("ip route del " + range3)
	h.routes.await("Deleted " + range3)
	h.routes.await(to3 + " dev eth0 proto bird")
	h.silent("mended")

	// It announces the range as one, and discards what is for no part of it.
	configure("10.244.0.0/16 blackhole", to2, to3)
	h.sh("birdc configure")
	h.routes.await("blackhole 10.244.0.0/16")
	h.silent("healthy with an aggregate")
	configure("10.244.0.0/16 blackhole", to2)
	h.sh("birdc configure")
	h.routes.await("Deleted " + range3)
	h.told("BlackholeRoute", "no route to "+range3, "birdc show route for "+range3)
}

// TestFRR: FRR learns the routes to other nodes' pods from FRR there, and writes them by nexthop objects.
func TestFRR(t *testing.T) {
	l := up(t)
	h, other := l.host("node-1"), l.host("node-2")
	h.sh("ip route del " + range2 + "; ip route del " + range3)
	for _, x := range []struct {
		*host
		own, peer, announces string
	}{{h, "10.240.0.4", "10.240.0.5", range1}, {other, "10.240.0.5", "10.240.0.4", range2}} {
		x.write("/etc/frr/daemons", "zebra=yes\nbgpd=yes\nvtysh_enable=yes\nzebra_options=\"-A 127.0.0.1\"\nbgpd_options=\"-A 127.0.0.1\"\n")
		x.write("/etc/frr/frr.conf", "router bgp 64512\n bgp router-id "+x.own+"\n no bgp ebgp-requires-policy\n neighbor "+x.peer+
			" remote-as 64512\n neighbor "+x.peer+" timers connect 1\n address-family ipv4 unicast\n  network "+x.announces+"\n exit-address-family\n")
		x.sh("chown -R frr:frr /etc/frr; /usr/lib/frr/frrinit.sh start")
	}
	h.sh("vtysh -c 'configure terminal' -c 'ip route " + range3 + " 10.240.0.6'")
	h.routes.await(range2)
	h.healthy("FRR")

	other.sh("vtysh -c 'configure terminal' -c 'router bgp 64512' -c 'address-family ipv4 unicast' -c 'no network " + range2 + "'")
	h.routes.await("Deleted " + range2)
	f := h.told("MissingNodeRoute", "FRR keeps these routes")
	if out := h.sh(strings.Join(f.Fix, "\n")); !strings.Contains(out, "not in table") && !strings.Contains(out, "0.0.0.0/0") {
		t.Errorf("%q: %s", f.Fix, out)
	}
	other.sh("vtysh -c 'configure terminal' -c 'router bgp 64512' -c 'address-family ipv4 unicast' -c 'network " + range2 + "'")
	h.routes.await(range2)
	h.silent("mended")
}

const vrrp = `
global_defs { vrrp_garp_master_refresh 1 }
vrrp_instance VI {
	interface eth0
	state %STATE
	priority %PRIORITY
	virtual_router_id 51
	advert_int 1
	virtual_ipaddress { 10.240.0.100/16 dev eth0 }
	virtual_routes { %ROUTES }
}
`

func (h *host) keepalived(state, priority, routes string) {
	h.write("/etc/keepalived/keepalived.conf", strings.NewReplacer("%STATE", state, "%PRIORITY", priority, "%ROUTES", routes).Replace(vrrp))
}

// TestKeepalived: the master has the virtual routes.
func TestKeepalived(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("ip route del " + range3)
	h.keepalived("MASTER", "100", to3+" dev eth0")
	start(t, h.command("keepalived", "-n", "-l", "-P"))
	h.routes.await(range3)
	h.healthy("keepalived")

	h.keepalived("MASTER", "100", "10.99.0.0/24 via 10.240.0.6 dev eth0")
	h.sh("kill -HUP $(cat /run/keepalived.pid)")
	h.routes.await("Deleted " + range3)
	h.told("MissingNodeRoute", "keepalived keeps these routes")

	h.keepalived("MASTER", "100", to3+" dev eth0")
	h.sh("kill -HUP $(cat /run/keepalived.pid)")
	h.routes.await(range3)
	h.silent("mended")
}

// TestTwoMasters: a firewall drops what two keepalived say to each other, so both have the address.
func TestTwoMasters(t *testing.T) {
	l := up(t)
	h, other := l.host("node-1"), l.host("node-2")
	h.keepalived("MASTER", "100", "")
	other.keepalived("BACKUP", "90", "")
	start(t, h.command("keepalived", "-n", "-l", "-P", "-D")).await("Entering MASTER STATE")
	second := start(t, other.command("keepalived", "-n", "-l", "-P", "-D"))
	second.await("Entering BACKUP STATE")
	h.silent("healthy")

	other.sh("iptables -I INPUT -p vrrp -j DROP")
	second.await("Entering MASTER STATE")
	h.told("DuplicatePodIP", "10.240.0.100")
	other.sh("iptables -D INPUT -p vrrp -j DROP")
	second.await("Entering BACKUP STATE")
	h.silent("mended")
}
