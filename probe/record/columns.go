package record

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// columns encode lists of counts as differences from the lists of a key: for each entry the position of its
// counterpart, then field by field the differences. Entries without a counterpart are not encoded.
type columns struct {
	b []byte
	// failed is set where they do not fit what is decoded.
	failed bool
}

// fields are the fields of a count that change, in the order of their columns; nil where there is none. All others identify
// what is counted.
type fields struct {
	numbers [12]*uint64
	times   [3]*time.Time
}

func hop(x *model.HopCount) fields {
	return fields{
		[12]*uint64{&x.Packets, &x.Bytes, &x.SYN, &x.SYNACK, &x.RST, &x.ICMPErrors, &x.FromInside, &x.FromUplink, &x.TTLs},
		[3]*time.Time{&x.First, &x.Last},
	}
}

func peer(x *model.Peer) fields {
	o, i := &x.Out, &x.In
	return fields{
		[12]*uint64{
			&o.Packets, &o.Requests, &o.Replies, &o.Other, &o.ICMPErrors, &o.Fragments,
			&i.Packets, &i.Requests, &i.Replies, &i.Other, &i.ICMPErrors, &i.Fragments,
		},
		[3]*time.Time{&x.FirstOut, &x.LastOut, &x.LastIn},
	}
}

// peerBefore is a peer in recordings without columns of fragments.
func peerBefore(x *model.Peer) fields {
	f := peer(x)
	f.numbers[5], f.numbers[11] = nil, nil
	return f
}

func pair(x *model.PairCount) fields { return fields{numbers: [12]*uint64{&x.Packets}} }

func mac(x *model.MACPair) fields { return fields{numbers: [12]*uint64{&x.Packets}} }

func arp(x *model.ARPCount) fields { return fields{numbers: [12]*uint64{&x.Packets}} }

func drop(x *model.Drop) fields {
	return fields{[12]*uint64{&x.Packets}, [3]*time.Time{&x.First, &x.Last}}
}

// identify makes id what x counts.
func identify[T any](of func(*T) fields, id *T, x T) {
	*id = x
	f := of(id)
	for _, n := range f.numbers {
		if n != nil {
			*n = 0
		}
	}
	for _, t := range f.times {
		if t != nil {
			*t = time.Time{}
		}
	}
}

// encode appends a list and returns the entries without a counterpart in key.
func encode[T comparable](c *columns, of func(*T) fields, key, now []T, from time.Time) (fresh []T) {
	var id, guess T
	var place map[T]int
	c.b = binary.AppendUvarint(c.b, uint64(len(now)))
	old, changed, next := make([]*T, 0, len(now)), make([]*T, 0, len(now)), 0
	for i := range now {
		// Both lists are in the same order, so most counterparts come one after the other.
		identify(of, &id, now[i])
		k, ok := next, false
		if next < len(key) {
			identify(of, &guess, key[next])
			ok = guess == id
		}
		if !ok {
			if place == nil {
				place = make(map[T]int, len(key))
				for i := range key {
					identify(of, &guess, key[i])
					place[guess] = i
				}
			}
			k, ok = place[id]
		}
		if !ok {
			c.b = append(c.b, 0)
			fresh = append(fresh, now[i])
			continue
		}
		c.b, next = binary.AppendUvarint(c.b, 1+zigzag(int64(k-next))), k+1
		old, changed = append(old, &key[k]), append(changed, &now[i])
	}
	for column := range (fields{}).numbers {
		for i := range changed {
			if n := of(changed[i]).numbers[column]; n != nil {
				c.b = binary.AppendUvarint(c.b, zigzag(int64(*n-*of(old[i]).numbers[column])))
			}
		}
	}
	for column := range (fields{}).times {
		for i := range changed {
			if t := of(changed[i]).times[column]; t != nil {
				c.b = binary.AppendUvarint(c.b, since(*t, from))
			}
		}
	}
	return fresh
}

