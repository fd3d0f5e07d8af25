package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Decay is how counts fall with time.
type Decay = ebbv1.Decay

// Floor is what happens to a bin that has faded.
type Floor = ebbv1.Floor

// Clock is the clock that gives a namespace its time.
type Clock = ebbv1.Clock

// Precision is the width of a stored value.
type Precision = ebbv1.Precision

// Sizes are the sizes of keys of each kind when they are made; a field that is 0 is left out. The fields are described
// in proto/ebb/v1/ebb.proto.
type Sizes = ebbv1.Sizes

// The settings of a Namespace that are choices.
const (
	DecayHalfLife = ebbv1.Decay_DECAY_HALF_LIFE
	DecayLinear   = ebbv1.Decay_DECAY_LINEAR
	DecayNone     = ebbv1.Decay_DECAY_NONE

	FloorPrune = ebbv1.Floor_FLOOR_PRUNE
	FloorClamp = ebbv1.Floor_FLOOR_CLAMP
	FloorPrior = ebbv1.Floor_FLOOR_PRIOR

	ClockWall  = ebbv1.Clock_CLOCK_WALL
	ClockEvent = ebbv1.Clock_CLOCK_EVENT

	PrecisionDefault = ebbv1.Precision_PRECISION_DEFAULT
	PrecisionCompact = ebbv1.Precision_PRECISION_COMPACT
)

// Namespace is a family of keys with its settings. In SetNamespace a field at its
// zero value keeps what the namespace has; in CreateNamespace it means the default.
type Namespace struct {
	Name          string // 1 to 64 of letters, digits, '_', '-', '.'
	Version       uint64 // grows with every change; ignored when set
	Decay         Decay
	HalfLife      time.Duration // 1 s to 100 years; 1 h by default
	Floor         Floor
	Threshold     float64 // of FloorPrune: counts below it are gone; 0.001 by default
	Prior         float64 // of FloorPrior: the pseudo-count of each bin
	Clock         Clock
	Precision     Precision
	AllowNegative *bool  // of amounts; false by default
	BinsMax       uint32 // bins per distribution; 100,000 by default
	HashSeed      uint64 // of every hash in the namespace; drawn at creation if 0
	Kind          Kind   // of the keys that writes without a kind make; KindDistribution by default
	Sizes         *Sizes // of the keys that are made from now on; those that are there keep theirs
	// Window is for the keys of KindDistinct that are made from then on. They count what was there within the window or
	// less, and have no half-life. 1 s to 100 years, 0 for none; nil keeps what the namespace has.
	Window *time.Duration
	// SlowHalfLife is a second half-life under which distributions are counted too, for Trend. It is at least twice
	// HalfLife, or at most half of it; 0 for none; nil keeps what the namespace has. When it is turned on, its counts
	// begin empty.
	SlowHalfLife *time.Duration
	// MaxJump is how far ahead of the event clock an event may be dated; later ones fail with ErrTimeJump. 1 s to 100
	// years, 0 for no limit; 30 days by default; nil keeps what the namespace has.
	MaxJump *time.Duration
	// BitmapPlacement is chosen when the namespace is created. With PlaceBySlice the namespace holds bitmaps only, and
	// their ids are stored in all shards.
	BitmapPlacement BitmapPlacement
	// SetHash is chosen when the namespace is created: how the members of its sets are hashed, SetHashXXH3 by default.
	SetHash SetHash
	// Universe is the key of the bitmap of all ids, which a not without a universe of its own uses; "" for none; nil
	// keeps what the namespace has.
	Universe *string
	// Dictionary is chosen when the namespace is created: ids of its bitmaps stand for strings. See SetNames.
	Dictionary bool
	// DictionaryParts is how many parts the dictionary has, the number of shards when it was made; ignored when set.
	DictionaryParts uint32
	// Rollups are the lengths of periods whose bitmaps are made of shorter periods. With PeriodMonth, play/2011-11 has
	// the ids of play/2011-11-01, play/2011-11-02 and so on, and those that were written to it. Periods are made of
	// days, or of hours if PeriodDay is among them. None if empty; nil keeps what the namespace has.
	Rollups []Period
	// MaxBytes and MaxKeys are its budget in the whole cluster, replicas counted once; 0 for none; nil keeps what the
	// namespace has. Writes that would exceed it fail with ErrBudgetExceeded. Only operators set the budget.
	MaxBytes, MaxKeys *uint64
	// Deletion is nil for a namespace that is not deleted. Settings do not change it: see DeleteNamespace.
	Deletion *Deletion
}

