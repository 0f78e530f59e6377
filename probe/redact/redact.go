// Package redact replaces the names and addresses in what was observed, so that it can be shown to others: a snapshot
// before it is judged, so that findings, fixes and documents follow by themselves, or a reading with its findings.
//
// Sentences of lasthop's own about a source, and errors, are left out, as they may hold anything.
//
// The same name or address becomes the same every time, by a key. Two addresses have as many leading bits in
// common afterwards as before, and stay private, public, link-local or multicast; so ranges hold the same
// addresses, and the verdict is the same. The last 8 bits stay. Names of links keep their length, their leading
// letters by which tools know them, and common beginnings, as rules match those.
//
// Anyone who knows the key can brute-force the addresses and names. lasthop's own key is no secret.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Redactor replaces names and addresses by one key. It remembers the names that it has seen, to find them in the
// texts of rules and comments. It is not for concurrent use. A nil one replaces nothing.
type Redactor struct {
	key []byte
	// addrs and macs are those replaced before, to be fast.
	addrs map[netip.Addr]netip.Addr
	macs  map[model.MAC]model.MAC
	// broadcasts are those whose range is not of whole bytes.
	broadcasts map[netip.Addr]netip.Addr
	// known is what stands for names, the longest of which has that many bytes.
	known   map[string]string
	longest int
}

// New returns a Redactor for a key, which may be empty.
func New(key string) *Redactor {
	return &Redactor{
		key: []byte(key), addrs: map[netip.Addr]netip.Addr{}, macs: map[model.MAC]model.MAC{},
		broadcasts: map[netip.Addr]netip.Addr{}, known: map[string]string{},
	}
}

// Snapshot returns the snapshot without names and addresses. It shares nothing with it.
func (r *Redactor) Snapshot(s *model.Snapshot) *model.Snapshot {
	if r == nil || s == nil {
		return s
	}
	r.learn(s)
	return new(r.copy(reflect.ValueOf(*s)).Interface().(model.Snapshot))
}

// Reading returns the reading without names and addresses. Its findings stay: they are to be
// of what was redacted before.
func (r *Redactor) Reading(x model.Reading) model.Reading {
	if r == nil {
		return x
	}
	r.learn(x.Snapshot)
	r.learn(x.Point.Snapshot)
	findings := x.Findings
	x.Findings = nil
	out := r.copy(reflect.ValueOf(x)).Interface().(model.Reading)
	out.Findings = findings
	return out
}

// Samples returns samples of packets that hold no payload, and other addresses.
func (r *Redactor) Samples(list []model.Sample) []model.Sample {
	if r == nil {
		return list
	}
	return r.copy(reflect.ValueOf(list)).Interface().([]model.Sample)
}

// Addrs are other addresses in place of some.
func (r *Redactor) Addrs(list []netip.Addr) []netip.Addr {
	if r == nil {
		return list
	}
	return model.Map(list, r.Addr)
}

// Node is another name for a node.
func (r *Redactor) Node(name string) string {
	if r == nil {
		return name
	}
	return r.called("node", name)
}

// hash is a keyed hash of a text of some kind, in hex.
func (r *Redactor) hash(kind, text string) string {
	h := hmac.New(sha256.New, r.key)
	h.Write([]byte(kind + "\x00" + text))
	return hex.EncodeToString(h.Sum(nil))
}

// called is another name for one; names of a kind begin alike.
func (r *Redactor) called(kind, name string) string {
	if name == "" {
		return ""
	}
	return kind + "-" + r.hash("name", strings.ToLower(name))[:8]
}

// treatment is how a string field is redacted.
type treatment func(r *Redactor, s string) string

func keep(_ *Redactor, s string) string { return s }

// withhold is for sentences of lasthop's own, and errors, that may hold anything: rather than
// search them for names, nothing is shown of them.
func withhold(_ *Redactor, s string) string { return strings.Repeat("redacted", min(len(s), 1)) }

func as(kind string) treatment {
	return func(r *Redactor, s string) string { return r.called(kind, s) }
}

var (
	text    treatment = (*Redactor).Text
	link    treatment = (*Redactor).link
	comment treatment = (*Redactor).comment
	element treatment = (*Redactor).element
	rule    treatment = (*Redactor).rule
	azureID treatment = (*Redactor).azureID
	file    treatment = (*Redactor).file
)

