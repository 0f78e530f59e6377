package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

const small = `
topology: {nodes: [{name: a, pods: [p]}, {name: b, pods: [q]}]}
traffic: [{from: a/p, to: [b/q, outside], proto: [tcp, udp, icmp], rate: 10}]
name: small
`

// remains are the namespaces and the state of one lab.
func remains(t *testing.T, id string) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(netnsDir, netnsPrefix+id+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pathOf(id)); err == nil {
		out = append(out, pathOf(id))
	}
	return out
}

func gone(t *testing.T, id string) {
	t.Helper()
	if left := remains(t, id); len(left) > 0 {
		t.Errorf("left of lab %s: %v", id, left)
	}
}

// TestCrash kills a process at every step of bringing a lab up. What it leaves
// is found, and nothing is left of it after Down.
func TestCrash(t *testing.T) {
	t.Parallel()
	for after := 0; ; after++ {
		id := testID(fmt.Sprintf("crash-%d", after))
		cmd := exec.Command("/proc/self/exe", upCommand, id)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		n := 0
		for n <= after && lines.Scan() {
			n++
		}
		whole := n <= after
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed, or done before it was
		if !whole && len(remains(t, id)) == 0 {
			t.Errorf("nothing left after step %d", after)
		}
		all, err := List()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(all, func(i Info) bool { return i.ID == id }) {
			t.Errorf("lab killed at step %d is not listed", after)
		}
		if err := Down(t.Context(), id); err != nil {
			t.Error(err)
		}
		gone(t, id)
		if whole {
			t.Logf("killed at %d steps", after)
			return
		}
	}
}

// TestStrays finds namespaces that are named like a lab's and belong to none.
func TestStrays(t *testing.T) {
	t.Parallel()
	id := testID("stray")
	prefix := netnsPrefix + id
	left := []string{prefix, prefix + "-node", prefix + ".p1"}
	for _, name := range left {
		if err := createNetns(name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := deleteNetns(name); err != nil {
				t.Error(err)
			}
		})
	}
	if got, err := strays(prefix); err != nil || !slices.Equal(got, left) {
		t.Errorf("strays: %q, %v; want %q", got, err, left)
	}
	d, err := claimDir(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	got, err := strays(prefix)
	if want := []string{prefix, prefix + ".p1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("beside a lab: %q, %v; want %q", got, err, want)
	}
	if err := d.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCancel ends ctx at every step; Up undoes what it did.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := parse(t, small)
	for after := 1; ; after++ {
		id := testID(fmt.Sprintf("cancel-%d", after))
		ctx, cancel := context.WithCancel(t.Context())
		steps := 0
		l, err := Up(ctx, s, Options{ID: id, Log: func(string, ...any) {
			if steps++; steps == after {
				cancel()
			}
		}})
		cancel()
		if steps < after {
			if err != nil {
				t.Error(err)
			}
			if err := l.Down(t.Context()); err != nil {
				t.Error(err)
			}
			gone(t, id)
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at step %d: %v", after, err)
		}
		gone(t, id)
	}
}

// TestFailure makes the last step fail; Up undoes the others and touches
// nothing that was there before.
func TestFailure(t *testing.T) {
	t.Parallel()
	s := parse(t, small)
	s.Faults = []scenario.Fault{{Type: scenario.WrongNeighbor, Node: "a", Pod: "a/none"}}
	id := testID("failure")
	if _, err := Up(t.Context(), s, Options{ID: id}); err == nil || !strings.Contains(err.Error(), `no pod "a/none"`) {
		t.Errorf("got %v", err)
	}
	gone(t, id)

	name := netnsPrefix + id + "-a"
	if err := createNetns(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), s, Options{ID: id}); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("got %v", err)
	}
	if left := remains(t, id); len(left) != 1 {
		t.Errorf("a foreign namespace was touched: %v", left)
	}
	if err := deleteNetns(name); err != nil {
		t.Error(err)
	}
	if err := deleteNetns(name); err != nil {
		t.Errorf("delete what is not there: %v", err)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	s := parse(t, small)
	for _, id := range []string{"../x", "a/b", "UP", "a b", "-", strings.Repeat("a", 41)} {
		if _, err := Up(t.Context(), s, Options{ID: id}); err == nil {
			t.Errorf("lab %q is up", id)
		}
		if _, err := Find(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("find %q: %v", id, err)
		}
		if err := Down(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("down %q: %v", id, err)
		}
	}
	l := up(t, s, "ids")
	if _, err := Up(t.Context(), s, Options{ID: l.ID()}); !errors.Is(err, ErrExists) {
		t.Errorf("second lab of that ID: %v", err)
	}
	found, err := Find(l.ID())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(found.Nodes(), l.Nodes()) || found.Scenario().Title != s.Title || len(found.Scenario().Traffic) != len(s.Traffic) {
		t.Errorf("found %+v", found)
	}
	if err := found.Inject(t.Context(), scenario.Fault{Type: scenario.DeleteUDR}); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := found.Down(t.Context()); err != nil {
			t.Error(err)
		}
	}
	gone(t, l.ID())
	if err := found.Inject(t.Context(), scenario.Fault{Type: scenario.DeleteUDR}); !errors.Is(err, ErrNotFound) {
		t.Errorf("inject into a lab that is down: %v", err)
	}
}

