package files

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/plugin"
)

// vnetState is what azure-vnet writes, shortened.
const vnetState = `{
  "Network": {
    "Version": "v1.4.39",
    "ExternalInterfaces": {
      "eth0": {
        "Name": "eth0",
        "Networks": {
          "azure": {
            "Id": "azure",
            "Mode": "bridge",
            "Subnets": [{"Family": 2, "Prefix": {"IP": "10.240.0.0", "Mask": "//8AAA=="}, "Gateway": "10.240.0.1"}],
            "Endpoints": {
              "e2c0a7-eth0": {
                "Id": "e2c0a7-eth0", "IfName": "eth0", "HostIfName": "azv1234567890a", "MacAddress": "ooaI...",
                "IPAddresses": [{"IP": "10.240.0.32", "Mask": "//8AAA=="}],
                "Gateways": ["10.240.0.1"], "PODName": "cart-7d9f", "PODNameSpace": "shop"
              }
            }
          }
        }
      }
    }
  }
}`

const cnsState = `{"Endpoints": {"0a1b": {"PodName": "web-1", "PodNamespace": "shop",
 "IfnameToIPMap": {"eth0": {"IPv4": [{"IP": "10.241.0.5", "Mask": "/////w=="}], "IPv6": [{"IP": "fd00::5", "Mask": "//8="}], "HostVethName": ""}}}}}`

const conflistText = `{"cniVersion": "0.3.0", "name": "azure", "plugins": [
 {"type": "azure-vnet", "mode": "bridge", "bridge": "azure0", "ipam": {"type": "azure-vnet-ipam"}},
 {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}`

