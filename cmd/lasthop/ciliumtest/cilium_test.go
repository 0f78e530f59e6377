//go:build cilium

// Package ciliumtest holds lasthop against the real Cilium, on two nodes in namespaces of
// this machine: make test-cilium.
package ciliumtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// modes are those of tools/cilium/run.
var modes = []string{"aks", "ebpf", "vxlan"}

const (
	outside = "203.0.113.10"
	// silent is an address beyond the fabric that nobody has.
	silent = "203.0.113.66"
	// dns is a service that the machine outside serves.
	dns = "10.96.0.53"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) > 2 && os.Args[1] == "await":
		for _, target := range os.Args[2:] {
			for network, address, _ := strings.Cut(target, "://"); exchange(network, "", address) != nil; {
			}
		}
	case len(os.Args) > 2 && os.Args[1] == "ask":
		ask(os.Args[2], os.Args[3:])
	default:
		os.Exit(m.Run())
	}
}

// serve echoes TCP at 8080 and UDP at 9000, until the input ends.
func serve() {
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		panic(err)
	}
	datagrams, err := net.ListenPacket("udp", ":9000")
	if err != nil {
		panic(err)
	}
	go func() {
		b := make([]byte, 2048)
		for {
			if n, from, err := datagrams.ReadFrom(b); err == nil {
				datagrams.WriteTo(b[:n], from) //nolint:errcheck // who asked asks again
			}
		}
	}()
	go func() {
		for {
			if c, err := listener.Accept(); err == nil {
				go func() {
					defer c.Close()
					io.Copy(c, c) //nolint:errcheck // the other end has closed
				}()
			}
		}
	}()
	fmt.Println("up")
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what is waited for
}

// ask sends a request to each target, network://address:port, each tenth of a second until
// the input ends, from an address where one is given, and prints how many were answered.
func ask(from string, targets []string) {
	end := make(chan bool)
	answered := make(chan string)
	for _, target := range targets {
		go func() {
			network, address, _ := strings.Cut(target, "://")
			sent, ok := 0, 0
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-end:
					answered <- fmt.Sprintf("%s %d of %d", target, ok, sent)
					return
				case <-tick.C:
				}
				sent++
				if exchange(network, from, address) == nil {
					ok++
				}
			}
		}()
	}
	fmt.Println("up")
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what is waited for
	close(end)
	for range targets {
		fmt.Println(<-answered)
	}
}

func exchange(network, from, address string) error {
	d := net.Dialer{Timeout: time.Second}
	if ip := net.ParseIP(from); ip != nil && network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	c, err := d.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second)) //nolint:errcheck // it has deadlines
	if _, err := c.Write([]byte("question")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 8))
	return err
}

// nodes are a running tools/cilium/run.
type nodes struct {
	dir, mode string
	self      string
	// addresses and endpoints are those of pods.
	addresses, endpoints map[string]string
}

func up(t *testing.T, mode string) *nodes {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &nodes{dir: filepath.Join(t.TempDir(), "nodes"), mode: mode, self: self, addresses: map[string]string{}, endpoints: map[string]string{}}
	n.start(t, exec.Command("../../../tools/cilium/run", n.dir, mode))
	// What kubelet writes for the pod cart: its programs ask the service dns of tools/cilium/node.
	n.run(t, "node1", "sh", "-c", `mkdir -p /etc/netns/cart
printf 'search default.svc.cluster.local\nnameserver %s\n' `+dns+` >/etc/netns/cart/resolv.conf`)
	for _, pod := range []string{"cart", "shop", "far"} {
		fields := strings.Fields(n.run(t, nodeOf(pod), "../../../tools/cilium/pod", pod))
		n.addresses[pod], n.endpoints[pod] = fields[0], fields[1]
		n.start(t, n.command(nodeOf(pod), "ip", "netns", "exec", pod, self, "serve"))
	}
	n.start(t, n.command("outside", self, "serve"))
	// Until the agents have told each other of the pods, they allow nothing.
	n.run(t, "node1", append([]string{"ip", "netns", "exec", "cart", self, "await"}, n.targets()...)...)
	return n
}

func nodeOf(pod string) string {
	if pod == "far" {
		return "node2"
	}
	return "node1"
}

