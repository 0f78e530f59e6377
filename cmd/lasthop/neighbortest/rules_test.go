//go:build neighbors

package neighbortest

import (
	"strings"
	"testing"
)

// TestFirewalld: the pods' bridge is in a zone, from which nothing is forwarded to another.
func TestFirewalld(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("dbus-daemon --system --fork --nopidfile; firewalld --nopid; gdbus wait --system --timeout 60 org.fedoraproject.FirewallD1; firewall-cmd --state")
	h.sh("firewall-cmd --permanent --zone=trusted --add-interface=cni0; firewall-cmd --permanent --zone=trusted --add-interface=eth0; firewall-cmd --reload")
	h.healthy("firewalld")

	h.sh("firewall-cmd --permanent --zone=internal --change-interface=cni0; firewall-cmd --permanent --zone=public --change-interface=eth0; firewall-cmd --reload")
	f := h.told("PolicyDrop", "It belongs to firewalld", "destination address="+range1)
	h.mend(f)
	h.silent("mended")
	h.sh("firewall-cmd --reload")
	h.silent("after its next turn")
}

// TestUFW: what is forwarded is denied, as is ufw's default.
func TestUFW(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("ufw default allow routed; ufw --force enable")
	h.healthy("ufw")

	h.sh("ufw default deny routed; ufw reload")
	f := h.told("PolicyDrop", "It belongs to ufw", "ufw route allow from "+range1, "ufw route allow to "+range1)
	if fix := strings.Join(f.Fix, "\n"); strings.Contains(fix, "-P FORWARD") {
		t.Errorf("%q", fix)
	}
	h.mend(f)
	h.silent("mended")
	h.sh("ufw reload")
	h.silent("after its next turn")

	// A rule that somebody gave it.
	h.sh("ufw route prepend deny from " + range1 + " to " + range2)
	f = h.told("PolicyDrop", "It belongs to ufw", "ufw status numbered")
	h.sh("ufw route delete deny from " + range1 + " to " + range2)
	h.silent("mended again")
}

// TestDocker: where Docker enables forwarding, it sets FORWARD's policy to DROP.
func TestDocker(t *testing.T) {
	h := up(t).host("node-1")
	dockerd := []string{"dockerd", "--storage-driver", "vfs", "--cgroup-parent", "/lasthop-neighbors"}
	first := h.command(dockerd...)
	start(t, first).await("API listen on")
	h.healthy("Docker")

	h.sh("kill $(cat /run/docker.pid)")
	first.Wait() //nolint:errcheck // it was told to end
	h.sh("sysctl -w net.ipv4.ip_forward=0")
	second := h.command(dockerd...)
	start(t, second).await("API listen on")
	f := h.told("PolicyDrop", "It belongs to Docker", "iptables -I DOCKER-USER -s "+range1)
	h.mend(f)
	h.silent("mended")

	h.sh("kill $(cat /run/docker.pid)")
	second.Wait() //nolint:errcheck // it was told to end
	start(t, h.command(dockerd...)).await("API listen on")
	h.silent("after its next turn")
}

// TestPodman: a network of Podman's has the range of another node's pods.
func TestPodman(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("mkdir -p /var/rootfs/bin; cp /bin/busybox /var/rootfs/bin/")
	podman := func(args string) string {
		return "podman --network-backend netavark --storage-driver vfs --cgroup-manager cgroupfs --runtime crun " + args
	}
	const busy = " --cgroups disabled --rootfs /var/rootfs /bin/busybox "
	h.sh(podman("run -d --name one" + busy + "sleep 1000"))
	h.healthy("Podman")

	h.sh(podman("network create --subnet " + range3 + " other"))
	h.sh(podman("run -d --name two --network other" + busy + "sleep 1000"))
	f := h.told("MissingPodRoute", "podman1 has the network "+range3, "podman network")
	if fix := strings.Join(f.Fix, "\n"); strings.Contains(fix, "route del") {
		t.Errorf("%q", fix)
	}
	h.sh(podman("rm -f -t 0 two") + "; " + podman("network rm other"))
	h.silent("mended")
}
