package traffic

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// kfreeParams is the tracepoint's number of parameters since Linux 5.17 added
// the reason: context, skb, location and reason. Later kernels append a socket.
const kfreeParams = 4

// hasReason reports whether this kernel's kfree_skb tracepoint has a reason.
func hasReason(types *btf.Spec) bool {
	var t *btf.Typedef
	if err := types.TypeByName("btf_trace_kfree_skb", &t); err != nil {
		return false
	}
	p, ok := t.Type.(*btf.Pointer)
	if !ok {
		return false
	}
	f, ok := p.Target.(*btf.FuncProto)
	return ok && len(f.Params) >= kfreeParams
}

type reasons struct {
	given bool
	names map[uint32]model.Reason
}

// ofHooks are the numbers of those with which packets are dropped that programs at hooks
// dropped. Where the kernel has no name, it is that of a drop without one.
func (r reasons) ofHooks() (numbers [bpf.DropHookReasonHOOK_REASONS]uint32) {
	for hook, name := range [...]model.Reason{
		bpf.DropHookReasonHOOK_INGRESS: "TC_INGRESS", bpf.DropHookReasonHOOK_EGRESS: "TC_EGRESS",
		bpf.DropHookReasonHOOK_UNNAMED: unspecified,
	} {
		for number, known := range r.names {
			if known == name {
				numbers[hook] = number
			}
		}
	}
	return numbers
}

// kernelReasons are the running kernel's, for which all of its types are read.
var kernelReasons = sync.OnceValues(func() (reasons, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return reasons{}, err
	}
	return reasons{hasReason(types), reasonNames(types)}, nil
})

// subsystems have reasons of their own, in the kernel or in a module. The upper half of such a reason's number is the
// subsystem's, and differs between kernels as the lower one does; the enum's values contain both.
var subsystems = []struct{ module, enum string }{
	{"", "skb_drop_reason"}, {"", "qdisc_drop_reason"},
	{"openvswitch", "ovs_drop_reason"}, {"mac80211", "mac80211_drop_reason"},
}

// reasonNames returns the names of the drop reasons, whose numbers differ between kernels; nil if the kernel has none.
// What is a module in this kernel is not among its types.
func reasonNames(types *btf.Spec) map[uint32]model.Reason {
	if !hasReason(types) {
		return nil
	}
	names := map[uint32]model.Reason{}
	for _, s := range subsystems {
		addNames(names, types, s.enum)
	}
	return names
}

// addModules adds the names of the reasons that modules have which are loaded by now.
func addModules(names map[uint32]model.Reason, module func(string) (*btf.Spec, error)) {
	for _, s := range subsystems {
		if types, err := module(s.module); s.module != "" && err == nil {
			addNames(names, types, s.enum)
		}
	}
}

// addNames adds the names of an enum's values, as the kernel prints them.
func addNames(names map[uint32]model.Reason, types *btf.Spec, enum string) {
	var e *btf.Enum
	if types.TypeByName(enum, &e) != nil {
		return
	}
	for _, v := range e.Values {
		if _, known := names[uint32(v.Value)]; !known {
			names[uint32(v.Value)] = model.Reason(strings.TrimPrefix(v.Name, "SKB_DROP_REASON_"))
		}
	}
}

// reason is why a packet with this key was freed: what the kernel says, or else what derive knows.
func (d *drops) reason(key *bpf.DropDropKey) model.Reason {
	given := d.given(key.Reason)
	if given != "" && given != unspecified {
		return given
	}
	var s signs
	if d.names == nil {
		s = signsOf(key.Reason)
	}
	return cmp.Or(derive(d.release, d.symbols.name(key.Location), s), given)
}

// given names a drop reason. If a subsystem's has no name yet, it is a module's that is loaded by now.
func (d *drops) given(n uint32) model.Reason {
	if d.names == nil {
		return ""
	}
	if _, ok := d.names[n]; !ok {
		if n>>16 != 0 {
			addModules(d.names, d.module)
		}
		// Its number, if no type names it; the modules' types are read once for it.
		d.names[n] = cmp.Or(d.names[n], model.Reason(fmt.Sprintf("REASON_%d_%d", n>>16, n&0xffff)))
	}
	return d.names[n]
}

