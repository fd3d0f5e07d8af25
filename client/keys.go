package client

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// KeyOrder is how keys are listed.
type KeyOrder = ebbv1.KeyOrder

// The orders.
const (
	OrderName   = ebbv1.KeyOrder_KEY_ORDER_NAME
	OrderTotal  = ebbv1.KeyOrder_KEY_ORDER_TOTAL  // the largest total first
	OrderRecent = ebbv1.KeyOrder_KEY_ORDER_RECENT // the latest event first
)

// KeysQuery selects the keys to list.
type KeysQuery struct {
	// Pattern of the names: * stands for any bytes but '/', ** for any bytes, and \* for a star. All keys if empty.
	Pattern string
	Kind    Kind // of the keys; any if 0
	// Order is by name if 0. Only a list by name may have more keys than fit one answer; the others end after 10,000.
	Order KeyOrder
	// Limit ends the list after so many keys; 0 for all, or for 100 in another order than by name.
	Limit int
	// After begins the list by name after this key.
	After string
}

// KeyInfo describes a key at a time.
type KeyInfo struct {
	Key   string
	Kind  Kind
	Total Estimate // of a distribution Z; of other kinds Summary.Total
	Bins  int      // stored bins of a distribution
	// LastEvent is zero when the kind does not remember it; Fades when the key does
	// not fade by itself; Expires when no time was set.
	LastEvent, Fades, Expires time.Time
	HalfLife                  time.Duration // in which Total halves; 0 if it does not
	Shard                     uint32
}

// Keys lists the keys of a namespace, over all shards:
//
//	for key, err := range c.Keys(ctx, "default", client.KeysQuery{Pattern: "link/*"}) { ... }
//
// It asks for one page at a time, and each page is a separate question. A key that exists all the time comes once. A
// key that is made or deleted during the listing may come or not. The list ends after an error.
func (c *Client) Keys(ctx context.Context, ns string, query KeysQuery, opts ...AskOption) iter.Seq2[KeyInfo, error] {
	return func(yield func(KeyInfo, error) bool) {
		after, left, limit := query.After, query.Limit, query.Limit
		for {
			if query.Order <= OrderName {
				limit = min(left, c.cfg.limits.KeysPage) // more long names than that do not fit one answer
			}
			page, err := c.keysPage(ctx, ns, query, after, limit, opts)
			if err != nil {
				yield(KeyInfo{}, err)
				return
			}
			for _, info := range page.Keys {
				if !yield(info, nil) {
					return
				}
			}
			left -= len(page.Keys)
			if len(page.Keys) == 0 || page.Matched <= uint64(len(page.Keys)) || query.Order > OrderName || query.Limit > 0 && left <= 0 {
				return
			}
			after = page.Keys[len(page.Keys)-1].Key
		}
	}
}

// KeyPage is one answer to a KeysQuery.
type KeyPage struct {
	Keys     []KeyInfo
	Matched  uint64 // how many keys there are in all; these are the first
	AsOf     time.Time
	Coverage Coverage
}

// KeysPage asks for the first keys of a query, as many as fit one answer.
func (c *Client) KeysPage(ctx context.Context, ns string, query KeysQuery, opts ...AskOption) (KeyPage, error) {
	return c.keysPage(ctx, ns, query, query.After, query.Limit, opts)
}

// keysPerPage is how many keys Keys asks for at a time.
const keysPerPage = 1_000

func (c *Client) keysPage(ctx context.Context, ns string, query KeysQuery, after string, limit int, opts []AskOption) (KeyPage, error) {
	if limit <= 0 && query.Order <= OrderName {
		limit = c.cfg.limits.KeysPage
	}
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{
		Pattern: []byte(query.Pattern), Kind: query.Kind, Order: query.Order, After: []byte(after), Limit: clampCount(min(max(limit, 0), proto.KeysListMax)),
	}}}
	a, err := c.askOne(ctx, "keys", query.Pattern, q, opts)
	if err != nil {
		return KeyPage{}, err
	}
	return keyPageOf(a), nil
}

func keyPageOf(a *ebbv1.Answer) KeyPage {
	w := a.GetKeys()
	page := KeyPage{Matched: w.GetMatched(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}
	for _, info := range w.GetKeys() {
		page.Keys = append(page.Keys, keyInfoOf(info, page.AsOf))
	}
	return page
}

func keyInfoOf(w *ebbv1.KeyInfo, asOf time.Time) KeyInfo {
	t := w.GetTotal()
	return KeyInfo{
		Key: string(w.GetKey()), Kind: w.GetKind(), Bins: int(w.GetBins()), Shard: w.GetShard(),
		Total:     Estimate{Value: t.GetValue(), StdErr: t.GetStdError(), Low: t.GetLow(), High: t.GetHigh(), Confidence: t.GetConfidence(), AsOf: asOf},
		LastEvent: timeOf(w.GetLastEventUs()), Fades: timeOf(w.GetFadesUs()), Expires: timeOf(w.GetExpiresUs()),
		HalfLife: time.Duration(w.GetHalfLifeUs()) * time.Microsecond,
	}
}

// Description describes what a key holds.
type Description struct {
	KeyInfo
	Found bool
	Bytes int // of its summary in a snapshot
	// MemoryBytes is what the key takes in the memory of each replica; 0 for a bitmap that is stored in all shards.
	MemoryBytes int
	Decay       Decay
	HalfLife    time.Duration // in force for this key; of a KindBloom how long a bin is found
	Clock       Clock
	Properties  []Property // sizes and limits
	Accuracy    string     // what its answers may be off by, in words
	AsOf        time.Time
	Coverage    Coverage
}

// Property is one size of a summary.
type Property struct {
	Name  string
	Value float64
}

// Describe asks for the description of a key.
func (c *Client) Describe(ctx context.Context, ns, key string, opts ...AskOption) (Description, error) {
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: []byte(key)}}}
	a, err := c.askOne(ctx, "describe", key, q, opts)
	if err != nil {
		return Description{}, err
	}
	return descriptionOf(a), nil
}

