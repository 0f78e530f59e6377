package kmod

import "testing"

func TestPresent(t *testing.T) {
	// The network stack is always built in, whatever else is a module.
	if !Present("no_such_module", "netif_receive_skb") {
		t.Error("a built-in function is not found")
	}
	if hasSymbol("no_such_function_anywhere") {
		t.Error("a function that does not exist is found")
	}
}