// Period is a length of periods, in UTC.
type Period = ebbv1.Period

// The lengths of periods that can be rolled up.
const (
	PeriodDay     = ebbv1.Period_PERIOD_DAY     // 2011-11-01
	PeriodWeek    = ebbv1.Period_PERIOD_WEEK    // 2011-W44, from Monday (ISO 8601)
	PeriodMonth   = ebbv1.Period_PERIOD_MONTH   // 2011-11
	PeriodQuarter = ebbv1.Period_PERIOD_QUARTER // 2011-Q4
	PeriodYear    = ebbv1.Period_PERIOD_YEAR    // 2011
)

// BitmapPlacement is where the ids of a bitmap are stored: all in the shard of its key, or by slices of 65,536 ids.
// Each slice of all bitmaps of the namespace is in one shard.
type BitmapPlacement = ebbv1.BitmapPlacement

// The placements. The zero value is PlaceByKey.
const (
	PlaceByKey   = ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY
	PlaceBySlice = ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE
)

// SetHash is how the members of sets are hashed.
type SetHash = ebbv1.SetHash

// The hashes of members. The zero value is SetHashXXH3.
const (
	SetHashXXH3    = ebbv1.SetHash_SET_HASH_XXH3
	SetHashMurmur3 = ebbv1.SetHash_SET_HASH_MURMUR3 // that of gocountme
)

func (n Namespace) wire() *ebbv1.Namespace {
	var dictionary *ebbv1.Dictionary
	var budget *ebbv1.NamespaceBudget
	if n.MaxBytes != nil || n.MaxKeys != nil {
		budget = &ebbv1.NamespaceBudget{Bytes: n.MaxBytes, Keys: n.MaxKeys}
	}
	if n.Dictionary {
		dictionary = &ebbv1.Dictionary{}
	}
	var setHash *SetHash
	if n.SetHash != 0 {
		setHash = &n.SetHash
	}
	return &ebbv1.Namespace{
		Name: n.Name, Decay: n.Decay, HalfLifeUs: n.HalfLife.Microseconds(), Floor: n.Floor,
		Threshold: n.Threshold, Prior: n.Prior, Clock: n.Clock, Precision: n.Precision,
		AllowNegative: n.AllowNegative, BinsMax: n.BinsMax, HashSeed: n.HashSeed,
		Kind: n.Kind, Sizes: n.Sizes, WindowUs: microsOf(n.Window), SlowHalfLifeUs: microsOf(n.SlowHalfLife),
		BitmapPlacement: n.BitmapPlacement, Universe: optionalText(n.Universe), Dictionary: dictionary, Rollups: rollupsOf(n.Rollups),
		Budget: budget, MaxJumpUs: microsOf(n.MaxJump), SetHash: setHash,
	}
}

// rollupsOf returns nil only for nil: an empty list means no rollups.
func rollupsOf(units []Period) *ebbv1.Rollups {
	if units == nil {
		return nil
	}
	return &ebbv1.Rollups{Units: units}
}

// optionalText returns nil only for nil, not for an empty text.
func optionalText(s *string) []byte {
	if s == nil {
		return nil
	}
	return append([]byte{}, *s...)
}

func microsOf(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	return new(d.Microseconds())
}

func namespaceOf(w *ebbv1.Namespace) Namespace {
	return Namespace{
		Name: w.GetName(), Version: w.GetVersion(), Decay: w.GetDecay(),
		HalfLife: time.Duration(w.GetHalfLifeUs()) * time.Microsecond, Floor: w.GetFloor(),
		Threshold: w.GetThreshold(), Prior: w.GetPrior(), Clock: w.GetClock(), Precision: w.GetPrecision(),
		AllowNegative: new(w.GetAllowNegative()), BinsMax: w.GetBinsMax(), HashSeed: w.GetHashSeed(),
		Kind: w.GetKind(), Sizes: w.GetSizes(),
		Window: new(time.Duration(w.GetWindowUs()) * time.Microsecond), SlowHalfLife: new(durationOf(w.GetSlowHalfLifeUs())),
		BitmapPlacement: w.GetBitmapPlacement(), SetHash: max(w.GetSetHash(), SetHashXXH3),
		Universe:   new(string(w.GetUniverse())),
		Dictionary: proto.HasDictionary(w), DictionaryParts: w.GetDictionary().GetParts(),
		Rollups:  append([]Period{}, w.GetRollups().GetUnits()...),
		MaxBytes: new(w.GetBudget().GetBytes()), MaxKeys: new(w.GetBudget().GetKeys()),
		Deletion: deletionOf(w), MaxJump: new(durationOf(proto.MaxJumpUS(w))),
	}
}

