package program

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// load loads a program that does nothing but return a value.
func load(t *testing.T, kind ebpf.ProgramType, name string, ret int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, Name: name, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ret), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func id(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, _ := info.ID()
	return uint32(n)
}

// TestRead attaches by every mechanism, among filters of other kinds and a
// program that goes by lasthop's name, and wants all but the latter in order.
func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("ip link add left type veth peer name right", "ip link set left up", "tc qdisc add dev left clsact",
		"tc filter add dev left ingress pref 5 protocol ip u32 match ip dst 192.0.2.1/32 classid 1:1",
		"tc filter add dev left egress pref 3 protocol ip bpf da bytecode '1,6 0 0 0,'")
	conn, h, err := dump.Route(ns.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer h.Close()
	left, err := h.LinkByName("left")
	if err != nil {
		t.Fatal(err)
	}
	index := left.Attrs().Index
	xdp := load(t, ebpf.XDP, "guard_xdp", 2)
	first, second, mine := load(t, ebpf.SchedCLS, "first", -1), load(t, ebpf.SchedCLS, "second", -1), load(t, ebpf.SchedCLS, "lasthop_ingress", -1)
	filter, held := load(t, ebpf.SchedCLS, "short", 0), load(t, ebpf.SchedCLS, "held", -1)
	var hold bpflink.Link
	if err := ns.Do(func() error {
		if err := netlink.LinkSetXdpFdWithFlags(left, xdp.FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
			return err
		}
		for _, p := range []*ebpf.Program{mine, first, second} {
			if err := bpflink.RawAttachProgram(bpflink.RawAttachProgramOptions{Target: index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: bpflink.Tail()}); err != nil {
				return err
			}
		}
		var err error
		hold, err = bpflink.AttachTCX(bpflink.TCXOptions{Interface: index, Program: held, Attach: ebpf.AttachTCXIngress, Anchor: bpflink.Tail()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	holder, err := hold.Info()
	if err != nil {
		t.Fatal(err)
	}
	err = h.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd: filter.FD(), Name: "a_name_that_is_longer_than_the_kernel's", DirectAction: true})
	if err != nil {
		t.Fatal(err)
	}
	table, err := link.Read(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(t.Context(), ns.NS, conn, table.Links)
	if err != nil {
		t.Fatal(err)
	}
	at := func(d model.Direction, p model.Program) model.Program {
		p.Netns, p.IfIndex, p.Link, p.Direction = ns.Inode(), index, "left", d
		return p
	}
	want := []model.Program{
		at(model.Ingress, model.Program{Kind: model.ProgramXDP, ID: id(t, xdp), Name: "guard_xdp"}),
		at(model.Ingress, model.Program{Kind: model.ProgramTCX, ID: id(t, first), Name: "first"}),
		at(model.Ingress, model.Program{Kind: model.ProgramTCX, ID: id(t, second), Name: "second"}),
		at(model.Ingress, model.Program{Kind: model.ProgramTCX, ID: id(t, held), Name: "held", BPFLink: uint32(holder.ID)}),
		at(model.Ingress, model.Program{Kind: model.ProgramTC, ID: id(t, filter), Name: "a_name_that_is_longer_than_the_kernel's", Filter: "bpf", Priority: 1, Handle: 1}),
		at(model.Ingress, model.Program{Kind: model.ProgramTC, Filter: "u32", Priority: 5, Handle: 0x80000800}),
		at(model.Egress, model.Program{Kind: model.ProgramTC, Filter: "bpf", Priority: 3, Handle: 1, Classic: true}),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestCgroups has two programs on a cgroup of the test's own.
func TestCgroups(t *testing.T) {
	all, err := Cgroups(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "unified")
	}
	group := fmt.Sprintf("/lasthop-test-%d", os.Getpid())
	dir := filepath.Join(root, group)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	var want []model.Program
	for _, name := range []string{"one", "two"} {
		p := load(t, ebpf.CGroupSKB, name, 1)
		l, err := bpflink.AttachCgroup(bpflink.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupInetEgress, Program: p})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		want = append(want, model.Program{Kind: model.ProgramCgroup, ID: id(t, p), Name: name, Direction: model.Egress, Cgroup: group})
	}
	got, err := Cgroups(t.Context(), t.TempDir(), "/")
	if err != nil {
		t.Fatal(err)
	}
	got = slices.DeleteFunc(got, func(p model.Program) bool { return slices.Contains(all, p) })
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := Cgroups(t.Context(), t.TempDir()); !errors.Is(err, ErrNoCgroups) {
		t.Errorf("without a hierarchy: %v", err)
	}
}

// interrupted delivers one message to each dump and calls it inconsistent.
type interrupted []byte

func (i interrupted) Each(_ uint16, _ []byte, _ uint16, f func(m []byte) error) error {
	if err := f(i); err != nil {
		return err
	}
	return dump.ErrInterrupted
}

// TestInterruptedFilters wants the filters of an interrupted dump, and the gap
// reported.
func TestInterruptedFilters(t *testing.T) {
	m := make([]byte, nl.SizeofTcMsg)
	m[8] = 1
	var r reader
	r.filters(t.Context(), interrupted(dump.Append(m, nl.TCA_KIND, []byte("flower\x00"))), &model.Link{Index: 9, Name: "left"}, directions[0])
	if err := errors.Join(r.errs...); !errors.Is(err, dump.ErrInterrupted) {
		t.Errorf("error %v", err)
	}
	if len(r.found) != 1 || r.found[0].Filter != "flower" {
		t.Errorf("found %+v", r.found)
	}
}
