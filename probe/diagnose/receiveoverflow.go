package diagnose

import (
	"fmt"

	"github.com/lasthop/lasthop/probe/model"
)

// ReceiveOverflow is the code of this finding.
const ReceiveOverflow model.Code = "ReceiveOverflow"

var receiveOverflow = kind{
	page: Page{
		Code:     ReceiveOverflow,
		Severity: model.Info,
		Title:    "a pod's socket is full and drops what arrives",
		Meaning: "The packets were delivered into the pod, and the socket had no room: the application reads slower than it is sent " +
			"to, or accepts connections too slowly. The network is not at fault.",
		Evidence: "drops for a full buffer (SOCKET_RCVBUFF), backlog (SOCKET_BACKLOG), queue of new connections " +
			"(TCP_LISTEN_OVERFLOW) or memory limit (PROTO_MEM) in the pod's own namespace.",
		Fix: "look at why the application does not keep up: its processor limit above all. A larger buffer only helps against " +
			"bursts.",
	},
	find: findReceiveOverflow,
	ends: []model.HopKind{model.HopPod, model.HopLocal},
}

func findReceiveOverflow(v *view) []finding {
	return v.atSockets(func(d *model.Drop) bool { return fullReasons[d.Reason] != "" }, v.overflowed)
}

func (v *view) overflowed(p *model.Pod, l *lost) model.Finding {
	f := l.finding()
	reason := mostDropped(l.drops)[0].Reason
	f.Title = "the application at " + v.sampledPorts(l) + " does not keep up"
	f.Why = fmt.Sprintf("The packets reached %s and %s (%s). The network is not at fault.", podName(p), fullReasons[reason], reason)
	f.Evidence = dropEvidence(l.drops)
	f.Fix = []string{inside(p) + "ss -lntum # kubectl top pod: is it short of processor time? A larger SO_RCVBUF or net.core.rmem_max helps against bursts"}
	return f
}
