// Package pod finds faults inside pods' network namespaces: addresses, default routes, sockets.
package pod
