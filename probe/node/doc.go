// Package node indexes a snapshot, once and in time linear in it: who has an address, which links are uplinks, which
// ranges are other nodes' pods, which pairs and flows were answered, what a route or neighbor entry says. It knows no
// finding. It is pure: it reads no clock, no file and no kernel.
package node
