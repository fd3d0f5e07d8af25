package proto

import "testing"

// A message that quotes an error of the same code names the code once.
func TestCodeIsNamedOnce(t *testing.T) {
	inner := ErrStarting.Errorf("no table yet")
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{inner, "no table yet (EBB-1010)"},
		{ErrStarting.Errorf("node ebb-0 is joining: %v", inner), "node ebb-0 is joining: no table yet (EBB-1010)"},
		{ErrUnreachable.Errorf("node ebb-0: %v", inner), "node ebb-0: no table yet (EBB-1010) (EBB-1001)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