// fields are the treatments of all plain strings of the model. Strings of a type of
// their own, such as roles and reasons, are lasthop's or the kernel's words.
var fields = map[string]treatment{
	"Node.Name": as("node"), "Node.Kernel": keep, "Node.Plugin": keep, "Node.PluginBy": withhold, "Node.Policy": keep,
	"Node.Residue": keep, "Node.Beside": keep, "Node.Engine": keep, "Node.Attach": keep, "Node.Uplinks": link,
	"NodeSeen.Name": as("node"), "NodeSeen.Recording": file, "NodeSeen.Reason": withhold,
	"Source.Name": keep, "Source.Detail": withhold,
	"Link.Name": link, "Link.Kind": keep,
	"Queue.Link": link, "Queue.Kind": keep, "Queue.Handle": keep,
	"Device.Link": link, "Device.Driver": keep, "DeviceLoss.Name": keep, "NeighborTable.Name": keep, "SocketLimit.Name": keep,
	"Route.Link": link, "Route.Type": keep, "Route.Scope": keep, "Route.Protocol": keep,
	"RoutingRule.In": link, "RoutingRule.Out": link, "RoutingRule.Action": keep, "RoutingRule.Unknown": keep,
	"Neighbor.Link": link, "Neighbor.State": keep,
	"Sysctl.Name": (*Redactor).sysctl, "Sysctl.Value": keep,
	"Pod.Namespace": as("ns"), "Pod.Name": as("pod"), "Pod.UID": (*Redactor).uid, "Pod.Interface": link, "Pod.Link": link,
	"Pod.NetnsName":   (*Redactor).netns,
	"Resolver.By":     keep,
	"FrameRule.Table": keep, "FrameRule.Chain": text, "FrameRule.Text": rule, "FrameRule.Unknown": text, "FrameRule.TargetName": text,
	"IfMatch.Name":      (*Redactor).match,
	"PacketRule.Family": keep, "PacketRule.Table": text, "PacketRule.Chain": text, "PacketRule.Text": rule, "PacketRule.Comment": comment,
	"Lookup.Set": text, "Lookup.Key": keep, "Lookup.Element": text,
	"Set.Family": keep, "Set.Table": text, "Set.Name": text, "Element.Key": element, "Element.Value": element, "Element.Comment": comment,
	"PacketRule.Unknown": text, "PacketRule.Map": text, "PacketRule.Target": text,
	"Chain.Family": keep, "Chain.Table": text, "Chain.Name": text, "Chain.Hook": keep, "Chain.Policy": keep,
	"Chain.Devices": func(r *Redactor, s string) string { return strings.Join(model.Map(strings.Split(s, ","), r.link), ",") },
	"Flow.State":    keep,
	"Program.Name":  text, "Program.Link": link, "Program.Filter": keep, "Program.Cgroup": text,
	"CiliumEndpoint.Labels": as("label"), "CiliumEndpoint.Namespace": as("ns"), "CiliumEndpoint.Name": as("pod"),
	"ClusterNode.Name": as("node"), "ClusterNode.NoRoute": keep,
	"ClusterPod.Namespace": as("ns"), "ClusterPod.Name": as("pod"),
	"AzureNode.SubscriptionID": (*Redactor).uid, "AzureNode.ResourceGroup": as("rg"), "AzureNode.VNet": as("vnet"),
	"AzureNode.VNetResourceGroup": as("rg"), "AzureNode.Subnet": as("subnet"), "AzureNode.RouteTable": as("table"),
	"AzureNode.RouteTableResourceGroup": as("rg"),
	"RouteTable.ID":                     azureID, "RouteTable.Subnets": azureID, "RouteTable.File": file,
	"UDR.Name": as("route"), "UDR.Type": keep,
	"Subnet.ID": azureID, "Subnet.RouteTable": azureID, "Subnet.SecurityGroup": azureID, "Subnet.File": file,
	"EffectiveRoutes.NIC": azureID, "EffectiveRoutes.File": file, "EffectiveRules.NIC": azureID, "EffectiveRules.File": file,
	"NIC.ID": azureID, "NIC.Subnets": azureID, "NIC.SecurityGroup": azureID, "NIC.File": file,
	"SecurityGroup.ID": azureID, "SecurityGroup.File": file, "SecurityRule.Name": as("rule"),
	"SecurityEnd.Names": (*Redactor).tag,
	"HopCount.Link":     link, "Peer.Link": link, "PairCount.Link": link, "MACPair.Link": link, "ARPCount.Link": link, "Series.Link": link,
	"Drop.Location": keep, "Drop.Link": link, "Sample.Location": keep, "Sample.Link": link, "CiliumDrop.Name": keep,
	"Uncounted.Why": keep, "Probe.Link": link,
	"Change.Type": keep, "Change.Family": keep, "Change.Filter": text, "Change.Chain": text,
	"Process.Name": as("program"), "Process.ParentName": as("program"),
}