func root(t *testing.T, text map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, s := range text {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := root(t, map[string]string{
		azureVNet:                                    vnetState,
		azureCNS:                                     cnsState,
		configDir + "/10-azure.conflist":             conflistText,
		configDir + "/99-old.conf":                   `{"name": "cbr", "type": "bridge", "bridge": "cbr0", "ipam": {"type": "host-local"}}`,
		configDir + "/notes.txt":                     "no JSON",
		k3sConfigDir + "/10-flannel.conflist":        `{"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"hairpinMode": true}}]}`,
		hostLocalDir + "/kubenet/10.244.0.7":         "abc\r\neth0",
		hostLocalDir + "/kubenet/last_reserved_ip.0": "10.244.0.7",
	})
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[netip.Addr]Owner{
		netip.MustParseAddr("10.240.0.32"): {Namespace: "shop", Name: "cart-7d9f", Link: "azv1234567890a"},
		netip.MustParseAddr("10.241.0.5"):  {Namespace: "shop", Name: "web-1"},
		netip.MustParseAddr("fd00::5"):     {Namespace: "shop", Name: "web-1"},
	}
	if !reflect.DeepEqual(got.Owners, owners) {
		t.Errorf("owners: %+v", got.Owners)
	}
	azure := configDir + "/10-azure.conflist"
	config := plugin.Config{
		Plugins: []plugin.Conf{
			{File: azure, Network: "azure", Type: "azure-vnet", Bridge: "azure0", IPAM: plugin.IPAM{Type: "azure-vnet-ipam"}},
			{File: azure, Network: "azure", Type: "portmap"},
			{File: configDir + "/99-old.conf", Network: "cbr", Type: "bridge", Bridge: "cbr0", IPAM: plugin.IPAM{Type: "host-local"}},
			{File: k3sConfigDir + "/10-flannel.conflist", Network: "cbr0", Type: "flannel"},
		},
		AzureMode: "bridge", Taken: []netip.Addr{netip.MustParseAddr("10.244.0.7")},
	}
	if !reflect.DeepEqual(got.Config, config) {
		t.Errorf("config:\n got %+v\nwant %+v", got.Config, config)
	}
}

func TestNoFiles(t *testing.T) {
	got, err := Read(t.TempDir())
	if err != nil || len(got.Names) > 0 || !strings.Contains(got.Detail(), "no plugin files") {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestBrokenFiles wants each malformed file reported with the place of its error,
// and the others read.
func TestBrokenFiles(t *testing.T) {
	dir := root(t, map[string]string{
		azureVNet:                   "{\n  \"Network\": {,}\n}",
		azureCNS:                    strings.Replace(cnsState, "10.241.0.5", "10.241.0.500", 1),
		configDir + "/a.conflist":   `{"name": "x", "plugins": {"type": "bridge"}}`,
		configDir + "/b.conflist":   conflistText,
		configDir + "/cut.conflist": conflistText[:40],
	})
	got, err := Read(dir)
	if len(got.Config.Plugins) != 2 {
		t.Errorf("the whole file was not read: %+v", got.Config)
	}
	if _, ok := got.Owners[netip.MustParseAddr("fd00::5")]; !ok {
		t.Errorf("the other address was not read: %v", got.Owners)
	}
	for _, want := range []string{
		azureVNet + ":2:15: ", "want a state file of azure-vnet",
		azureCNS + ":2:45: ", "want an IP address",
		"a.conflist:1:26: found object: want a list at \"Plugins\"", "a CNI configuration",
		"cut.conflist:1:40: ",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	var bad *Error
	if !errors.As(err, &bad) || bad.Line == 0 {
		t.Errorf("no *Error with a line: %#v", bad)
	}
}

func FuzzAzureVNet(f *testing.F) {
	f.Add([]byte(vnetState), []byte(cnsState), []byte(conflistText))
	f.Fuzz(func(t *testing.T, vnet, cns, conflist []byte) {
		dir := root(t, map[string]string{
			azureVNet: string(vnet), azureCNS: string(cns), configDir + "/10-a.conflist": string(conflist),
		})
		got, err := Read(dir)
		if err == nil && len(got.Names) != 3 {
			t.Errorf("%d of 3 files read without an error", len(got.Names))
		}
		for _, e := range []error{err} {
			var bad *Error
			if errors.As(e, &bad) && (bad.Line < 0 || bad.Column < 0 || bad.Path == "") {
				t.Errorf("place of the error: %+v", bad)
			}
		}
	})
}

// endless is a reader without an end.
type endless string

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e[i%len(e)]
	}
	return len(p), nil
}

// TestEndless refuses what has no end by its first bytes.
func TestEndless(t *testing.T) {
	for name, text := range map[string]string{"zeros": "\x00", "yes": "y\n", "white space": " \n", "a mark and zeros": "\ufeff\x00"} {
		_, text, err := Given{Stdin: endless(text)}.Read("-")
		var v any
		if err == nil {
			err = DecodeJSON("-", text, "JSON", &v)
		}
		if err == nil || len(text) > 4*maxBlank {
			t.Errorf("%s: read %d bytes, %v", name, len(text), err)
		}
	}
	if _, text, err := (Given{}).Read("/dev/zero"); err == nil || !strings.Contains(err.Error(), "/dev/zero: not a regular file: want a readable file, or a pipe") {
		t.Errorf("a device: %d bytes, %v", len(text), err)
	}
}

// TestMark: a text may begin with a byte order mark, as Windows writes it, wherever it comes from.
func TestMark(t *testing.T) {
	const text = `{"a": 1}`
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("\ufeff"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{path, "-"} {
		if _, got, err := (Given{Stdin: strings.NewReader("\ufeff" + text)}).Read(from); string(got) != text || err != nil {
			t.Errorf("%s: %q, %v", from, got, err)
		}
	}
}

// TestOddFiles has links to devices, pipes, and far too large files in the place of each file that is read of a node.
func TestOddFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a device without end": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a pipe":               func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a large file": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		},
	} {
		for _, file := range []string{
			configDir + "/x.conflist", k3sConfigDir + "/x.conf", azureVNet, azureCNS, azureCloud, "etc/systemd/networkd.conf", hostLocalDir, "etc/hostname",
		} {
			dir := root(t, map[string]string{configDir + "/a.conflist": conflistText, "run/systemd/netif/state": ""})
			path := filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), make(path)); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := Read(dir)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 4*maxNode {
				t.Errorf("%s as %s: took %d MiB", name, file, took>>20)
			}
			if file == "etc/hostname" {
				if name := Hostname(dir); name != "" {
					t.Errorf("%s as %s: the name is %.10q", name, file, name)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), path) || len(got.Config.Plugins) != 2 {
				t.Errorf("%s as %s: %v, %d plugins", name, file, err, len(got.Config.Plugins))
			}
		}
	}
}

// TestGiven reads standard input once, and tells an empty one from a file.
func TestGiven(t *testing.T) {
	g := Given{Stdin: strings.NewReader("no JSON")}
	name, text, err := g.Read("-")
	if name != "standard input" || !strings.HasPrefix(string(text), "no") || err != nil {
		t.Errorf("got %q, %q, %v", name, text, err)
	}
	// Nobody closes this one.
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(w, `[{"a": "]"}, `)
		_, more := io.WriteString(w, "2]\n")
		written <- errors.Join(err, more)
	}()
	if _, text, err := (Given{Stdin: r}).Read("-"); strings.TrimSpace(string(text)) != `[{"a": "]"}, 2]` || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	if err := errors.Join(r.Close(), <-written); err != nil {
		t.Error(err)
	}
	for what, g := range map[string]Given{"nothing": {Stdin: strings.NewReader("")}, "none": {}, "an error": {Stdin: iotest.ErrReader(errors.New("lost"))}} {
		var bad *Error
		if _, _, err := g.Read("-"); !errors.As(err, &bad) || bad.Path != "standard input" || bad.Want == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, text, err := g.Read(path); name != path || string(text) != "file" || err != nil {
		t.Errorf("got %q, %q, %v", name, text, err)
	}
	if _, err := read(path, 3); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("too much: %v", err)
	}
}
