package client_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// As many namespaces as a cluster can have, with keys as long as they can be, are more than a node takes in one
// message: they come in several.
func TestRestoreOfManyNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []*ebbv1.Namespace
		w := newWorld(t, 1)
		c := w.connect(ebb.WithGRPC(grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if method != ebbv1grpc.Shards_RestoreNamespaces_FullMethodName {
					return next(ctx, method, req, reply, conn, opts...)
				}
				some := req.(*ebbv1.RestoreNamespacesRequest)
				if n := protobuf.Size(some); n > proto.MessageBytesMax {
					t.Errorf("a message of %d bytes: a node takes %d", n, proto.MessageBytesMax)
				}
				got = append(got, some.GetNamespaces()...)
				return nil
			})))
		all := make([]*ebbv1.Namespace, proto.NamespacesMax)
		for i := range all {
			all[i] = &ebbv1.Namespace{Name: fmt.Sprint("n", i), Universe: bytes.Repeat([]byte{'u'}, proto.KeyLenMax)}
		}
		if err := c.RestoreNamespaces(context.Background(), all, 0); err != nil || !slices.Equal(got, all) {
			t.Errorf("%d of %d come, or in another order: %v", len(got), len(all), err)
		}
	})
}
