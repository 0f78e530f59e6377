// Package neighbor finds faults of neighbor entries and of the MACs that frames are sent to.
package neighbor