// check refuses what would be read as "keep it" by mistake, or is out of bounds.
func (n Namespace) check() error {
	if n.HalfLife != 0 {
		if err := proto.CheckHalfLife(n.HalfLife.Microseconds()); err != nil {
			return err
		}
	}
	if err := proto.CheckNamespaceName(n.Name); err != nil {
		return err
	}
	return nil
}

// CreateNamespace makes a namespace. The error is ErrNamespaceExists if there is one of that name. It returns the
// settings with their defaults filled in.
func (c *Client) CreateNamespace(ctx context.Context, n Namespace) (Namespace, error) {
	return c.setNamespace(ctx, "create namespace", n, true)
}

// SetNamespace changes the settings of a namespace, and creates it if need be.
func (c *Client) SetNamespace(ctx context.Context, n Namespace) (Namespace, error) {
	return c.setNamespace(ctx, "set namespace", n, false)
}

func (c *Client) setNamespace(ctx context.Context, op string, n Namespace, create bool) (Namespace, error) {
	if err := n.check(); err != nil {
		return Namespace{}, c.fail(attempt{op: op, key: n.Name}, err)
	}
	wire, err := c.putNamespace(ctx, op, n.wire(), create)
	if err != nil {
		return Namespace{}, err
	}
	got := namespaceOf(wire)
	if n.SetHash == SetHashMurmur3 && got.SetHash != n.SetHash {
		return Namespace{}, c.fail(attempt{op: op, key: n.Name}, proto.ErrBadNamespace.
			Errorf("namespace %s hashes members of sets by xxh3: the node that was asked does not know murmur3",
				n.Name).
			WithHint("upgrade all nodes (ebb cluster status), and create another namespace"))
	}
	return got, nil
}

// putNamespace creates or changes a namespace as it travels.
func (c *Client) putNamespace(
	ctx context.Context, op string, ns *ebbv1.Namespace, create bool,
) (*ebbv1.Namespace, error) {
	req := &ebbv1.SetNamespaceRequest{Namespace: ns, Create: create, IdempotencyKey: c.idempotencyKey()}
	var resp *ebbv1.SetNamespaceResponse
	again := changeAgain
	if create || ns.GetClockSetting() != nil {
		again = changeOnce
	}
	err := c.anywhere(ctx, attempt{op: op, key: ns.GetName()}, again,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).SetNamespace(ctx, req)
			return err
		})
	if err != nil {
		return nil, err
	}
	c.renewal()
	return resp.GetNamespace(), nil
}

// Deletion is the state of a deleted namespace.
type Deletion struct {
	Deleted time.Time // by the clock of the node that received the request
	Purge   time.Time // until then it can be undeleted
	Purging bool      // its keys are being purged: it cannot be undeleted
}

func deletionOf(w *ebbv1.Namespace) *Deletion {
	d := w.GetDeletion()
	if d == nil {
		return nil
	}
	return &Deletion{time.UnixMicro(d.GetDeletedUs()), time.UnixMicro(d.GetPurgeUs()), d.GetPurging()}
}

// GraceDefault is for how long a deleted namespace can be undeleted, unless another time is needed.
const GraceDefault = time.Duration(proto.GraceDefaultUS) * time.Microsecond

