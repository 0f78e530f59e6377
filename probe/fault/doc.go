// Package fault is what a kind of finding is made of: its input, which is the index of a node and what the kinds before
// it have claimed, and the faults that it proposes. A package below it holds a family of kinds; families do not know each
// other.
package fault
