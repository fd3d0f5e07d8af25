package proto

// Two numbers say which builds of ebb can work together. A change that an older build does not understand raises one of
// them. The change is not used before every node supports it.
//
// The wire version is for messages between nodes; two nodes compare their versions when they connect. Since version 2
// the chunks of a snapshot are listed before they are sent.
//
// The storage version is for logs, snapshots and data directories. A cluster has one storage version in force: the
// control group stores it, and raises it once every member knows a newer one. Before that, no node writes newer data,
// and a node can go back to its old build. After that, an older build refuses its data directory. What each version
// brought:
//
//	1  builds that report no versions; builds of wire version 1 also have other snapshots, and cannot be upgraded
//	   while they run
//	2  the version itself: RaiseVersion in the control group's log, "layout" of node.json; epochs of the records of
//	   shards
//	3  tokens: PutToken and DropToken in the control group's log; replicas whose disk is lost, and cancelled moves
//	4  the last operator's token is the one that expires last. Builds of version 3 differ: the first ones know no lost
//	   replicas, and revoke any token
//	5  a node that waits to take the place of a lost disk is refused by the control group once that member is removed
//	6  sessions have a namespace and a secret; sources and idempotency keys have a namespace: see
//	   shard.BehaviourNamespaces
//	8  nodes prove that they are nodes: before the first token of a plain cluster, all members must do so, and while
//	   there are tokens no other node joins
//	9  namespaces can be deleted, and bodies count their contents: see shard.BehaviourDeletion
//	10 answers do not depend on the order of events, and report what is lost: see shard.BehaviourOrderFree
//	11 shards name the missing keys of a question; windows and expiring Bloom filters keep their guarantees:
//	   see shard.BehaviourWindows;
//	   images of keys merge, and large ones are sent in pieces: see shard.BehaviourSketches;
//	   namespaces set how members of sets are hashed, and hashes are imported and exported: see
//	   shard.BehaviourSetHash;
//	   Morris counters and linear decay keep what events in any order cost: see shard.BehaviourMorris and
//	   BehaviourBounded;
//	   a namespace has one event clock, which can be set: see shard.BehaviourEventClocks
//	12 nodes report full disks to each other; floors that keep bins also keep bins of events whose weight is 0:
//	   see shard.BehaviourFaint;
//	   rates under an event clock begin with the events of all shards: see shard.BehaviourUnited;
//	   the control group stores idempotency keys of clients' changes, and replaces single damaged replicas;
//	   the holder of a source can drop it: see shard.BehaviourHolderDrops
//	13 keys that come from a namespace with other settings are converted at a time of their events: see
//	   shard.BehaviourImages;
//	   a key exists as long as it has counts under either of two half-lives: see shard.BehaviourSlowKeys
//	14 answers report what keys that were gone when an event clock was set back may have held: see
//	   shard.BehaviourGoneBack
//	15 what is merged into a key is added to what the key may have held; sets have up to 65,536 members; keys are
//	   removed by the event clock of before a command: see shard.BehaviourAdds
//
// 7 was never released.
const (
	WireVersion    = 2
	WireOldest     = 2 // that this build still supports
	StorageVersion = 15
	StorageOldest  = 1 // that this build can still run with
)

// VersionRecordEpochs is the first storage version in which records of shards store the epoch of their last change, so
// that a late settlement is refused.
const VersionRecordEpochs = 2

// VersionTokens is the first storage version in which the control group stores tokens.
const VersionTokens = 3

// VersionLostReplicas is the first storage version in which the control group marks replicas whose disk is lost, uses
// these marks to count the replicas that survive, and cancels moves. It equals VersionTokens: no build of version 3 or
// later without these was released.
const VersionLostReplicas = VersionTokens

// VersionLastOperator is the first storage version in which the control group keeps the operator token that expires
// last.
const VersionLastOperator = 4

// VersionTakesPlace is the first storage version in which a joining node tells the control group that it waits for the
// place of a member.
const VersionTakesPlace = 5

// VersionNamespaces is the first storage version in which sessions, sources and idempotency keys of a shard belong to a
// namespace, and sessions have a secret.
const VersionNamespaces = 6

// VersionPeerProofs is the first storage version in which the control group admits to a cluster with tokens only nodes
// that prove that they are nodes.
const VersionPeerProofs = 8

// VersionDeletion is the first storage version in which namespaces can be deleted, and shards count what a body holds.
const VersionDeletion = 9

// VersionOrderFree is the first storage version in which counts do not depend on the order of events, and encodings
// store what is lost.
const VersionOrderFree = 10

// VersionMissingKeys is the first storage version in which all shards name the missing keys of a question.
const VersionMissingKeys = 11

// VersionWindows is the first storage version with keys that count any window, and with expiring Bloom filters that
// grow.
const VersionWindows = 11

// VersionSketches is the first storage version in which images merge with what keys hold, and large images are sent
// from shard to shard in pieces.
const VersionSketches = 11

// VersionEventClocks is the first storage version in which a namespace has one event clock, which can be set, and
// events too far ahead of it are refused.
const VersionEventClocks = 11

// VersionFaint is the first storage version in which shards make bins for events whose weight is 0, where floors keep
// bins.
const VersionFaint = 12

// VersionImages is the first storage version in which shards convert images of keys at a time of their events. In it, a
// key also exists as long as it has counts under either half-life of its namespace.
const VersionImages = 13

// VersionGoneBack is the first storage version in which shards record, when an event clock is set back, what keys that
// no longer exist may have held.
const VersionGoneBack = 14

// VersionAdds is the first storage version in which shards add what is merged into a key to what that key may have
// held.
const VersionAdds = 15

// VersionClientChanges is the first storage version in which the control group applies a change of a client only once,
// however late it is sent again.
const VersionClientChanges = 12

// VersionLoseReplica is the first storage version in which a node with a damaged replica of a shard gets a new replica.
const VersionLoseReplica = 12

// VersionRecoverShard is the first storage version in which an operator may continue with one replica of a shard that
// has lost its majority.
const VersionRecoverShard = 12

// VersionUnited is the first storage version in which each shard reports when rates of a namespace begin, and all
// shards together decide the beginning.
const VersionUnited = 12

// VersionDiskFull is the first storage version in which nodes report to each other that their disks are full.
const VersionDiskFull = 12

// VersionSetHash is the first storage version in which a namespace may hash the members of its sets by murmur3, and in
// which sets import and export hashes.
const VersionSetHash = 11

// Versions are the storage versions that a build can run with.
type Versions struct{ Oldest, Newest uint32 }

// StorageVersions are the storage versions of this build.
func StorageVersions() Versions { return Versions{StorageOldest, StorageVersion} }

// ReportedVersions are the storage versions that a node reports. A node that reports none knows only version 1.
func ReportedVersions(oldest, newest uint32) Versions {
	return Versions{max(oldest, 1), max(newest, 1)}
}

// Know reports whether a build can run while this version is in force.
func (v Versions) Know(version uint32) bool { return v.Oldest <= version && version <= v.Newest }