// since encodes a time as the difference from another, 0 for the zero time.
func since(t, from time.Time) uint64 {
	return model.Either(t.IsZero(), 0, 1+zigzag(t.UnixNano()-from.UnixNano()))
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// decode reads a list from encode; fresh are the entries that were not encoded.
func decode[T any](c *columns, of func(*T) fields, key, fresh []T, from time.Time) []T {
	n := c.next()
	if n == 0 || n > uint64(len(key)+len(fresh)) {
		c.failed = c.failed || n > 0
		return nil
	}
	out := make([]T, n)
	changed, next := make([]*T, 0, n), 0
	for i := range out {
		ref := c.next()
		switch k := next + int(unzigzag(ref-1)); {
		case c.failed, ref == 0 && len(fresh) == 0, ref != 0 && (k < 0 || k >= len(key)):
			c.failed = true
			return nil
		case ref == 0:
			out[i], fresh = fresh[0], fresh[1:]
		default:
			out[i], next = key[k], k+1
			changed = append(changed, &out[i])
		}
	}
	for column := range (fields{}).numbers {
		for _, x := range changed {
			if n := of(x).numbers[column]; n != nil {
				*n += uint64(unzigzag(c.next()))
			}
		}
	}
	for column := range (fields{}).times {
		for _, x := range changed {
			t := of(x).times[column]
			if t == nil {
				break
			}
			*t = time.Time{}
			if u := c.next(); u > 0 {
				*t = from.Add(time.Duration(unzigzag(u - 1)))
			}
		}
	}
	return out
}

func (c *columns) next() uint64 {
	u, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.failed, c.b = true, nil
		return 0
	}
	c.b = c.b[n:]
	return u
}

// encodeTraffic encodes the counts in columns. rest is what these do not hold.
func encodeTraffic(key, now model.Traffic, keyed, at time.Time) (rest model.Traffic, counts []byte) {
	c := &columns{}
	rest = now
	rest.Hops = encode(c, hop, key.Hops, now.Hops, at)
	rest.Peers = encode(c, peer, key.Peers, now.Peers, at)
	rest.MACs = encode(c, mac, key.MACs, now.MACs, at)
	rest.ARP = encode(c, arp, key.ARP, now.ARP, at)
	rest.Drops = encode(c, drop, key.Drops, now.Drops, at)
	rest.Pairs = encode(c, pair, key.Pairs, now.Pairs, at)
	rest.Samples = model.Filter(now.Samples, func(s model.Sample) bool { return s.Time.After(keyed) })
	return rest, c.b
}

// decodeTraffic restores what encodeTraffic of a version encoded.
func decodeTraffic(version uint16, key, rest model.Traffic, counts []byte, at time.Time) (now model.Traffic, err error) {
	c := &columns{b: counts}
	now = rest
	now.Hops = decode(c, hop, key.Hops, rest.Hops, at)
	now.Peers = decode(c, model.Either(version < versionFragments, peerBefore, peer), key.Peers, rest.Peers, at)
	now.MACs = decode(c, mac, key.MACs, rest.MACs, at)
	now.ARP = decode(c, arp, key.ARP, rest.ARP, at)
	now.Drops = decode(c, drop, key.Drops, rest.Drops, at)
	if version >= versionPairs {
		now.Pairs = decode(c, pair, key.Pairs, rest.Pairs, at)
	}
	now.Samples = append(older(key.Samples, rest.Samples), rest.Samples...)
	if c.failed {
		return now, errors.New("the count columns do not match")
	}
	return now, nil
}

// older returns the samples of list that newer does not supersede.
func older(list, newer []model.Sample) []model.Sample {
	have := model.Table(newer, func(s *model.Sample) (model.Drop, bool) { return s.Key(), true })
	return slices.DeleteFunc(slices.Clone(list), func(s model.Sample) bool { return have[s.Key()] })
}
