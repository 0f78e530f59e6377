package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Image is the name of the image that Create makes of a program. It is the only file
// in it, and what runs.
const Image = "docker.io/library/lasthop:lab"

// writeImage packs a static program as an image, in the form that `docker save` gives
// one.
func writeImage(archive, binary string) (err error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	if err := pack(&layer, file{"lasthop", 0o755, program}); err != nil {
		return err
	}
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/lasthop"}, "WorkingDir": "/"},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer.Bytes())}},
	})
	if err != nil {
		return err
	}
	layerFile, configFile := digest(layer.Bytes())+"/layer.tar", digest(config)+".json"
	manifest, err := json.Marshal([]object{{"Config": configFile, "RepoTags": []string{Image}, "Layers": []string{layerFile}}})
	if err != nil {
		return err
	}
	out, err := os.OpenFile(archive, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return pack(out, file{"manifest.json", 0o644, manifest}, file{configFile, 0o644, config}, file{layerFile, 0o644, layer.Bytes()})
}

// isStatic is an error unless a program runs where there is no other file.
func isStatic(binary string) error {
	f, err := elf.Open(binary)
	if err != nil {
		return fmt.Errorf("read program %s: %w", binary, err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("lasthop is dynamically linked, so an image that contains only lasthop cannot run it")
		}
	}
	return nil
}

type file struct {
	name string
	mode int64
	data []byte
}

func pack(w io.Writer, files ...file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