// unspecified is what kernels give where a function passes no reason.
const unspecified model.Reason = "NOT_SPECIFIED"

// signs tell apart the packets that one function frees. The drop program gives them where the kernel gives no reason.
type signs struct {
	// kind is the packet's type, unix.PACKET_HOST and so on.
	kind uint8
	// last is true if no router may pass the packet on.
	last bool
	// refused is the error of the packet's route, 0 if it has none.
	refused unix.Errno
}

// signsOf decodes what the program's function of this name returns.
func signsOf(n uint32) signs {
	return signs{kind: uint8(n & 7), last: n>>8&1 != 0, refused: unix.Errno(n >> 16)}
}

// release is a kernel's version, as features.LinuxVersionCode gives it.
func release(major, minor uint32) uint32 { return major<<16 | minor<<8 }

// derive is the reason for which a kernel that gives none frees packets in a function: the one that later kernels give
// for the same. It is empty where it cannot be known: whether ip_error means a disabled forwarding or an unreachable
// route, for instance, or ip_rcv_finish_core the reverse path filter or a source that is the receiver's own.
func derive(kernel uint32, location string, s signs) model.Reason {
	for i := range derivations {
		if d := &derivations[i]; kernel < d.before && d.location == location && (d.only == nil || d.only(s)) {
			return d.reason
		}
	}
	return ""
}

// derivations are compared in order. Functions and reasons were observed on Linux 5.10 and 6.1, beside 6.12.
var derivations = []struct {
	// before is the first kernel that gives the reason itself, or frees no such packet.
	before   uint32
	location string
	// only says which of the packets that the function frees are meant; nil for all.
	only   func(signs) bool
	reason model.Reason
}{
	{release(5, 17), "ip_rcv", otherHost, "OTHERHOST"},
	{release(5, 17), "ip_rcv_core", otherHost, "OTHERHOST"},
	{release(5, 17), "ip6_rcv_core", otherHost, "OTHERHOST"},
	{release(5, 17), "nf_hook_slow", nil, "NETFILTER_DROP"},
	{release(5, 17), "ip_error", refusedBy(unix.ENETUNREACH), "IP_INNOROUTES"},
	// Blackhole and prohibit, which no kernel names.
	{release(5, 17), "ip_error", refusedBy(unix.EINVAL), unspecified},
	{release(5, 17), "ip_error", refusedBy(unix.EACCES), unspecified},
	{release(5, 17), "ip_forward", lastHop, "IP_INHDR"},
	{release(5, 17), "ip_forward", forHost, "PKT_TOO_BIG"},
	{release(5, 17), "ip6_forward", lastHop, "IP_INHDR"},
	{release(5, 17), "arp_error_report", nil, "NEIGH_FAILED"},
	{release(5, 17), "ndisc_error_report", nil, "NEIGH_FAILED"},
	{release(5, 17), "neigh_invalidate", nil, "NEIGH_FAILED"},
	{release(5, 18), "ip_finish_output2", nil, "NEIGH_CREATEFAIL"},
	{release(5, 18), "ip6_finish_output2", nil, "NEIGH_CREATEFAIL"},
	{release(5, 18), "enqueue_to_backlog", nil, "CPU_BACKLOG"},
	{release(5, 17), "__netif_receive_skb_core", nil, "TC_INGRESS"},
	{release(5, 17), "__dev_queue_xmit", nil, "TC_EGRESS"},
	{release(5, 17), "kfree_skb_list", nil, "QDISC_DROP"},
	{release(5, 17), "__udp4_lib_rcv", nil, "NO_SOCKET"},
	{release(5, 17), "__udp6_lib_rcv", nil, "NO_SOCKET"},
	// These free what they have delivered.
	{release(6, 3), "icmpv6_rcv", nil, model.Consumed},
	{release(6, 3), "igmp_rcv", nil, model.Consumed},
}

func otherHost(s signs) bool { return s.kind == unix.PACKET_OTHERHOST }
func forHost(s signs) bool   { return s.kind == unix.PACKET_HOST }
func lastHop(s signs) bool   { return s.last }

func refusedBy(e unix.Errno) func(signs) bool { return func(s signs) bool { return s.refused == e } }
