package rpc

import (
	"context"
	"encoding/base64"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Keys has the operations on whole keys, in any shards.
type Keys interface {
	Delete(context.Context, *ebbv1.DeleteRequest) (*ebbv1.DeleteResponse, error)
	Expire(context.Context, *ebbv1.ExpireRequest) (*ebbv1.ExpireResponse, error)
	Rename(context.Context, *ebbv1.RenameRequest) (*ebbv1.RenameResponse, error)
	StoreBitmap(context.Context, *ebbv1.StoreBitmapRequest) (*ebbv1.StoreBitmapResponse, error)
}

func (s *ebbServer) Delete(ctx context.Context, req *ebbv1.DeleteRequest) (*ebbv1.DeleteResponse, error) {
	if err := proto.CheckDelete(req); err != nil {
		return nil, err
	}
	return s.Keys.Delete(ctx, req)
}

func (s *ebbServer) Expire(ctx context.Context, req *ebbv1.ExpireRequest) (*ebbv1.ExpireResponse, error) {
	if err := proto.CheckExpire(req); err != nil {
		return nil, err
	}
	return s.Keys.Expire(ctx, req)
}

func (s *ebbServer) Rename(ctx context.Context, req *ebbv1.RenameRequest) (*ebbv1.RenameResponse, error) {
	if err := proto.CheckRename(req); err != nil {
		return nil, err
	}
	return s.Keys.Rename(ctx, req)
}

var listParams = append([]param{
	{name: "kind", kind: "string", summary: "only keys of this kind"},
	{name: "order", kind: "string", summary: "name (default), total (the largest first) or recent (the latest event first, as far as a kind knows it: see describe)"},
	{name: "limit", kind: "integer", summary: "how many keys, 1 to 10,000; 100 by default"},
	{name: "after", kind: "string", summary: "of the order by name: keys after this one"},
	{name: "after_base64", kind: "string", summary: "the same of a key that is not UTF-8, as the list has it"},
	asOfParam,
}, askParams...)

var describeParams = append([]param{asOfParam}, askParams...)

func serveKeys(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	q := &ebbv1.KeysQuestion{}
	pattern, err := texts("pattern", []string{c.path["pattern"]})
	if err != nil {
		return nil, err
	}
	q.Pattern = pattern[0]
	if after, err := texts("after", c.query["after"]); err != nil {
		return nil, err
	} else if len(after) > 0 {
		q.After = after[0]
	}
	if after := c.query["after_base64"]; len(after) > 0 {
		if q.After != nil {
			return nil, proto.ErrBadRequest.Errorf("after and after_base64: only one of them may be given")
		}
		if q.After, err = base64.StdEncoding.DecodeString(after[0]); err != nil {
			return nil, proto.ErrBadKey.Errorf("after_base64: %s is not base64", quote(after[0]))
		}
	}
	if err := c.setAll(q.ProtoReflect(), "kind", "order", "limit", "as_of"); err != nil {
		return nil, err
	}
	return askOne(ctx, s, c, &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Keys{Keys: q}})
}

func serveDescribe(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	q := &ebbv1.DescribeQuestion{Key: keys[0]}
	if err := c.setAll(q.ProtoReflect(), "as_of"); err != nil {
		return nil, err
	}
	return askOne(ctx, s, c, &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Describe{Describe: q}})
}

func serveDelete(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	return guardedCall(ctx, s.Services, ebbv1grpc.Ebb_Delete_FullMethodName, &ebbv1.DeleteRequest{Namespace: c.path["ns"], Keys: keys}, s.Delete)
}
