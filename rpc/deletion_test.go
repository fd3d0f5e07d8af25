package rpc

import (
	"testing"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// An admin may delete and undelete namespaces. By way of a restore only operators delete one, and only they restore
// what leaves no room for later versions: a purge in the middle of a restore cannot be taken back.
func TestRestoredDeletionsAreForOperators(t *testing.T) {
	box := boxWith(tokenRecord("writer", grant(writer, "*")), tokenRecord("admin", grant(admin, "*")),
		tokenRecord("operator", grant(operator, "")))
	s, access := guardedServices(box)
	backups := &takingBackups{Backups: s.Backups}
	s.Backups = backups
	shards := ebbv1grpc.NewShardsClient(serve(t, s))
	restored := func(change func(*ebbv1.RestoreNamespacesRequest)) *ebbv1.RestoreNamespacesRequest {
		req := &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{
			{Name: "first", HashSeed: 2, Version: 1}, {Name: "new", HashSeed: 3, Version: 1},
		}}
		change(req)
		return req
	}
	for what, req := range map[string]*ebbv1.RestoreNamespacesRequest{
		"in grace": restored(func(r *ebbv1.RestoreNamespacesRequest) {
			r.Namespaces[1].Deletion = &ebbv1.NamespaceDeletion{DeletedUs: 1, PurgeUs: 9}
		}),
		"being purged": restored(func(r *ebbv1.RestoreNamespacesRequest) {
			r.Namespaces[1].Deletion = &ebbv1.NamespaceDeletion{Purging: true}
		}),
		"an empty deletion": restored(func(r *ebbv1.RestoreNamespacesRequest) {
			r.Namespaces[1].Deletion = &ebbv1.NamespaceDeletion{}
		}),
		"the last version": restored(func(r *ebbv1.RestoreNamespacesRequest) { r.Namespaces[1].Version = 1<<63 - 1 }),
		"one version too many": restored(func(r *ebbv1.RestoreNamespacesRequest) {
			r.Namespaces[1].Version = cluster.RestoredVersionTrusted + 1
		}),
		"a dropped version": restored(func(r *ebbv1.RestoreNamespacesRequest) { r.DroppedVersion = 1 }),
	} {
		for who, want := range map[string]string{"writer": "no", "admin": "no", "operator": "yes", "node": "yes"} {
			backups.took = nil
			_, err := shards.RestoreNamespaces(as(t, access, who), req)
			if got := verdict(ebbv1grpc.FromStatus(err)); got != want || (backups.took != nil) != (want == "yes") {
				t.Errorf("%s by %s: %s, want %s", what, who, got, want)
			}
		}
	}
	_, err := shards.RestoreNamespaces(as(t, access, "admin"), restored(func(r *ebbv1.RestoreNamespacesRequest) {
		r.Namespaces[1].Version = cluster.RestoredVersionTrusted
	}))
	if got := verdict(ebbv1grpc.FromStatus(err)); got != "yes" {
		t.Errorf("a plain restore by an admin: %v", err)
	}
}
