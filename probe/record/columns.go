package record

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/lasthop/lasthop/probe/model"
)

// columns encode lists of counts as differences from the lists of a key: for each entry the position of its
// counterpart, then field by field the differences. Entries without a counterpart are not encoded.
type columns struct {
	b []byte
	// failed is set where they do not fit what is decoded.
	failed bool
}

// layout holds the offsets of the fields of a count's type that change: numbers and times. All others identify what is
// counted.
type layout struct{ numbers, times []uintptr }

func layoutOf(t reflect.Type) (l layout) {
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Type == reflect.TypeFor[time.Time]():
			l.times = append(l.times, f.Offset)
		case f.Type.Kind() == reflect.Uint64:
			l.numbers = append(l.numbers, f.Offset)
		case f.Type == reflect.TypeFor[model.PeerCount]():
			for _, n := range layoutOf(f.Type).numbers {
				l.numbers = append(l.numbers, f.Offset+n)
			}
		}
	}
	return l
}

// at is the field of x at an offset of its layout. There are very many: reflection takes twice as long.
func at[F uint64 | time.Time, T any](x *T, offset uintptr) *F {
	return (*F)(unsafe.Add(unsafe.Pointer(x), offset))
}

func identity[T any](l layout, x T) T {
	for _, f := range l.numbers {
		*at[uint64](&x, f) = 0
	}
	for _, f := range l.times {
		*at[time.Time](&x, f) = time.Time{}
	}
	return x
}

// encode appends a list and returns the entries without a counterpart in key.
func encode[T comparable](c *columns, key, now []T, from time.Time) (fresh []T) {
	l := layoutOf(reflect.TypeFor[T]())
	var place map[T]int
	c.b = binary.AppendUvarint(c.b, uint64(len(now)))
	old, changed := make([]*T, 0, len(now)), make([]*T, 0, len(now))
	next := 0
	for i := range now {
		// Both lists are in the same order, so most counterparts come one after the other.
		id := identity(l, now[i])
		k, ok := next, next < len(key) && identity(l, key[next]) == id
		if !ok {
			if place == nil {
				place = make(map[T]int, len(key))
				for i := range key {
					place[identity(l, key[i])] = i
				}
			}
			k, ok = place[id]
		}
		if !ok {
			c.b = append(c.b, 0)
			fresh = append(fresh, now[i])
			continue
		}
		c.b = binary.AppendUvarint(c.b, 1+zigzag(int64(k-next)))
		next = k + 1
		old, changed = append(old, &key[k]), append(changed, &now[i])
	}
	for _, f := range l.numbers {
		for i := range changed {
			more := *at[uint64](changed[i], f) - *at[uint64](old[i], f)
			c.b = binary.AppendUvarint(c.b, zigzag(int64(more)))
		}
	}
	for _, f := range l.times {
		for i := range changed {
			c.b = binary.AppendUvarint(c.b, since(*at[time.Time](changed[i], f), from))
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
func decode[T comparable](c *columns, key, fresh []T, from time.Time) []T {
	l := layoutOf(reflect.TypeFor[T]())
	n := c.next()
	if n == 0 || n > uint64(len(c.b)) {
		c.failed = c.failed || n > 0
		return nil
	}
	out := make([]T, n)
	changed := make([]*T, 0, n)
	next := 0
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
	for _, f := range l.numbers {
		for _, x := range changed {
			*at[uint64](x, f) += uint64(unzigzag(c.next()))
		}
	}
	for _, f := range l.times {
		for _, x := range changed {
			t := time.Time{}
			if u := c.next(); u > 0 {
				t = from.Add(time.Duration(unzigzag(u - 1)))
			}
			*at[time.Time](x, f) = t
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
	rest.Hops = encode(c, key.Hops, now.Hops, at)
	rest.Peers = encode(c, key.Peers, now.Peers, at)
	rest.MACs = encode(c, key.MACs, now.MACs, at)
	rest.ARP = encode(c, key.ARP, now.ARP, at)
	rest.Drops = encode(c, key.Drops, now.Drops, at)
	rest.Pairs = encode(c, key.Pairs, now.Pairs, at)
	old := func(s model.Sample) bool { return !s.Time.After(keyed) }
	rest.Samples = slices.DeleteFunc(slices.Clone(now.Samples), old)
	return rest, c.b
}

// decodeTraffic restores what encodeTraffic of a version encoded.
func decodeTraffic(version uint16, key, rest model.Traffic, counts []byte, at time.Time) (now model.Traffic, err error) {
	c := &columns{b: counts}
	now = rest
	now.Hops = decode(c, key.Hops, rest.Hops, at)
	now.Peers = decode(c, key.Peers, rest.Peers, at)
	now.MACs = decode(c, key.MACs, rest.MACs, at)
	now.ARP = decode(c, key.ARP, rest.ARP, at)
	now.Drops = decode(c, key.Drops, rest.Drops, at)
	if version >= versionPairs {
		now.Pairs = decode(c, key.Pairs, rest.Pairs, at)
	}
	now.Samples = append(older(key.Samples, rest.Samples), rest.Samples...)
	if c.failed {
		return now, errors.New("the count columns do not match")
	}
	return now, nil
}

// older returns the samples of list that newer does not supersede.
func older(list, newer []model.Sample) []model.Sample {
	have := map[model.Drop]bool{}
	for i := range newer {
		have[newer[i].Key()] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(s model.Sample) bool { return have[s.Key()] })
}
