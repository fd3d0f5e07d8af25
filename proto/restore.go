package proto

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// FieldCommandRestore is a field number of Command; a test checks it against the descriptor.
const FieldCommandRestore = 40

const (
	// RestoreNameLenMax bounds the name of a restore, in bytes.
	RestoreNameLenMax = 64
	// RestorePieceBytesMax bounds one piece of a snapshot.
	RestorePieceBytesMax = 128 << 10
	// SnapshotHaveMax is the most chunks that a caller may list as present.
	SnapshotHaveMax = 1 << 16
	// ChunkHashLen is the length of a chunk's name: SHA-256.
	ChunkHashLen = 32
)

// checkRestoreCommand checks a step of a restore.
func checkRestoreCommand(raw []byte) *Error {
	var c ebbv1.RestoreShard
	if err := Decode(raw, &c); err != nil {
		return err
	}
	if c.Step == nil {
		return errMalformed("command")
	}
	return CheckRestore(&c)
}

// CheckRestore checks a step of a restore.
func CheckRestore(c *ebbv1.RestoreShard) *Error {
	if n := len(c.GetName()); n == 0 || n > RestoreNameLenMax {
		return ErrBadRequest.Errorf("restore with a name of %d bytes: it has 1 to %d", n, RestoreNameLenMax)
	}
	if p := c.GetPiece(); p != nil && (len(p.GetData()) == 0 || len(p.GetData()) > RestorePieceBytesMax) {
		return ErrBadRequest.Errorf("piece of %d bytes: it has 1 to %d", len(p.GetData()), RestorePieceBytesMax)
	}
	return nil
}

// CheckSnapshot checks a request for the state of a shard.
func CheckSnapshot(req *ebbv1.SnapshotRequest) *Error {
	if s := req.GetShard(); s == 0 || s > ShardsMax {
		return ErrWrongShard.Errorf("shard %d: shards are numbered from 1, to %d at most", s, ShardsMax)
	}
	if n := len(req.GetHave()); n > SnapshotHaveMax {
		return ErrBatchTooLarge.Errorf("%d chunks: the limit is %d", n, SnapshotHaveMax)
	}
	for _, hash := range req.GetHave() {
		if len(hash) != ChunkHashLen {
			return ErrBadRequest.Errorf("hash of a chunk of %d bytes: it has %d", len(hash), ChunkHashLen)
		}
	}
	return nil
}

// restoreGrows says whether a step of a restore makes its shard larger.
func restoreGrows(body []byte) bool {
	var c ebbv1.RestoreShard
	return Decode(body, &c) == nil && c.GetPiece() != nil
}

// RestoreStep names the step of a restore in the body of a command; "" for a piece.
func RestoreStep(body []byte) string {
	var c ebbv1.RestoreShard
	if Decode(body, &c) != nil {
		return ""
	}
	switch c.GetStep().(type) {
	case *ebbv1.RestoreShard_Begin:
		return "begin"
	case *ebbv1.RestoreShard_Commit:
		return "commit"
	case *ebbv1.RestoreShard_Cancel:
		return "cancel"
	}
	return ""
}
