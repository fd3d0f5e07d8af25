package rpc

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Acts of administration are written down with who did what, and denials, but not more than some a second.
func TestAudit(t *testing.T) {
	var lines lockedBuffer
	box := boxOf()
	now := time.Unix(1_700_000_000, 0)
	s := fixture().services()
	s.Access = NewAccess(AccessConfig{
		Tokens: box.tokens, Node: "ebb-0", Now: func() time.Time { return now },
		Audit: slog.New(slog.NewJSONHandler(&lines, nil)),
	})
	ebb := ebbv1grpc.NewEbbClient(serve(t, s))
	ctx := as(t, s.Access, "operator")
	_, err := ebb.ChangeCluster(ctx, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: "ebb-1"}})
	_, err2 := ebb.Delete(ctx, &ebbv1.DeleteRequest{Namespace: "clicks", Keys: [][]byte{[]byte("a"), []byte("b")}})
	_, err3 := ebb.ChangeCluster(ctx, &ebbv1.ChangeClusterRequest{})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"who":"operator","from":"bufconn","act":"change cluster","on":"drain:\"ebb-1\"","outcome":"done","node":"ebb-0"}`,
		`"act":"delete","on":"2 keys of namespace clicks, the first \"a\"","outcome":"done"`,
	} {
		if got := strings.ReplaceAll(lines.String(), ":  ", ": "); !strings.Contains(strings.ReplaceAll(got, "drain: ", "drain:"), want) {
			t.Errorf("the audit log has no %s:\n%s", want, got)
		}
	}
	if n := strings.Count(lines.String(), "change cluster"); n != 1 {
		t.Errorf("%d lines of changes, and one only asked", n)
	}
	for range 3 * denialsMax {
		_, _ = ebb.ChangeCluster(as(t, s.Access, "reader"), &ebbv1.ChangeClusterRequest{})
	}
	lines.await(t, denialsMax)
	now = now.Add(time.Second)
	_, _ = ebb.ChangeCluster(as(t, s.Access, "nobody"), &ebbv1.ChangeClusterRequest{})
	lines.await(t, denialsMax+1)
	if !strings.Contains(lines.String(), "; 20 others are not written down") {
		t.Errorf("nothing is said of those that were left out:\n%s", lines.String())
	}
}