// TestDownDuringTraffic: a lab goes down with its traffic on, and waits for it.
func TestDownDuringTraffic(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, small), "busy")
	stop := run(t, l)
	if err := l.RunTraffic(t.Context(), func() { t.Error("ready twice") }); !errors.Is(err, ErrBusy) {
		t.Errorf("second traffic: %v", err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if !l.traffic.ended() {
		t.Error("traffic outlived its lab")
	}
	stop()
	gone(t, l.ID())
}

// TestDetachedTraffic: the traffic of another process flows, is counted, is
// the only one, and ends with the lab.
func TestDetachedTraffic(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, small), "detached")
	argv := []string{"/proc/self/exe", trafficCommand, l.ID()}
	if err := StartTraffic(t.Context(), l.ID(), []string{"/proc/self/exe", deafCommand, l.ID()}); err == nil || !strings.Contains(err.Error(), "ears are shut") {
		t.Errorf("a process that fails: %v", err)
	}
	if err := StartTraffic(t.Context(), l.ID(), argv); err != nil {
		t.Fatal(err)
	}
	if err := StartTraffic(t.Context(), l.ID(), argv); !errors.Is(err, ErrBusy) {
		t.Errorf("second traffic: %v", err)
	}
	pid := trafficPID(l.ID())
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("process %d is in session %d, %v", pid, sid, err)
	}
	all, err := List()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(i Info) bool { return i.ID == l.ID() }); i < 0 || all[i].TrafficPID != pid || !all[i].Whole {
		t.Errorf("listed %+v", all)
	}
	if err := Down(t.Context(), l.ID()); err != nil {
		t.Error(err)
	}
	if unix.Kill(pid, 0) == nil {
		t.Errorf("process %d outlived its lab", pid)
	}
	gone(t, l.ID())
	if err := StartTraffic(t.Context(), l.ID(), argv); !errors.Is(err, ErrNotFound) {
		t.Errorf("traffic of no lab: %v", err)
	}
}

// TestServeTraffic: the process ends at SIGTERM, when its time is over, and
// when its lab is gone in a way that did not kill it.
func TestServeTraffic(t *testing.T) {
	t.Parallel()
	start := func(l *Lab) *exec.Cmd {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd := exec.Command("/proc/self/exe", trafficCommand, l.ID())
		cmd.ExtraFiles = []*os.File{w}
		cmd.Stderr = new(bytes.Buffer)
		err = cmd.Start()
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := awaitReady(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, cmd.Stderr)
		}
	}
	l := up(t, parse(t, small), "serve")
	cmd := start(l)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	end(cmd)

	cmd = start(l)
	if err := os.Rename(pathOf(l.ID()), pathOf(l.ID())+"-away"); err != nil {
		t.Fatal(err)
	}
	end(cmd)
	if err := os.Rename(pathOf(l.ID())+"-away", pathOf(l.ID())); err != nil {
		t.Fatal(err)
	}

	short := up(t, parse(t, "duration: 1s\n"+small), "short")
	end(start(short))
	if s := short.Stats(); len(s) != 6 || s[0].Answered == 0 {
		t.Errorf("counts of another process: %+v", s)
	}
}

// TestReusedPID: a number that another process has now is not killed.
func TestReusedPID(t *testing.T) {
	t.Parallel()
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.running() {
		t.Error("this process does not run")
	}
	other := self
	other.Start++
	if other.running() {
		t.Error("another process is taken for this one")
	}
	if err := other.kill(t.Context()); err != nil { // or there is no test any more
		t.Error(err)
	}
}

func TestMissingTool(t *testing.T) {
	t.Parallel()
	_, err := findTool("lasthop-no-such-tool")
	var missing *MissingToolError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "apt-get install iptables") {
		t.Errorf("got %v", err)
	}
}