// copy is a deep copy of a value of the model, redacted.
func (r *Redactor) copy(v reflect.Value) reflect.Value {
	switch x := v.Interface().(type) {
	case netip.Addr:
		return reflect.ValueOf(r.Addr(x))
	case netip.Prefix:
		return reflect.ValueOf(r.Prefix(x))
	case netip.AddrPort:
		return reflect.ValueOf(netip.AddrPortFrom(r.Addr(x.Addr()), x.Port()))
	case model.MAC:
		return reflect.ValueOf(r.MAC(x))
	case model.MACMatch:
		x.Addr = r.MAC(x.Addr)
		return reflect.ValueOf(x)
	case time.Time:
		return v
	case model.Sample:
		x.Head = r.head(x.Protocol, x.Head)
		v = reflect.ValueOf(x)
	case map[string]string:
		// Labels: which pods are meant was decided by those that they have.
		if x == nil {
			return v
		}
		return reflect.ValueOf(map[string]string{})
	}
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(r.field(v, i))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		}
		for i := range v.Len() {
			out.Index(i).Set(r.copy(v.Index(i)))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(r.copy(v.Elem()))
		}
	default:
		return v
	}
	return out
}

func (r *Redactor) field(v reflect.Value, i int) reflect.Value {
	f := v.Field(i)
	plain := reflect.TypeFor[string]()
	if f.Type() != plain && f.Type() != reflect.TypeFor[[]string]() {
		return r.copy(f)
	}
	treat := fields[v.Type().Name()+"."+v.Type().Field(i).Name]
	if treat == nil {
		// A field without a treatment: a test holds that there is none.
		treat = withhold
	}
	if f.Type() == plain {
		return reflect.ValueOf(treat(r, f.String()))
	}
	out := slices.Clone(f.Interface().([]string))
	for i := range out {
		out[i] = treat(r, out[i])
	}
	return reflect.ValueOf(out)
}

// learn remembers the names in a snapshot, and its broadcast addresses.
func (r *Redactor) learn(s *model.Snapshot) {
	if s == nil {
		return
	}
	r.know(s.Node.Name, r.Node(s.Node.Name))
	for _, p := range slices.Concat(s.Pods, s.PastPods) {
		r.knowPod(p.Namespace, p.Name)
		r.know(p.UID, r.uid(p.UID))
		r.know(path.Base(p.NetnsName), path.Base(r.netns(p.NetnsName)))
		r.know(p.Link, r.link(p.Link))
		r.broadcastsOf(p.Addresses)
	}
	for _, p := range s.Cluster.Pods {
		r.knowPod(p.Namespace, p.Name)
	}
	for _, n := range s.Cluster.Nodes {
		r.know(n.Name, r.Node(n.Name))
	}
	for l := range model.Each(s.Links) {
		r.know(l.Name, r.link(l.Name))
		r.broadcastsOf(l.Addresses)
	}
}

func (r *Redactor) knowPod(namespace, name string) {
	r.know(namespace, r.called("ns", namespace))
	r.know(name, r.called("pod", name))
}

// know remembers what stands for a name in texts. The first that was learnt stays.
func (r *Redactor) know(name, instead string) {
	if name == "" || name == instead || name == "." || name == "/" || r.known[name] != "" {
		return
	}
	r.known[name] = instead
	r.longest = max(r.longest, len(name))
}
