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
	return new(redacted(r, *s))
}

// redacted is a deep copy of a value without names and addresses, the value itself without a Redactor.
func redacted[T any](r *Redactor, x T) T {
	if r == nil {
		return x
	}
	return r.copy(reflect.ValueOf(x)).Interface().(T)
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
	out := redacted(r, x)
	out.Findings = findings
	return out
}

// Samples returns samples of packets that hold no payload, and other addresses.
func (r *Redactor) Samples(list []model.Sample) []model.Sample { return redacted(r, list) }

// Addrs are other addresses in place of some.
func (r *Redactor) Addrs(list []netip.Addr) []netip.Addr { return redacted(r, list) }

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

type treatment func(r *Redactor, s string) string

func keep(_ *Redactor, s string) string { return s }

// withhold is for sentences of lasthop's own, and errors, that may hold anything: rather than
// search them for names, nothing is shown of them.
func withhold(_ *Redactor, s string) string { return strings.Repeat("redacted", min(len(s), 1)) }

// treatments are those of plain strings of the model, by what their fields' tags say. Any other tag is the kind of thing
// that is called so. Strings of a type of their own, such as roles and reasons, are lasthop's or the kernel's words.
var treatments = map[string]treatment{
	"keep": keep, "withhold": withhold, "text": (*Redactor).Text, "link": (*Redactor).link, "comment": (*Redactor).comment,
	"element": (*Redactor).element, "ruleText": (*Redactor).rule, "azureID": (*Redactor).azureID, "file": (*Redactor).file,
	"uid": (*Redactor).uid, "netns": (*Redactor).netns, "match": (*Redactor).match, "sysctl": (*Redactor).sysctl, "tag": (*Redactor).tag,
	"links": func(r *Redactor, s string) string { return strings.Join(model.Map(strings.Split(s, ","), r.link), ",") },
	// A field without a tag: a test holds that there is none.
	"": withhold,
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
	kind := v.Type().Field(i).Tag.Get("redact")
	treat := treatments[kind]
	if treat == nil {
		treat = func(r *Redactor, s string) string { return r.called(kind, s) }
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