// targets are what the pod cart asks all along.
func (n *nodes) targets() []string {
	return []string{"tcp://" + n.addresses["shop"] + ":8080", "tcp://" + n.addresses["far"] + ":8080", "udp://" + n.addresses["far"] + ":9000", "tcp://" + outside + ":8080"}
}

// start starts a command, waits until it says that it is up, and ends its input with the test.
// It returns what ends it before, and gives what it printed meanwhile.
func (n *nodes) start(t *testing.T, cmd *exec.Cmd) (stop func() string) {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	var text string
	stop = func() string {
		if stdin.Close() == nil {
			rest, err := io.ReadAll(out)
			text = string(rest)
			if err := errors.Join(err, cmd.Wait()); err != nil {
				t.Errorf("%v: %v", cmd.Args, err)
			}
		}
		return text
	}
	t.Cleanup(func() { stop() })
	if line, err := out.ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("%v: %q, %v", cmd.Args, line, err)
	}
	return stop
}

// command is one on a node or outside.
func (n *nodes) command(where string, command ...string) *exec.Cmd {
	here, _ := os.Getwd()
	script := filepath.Join(here, "../../../tools/cilium/enter")
	if strings.HasPrefix(command[0], "../") {
		command[0] = filepath.Join(here, command[0])
	}
	return exec.Command(script, append([]string{n.dir, where}, command...)...)
}

func (n *nodes) run(t *testing.T, where string, command ...string) string {
	t.Helper()
	cmd := n.command(where, command...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s%s", command, err, out, errs.String())
	}
	return string(out)
}

// ask asks targets from a pod until it is stopped.
func (n *nodes) ask(t *testing.T, pod, from string, targets ...string) (stop func() string) {
	t.Helper()
	return n.start(t, n.command(nodeOf(pod), append([]string{"ip", "netns", "exec", pod, n.self, "ask", from}, targets...)...))
}

