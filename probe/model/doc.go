// Package model holds plain values: the state of a node's kernel (links, routes, neighbours, rules, flows), the
// counters of its packets, and the findings derived from both.
//
// It imports only the standard library. Collectors fill in these values, which hold no reference to the kernel. A zero
// value means "unknown", never "none". The Source of a list says whether the list is complete.
package model