// DeleteNamespace deletes a namespace with all of its keys. From then on the namespace refuses questions and writes. It
// can be undeleted within the grace time; after that its memory is freed. Without a grace time the memory is freed at
// once, also if the namespace was deleted with one earlier. DeleteNamespace returns the current state of the deletion.
func (c *Client) DeleteNamespace(ctx context.Context, name string, grace time.Duration) (Deletion, error) {
	a := attempt{op: "delete namespace", key: name}
	if err := proto.CheckNamespaceName(name); err != nil {
		return Deletion{}, c.fail(a, err)
	}
	req := &ebbv1.DeleteNamespaceRequest{
		Name: name, GraceUs: new(proto.GraceUS(grace)), IdempotencyKey: c.idempotencyKey(),
	}
	var resp *ebbv1.DeleteNamespaceResponse
	err := c.anywhere(ctx, a, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).DeleteNamespace(ctx, req)
		return err
	})
	if err != nil {
		return Deletion{}, err
	}
	c.renewal()
	if d := deletionOf(resp.GetNamespace()); d != nil {
		return *d, nil
	}
	return Deletion{}, nil
}

// UndeleteNamespace cancels the deletion of a namespace, which then answers as before. It returns the settings.
func (c *Client) UndeleteNamespace(ctx context.Context, name string) (Namespace, error) {
	a := attempt{op: "undelete namespace", key: name}
	if err := proto.CheckNamespaceName(name); err != nil {
		return Namespace{}, c.fail(a, err)
	}
	req := &ebbv1.UndeleteNamespaceRequest{Name: name, IdempotencyKey: c.idempotencyKey()}
	var resp *ebbv1.UndeleteNamespaceResponse
	err := c.anywhere(ctx, a, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).UndeleteNamespace(ctx, req)
		return err
	})
	if err != nil {
		return Namespace{}, err
	}
	c.renewal()
	return namespaceOf(resp.GetNamespace()), nil
}

// DeletedNamespaces lists the namespaces that were deleted and are not purged yet, with their settings.
func (c *Client) DeletedNamespaces(ctx context.Context) ([]Namespace, error) {
	_, deleted, err := c.AllNamespaces(ctx)
	return deleted, err
}

// AllNamespaces lists the namespaces, and those that were deleted and are not purged yet, with their settings.
func (c *Client) AllNamespaces(ctx context.Context) (live, deleted []Namespace, err error) {
	resp, err := c.listNamespaces(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range resp.GetNamespaces() {
		live = append(live, namespaceOf(n))
	}
	for _, n := range resp.GetDeleted() {
		deleted = append(deleted, namespaceOf(n))
	}
	return live, deleted, nil
}

// Namespaces lists the namespaces with their settings, without those that are deleted.
func (c *Client) Namespaces(ctx context.Context) ([]Namespace, error) {
	resp, err := c.listNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Namespace, len(resp.GetNamespaces()))
	for i, n := range resp.GetNamespaces() {
		out[i] = namespaceOf(n)
	}
	return out, nil
}

// NamespaceUsage is what a namespace holds in the whole cluster, replicas counted once. Keys that have faded count
// until they are removed.
type NamespaceUsage struct {
	Name              string
	Keys, Bytes       uint64
	MaxBytes, MaxKeys uint64 // its budget; 0: it has none
	// Share is the largest part of a node's memory limit that its replicas take, from 0 to 1; 0 without a limit.
	Share float64
	Node  string // that node
}

// NamespaceUsage asks what namespaces hold, the largest first: all that the caller may read, or the one of that name.
// unreachable are the nodes that did not answer; what they hold is missing.
func (c *Client) NamespaceUsage(
	ctx context.Context, name string,
) (usage []NamespaceUsage, unreachable []string, err error) {
	var resp *ebbv1.NamespaceUsageResponse
	err = c.anywhere(ctx, attempt{op: "namespace usage", key: name}, question,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).NamespaceUsage(ctx, &ebbv1.NamespaceUsageRequest{Name: name})
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	for _, u := range resp.GetNamespaces() {
		usage = append(usage, NamespaceUsage{
			Name: u.GetName(), Keys: u.GetKeys(), Bytes: u.GetBytes(),
			MaxBytes: u.GetBudget().GetBytes(), MaxKeys: u.GetBudget().GetKeys(),
			Share: u.GetShare(), Node: u.GetNode(),
		})
	}
	return usage, resp.GetUnreachable(), nil
}

func (c *Client) listNamespaces(ctx context.Context) (resp *ebbv1.ListNamespacesResponse, err error) {
	err = c.anywhere(ctx, attempt{op: "list namespaces"}, question,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).ListNamespaces(ctx, &ebbv1.ListNamespacesRequest{})
			return err
		})
	return resp, err
}

