package record

import (
	"encoding/binary"
	"errors"
	"reflect"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// columns encode lists of counts as differences from the lists of a key: for each
// entry the position of its counterpart, then field by field the differences.
// Entries without a counterpart are not encoded.
type columns struct{ b []byte }

// layout holds the fields of a count's type that change: numbers and times. All
// others identify what is counted.
type layout struct{ numbers, times [][]int }

func layoutOf(t reflect.Type) (l layout) {
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Type == reflect.TypeFor[time.Time]():
			l.times = append(l.times, f.Index)
		case f.Type.Kind() == reflect.Uint64:
			l.numbers = append(l.numbers, f.Index)
		case f.Type == reflect.TypeFor[model.PeerCount]():
			for _, n := range layoutOf(f.Type).numbers {
				l.numbers = append(l.numbers, append([]int{i}, n...))
			}
		}
	}
	return l
}

// identity returns an entry with the changing fields zero.
func identity[T any](l layout, x T) T {
	v := reflect.ValueOf(&x).Elem()
	for _, list := range [][][]int{l.numbers, l.times} {
		for _, f := range list {
			v.FieldByIndex(f).SetZero()
		}
	}
	return x
}

// encode appends a list and returns the entries without a counterpart in key.
func encode[T comparable](c *columns, key, now []T, at time.Time) (fresh []T) {
	l := layoutOf(reflect.TypeFor[T]())
	place := make(map[T]int, len(key))
	for i := range key {
		place[identity(l, key[i])] = i
	}
	c.b = binary.AppendUvarint(c.b, uint64(len(now)))
	var old, changed []reflect.Value
	next := 0
	for i := range now {
		k, ok := place[identity(l, now[i])]
		if !ok {
			c.b = append(c.b, 0)
			fresh = append(fresh, now[i])
			continue
		}
		c.b = binary.AppendUvarint(c.b, 1+zigzag(int64(k-next)))
		next = k + 1
		old, changed = append(old, reflect.ValueOf(&key[k]).Elem()), append(changed, reflect.ValueOf(&now[i]).Elem())
	}
	for _, f := range l.numbers {
		for i := range changed {
			more := changed[i].FieldByIndex(f).Uint() - old[i].FieldByIndex(f).Uint()
			c.b = binary.AppendUvarint(c.b, zigzag(int64(more)))
		}
	}
	for _, f := range l.times {
		for i := range changed {
			c.b = binary.AppendUvarint(c.b, since(changed[i].FieldByIndex(f).Interface().(time.Time), at))
		}
	}
	return fresh
}

// since encodes a time as the difference from another, 0 for the zero time.
func since(t, from time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return 1 + zigzag(t.UnixNano()-from.UnixNano())
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

var errColumns = errors.New("the columns of counts do not fit")

// decode reads a list from encode; fresh are the entries that were not encoded.
func decode[T comparable](c *columns, key, fresh []T, at time.Time) ([]T, error) {
	l := layoutOf(reflect.TypeFor[T]())
	n, ok := c.next()
	if !ok || n > uint64(len(c.b)) {
		return nil, errColumns
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]T, n)
	var changed []reflect.Value
	next := 0
	for i := range out {
		ref, ok := c.next()
		switch k := next + int(unzigzag(ref-1)); {
		case !ok, ref == 0 && len(fresh) == 0, ref != 0 && (k < 0 || k >= len(key)):
			return nil, errColumns
		case ref == 0:
			out[i], fresh = fresh[0], fresh[1:]
		default:
			out[i], next = key[k], k+1
			changed = append(changed, reflect.ValueOf(&out[i]).Elem())
		}
	}
	for _, f := range l.numbers {
		for _, x := range changed {
			u, ok := c.next()
			if !ok {
				return nil, errColumns
			}
			field := x.FieldByIndex(f)
			field.SetUint(field.Uint() + uint64(unzigzag(u)))
		}
	}
	for _, f := range l.times {
		for _, x := range changed {
			u, ok := c.next()
			if !ok {
				return nil, errColumns
			}
			var t time.Time
			if u > 0 {
				t = at.Add(time.Duration(unzigzag(u - 1)))
			}
			x.FieldByIndex(f).Set(reflect.ValueOf(t))
		}
	}
	return out, nil
}

func (c *columns) next() (uint64, bool) {
	u, n := binary.Uvarint(c.b)
	if n <= 0 {
		return 0, false
	}
	c.b = c.b[n:]
	return u, true
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
	rest.Samples = nil
	for _, s := range now.Samples {
		if s.Time.After(keyed) {
			rest.Samples = append(rest.Samples, s)
		}
	}
	return rest, c.b
}

// decodeTraffic restores what encodeTraffic of a version encoded.
func decodeTraffic(version uint16, key, rest model.Traffic, counts []byte, at time.Time) (now model.Traffic, err error) {
	c := &columns{counts}
	errs := make([]error, 6)
	now = rest
	now.Hops, errs[0] = decode(c, key.Hops, rest.Hops, at)
	now.Peers, errs[1] = decode(c, key.Peers, rest.Peers, at)
	now.MACs, errs[2] = decode(c, key.MACs, rest.MACs, at)
	now.ARP, errs[3] = decode(c, key.ARP, rest.ARP, at)
	now.Drops, errs[4] = decode(c, key.Drops, rest.Drops, at)
	if version >= versionPairs {
		now.Pairs, errs[5] = decode(c, key.Pairs, rest.Pairs, at)
	}
	now.Samples = append(older(key.Samples, rest.Samples), rest.Samples...)
	return now, errors.Join(errs...)
}

// older returns the samples of list that newer does not supersede.
func older(list, newer []model.Sample) []model.Sample {
	have := map[model.SampleKey]bool{}
	for i := range newer {
		have[newer[i].Key()] = true
	}
	var out []model.Sample
	for i := range list {
		if !have[list[i].Key()] {
			out = append(out, list[i])
		}
	}
	return out
}
