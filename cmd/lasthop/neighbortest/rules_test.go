//go:build neighbors

package neighbortest

import (
	"strings"
	"testing"
)

// asks is what a container runs that asks a pod of another node again and again.
const asks = " /bin/busybox sh -c 'while :; do echo x | /bin/busybox nc -w 1 10.244.1.2 8080; /bin/busybox sleep 0.2; done'"

// TestFirewalld: the pods' bridge is in a zone, from which nothing is forwarded to another. A policy has the name pods.
func TestFirewalld(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("dbus-daemon --system --fork --nopidfile; firewalld --nopid; gdbus wait --system --timeout 60 org.fedoraproject.FirewallD1; firewall-cmd --state")
	h.sh("firewall-cmd --permanent --zone=trusted --add-interface=cni0; firewall-cmd --permanent --zone=trusted --add-interface=eth0; firewall-cmd --reload")
	h.healthy("firewalld")

	h.sh("firewall-cmd --permanent --zone=internal --change-interface=cni0; firewall-cmd --permanent --zone=public --change-interface=eth0; firewall-cmd --reload")
	h.sh("firewall-cmd --permanent --new-policy=pods; firewall-cmd --permanent --policy=pods --set-target=DROP")
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

// TestDocker: a container asks a pod of another node, and needs the node's address for that. Where Docker enables
// forwarding, it sets FORWARD's policy to DROP.
func TestDocker(t *testing.T) {
	h := up(t).host("node-1")
	dockerd := []string{"dockerd", "--storage-driver", "vfs", "--cgroup-parent", "/lasthop-neighbors"}
	first := h.command(dockerd...)
	start(t, first).await("API listen on")
	h.sh("mkdir -p /var/rootfs/bin; cp /bin/busybox /var/rootfs/bin/; tar -C /var/rootfs -c . | docker import - asks; docker run -d --name asks asks" + asks)
	h.healthy("Docker")

	h.sh("iptables -t nat -D POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE")
	h.told("MissingMasquerade", "Docker's containers", "systemctl restart docker")
	h.sh("docker kill asks")
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
	h.sh("docker start asks")
	h.silent("after its next turn")

	h.sh("ip link del docker0")
	h.told("PodLinkOffBridge", "the bridge docker0 of", "systemctl restart docker")
}

// TestPodman: a container asks a pod of another node; then a network of Podman's has the range of another node's pods.
func TestPodman(t *testing.T) {
	h := up(t).host("node-1")
	h.sh("mkdir -p /var/rootfs/bin /etc/containers; cp /bin/busybox /var/rootfs/bin/")
	h.write("/etc/containers/containers.conf", "[network]\nnetwork_backend = \"netavark\"\n[engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"crun\"\n")
	h.write("/etc/containers/storage.conf", "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n")
	h.sh("podman run -d --name one --cgroups disabled --rootfs /var/rootfs" + asks)
	h.healthy("Podman")

	h.sh("ip link del podman0")
	h.mend(h.told("PodLinkOffBridge", "podman network reload --all"))
	h.silent("with its bridge again")

	// Not the rules of the pods beside it.
	h.sh("iptables -t nat -S POSTROUTING | sed -n 's/^-A \\(.*NETAVARK.*\\)/iptables -t nat -D \\1/p' | sh -e")
	h.mend(h.told("MissingMasquerade", "Podman's containers", "podman network reload --all"))
	h.silent("after its next turn")

	h.sh("podman network create --subnet " + range3 + " other; podman run -d --name two --network other --cgroups disabled --rootfs /var/rootfs /bin/busybox sleep 1000")
	f := h.told("MissingPodRoute", "podman1 has the network "+range3, "podman network")
	if fix := strings.Join(f.Fix, "\n"); strings.Contains(fix, "route del") {
		t.Errorf("%q", fix)
	}
	h.sh("podman rm -f -t 0 two; podman network rm other")
	h.silent("mended")
}
