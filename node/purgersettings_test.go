package node

import (
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A shard hears of settings that are other ones, and not of a later version or a budget alone.
func TestChangedSettings(t *testing.T) {
	none, hour, negative := int64(0), int64(3600e6), true
	known := &ebbv1.Namespace{Name: "n", Version: 3, HalfLifeUs: hour, WindowUs: &none}
	for _, c := range []struct {
		what string
		now  *ebbv1.Namespace
		want bool
	}{
		{"the same version", &ebbv1.Namespace{Name: "n", Version: 3, AllowNegative: &negative}, false},
		{"an older version", &ebbv1.Namespace{Name: "n", Version: 2, AllowNegative: &negative}, false},
		{"a later version alone", &ebbv1.Namespace{Name: "n", Version: 4, HalfLifeUs: hour}, false},
		{"a budget", &ebbv1.Namespace{Name: "n", Version: 4, Budget: &ebbv1.NamespaceBudget{Keys: new(uint64)}}, false},
		{"negative amounts", &ebbv1.Namespace{Name: "n", Version: 4, AllowNegative: &negative}, true},
		{"another half-life", &ebbv1.Namespace{Name: "n", Version: 4, HalfLifeUs: 1}, true},
		{"a deletion", &ebbv1.Namespace{Name: "n", Version: 4, Deletion: &ebbv1.NamespaceDeletion{}}, true},
	} {
		if got := changed(known, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
