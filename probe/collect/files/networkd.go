package files

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// networkdDirs are where systemd-networkd has its configuration (networkd.conf(5)): a file of an
// earlier one hides those of the same name in later ones.
var networkdDirs = []string{"etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd"}

// readNetworkd reads what systemd-networkd removes, where it has managed links since the boot.
func (f *Files) readNetworkd(root string) error {
	if _, err := os.Stat(filepath.Join(root, "run/systemd/netif/state")); err != nil {
		return err
	}
	f.Networkd = &model.Networkd{RemovesRoutes: true, RemovesRules: true}
	main, more := "", map[string]string{}
	for _, dir := range slices.Backward(networkdDirs) {
		dir = filepath.Join(root, dir)
		if _, err := os.Stat(filepath.Join(dir, "networkd.conf")); err == nil {
			main = filepath.Join(dir, "networkd.conf")
		}
		dir = filepath.Join(dir, "networkd.conf.d")
		names, _ := input.Entries(dir, maxEntries, "files")
		for _, name := range names {
			if filepath.Ext(name) == ".conf" {
				more[name] = filepath.Join(dir, name)
			}
		}
	}
	paths := append([]string{main}, model.Map(slices.Sorted(maps.Keys(more)), func(name string) string { return more[name] })...)
	var errs []error
	for _, path := range paths {
		if path == "" {
			continue
		}
		if text, err := read(path, maxNode); err == nil {
			decodeNetworkd(string(text), f.Networkd)
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// decodeNetworkd takes the settings of a file that are about routes and rules of others.
func decodeNetworkd(text string, n *model.Networkd) {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		if section != "[Network]" {
			continue
		}
		off := slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, strings.ToLower(strings.TrimSpace(value)))
		switch strings.TrimSpace(name) {
		case "ManageForeignRoutes":
			n.RemovesRoutes = !off
		case "ManageForeignRoutingPolicyRules":
			n.RemovesRules = !off
		}
	}
}
