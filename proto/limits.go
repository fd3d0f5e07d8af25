package proto

// Limits, each under the name that errors use.
const (
	KeyLenMax       = 512
	BinLenMax       = 256
	NamespaceLenMax = 64
	TextLenMax      = 128 << 10 // of the value of a string
	MatchTextMax    = 256 << 10 // of a text that is searched for phrases
	BatchOpsMax     = 10_000
	BatchBytesMax   = 1 << 20
	MessageBytesMax = 4 << 20
	// DocumentDepthMax is how deep the objects of a JSON document may be nested. The deepest documents are plans of
	// questions: two objects for each of a question's 1,000 levels, and a few around them. Expressions of BitDepthMax
	// need a tenth of that.
	DocumentDepthMax = 2_050
	// StreamWindow and ConnWindow are gRPC's flow-control windows on both sides. They are fixed: to tune them by
	// itself, gRPC sends a ping after every message and the other side answers, a quarter of the system calls of single
	// requests. A stream window holds a whole message, so that no message waits for window updates.
	StreamWindow   = MessageBytesMax
	ConnWindow     = 4 * StreamWindow
	QuestionsMax   = 1_000
	KeysPerAskMax  = 10_000
	TopMax         = 100_000
	OverlapKeysMax = 256
	GraphKeysMax   = 3_000
	LinksMax       = 100 // of each set of a graph
	BinsMaxDefault = 100_000
	// BinsMaxLimit is the largest BinsMax that a namespace may set.
	BinsMaxLimit = 10_000_000
	// AmountMax bounds one increment, so that a sum of 2^60 of them stays finite.
	AmountMax = 1e15
	// FutureMaxUS is how far after the shard's stamp an event may be dated.
	FutureMaxUS = 500_000
	// CommandBytesMax bounds one command, so that its entry stays below EntryBytesHard. The rest of the entry is for
	// the stamp and the definition of one namespace. NamespaceBytesMax bounds the part of a definition that one request
	// sends, and each of its three messages may come from another request.
	CommandBytesMax = EntryBytesHard - 16<<10
	HalfLifeMinUS   = 1_000_000
	HalfLifeMaxUS   = 100 * 365.25 * 24 * 3600 * 1e6
	ShardsMax       = 1024
	ShardsDefault   = 64

	SessionWindow          = 1024          // commands
	SessionExpiryUS        = 3_600_000_000 // of shard time
	SessionsMax            = 65_536        // a shard
	SourcesMax             = 4_096         // a shard
	IdempotencyWindowUS    = 600_000_000   // of shard time
	IdempotencyKeysMax     = 65_536        // a shard
	SourceNameLenMax       = 256
	EntryBytesSoft         = 64 << 10
	EntryBytesHard         = 256 << 10
	DefaultNamespace       = "default"
	DefaultHalfLifeUS      = 3_600_000_000
	DefaultThreshold       = 0.001
	DefaultConfidence      = 0.95
	DefaultPriorPseudo     = 1.0
	NamespacesMax          = 10_000
	NamespaceBytesMax      = 4 << 10 // of a definition in a request: more than this version needs, and fits an entry
	BudgetBytesMax         = 1 << 50 // of a namespace
	BudgetKeysMax          = 1 << 40
	BodyBytesMax           = 1 << 30 // a shard: of all summaries that are not distributions
	WatchesMax             = 1_000   // a node
	WatchIntervalMinUS     = 100_000
	WatchIntervalMaxUS     = 3_600_000_000
	DefaultWatchIntervalUS = 1_000_000
	DefaultWatchTolerance  = 0.01
	HalfLifeChangesMax     = 256 // a namespace: of half-life, and of whatever else SameArithmetic compares
)
