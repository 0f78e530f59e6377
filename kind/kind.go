// Package kind holds the scenarios that come with lasthop: small clusters,
// healthy or broken in one known way, to try the verdict on. What runs them
// is in kind/lab.
package kind

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/input"
)

//go:embed scenarios/*.yaml
var files embed.FS

// ErrUnknown says that no scenario has the name.
var ErrUnknown = errors.New("no such scenario")

const (
	dir = "scenarios"
	ext = ".yaml"
)

// Scenarios lists the embedded scenarios by name.
func Scenarios() []scenario.Info {
	entries, err := files.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	var out []scenario.Info
	for _, e := range entries {
		s, err := embedded(strings.TrimSuffix(e.Name(), ext), scenario.Parse)
		if err != nil {
			panic(err) // It is built in, so this program is wrong.
		}
		out = append(out, s.Info())
	}
	return out
}

// Load reads an embedded scenario by its name, or a file where the argument
// holds a slash or ends in .yaml or .yml. What is wrong in a file is a
// scenario.Errors.
func Load(nameOrPath string) (*scenario.Scenario, error) { return load(nameOrPath, scenario.Parse) }

// LoadOnKind is Load of a scenario for a cluster of kind, which is nil before it is
// made; see scenario.ParseOnKind.
func LoadOnKind(nameOrPath string, c *scenario.Cluster) (*scenario.Scenario, error) {
	return load(nameOrPath, func(file string, data []byte) (*scenario.Scenario, error) {
		return scenario.ParseOnKind(file, data, c)
	})
}

type parser func(file string, data []byte) (*scenario.Scenario, error)

func load(nameOrPath string, parse parser) (*scenario.Scenario, error) {
	if !strings.ContainsRune(nameOrPath, '/') && path.Ext(nameOrPath) != ext && path.Ext(nameOrPath) != ".yml" {
		return embedded(nameOrPath, parse)
	}
	data, err := input.Read(nameOrPath, input.Pipe, scenario.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return parse(nameOrPath, data)
}

func embedded(name string, parse parser) (*scenario.Scenario, error) {
	file := path.Join(dir, name+ext)
	data, err := files.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, fmt.Errorf("read scenario %q: %w (a file's name holds a slash or ends in %s)", name, ErrUnknown, ext)
	}
	if err != nil {
		return nil, fmt.Errorf("read scenario %q: %w", name, err)
	}
	s, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	// As the repository has it.
	s.File = path.Join("kind", file)
	return s, nil
}
