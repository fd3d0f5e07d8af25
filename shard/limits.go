package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// Limits bound what one shard remembers. Limits decide results, so all replicas of a shard must use the same ones.
type Limits struct {
	Namespaces      int
	HalfLifeChanges int         // per namespace
	PartNames       int         // strings in a part of a dictionary
	BodyBytes       int         // of all bodies, see frame.held; bodies that exist may exceed it by an eighth
	BitmapBytes     uint64      // of one bitmap, as if its ids had no runs; one that exists may exceed it by a command
	Future          sketch.Tick // how far after the entry's stamp an event may be dated

	Sessions           int
	SessionWindow      uint64 // commands per session
	SessionExpiry      sketch.Tick
	SessionResultBytes int // of results that are more than a count, per session

	Sources        int
	SourceRefusals int // refused rows remembered, per source

	IdempotencyKeys        int
	IdempotencyWindow      sketch.Tick
	IdempotencyResultBytes int // of results that are more than a count
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
