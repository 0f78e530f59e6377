package traffic

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/lasthop/lasthop/probe/model"
)

// kfreeParams are the tracepoint's parameters with a reason among them: the
// context, the packet, the location and the reason. Linux 5.17 added the
// reason, and a later one a socket behind it.
const kfreeParams = 4

// hasReason tells whether this kernel's kfree_skb gives a reason.
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

// reasonNames reads the names of the drop reasons, whose numbers differ from
// kernel to kernel; nil where there are none.
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

// reason names a number. Subsystems in modules have reasons of their own,
// which the kernel's types do not name.
func (d *drops) reason(n uint32) model.Reason {
	if d.names == nil {
		return ""
	}
	if name, ok := d.names[n]; ok {
		return name
	}
	return model.Reason(fmt.Sprintf("REASON_%d_%d", n>>16, n&0xffff))
}
