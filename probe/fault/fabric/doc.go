// Package fabric finds faults of the network between nodes, of which the node knows by silence and by files of the cloud.
package fabric