// Table fetches the placement table from the node that answers first.
func (c *Client) Table(ctx context.Context) (*ebbv1.Table, error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	start := c.now()
	for tries := 0; ; tries++ {
		err := c.renew(ctx)
		if err == nil {
			return c.routing.copyTable(), nil
		}
		if c.sleep(ctx, c.backoff(tries, err)) != nil || !worthAnotherTry(coded(err).Code) {
			return nil, c.fail(attempt{op: "table", tries: tries + 1, start: start}, err)
		}
	}
}

// Status asks a node for its report on all nodes.
func (c *Client) Status(ctx context.Context) (*ebbv1.StatusResponse, error) {
	return c.status(ctx, &ebbv1.StatusRequest{})
}

// repetition decides whether a call is sent again when its outcome is unknown.
type repetition uint8

const (
	// question: the call changes nothing, and is sent again. If a try reached its limit, the next try has twice the
	// limit: the node may need more time.
	question repetition = iota
	// changeAgain: the change counts once even if it is sent several times. It is sent again, with the limits of a
	// question.
	changeAgain
	// changeOnce: the change is not sent again.
	changeOnce
)

// anywhere makes a call that any node can answer, on one node after another. If one try of a change got no answer, the
// change may have been made, unless a later try is refused for good.
func (c *Client) anywhere(
	ctx context.Context, a attempt, again repetition, call func(context.Context, grpc.ClientConnInterface) error,
) error {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	a.start = c.now()
	maybeApplied, limit := false, cmp.Or(a.limit, c.cfg.attemptTimeout)
	if end, ends := ctx.Deadline(); ends && a.whole {
		limit = max(limit, time.Until(end))
	}
	giveUp := func(err error) error {
		if maybeApplied {
			err = &unknown{err}
		}
		return c.fail(a, err)
	}
	var p *peer
	for a.tries = 1; ; a.tries++ {
		if c.ctx.Err() != nil {
			return giveUp(ErrClosed)
		}
		p = c.anotherPeer(p)
		a.node = c.routing.nodeAt(p.addr)
		began := c.now()
		sent, err := c.tryFor(ctx, limit, p, func(ctx context.Context, conn *grpc.ClientConn) error { return call(ctx, conn) })
		if err == nil {
			return nil
		}
		if again != changeOnce {
			limit = longer(ctx, limit, c.now().Sub(began))
		}
		code := coded(err).Code
		if classify(code) == final && !worthAnotherTry(code) && !ofThisTry(code) {
			return c.fail(a, err) // for good: the tries before it are refused likewise
		}
		maybeApplied = maybeApplied || again != question && sent && classify(code) == ambiguous
		if maybeApplied && again == changeOnce || !worthAnotherTry(code) || ctx.Err() != nil {
			return giveUp(err)
		}
		if end := c.sleep(ctx, c.backoff(a.tries-1, err)); end != nil {
			return giveUp(&contextEnded{err: err, end: end})
		}
	}
}

// longer returns the limit of the next try, after one that took so long. If that try reached its limit, the next limit
// is twice as long. It is at most half of the time that is left: if several nodes hang, each is tried. A node answers a
// bit before the limit.
func longer(ctx context.Context, limit, took time.Duration) time.Duration {
	if took < limit*3/4 {
		return limit
	}
	twice := 2 * limit
	if end, ends := ctx.Deadline(); ends {
		twice = min(twice, time.Until(end)/2)
	}
	return max(limit, twice)
}

// ofThisTry reports whether a refusal concerns only this try: its time, its caller, or a node that may not have the
// namespace yet. The tries before it may have been applied.
func ofThisTry(code Code) bool {
	switch code {
	case ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD, ebbv1.Code_CODE_UNAUTHENTICATED, ebbv1.Code_CODE_PERMISSION_DENIED, ebbv1.Code_CODE_NAMESPACE_NOT_FOUND:
		return true
	}
	return false
}

// unknown is ErrUnknownOutcome with its cause.
type unknown struct{ err error }

func (u *unknown) Error() string   { return "it may or may not have been applied: " + causeText(u.err) }
func (u *unknown) Unwrap() []error { return []error{ErrUnknownOutcome, u.err} }

// anotherPeer returns the best peer that is not last, if there is another.
func (c *Client) anotherPeer(last *peer) *peer {
	peers := c.anyPeers()
	if peers[0] == last && len(peers) > 1 {
		return peers[1]
	}
	return peers[0]
}
