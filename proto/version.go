package proto

// Two numbers say which builds of ebb can work together. A change that an older build would not understand raises one
// of them, and is not made use of before every node knows it.
//
// The wire version is of what nodes say to each other outside of logs; two nodes compare theirs when they connect. From
// 2 on the chunks of a snapshot are listed before they go.
//
// The storage version is of what lies in logs, snapshots and data directories. A cluster has one that is in force: the
// control group keeps it, and raises it once every member knows a newer one. Until then nothing is written that is
// newer, and a node can go back to its old build; from then on an older build refuses its data directory. What came
// with each:
//
//	1  builds that say nothing of versions; those of wire version 1 have other snapshots, too, and cannot be upgraded while they run
//	2  the version itself: RaiseVersion in the control group's log, "layout" of node.json; epochs of the records of shards
//	3  tokens: PutToken and DropToken in the control group's log; replicas whose disk is lost, and moves taken back
//	4  the last operator's token is the one that lasts longest. Builds of version 3 differ: the first know no lost replicas, and revoke any token
//	5  who waits to take the place of a lost disk is refused by the control group once that member is removed
//	6  sessions have a namespace and a secret; sources and idempotency keys have a namespace: see shard.BehaviourNamespaces
//	8  nodes prove that they are nodes: the first token of a plain cluster needs that of all members, and while there
//	   are tokens no other node joins
//	9  namespaces can be deleted, and bodies count what they hold: see shard.BehaviourDeletion
//	10 answers do not depend on the order of events, and say what is lost: see shard.BehaviourOrderFree
//	11 shards name the keys of a question that are missing; windows and expiring Bloom filters keep what they promise:
//	   see shard.BehaviourWindows;
//	   images of keys merge, and large ones come in pieces: see shard.BehaviourSketches;
//	   namespaces say how members of sets are hashed, and hashes go in and out: see shard.BehaviourSetHash;
//	   Morris counters and linear decay keep what events in any order cost: see shard.BehaviourMorris and
//	   BehaviourBounded;
//	   a namespace has one event clock, which can be set: see shard.BehaviourEventClocks
//	12 nodes tell each other that their disks are full; floors that keep bins keep those of events that weigh nothing
//	   any more, too: see shard.BehaviourFaint;
//	   rates under an event clock begin with the events of all shards: see shard.BehaviourUnited;
//	   the control group keeps idempotency keys of clients' changes, and replaces single replicas that are damaged;
//	   the holder of a source can drop it: see shard.BehaviourHolderDrops
//	13 keys that come from a namespace with other settings are converted at a time of their events: see
//	   shard.BehaviourImages;
//	   keys are there as long as either of two half-lives counts something: see shard.BehaviourSlowKeys
//	14 answers say what keys may have held that were gone when an event clock was set back: see
//	   shard.BehaviourGoneBack
//	15 what is merged into a key is added to what the key may have held; sets have up to 65,536 members; keys are
//	   removed by the event clock of before a command: see shard.BehaviourAdds
//
// 7 was never released.
const (
	WireVersion    = 2
	WireOldest     = 2 // that this build still speaks
	StorageVersion = 15
	StorageOldest  = 1 // that this build can still run with
)

// VersionRecordEpochs is from when on records of shards say in which epoch they changed, so that a late settlement is
// refused.
const VersionRecordEpochs = 2

// VersionTokens is from when on the control group keeps tokens.
const VersionTokens = 3

// VersionLostReplicas is from when on the control group marks replicas whose disk is lost, counts what survives that by
// these marks, and takes moves back. It is the version that tokens came with: none from 2 on was released without
// these.
const VersionLostReplicas = VersionTokens

// VersionLastOperator is from when on the control group keeps the operator's token that lasts longest.
const VersionLastOperator = 4

// VersionTakesPlace is from when on the control group learns of a joining node that it waits for the place of a member.
const VersionTakesPlace = 5

// VersionNamespaces is from when on sessions, sources and idempotency keys of a shard belong to a namespace, and
// sessions have a secret.
const VersionNamespaces = 6

// VersionPeerProofs is from when on the control group keeps nodes that do not prove that they are nodes out of a
// cluster with tokens.
const VersionPeerProofs = 8

// VersionDeletion is from when on namespaces are deleted, and shards count of a body what it holds.
const VersionDeletion = 9

// VersionOrderFree is from when on shards count events whatever their order, and encodings say what is lost.
const VersionOrderFree = 10

// VersionMissingKeys is from when on all shards name the keys of a question that are missing.
const VersionMissingKeys = 11

// VersionWindows is from when on keys are made that count any window, and expiring Bloom filters that grow.
const VersionWindows = 11

// VersionSketches is from when on images merge with what keys hold, and large ones go from shard to shard in pieces.
const VersionSketches = 11

// VersionEventClocks is from when on a namespace has one event clock, which can be set, and events that jump are
// refused.
const VersionEventClocks = 11

// VersionFaint is from when on shards make bins of events that weigh nothing any more, where floors keep bins.
const VersionFaint = 12

// VersionImages is from when on shards convert images of keys at a time of their events, and keys are there as long as
// either half-life of their namespace counts something.
const VersionImages = 13

// VersionGoneBack is from when on shards note what gone keys may have held when an event clock is set back.
const VersionGoneBack = 14

// VersionAdds is from when on shards add what is merged into a key to what that key may have held.
const VersionAdds = 15

// VersionClientChanges is from when on the control group applies a change of a client once, however late a try of it
// comes.
const VersionClientChanges = 12

// VersionLoseReplica is from when on a node with a damaged replica of a shard is given another.
const VersionLoseReplica = 12

// VersionRecoverShard is from when on an operator may go on with one replica of a shard that has lost its majority.
const VersionRecoverShard = 12

// VersionUnited is from when on shards say when rates of a namespace begin, and all of them together decide.
const VersionUnited = 12

// VersionDiskFull is from when on nodes tell each other that their disks are full.
const VersionDiskFull = 12

// VersionSetHash is from when on a namespace may hash the members of its sets by murmur3, and hashes go into sets and
// out.
const VersionSetHash = 11

// Versions are the storage versions that a build can run with.
type Versions struct{ Oldest, Newest uint32 }

// StorageVersions are those of this build.
func StorageVersions() Versions { return Versions{StorageOldest, StorageVersion} }

// ReportedVersions are those that a node reports. A node that reports none knows only the first.
func ReportedVersions(oldest, newest uint32) Versions {
	return Versions{max(oldest, 1), max(newest, 1)}
}

// Know reports whether a build can run while this version is in force.
func (v Versions) Know(version uint32) bool { return v.Oldest <= version && version <= v.Newest }
