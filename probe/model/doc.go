// Package model holds the plain values that lasthop judges: what a node's
// kernel holds (links, routes, neighbours, rules, flows), what was counted on
// its packets, and the findings drawn from both.
//
// It imports the standard library alone. Collectors fill these values once,
// at the edge; nothing in them refers back to the kernel. An absent value is
// the zero value and means "unknown", never "none": whether a list is whole
// is said by the Source that filled it.
package model