// verdict is lasthop's of node1: its findings that are no information, as "Code severity pods
// peers", and all of them in full.
func (n *nodes) verdict(t *testing.T) (brief []string, full string) {
	t.Helper()
	binary, err := filepath.Abs("../../../bin/lasthop")
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.command("node1", binary, "check", "--for", "6s", "-o", "json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var d struct {
		Findings []struct {
			Code, Severity, Title, Why string
			Pods, Peers                []string
			Evidence                   []struct{ Text string }
			Unseen                     []string
		}
		Lost json.RawMessage
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range d.Findings {
		full += fmt.Sprintf("%s %s: %s\n  %s\n", f.Code, f.Severity, f.Title, f.Why)
		for _, e := range f.Evidence {
			full += "  - " + e.Text + "\n"
		}
		for _, u := range f.Unseen {
			full += "  ? " + u + "\n"
		}
		if f.Severity == "info" {
			continue
		}
		parts := slices.Concat([]string{f.Code, f.Severity}, f.Pods, f.Peers)
		brief = append(brief, strings.ReplaceAll(strings.Join(parts, " "), "/32", ""))
	}
	return brief, full + "lost: " + string(d.Lost)
}

// scenario is one thing done to node1 while its pods are asked.
type scenario struct {
	name string
	// do does it, and returns what undoes it.
	do func(t *testing.T, n *nodes) (undo func())
	// want are the findings; $ stands for the pod's address in $cart, # for its endpoint's number.
	want []string
	// only are the modes in which it is so; none for all.
	only []string
	// says is what the findings' text has, not what it has not.
	says, not []string
}

// restart ends the agent, which starts again.
const restart = "p=$(cat /run/cilium/cilium.pid); kill $p; while kill -0 $p; do sleep 0.1; done 2>/dev/null; "

func nothing(*testing.T, *nodes) func() { return func() {} }

var scenarios = []scenario{
	{name: "healthy", do: nothing},
	{name: "the agent starts again", do: func(t *testing.T, n *nodes) func() {
		agent := func() string {
			return n.run(t, "node1", "sh", "-c", "until cilium-dbg status --brief >&2; do sleep 0.2; done; cat /run/cilium/cilium.pid")
		}
		before := agent()
		go func() {
			time.Sleep(2 * time.Second)
			n.command("node1", "sh", "-c", restart).Run() //nolint:errcheck // seen below
		}()
		return func() {
			if agent() == before {
				t.Error("the agent did not start again")
			}
		}
	}, not: []string{"malformed"}},
	{name: "nobody replies outside", do: func(t *testing.T, n *nodes) func() {
		stop := n.ask(t, "cart", "", "tcp://"+silent+":8080")
		return func() { stop() }
	}, want: []string{"NoReply warning $cart 203.0.113.66"}},
	{name: "the name server has no backend", do: func(t *testing.T, n *nodes) func() {
		n.run(t, "node1", "ip", "netns", "exec", "cart", n.self, "await", "udp://"+dns+":53")
		n.run(t, "node1", "sh", "-c", `sed -i.had '/^endpoints:/,$d' /etc/cilium/lb/state.yaml
while cilium-dbg bpf lb list | grep -q `+outside+`:9000; do sleep 0.2; done`)
		stop := n.ask(t, "cart", "", "udp://"+dns+":53")
		return func() {
			stop()
			n.run(t, "node1", "sh", "-c", "cd /etc/cilium/lb && cat state.yaml.had >state.yaml")
			n.run(t, "node1", "ip", "netns", "exec", "cart", n.self, "await", "udp://"+dns+":53")
		}
	}, want: []string{"DeadBackend warning $cart " + dns}, says: []string{"the name server " + dns + " of $cart has no backend", "the service " + dns + ":53/udp has no backend"}},
	{name: "and one again", do: nothing},
	{name: "a stale bridge rule, and no bridge", do: func(t *testing.T, n *nodes) func() {
		rule := []string{"PREROUTING", "-p", "IPv4", "--ip-dst", n.addresses["shop"], "-j", "dnat", "--to-destination", "02:00:00:00:de:ad"}
		n.run(t, "node1", append([]string{"ebtables-nft", "-t", "nat", "-A"}, rule...)...)
		return func() { n.run(t, "node1", append([]string{"ebtables-nft", "-t", "nat", "-D"}, rule...)...) }
	}},
	{name: "a pod that Cilium does not know", do: func(t *testing.T, n *nodes) func() {
		n.run(t, "node1", "cilium-dbg", "bpf", "endpoint", "delete", n.addresses["shop"])
		// What the finding's fix does.
		return func() {
			n.run(t, "node1", "sh", "-c", restart+"until cilium-dbg bpf endpoint list | grep -q '^"+n.addresses["shop"]+"[: ]'; do sleep 0.2; done")
		}
	}, want: []string{"RoutingLoop critical $shop"}, only: []string{"vxlan"},
		says: []string{"packets for $shop loop ", "has no endpoint with this address",
			"the map cilium_lxc has no entry for $shop", "the agent has $shop as endpoint #shop (default/shop)"}},
	{name: "and one that it knows again", do: nothing},
	{name: "a pod's second address", do: func(t *testing.T, n *nodes) func() {
		n.run(t, "node1", "ip", "-n", "cart", "address", "add", "10.244.1.99/32", "dev", "eth0")
		stop := n.ask(t, "cart", "10.244.1.99", "tcp://"+n.addresses["shop"]+":8080")
		return func() {
			stop()
			n.run(t, "node1", "ip", "-n", "cart", "address", "del", "10.244.1.99/32", "dev", "eth0")
		}
	}, want: []string{"BPFDrop warning 10.244.1.99 $shop"}, only: []string{"aks", "vxlan"},
		says: []string{"Cilium drops packets from 10.244.1.99: invalid source IP", "(app=cart) → an unknown one, egress of endpoint #cart (default/cart), tcp/8080: "}},
	// Without its check of sources Cilium lets it pass, and the fabric brings the replies.
	{name: "a pod's second address, sent from", do: func(t *testing.T, n *nodes) func() {
		n.run(t, "node1", "ip", "-n", "cart", "address", "add", "10.244.1.99/32", "dev", "eth0")
		stop := n.ask(t, "cart", "10.244.1.99", "tcp://"+n.addresses["far"]+":8080")
		return func() {
			stop()
			n.run(t, "node1", "ip", "-n", "cart", "address", "del", "10.244.1.99/32", "dev", "eth0")
		}
	}, want: []string{"MissingPodRoute warning 10.244.1.99"}, only: []string{"ebpf"}},
	// ICMP of a type that nobody has.
	{name: "what Cilium cannot masquerade", do: func(t *testing.T, n *nodes) func() {
		stop := n.ask(t, "cart", "", "ip4:icmp://"+outside)
		return func() { stop() }
	}, want: []string{"BPFDrop warning $cart " + outside}, only: []string{"ebpf", "vxlan"},
		says: []string{"unsupported protocol for NAT masquerade (168)", ", at nodeport_egress.h:"}},
	{name: "a port that the service has not", do: func(t *testing.T, n *nodes) func() {
		stop := n.ask(t, "cart", "", "tcp://"+dns+":81")
		return func() { stop() }
	}, want: []string{"NoReply warning $cart " + dns}, says: []string{"but not on the port that pods use", dns + ":53/udp"}},
	{name: "a policy denies", do: deny, want: []string{"BPFDrop warning $shop $cart"}, only: []string{"aks"},
		says: append([]string{"Cilium drops packets to $shop: policy denied"}, denied...), not: []string{"world"}},
	// There the sender's program asks the receiver's policy.
	{name: "a policy denies", do: deny, want: []string{"BPFDrop warning $cart $shop"}, only: []string{"ebpf", "vxlan"},
		says: append([]string{"Cilium drops packets from $cart: policy denied"}, denied...), not: []string{"world"}},
	{name: "a policy allows", do: allow},
	{name: "a pod elsewhere that Cilium takes for the world", do: forget, want: []string{"BPFDrop warning $shop $far"}, only: []string{"aks"},
		says: []string{"Cilium drops packets to $shop: policy denied", "identity 2 (world) → identity ", "$far has the identity world", "ipcache has no entry for $far"}},
	// There no rule tells the range of pods.
	{name: "a pod elsewhere that Cilium takes for the world", do: forget, want: []string{"BPFDrop warning $shop $far"}, only: []string{"ebpf"},
		says: []string{"Cilium drops packets to $shop: policy denied", "identity 2 (world) → identity ", "whether $far is a pod: Cilium gives it the identity world"}},
	{name: "and one that it knows again", do: nothing, only: []string{"aks", "ebpf"}},
	{name: "a pod that is not Cilium's", do: func(t *testing.T, n *nodes) func() {
		undo := allow(t, n)
		n.run(t, "node1", "sh", "-ec", `ip netns add plain
ip link add veth50 type veth peer name eth0 netns plain
ip link set veth50 up
ip route add 10.244.1.50 dev veth50
ip -n plain link set lo up
ip -n plain link set eth0 up
ip -n plain address add 10.244.1.50/32 dev eth0
ip -n plain route add 169.254.1.1 dev eth0
ip -n plain route add default via 169.254.1.1
ip -n plain neighbour add 169.254.1.1 lladdr $(cat /sys/class/net/veth50/address) dev eth0 nud permanent
ip neighbour add 10.244.1.50 lladdr $(ip netns exec plain cat /sys/class/net/eth0/address) dev veth50 nud permanent`)
		stop := n.ask(t, "plain", "", "tcp://"+n.addresses["shop"]+":8080")
		return func() {
			stop()
			undo()
			n.run(t, "node1", "ip", "netns", "delete", "plain")
		}
	}, want: []string{"BPFDrop warning $shop 10.244.1.50"}, only: []string{"aks"},
		says: []string{"10.244.1.50 has the identity world (outside the cluster): Cilium does not manage the pod, and has no endpoint behind veth50"}, not: []string{"ipcache"}},
}

// forget takes the pod far from what Cilium's programs of node1 know, where a policy allows it
// by its labels. By a tunnel the identity comes with the packets.
func forget(t *testing.T, n *nodes) func() {
	undo := allow(t, n)
	n.run(t, "node1", "cilium-dbg", "bpf", "ipcache", "delete", n.addresses["far"]+"/32")
	stop := n.ask(t, "far", "", "tcp://"+n.addresses["shop"]+":8080")
	return func() {
		stop()
		undo()
		n.run(t, "node1", "sh", "-c", restart+"until cilium-dbg bpf ipcache list | grep -q '^"+n.addresses["far"]+"/32 '; do sleep 0.2; done")
	}
}

// denied is what Cilium says of packets from the pod cart to the pod shop.
var denied = []string{"policy denied (133), identity ", "(app=cart) → identity ", "(app=shop), ingress of endpoint #shop (default/shop), tcp/8080: ",
	"its own count on this node: "}

// deny keeps the pod cart from the pod shop, allow has a policy that does not.
func deny(t *testing.T, n *nodes) func()  { return policy(t, n, "admin") }
func allow(t *testing.T, n *nodes) func() { return policy(t, n, "cart", "far") }

// policy allows some pods, by their names, to ask the pod shop, and no other.
func policy(t *testing.T, n *nodes, pods ...string) func() {
	file := "/etc/cilium/policies/deny.yaml"
	var from []string
	for _, p := range pods {
		from = append(from, `{"matchLabels": {"app": "`+p+`"}}`)
	}
	n.run(t, "node1", "sh", "-c", "cat >"+file+` <<'Y'
{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "deny", "namespace": "default"},
 "spec": {"endpointSelector": {"matchLabels": {"app": "shop"}}, "ingress": [{"fromEndpoints": [`+strings.Join(from, ", ")+`]}]}}
Y
until cilium-dbg endpoint get `+n.endpoints["shop"]+` -o jsonpath='{[0].status.policy.realized.policy-enabled}' | grep -q ingress; do sleep 0.2; done`)
	return func() {
		n.run(t, "node1", "sh", "-c", "rm "+file+"; while cilium-dbg endpoint get "+n.endpoints["shop"]+
			" -o jsonpath='{[0].status.policy.realized.policy-enabled}' | grep -q ingress; do sleep 0.2; done")
	}
}

func TestCilium(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			n := up(t, mode)
			for _, s := range scenarios {
				if len(s.only) > 0 && !slices.Contains(s.only, mode) {
					continue
				}
				t.Run(s.name, func(t *testing.T) { n.play(t, &s) })
			}
			t.Run("explained", n.explained)
		})
	}
}