// TestLegacyTables: rules are in the tables that the lab was made with, and one that
// was found again knows these.
func TestLegacyTables(t *testing.T) {
	t.Parallel()
	s := parse(t, `
name: legacy
topology: {nodes: [{name: a, plugin: kindnet, pods: [p]}, {name: b, plugin: kindnet}]}
traffic: [{from: a/p, to: b, proto: icmp}]
`)
	l, err := Up(t.Context(), s, Options{ID: testID("legacy"), Tables: model.Legacy, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	found, err := Find(l.ID())
	if err != nil {
		t.Fatal(err)
	}
	rules := map[model.Backend]int{}
	err = found.with("a", func(sp *space) error {
		if sp.tables != model.Legacy {
			t.Errorf("the lab that was found has tables %q", sp.tables)
		}
		for _, tables := range []model.Backend{model.NFT, model.Legacy} {
			sp.tables = tables
			out, err := sp.pipe("", iptables, "-t", "nat", "-S")
			if err != nil {
				return err
			}
			rules[tables] = strings.Count(out, "\n-A ")
		}
		return nil
	})
	if err != nil || rules[model.Legacy] == 0 || rules[model.NFT] != 0 {
		t.Errorf("rules %v, %v", rules, err)
	}
}

// TestFabric: who-has is answered by F for any address, whoever has it; the
// gateway answers no ping, and what leads nowhere comes back with nothing.
func TestFabric(t *testing.T) {
	t.Parallel()
	s := parse(t, `
name: fabric
timeout: 1s
topology: {nodes: [{name: a, plugin: azure-bridge, pods: [p]}, {name: b, plugin: azure-bridge}]}
traffic:
  - {from: [a, a/p], to: [10.240.0.1, 10.240.77.77, 10.9.9.9, 203.0.113.99], proto: [icmp, udp, tcp], rate: 10}
`)
	l := up(t, s, "fabric")
	trial(t, l, 2, 2, func(FlowStats) bool { return true })
	for _, s := range l.Stats() {
		if !strings.HasSuffix(s.LastError, "i/o timeout") {
			t.Errorf("%s: %s: the fabric is not silent", s.Flow, s.LastError)
		}
	}
	node, err := l.open("b")
	if err != nil {
		t.Fatal(err)
	}
	defer node.close()
	for _, a := range []string{"10.240.0.1", "10.240.0.4", "10.240.0.32", "10.240.99.99"} {
		got := whoHas(t, node, s.Topology.Nodes[1], netip.MustParseAddr(a))
		if got != s.Topology.FabricMAC.String() {
			t.Errorf("who has %s: %s", a, got)
		}
	}
}

// whoHas asks for an address on the node's network card and returns who
// answers, by a packet socket: the kernel's own table would hide the frames.
func whoHas(t *testing.T, sp *space, n scenario.Node, a netip.Addr) string {
	t.Helper()
	link, err := sp.link(n.NIC)
	if err != nil {
		t.Fatal(err)
	}
	// ETH_P_ALL in network order: what a bridge takes from its port is seen
	// by those that ask for everything only.
	const all = 0x0300
	fd := -1
	err = sp.ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(fd), "packet").Close()
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{},
		&layers.Ethernet{SrcMAC: n.MAC[:], DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
			SourceHwAddress: n.MAC[:], SourceProtAddress: n.IP.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: a.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, buf.Bytes()); err != nil {
		t.Fatal(err)
	}
	in := make([]byte, 128)
	for {
		size, err := unix.Read(fd, in)
		if err != nil {
			t.Errorf("who has %s: %v", a, err)
			return ""
		}
		p := gopacket.NewPacket(in[:size], layers.LayerTypeEthernet, gopacket.Default)
		reply, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		if ok && reply.Operation == layers.ARPReply && bytes.Equal(reply.SourceProtAddress, a.AsSlice()) {
			return net.HardwareAddr(reply.SourceHwAddress).String()
		}
	}
}

// TestDebris: what a crash leaves at its worst moments is found and removed.
func TestDebris(t *testing.T) {
	t.Parallel()
	id := testID("debris")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(pathOf(id), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(pathOf(id), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listed := func() {
		t.Helper()
		all, err := List()
		if err != nil || !slices.ContainsFunc(all, func(i Info) bool { return i.ID == id && !i.Whole }) {
			t.Errorf("listed %+v, %v", all, err)
		}
		if _, err := Find(id); !errors.Is(err, ErrIncomplete) {
			t.Errorf("found: %v", err)
		}
		if err := Down(t.Context(), id); err != nil {
			t.Error(err)
		}
		gone(t, id)
	}
	// Before the record was in its place.
	write(labFile+".new", "{")
	listed()
	// With a namespace's file made, and nothing mounted on it.
	if err := shareNetnsDir(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(netnsDir, netnsPrefix+id+"-a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write(labFile, fmt.Sprintf(`{"ID": %q, "Spaces": ["%[2]s-a", "%[2]s-b"]}`, id, netnsPrefix+id))
	listed()
	// A record that names what is no lab's.
	write(labFile, `{"Spaces": ["../../etc", "mine"]}`)
	if err := Down(t.Context(), id); err == nil || !strings.Contains(err.Error(), "not a lab's") {
		t.Errorf("removed a foreign namespace: %v", err)
	}
	if err := removeDir(pathOf(id)); err != nil {
		t.Error(err)
	}
}

// TestLockWaits: nobody takes a lab down while another works on it.
func TestLockWaits(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, small), "locked")
	d, err := lockDir(t.Context(), l.ID())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Down(ctx, l.ID()) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("down while another works on the lab: %v", err)
	}
	d.close()
}

// TestFreshMachine: labs need nothing that an earlier one left, and all go down
// at once.
func TestFreshMachine(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", freshCommand, testID("fresh"))
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
