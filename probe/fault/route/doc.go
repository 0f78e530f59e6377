// Package route finds faults of the node's routes, routing rules and forwarding.
package route
