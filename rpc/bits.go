package rpc

import (
	"context"
	"strconv"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

func (s *ebbServer) Bits(ctx context.Context, req *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	if err := proto.CheckBits(req); err != nil {
		return nil, err
	}
	return s.Router.Bits(ctx, req)
}

func (s *ebbServer) StoreBitmap(ctx context.Context, req *ebbv1.StoreBitmapRequest) (*ebbv1.StoreBitmapResponse, error) {
	if err := proto.CheckStoreBitmap(req); err != nil {
		return nil, err
	}
	return s.Keys.StoreBitmap(ctx, req)
}

var bitsParams = append([]param{
	{name: "first", kind: "integer", summary: "only ids from this one on"},
	{name: "last", kind: "integer", summary: "only ids up to this one"},
	{name: "ids", kind: "boolean", summary: "the ids in ascending order, a page of them, in place of their number"},
	{name: "from", kind: "integer", summary: "of a page: from this id on, the next of the page before"},
	{name: "limit", kind: "integer", summary: "of a page: how many ids, 1 to 100,000; 1,000 by default"},
	{name: "contains", kind: "integer", summary: "whether this id is in; may be repeated", repeated: true},
	{name: "name", kind: "string", summary: "in a namespace with a dictionary: whether this string is in; may be repeated", repeated: true},
	{name: "rank", kind: "integer", summary: "how many ids there are below this one"},
	{name: "position", kind: "integer", summary: "which id has so many below it"},
	{name: "ends", kind: "boolean", summary: "the smallest and the largest id, and how many there are"},
}, askParams...)

// serveBits changes the one bitmap that the path names.
func serveBits(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	change := &ebbv1.BitChange{}
	if err := parseJSON(c.charge, c.body, change); err != nil {
		return nil, err
	}
	if len(change.GetKey()) > 0 {
		return nil, proto.ErrBadKey.Errorf("key: it stands in the path")
	}
	change.Key = keys[0]
	req := &ebbv1.BitsRequest{Namespace: c.path["ns"], Changes: []*ebbv1.BitChange{change}}
	resp, err := guardedCall(ctx, s.Services, ebbv1grpc.Ebb_Bits_FullMethodName, req, s.Bits)
	if err != nil || len(resp.GetRefused()) == 0 {
		return resp, err
	}
	// one change alone is no success that was made in part
	e := proto.FromWire(resp.GetRefused()[0].GetError())
	return nil, proto.ErrUnknownOutcome.Errorf("%d ids were changed, and the rest is refused: %v", resp.GetChanged()[0], e).WithHint(e.Hint)
}

// serveBitmap asks about the one bitmap that the path names.
func serveBitmap(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	q := &ebbv1.BitmapQuestion{Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: keys[0]}}}
	if err := c.bitmapRange(q); err != nil {
		return nil, err
	}
	if err := c.bitmapSelect(q); err != nil {
		return nil, err
	}
	return askOne(ctx, s, c, &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Bitmap{Bitmap: q}})
}

func (c *call) bitmapRange(q *ebbv1.BitmapQuestion) error {
	if !c.query.Has("first") && !c.query.Has("last") {
		return nil
	}
	q.Range = &ebbv1.BitRange{Last: 1<<64 - 1}
	return c.setAll(q.Range.ProtoReflect(), "first", "last")
}

func (c *call) bitmapSelect(q *ebbv1.BitmapQuestion) error {
	given := 0
	for _, name := range []string{"ids", "contains", "name", "rank", "position", "ends"} {
		if c.query.Has(name) {
			given++
		}
	}
	ids, err := c.flag("ids")
	if err != nil {
		return err
	}
	ends, err := c.flag("ends")
	if err != nil {
		return err
	}
	switch {
	case given > 1:
		return proto.ErrBadRequest.Errorf("ids, contains, name, rank, position and ends: only one of them may be given")
	case !ids && (c.query.Has("from") || c.query.Has("limit")):
		return proto.ErrBadRequest.Errorf("from and limit: they go with ids=true")
	case ids:
		page := &ebbv1.BitmapPage{}
		q.Select = &ebbv1.BitmapQuestion_Ids{Ids: page}
		return c.setAll(page.ProtoReflect(), "from", "limit")
	case c.query.Has("contains"):
		list := &ebbv1.BitmapIds{}
		for _, text := range c.query["contains"] {
			id, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return proto.ErrBadRequest.Errorf("contains: %s is not an integer from 0 to 18446744073709551615", quote(text)).
					WithHint("in a namespace with a dictionary strings are asked for with name")
			}
			list.Ids = append(list.Ids, id)
		}
		q.Select = &ebbv1.BitmapQuestion_Contains{Contains: list}
		return nil
	case c.query.Has("name"):
		names, err := texts("name", c.query["name"])
		q.Select = &ebbv1.BitmapQuestion_Contains{Contains: &ebbv1.BitmapIds{Names: names}}
		return err
	case c.query.Has("rank"), c.query.Has("position"):
		return c.setAll(q.ProtoReflect(), "rank", "position")
	case ends:
		q.Select = &ebbv1.BitmapQuestion_Ends{Ends: true}
		return nil
	}
	q.Select = &ebbv1.BitmapQuestion_Count{Count: true}
	return nil
}
