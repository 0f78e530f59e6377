package input

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKnown reads a file again only when it has changed, and forgets one that went.
func TestKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	var k Known[string]
	decoded := 0
	read := func() (string, error) {
		defer k.Forget()
		return k.Read(path, 10, func(text []byte, _ time.Time) (string, error) {
			decoded++
			return string(text), nil
		})
	}
	for _, want := range []string{"one", "one", "three"} {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := read(); got != want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, want)
			}
		}
	}
	if decoded > 3 {
		t.Errorf("decoded %d times", decoded)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); err == nil || len(k.last) > 0 {
		t.Errorf("without the file: %v, %d known", err, len(k.last))
	}
}
