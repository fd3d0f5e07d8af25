package rpc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/internal/spell"
)

// didYouMean is a hint with the nearest of names, or with all when none is near.
func didYouMean(name string, names []string) string {
	if near := spell.Nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return "known: " + strings.Join(names, ", ")
}
