package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// Limits bound what one shard remembers. All replicas of a shard must use the
// same ones, for they decide results.
type Limits struct {
	Namespaces      int
	HalfLifeChanges int         // a namespace
	PartNames       int         // strings in a part of a dictionary
	BodyBytes       int         // of bodies, see frame.held; one that is there may grow over it by an eighth
	BitmapBytes     uint64      // of one bitmap, as its ids would take it that have no runs; one that is there may grow over it by a command
	Future          sketch.Tick // how far past the stamp an event may claim to be

	Sessions           int
	SessionWindow      uint64 // commands a session
	SessionExpiry      sketch.Tick
	SessionResultBytes int // of results that say more than a count, a session

	Sources        int
	SourceRefusals int // refused rows remembered, a source

	IdempotencyKeys        int
	IdempotencyWindow      sketch.Tick
	IdempotencyResultBytes int // of results that say more than a count
}

// DefaultLimits are the limits of the wire contract.
func DefaultLimits() Limits {
	return Limits{
		Namespaces:      proto.NamespacesMax,
		HalfLifeChanges: proto.HalfLifeChangesMax,
		PartNames:       proto.PartNamesMax,
		BodyBytes:       proto.BodyBytesMax,
		BitmapBytes:     proto.BitmapBytesMax,
		Future:          proto.FutureMaxUS,

		Sessions:           proto.SessionsMax,
		SessionWindow:      proto.SessionWindow,
		SessionExpiry:      proto.SessionExpiryUS,
		SessionResultBytes: 64 << 10,

		Sources:        proto.SourcesMax,
		SourceRefusals: proto.BatchOpsMax,

		IdempotencyKeys:        proto.IdempotencyKeysMax,
		IdempotencyWindow:      proto.IdempotencyWindowUS,
		IdempotencyResultBytes: 16 << 20,
	}
}
