package traffic

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

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

// reasonNames returns the names of the drop reasons, whose numbers differ
// between kernels; nil if the kernel has none.
func reasonNames(types *btf.Spec) map[uint32]model.Reason {
	var e *btf.Enum
	if !hasReason(types) || types.TypeByName("skb_drop_reason", &e) != nil {
		return nil
	}
	names := make(map[uint32]model.Reason, len(e.Values))
	for _, v := range e.Values {
		names[uint32(v.Value)] = model.Reason(strings.TrimPrefix(v.Name, "SKB_DROP_REASON_"))
	}
	return names
}

// reason names a drop reason. Subsystems such as mac80211 register reasons of
// their own, which the enum does not contain.
func (d *drops) reason(n uint32) model.Reason {
	if d.names == nil {
		return ""
	}
	if name, ok := d.names[n]; ok {
		return name
	}
	return model.Reason(fmt.Sprintf("REASON_%d_%d", n>>16, n&0xffff))
}
