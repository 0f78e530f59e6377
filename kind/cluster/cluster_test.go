package cluster

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestPodUID: the UID of a pod is read from what its processes have for a cgroup.
func TestPodUID(t *testing.T) {
	const uid = "0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9"
	dashed := strings.ReplaceAll(uid, "_", "-")
	for _, test := range []struct{ name, text, want string }{
		{"version 2, systemd, in a node of kind", "0::/system.slice/docker-51af.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uid + ".slice/cri-containerd-77.scope\n", uid},
		{"version 1", "12:pids:/docker/51af/kubelet/kubepods/burstable/pod" + dashed + "/77\n11:cpu:/\n", uid},
		{"the pod's own, last in its line", "0::/kubepods/pod" + dashed + "/\n", uid},
		{"a container of Docker", "0::/system.slice/docker-51af.scope\n", ""},
		{"podman", "0::/user.slice/libpod-0a1b2c3d.scope/podman\n", ""},
		{"none", "", ""},
	} {
		if got := podUID(test.text); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestImage: the image is a static program and no other file, under the name that pods have.
func TestImage(t *testing.T) {
	self := filepath.Join(t.TempDir(), "self")
	var program bytes.Buffer
	header := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(header.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}))
	if err := errors.Join(binary.Write(&program, binary.LittleEndian, header), os.WriteFile(self, program.Bytes(), 0o755)); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := writeImage(archive, self); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := unpack(t, f)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{Image}) {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	layer := files[manifest[0].Layers[0]]
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal([]byte(files[manifest[0].Config]), &config); err != nil || !slices.Equal(config.RootFS.DiffIDs, []string{"sha256:" + digest([]byte(layer))}) {
		t.Errorf("config %s: %v", files[manifest[0].Config], err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	inside := unpack(t, strings.NewReader(layer))
	if name := strings.TrimPrefix(config.Config.Entrypoint[0], "/"); len(inside) != 1 || inside[name] != string(want) {
		t.Errorf("the layer has %d files, and %s of %d bytes", len(inside), name, len(inside[name]))
	}
}

// TestImageRefused: what an image with nothing else in it cannot run is refused.
func TestImageRefused(t *testing.T) {
	for file, want := range map[string]string{"/bin/sh": "dynamically linked", "cluster_test.go": "bad magic number"} {
		if err := isStatic(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, err, want)
		}
	}
}

func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(data)
	}
}

// TestManifests: pods are bound to their nodes, and no two have one name.
func TestManifests(t *testing.T) {
	c := &Cluster{Nodes: []Node{{Name: "a", Container: "x-control-plane"}, {Name: "b", Container: "x-worker"}}}
	s := Spec{Name: "x", Args: []string{"lab", "hold"}, Nodes: []string{"a", "b"}, Pods: map[string][]string{"a": {"web", "db"}, "b": {"web"}}}
	var got []string
	for _, m := range c.manifests(s) {
		got = append(got, m["metadata"].(object)["name"].(string)+" "+m["spec"].(object)["nodeName"].(string))
	}
	if want := []string{"a-web x-control-plane", "db x-control-plane", "b-web x-worker"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Nodes = []string{"a", "b", "c", "d"}
	if got, want := s.containers(), []string{"x-control-plane", "x-worker", "x-worker2", "x-worker3"}; !slices.Equal(got, want) {
		t.Errorf("kind calls the nodes %q, want %q", got, want)
	}
}

// TestReady: what lacks is told as something that is not there, with what helps.
func TestReady(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var unsupported *model.UnsupportedError
	if err := Ready(t.Context(), "lasthop-x", "", ""); !errors.As(err, &unsupported) || !strings.Contains(unsupported.Remedy, "install Docker") {
		t.Errorf("got %v", err)
	}
}
