package cluster

import "github.com/ebbdb/ebb/proto"

// bitmap refuses questions about bitmaps, of which shards hold none yet.
func (i *inquiry) bitmap() (*errand, *proto.Error) {
	return nil, proto.ErrWrongKind.Errorf("this version stores no bitmaps, so that there are none to ask about").WithHint("what sets have in common: overlap(a, b)")
}