func descriptionOf(a *ebbv1.Answer) Description {
	w := a.GetDescribe()
	d := Description{
		Found: w.GetFound(), Bytes: int(w.GetBytes()), MemoryBytes: int(w.GetMemoryBytes()),
		Decay: w.GetDecay(), HalfLife: time.Duration(w.GetHalfLifeUs()) * time.Microsecond, Clock: w.GetClock(),
		Accuracy: w.GetAccuracy(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage()),
	}
	d.KeyInfo = keyInfoOf(w.GetKey(), d.AsOf)
	for _, p := range w.GetProperties() {
		d.Properties = append(d.Properties, Property{p.GetName(), p.GetValue()})
	}
	return d
}

// Delete deletes keys, and returns how many existed. Each is deleted once, even if the request is sent several times:
// later writes stay. If some shards refused the request, the error is that of the first such key.
func (c *Client) Delete(ctx context.Context, ns string, keys ...string) (deleted int, err error) {
	if len(keys) == 0 {
		return 0, nil
	}
	req := &ebbv1.DeleteRequest{Namespace: ns, Keys: bytesOf(keys...), IdempotencyKey: c.idempotencyKey()}
	var resp *ebbv1.DeleteResponse
	err = c.anywhere(ctx, attempt{op: "delete", key: only(keys)}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).Delete(ctx, req)
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(resp.GetDeleted()), c.refusedKey("delete", keys, resp.GetRefused())
}

// Expire lets keys live for ttl from now, by the clock of their namespace, and returns how many existed. A key that has
// faded is removed earlier. Later writes do not change the time.
func (c *Client) Expire(ctx context.Context, ns string, ttl time.Duration, keys ...string) (changed int, err error) {
	if ttl < time.Microsecond {
		return 0, c.fail(attempt{op: "expire", key: only(keys)}, proto.ErrBadTime.Errorf("%v to live: it must be a microsecond at least", ttl).WithHint("Delete forgets a key at once"))
	}
	return c.expire(ctx, &ebbv1.ExpireRequest{Namespace: ns, TtlUs: ttl.Microseconds()}, keys)
}

// ExpireAt lets keys live until a time, by the clock of their namespace. A time in the past deletes them.
func (c *Client) ExpireAt(ctx context.Context, ns string, t time.Time, keys ...string) (changed int, err error) {
	return c.expire(ctx, &ebbv1.ExpireRequest{Namespace: ns, AtUs: max(microOf(t), 1)}, keys)
}

// Persist removes the time that Expire set: keys live until they have faded.
func (c *Client) Persist(ctx context.Context, ns string, keys ...string) (changed int, err error) {
	return c.expire(ctx, &ebbv1.ExpireRequest{Namespace: ns, Never: true}, keys)
}

func (c *Client) expire(ctx context.Context, req *ebbv1.ExpireRequest, keys []string) (changed int, err error) {
	if len(keys) == 0 {
		return 0, nil
	}
	req.Keys, req.IdempotencyKey = bytesOf(keys...), c.idempotencyKey()
	var resp *ebbv1.ExpireResponse
	err = c.anywhere(ctx, attempt{op: "expire", key: only(keys)}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).Expire(ctx, req)
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(resp.GetChanged()), c.refusedKey("expire", keys, resp.GetRefused())
}

// Rename gives a key another name. Its content and its time to live stay. If a key of the other name exists, Rename
// needs overwrite, and that key is lost.
//
// Between two shards Rename copies the key and then deletes it. If the key is written in between, both are repeated.
// For that moment both names exist; a write to the new name makes Rename return ErrKeyBusy. Then, and when the outcome
// is unknown, look at both. Between shards a key may hold up to proto.LargeImageBytesMax bytes, before storage version
// 15 up to proto.ImageBytesMax; a larger key is ErrKeyTooLarge.
func (c *Client) Rename(ctx context.Context, ns, key, to string, overwrite bool) error {
	req := &ebbv1.RenameRequest{Namespace: ns, Key: []byte(key), To: []byte(to), Overwrite: overwrite, IdempotencyKey: c.idempotencyKey()}
	again := changeOnce
	if c.home(&ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: req.GetKey()}}}) ==
		c.home(&ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: req.GetTo()}}}) {
		again = changeAgain
	}
	return c.anywhere(ctx, attempt{op: "rename", key: key}, again, func(ctx context.Context, cc grpc.ClientConnInterface) error {
		_, err := ebbv1grpc.NewEbbClient(cc).Rename(ctx, req)
		return err
	})
}

func (c *Client) idempotencyKey() *ebbv1.IdempotencyKey {
	return &ebbv1.IdempotencyKey{IssuedAtUs: c.now().UnixMicro(), Hi: rand.Uint64(), Lo: rand.Uint64()}
}

// refusedKey is the error of the first key that a shard did not take.
func (c *Client) refusedKey(op string, keys []string, refused []*ebbv1.Refusal) error {
	if len(refused) == 0 {
		return nil
	}
	a := attempt{op: op}
	if i := int(refused[0].GetIndex()); i < len(keys) {
		a.key = keys[i]
	}
	return c.fail(a, proto.FromWire(refused[0].GetError()))
}

// only returns the key of an operation on a single key, otherwise "".
func only(keys []string) string {
	if len(keys) == 1 {
		return keys[0]
	}
	return ""
}
