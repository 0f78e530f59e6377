package sysctl

import (
	"encoding/binary"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestRead compares with what sysctl(8) prints in the same namespace, which
// differs from the test's own.
func TestRead(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.default.arp_ignore=1 net.ipv6.conf.all.forwarding=1")
	got, err := Read(ns.NS)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, s := range got {
		values[s.Name] = s.Value
		if want := strings.TrimSpace(ns.Output("sysctl -n " + s.Name)); s.Value != want {
			t.Errorf("%s = %s, want %s", s.Name, s.Value, want)
		}
	}
	for name, want := range map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "2",
		"net.ipv4.conf.default.arp_ignore": "1", "net.ipv6.conf.all.forwarding": "1",
	} {
		if values[name] != want {
			t.Errorf("%s = %q, want %s", name, values[name], want)
		}
	}
}

func TestDecode(t *testing.T) {
	values := func(n ...uint32) []byte {
		var b []byte
		for _, v := range n {
			b = binary.NativeEndian.AppendUint32(b, v)
		}
		return b
	}
	four := dump.Append(nil, unix.IFLA_INET_CONF, values(1, 0, 1))
	six := dump.Append(nil, unix.IFLA_INET6_CONF, values(1))
	whole := dump.Append(dump.Append(nil, unix.AF_INET, four), unix.AF_INET6, six)
	got, err := Decode("eth0.7", whole)
	want := []model.Sysctl{
		// An old kernel's shorter array has no more.
		{Name: "net.ipv4.conf.eth0/7.forwarding", Value: "1"},
		{Name: "net.ipv4.conf.eth0/7.proxy_arp", Value: "1"},
		{Name: "net.ipv6.conf.eth0/7.forwarding", Value: "1"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := Decode("x", whole[:len(whole)-3]); err == nil {
		t.Error("cut short without an error")
	}
}

func FuzzDecode(f *testing.F) {
	conf := dump.Append(nil, unix.IFLA_INET_CONF, make([]byte, 4*32))
	f.Add(dump.Append(dump.Append(nil, unix.AF_INET, conf), unix.AF_INET6, dump.Append(nil, unix.IFLA_INET6_CONF, make([]byte, 8))))
	f.Add(dump.Append(nil, unix.AF_INET, conf[:9]))
	f.Fuzz(func(t *testing.T, afSpec []byte) {
		got, _ := Decode("a.b", afSpec)
		for _, s := range got {
			if _, err := strconv.Atoi(s.Value); err != nil || !strings.Contains(s.Name, ".conf.a/b.") {
				t.Errorf("setting %+v", s)
			}
		}
	})
}
