package bpf

import (
	"bytes"
	"embed"
	"fmt"

	"github.com/cilium/ebpf"
)

//go:embed *_bpfel.o
var objects embed.FS

// Load returns the programs and maps of an object: tc, drop, stub or process.
func Load(name string) (*ebpf.CollectionSpec, error) {
	object, err := objects.ReadFile(name + "_bpfel.o")
	if err != nil {
		return nil, fmt.Errorf("load BPF object: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("load BPF object %s: %w", name, err)
	}
	return spec, nil
}
