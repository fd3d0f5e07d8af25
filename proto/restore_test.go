package proto_test

import (
	"errors"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestRestoreIsItsField(t *testing.T) {
	if got := (&ebbv1.Command{}).ProtoReflect().Descriptor().Fields().ByName("restore").Number(); got != proto.FieldCommandRestore {
		t.Errorf("restore is field %d", got)
	}
}

func TestCheckRestoreAndSnapshot(t *testing.T) {
	long := make([]byte, proto.RestorePieceBytesMax+1)
	piece := func(data []byte) *ebbv1.RestoreShard {
		return &ebbv1.RestoreShard{Name: "b", Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{Data: data}}}
	}
	for name, c := range map[string]struct {
		step *ebbv1.RestoreShard
		ok   bool
	}{
		"a piece":         {piece(long[1:]), true},
		"a long piece":    {piece(long), false},
		"an empty piece":  {piece(nil), false},
		"no step":         {&ebbv1.RestoreShard{Name: "b"}, false},
		"no name":         {&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}}, false},
		"a name too long": {&ebbv1.RestoreShard{Name: string(long[:65]), Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}}, false},
	} {
		raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: c.step}})
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.CheckCommand(raw); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		req *ebbv1.SnapshotRequest
		bad error
	}{
		"no shard":        {&ebbv1.SnapshotRequest{}, proto.ErrWrongShard},
		"no such shard":   {&ebbv1.SnapshotRequest{Shard: proto.ShardsMax + 1}, proto.ErrWrongShard},
		"a short hash":    {&ebbv1.SnapshotRequest{Shard: 1, Have: [][]byte{long[:31]}}, proto.ErrBadRequest},
		"too many hashes": {&ebbv1.SnapshotRequest{Shard: 1, Have: make([][]byte, proto.SnapshotHaveMax+1)}, proto.ErrBatchTooLarge},
	} {
		if err := proto.CheckSnapshot(c.req); !errors.Is(err, c.bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := proto.CheckSnapshot(&ebbv1.SnapshotRequest{Shard: 1, Have: [][]byte{long[:32]}}); err != nil {
		t.Error(err)
	}
}
