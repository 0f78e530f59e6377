// Package files reads what network plugins keep on the node's disk: their configuration, and the pods that they gave
// addresses to. The files are below /etc/cni/net.d (k3s has it elsewhere), /var/run and /var/lib/cni; most are readable
// by root only. On nodes in Azure it also reads where the cloud has the node, and of systemd-networkd whether it
// removes routes and rules of others.
//
// An absent file is no gap, since each plugin has files of its own. A file that
// cannot be read or decoded is an error beside the others' content.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/plugin"
)

// Owner is the pod that an address was given to.
type Owner struct {
	Namespace, Name string
	// Link is the pod link, empty if the file does not name it.
	Link string
}

// Files is what was read.
type Files struct {
	// Names are the files that were read, as paths below the root.
	Names  []string
	Config plugin.Config
	// Owners are the pods by address. A file may be stale: if it names a link
	// other than the pod's, it is about an earlier pod.
	Owners map[netip.Addr]Owner
	// Cloud is where Azure has the node; zero on a node of another cloud.
	Cloud model.AzureNode
	// Networkd is nil on a node without systemd-networkd.
	Networkd *model.Networkd
}

// Paths of the files below the root.
const (
	configDir    = "etc/cni/net.d"
	k3sConfigDir = "var/lib/rancher/k3s/agent/etc/cni/net.d"
	azureVNet    = "var/run/azure-vnet.json"
	azureCNS     = "var/run/azure-cns/azure-endpoints.json"
	hostLocalDir = "var/lib/cni/networks"
)

// Bounds of what is read of the node: the bytes of a file, the entries of a directory.
const (
	maxNode    = 4 << 20
	maxEntries = 1 << 16
)

// Read reads the plugins' files below root. Each file that is malformed adds an
// *Error, and the others are read all the same.
func Read(root string) (Files, error) {
	f := Files{Owners: map[netip.Addr]Owner{}}
	var errs []error
	for _, read := range []func(string) error{f.readConfigs, f.readAzureVNet, f.readAzureCNS, f.readHostLocal, f.readAzureCloud, f.readNetworkd} {
		if err := read(root); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return f, errors.Join(errs...)
}

// conflist is a CNI configuration: a list of plugins, or a single one in the older format.
type conflist struct {
	Name    string
	Plugins []plugin.Conf
	plugin.Conf
}

func (f *Files) readConfigs(root string) error {
	return errors.Join(f.readConfigsIn(root, configDir), f.readConfigsIn(root, k3sConfigDir))
}

func (f *Files) readConfigsIn(root, dir string) error {
	entries, err := input.Entries(filepath.Join(root, dir), maxEntries, "files")
	slices.Sort(entries)
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e)) {
			continue
		}
		name := filepath.Join(dir, e)
		var list conflist
		if _, err := f.readJSON(root, name, "a CNI configuration", &list); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, p := range model.Either(len(list.Plugins) == 0, []plugin.Conf{list.Conf}, list.Plugins) {
			p.File, p.Network = name, list.Name
			f.Config.Plugins = append(f.Config.Plugins, p)
		}
	}
	return errors.Join(errs...)
}

// readJSON reads a file below root and adds it to the names. It returns the file's text.
func (f *Files) readJSON(root, name, want string, v any) ([]byte, error) {
	path := filepath.Join(root, name)
	text, err := read(path, maxNode)
	if err == nil {
		err = DecodeJSON(path, text, want, v)
	}
	if err == nil {
		f.Names = append(f.Names, name)
	}
	return text, err
}

// address is Go's net.IPNet in JSON, without its mask.
type address struct{ IP string }

// vnet is the state file of azure-vnet.
type vnet struct {
	Network struct {
		ExternalInterfaces map[string]struct {
			Networks map[string]struct {
				Mode      string
				Endpoints map[string]struct {
					HostIfName            string
					IPAddresses           []address
					PODName, PODNameSpace string
				}
			}
		}
	}
}

func (f *Files) readAzureVNet(root string) error {
	var v vnet
	text, err := f.readJSON(root, azureVNet, "a state file of azure-vnet", &v)
	if err != nil {
		return err
	}
	var errs []error
	for _, ext := range v.Network.ExternalInterfaces {
		for _, network := range ext.Networks {
			f.Config.AzureMode = network.Mode
			for _, e := range network.Endpoints {
				o := Owner{Namespace: e.PODNameSpace, Name: e.PODName, Link: e.HostIfName}
				errs = append(errs, f.addOwner(filepath.Join(root, azureVNet), text, e.IPAddresses, o))
			}
		}
	}
	return errors.Join(errs...)
}

func (f *Files) addOwner(path string, text []byte, list []address, o Owner) error {
	var errs []error
	for _, a := range list {
		ip, err := netip.ParseAddr(a.IP)
		if err != nil {
			errs = append(errs, ValueError(path, text, a.IP, "an IP address", err))
			continue
		}
		f.Owners[ip.Unmap()] = o
	}
	return errors.Join(errs...)
}

// cns is the file of azure-cns's endpoints.
type cns struct {
	Endpoints map[string]struct {
		PodName, PodNamespace string
		IfnameToIPMap         map[string]struct {
			IPv4, IPv6   []address
			HostVethName string
		}
	}
}

func (f *Files) readAzureCNS(root string) error {
	var v cns
	text, err := f.readJSON(root, azureCNS, "an endpoint file of azure-cns", &v)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range v.Endpoints {
		for _, i := range e.IfnameToIPMap {
			o := Owner{Namespace: e.PodNamespace, Name: e.PodName, Link: i.HostVethName}
			errs = append(errs, f.addOwner(filepath.Join(root, azureCNS), text, append(i.IPv4, i.IPv6...), o))
		}
	}
	return errors.Join(errs...)
}

// readHostLocal lists the addresses that the IPAM plugin host-local has assigned, by networks: its files are named
// after them. They hold the id of a container, but not the name of its pod.
func (f *Files) readHostLocal(root string) error {
	entries, err := input.Entries(filepath.Join(root, hostLocalDir), maxEntries, "networks")
	slices.Sort(entries)
	errs := []error{err}
	for _, network := range entries {
		name := filepath.Join(hostLocalDir, network)
		taken, err := input.Entries(filepath.Join(root, name), maxEntries, "addresses")
		if errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		errs = append(errs, err)
		if taken == nil {
			continue
		}
		slices.Sort(taken)
		f.Names = append(f.Names, name)
		for _, t := range taken {
			// Colons of IPv6 addresses are kept in file names.
			if ip, err := netip.ParseAddr(t); err == nil {
				f.Config.Taken = append(f.Config.Taken, ip)
			}
		}
	}
	return errors.Join(errs...)
}

// Hostname is the node's name by its files below root, empty if they do not say it.
func Hostname(root string) string {
	text, _ := read(filepath.Join(root, "etc/hostname"), maxNode)
	return strings.TrimSpace(string(text))
}

// Detail lists the files that were read, for people.
func (f *Files) Detail() string {
	if len(f.Names) == 0 {
		return "no plugin files found"
	}
	return fmt.Sprintf("%s; pods of %d addresses", strings.Join(f.Names, ", "), len(f.Owners))
}