// explained has paths in Cilium's terms: to a pod of the node, and to a service that
// tools/cilium/node makes without backends.
func (n *nodes) explained(t *testing.T) {
	binary, err := filepath.Abs("../../../bin/lasthop")
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{
		n.addresses["shop"]: "Cilium: endpoint " + n.endpoints["cart"] + " (default/cart), identity ",
		"10.96.0.10:80":     "Cilium has no backend for the service 10.96.0.10:80",
	} {
		out := n.run(t, "node1", "sh", "-c", "'"+binary+"' explain "+n.addresses["cart"]+" --to "+to+" --for 2s -o json || [ $? = 1 ]")
		if !strings.Contains(out, want) {
			t.Errorf("to %s: no %q in\n%s", to, want, out)
		}
	}
}

func (n *nodes) play(t *testing.T, s *scenario) {
	undo := s.do(t, n)
	stop := n.ask(t, "cart", "", n.targets()...)
	got, full := n.verdict(t)
	talk := stop()
	undo()
	named := func(list []string) (out []string) {
		for _, w := range list {
			for name, a := range n.addresses {
				w = strings.ReplaceAll(strings.ReplaceAll(w, "$"+name, a), "#"+name, n.endpoints[name])
			}
			out = append(out, w)
		}
		return out
	}
	want := named(s.want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("findings\n got %q\nwant %q\n%s\nthe pods:\n%s", got, want, full, talk)
	}
	for _, w := range named(s.says) {
		if !strings.Contains(full, w) {
			t.Errorf("no %q in\n%s", w, full)
		}
	}
	for _, w := range s.not {
		if strings.Contains(full, w) {
			t.Errorf("%q in\n%s", w, full)
		}
	}
	// Each place in Cilium's source is a call that drops.
	for _, at := range regexp.MustCompile(`, at (\S+):(\d+)`).FindAllStringSubmatch(full, -1) {
		// A call of several lines has the number of its last.
		script := fmt.Sprintf("cd /var/lib/cilium/bpf; sed -n $((%s - 3)),%sp $(find . -name %s -not -path './include/*')", at[2], at[2], at[1])
		if line := n.run(t, "node1", "sh", "-c", script); !strings.Contains(line, "send_drop_notify") {
			t.Errorf("%s has\n%s", at[0], line)
		}
	}
	t.Logf("%s\n%s", full, talk)
}
