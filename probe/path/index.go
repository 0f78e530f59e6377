package path

// index finds the few of many elements that may be about a packet.
type index[K comparable] struct {
	// size is how many there are, about the places of those about one value alone, by this,
	// others those of all others.
	size   int
	about  map[K][]int
	others []int
}

// add appends an element: about the value alone, or not.
func (x *index[K]) add(value K, alone bool) {
	switch {
	case !alone:
		x.others = append(x.others, x.size)
	case x.about == nil:
		x.about = map[K][]int{value: {x.size}}
	default:
		x.about[value] = append(x.about[value], x.size)
	}
	x.size++
}

// of are the places of those that may be about one of the values: the ones about it alone
// first. Without values they are all.
func (x *index[K]) of(values ...K) []int {
	var out []int
	if len(values) == 0 {
		for i := range x.size {
			out = append(out, i)
		}
		return out
	}
	for _, v := range values {
		out = append(out, x.about[v]...)
	}
	return append(out, x.others...)
}
