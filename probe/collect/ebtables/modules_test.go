package ebtables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestModules reads as if the kernel had loaded those modules alone, and wants it
// asked for nothing else.
func TestModules(t *testing.T) {
	const symbols = "0000000000000000 t netif_receive_skb\n"
	ns := nstest.New(t)
	ns.Run("ebtables-nft -A FORWARD -j ACCEPT")
	for _, tt := range []struct {
		name, modules, symbols string
		detail, failed         string
	}{
		{"none", "", symbols, "nft: not loaded; legacy: not loaded", ""},
		{"not this kernel's to load", "-", symbols, "nft: not in this kernel; legacy: not in this kernel", ""},
		{"not known", "-", "", "nft: not read; legacy: 0 rules", "kernel module ebtable_nat: not known whether loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"modules": tt.modules, "kallsyms": tt.symbols} {
				if text == "-" || text == "" && name == "kallsyms" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			kernel := kmod.At(dir, dir, dir)
			c := dump.NewNetfilter(ns.NS, kernel, kmod.NFTables)
			defer c.Close()
			got, detail, err := Read(context.Background(), ns.NS, kernel, c)
			if len(got.Rules) > 0 || detail != tt.detail {
				t.Errorf("%d rules, %q, want %q", len(got.Rules), detail, tt.detail)
			}
			if (err == nil) != (tt.failed == "") || err != nil && !strings.Contains(err.Error(), tt.failed) {
				t.Errorf("error %v, want %q", err, tt.failed)
			}
			if _, opened := c.Conn(); !errors.As(opened, new(*kmod.MissingError)) {
				t.Errorf("a socket was opened: %v", opened)
			}
		})
	}
}
