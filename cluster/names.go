package cluster

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// In a namespace with a dictionary, ids of bitmaps stand for strings. The coordinator replaces strings by ids in
// questions and changes, and adds strings to the ids in answers. It asks the shard that holds the string's part of the
// dictionary. An id never changes its string, so a node can cache the pair without limit. A replica that lags may miss
// strings, but the ids that it returns are right.

// dictionaryCache is a node's cache of dictionaries.
type dictionaryCache struct {
	mu    sync.Mutex // guards both
	ids   recentCache[dictionaryString, uint64]
	names recentCache[dictionaryID, string]
}

// dictionaryString is a string of a dictionary, and dictionaryID is an id of it.
type (
	dictionaryString struct {
		dictionary
		name string
	}
	dictionaryID struct {
		dictionary
		id uint64
	}
)

// dictionary identifies the dictionary of a namespace. A namespace that was deleted and created anew has another
// version, and its strings get other ids.
type dictionary struct {
	namespace string
	version   uint64 // of the settings; each change of them makes a new version, and the cache starts empty
}

// recentMax is how many pairs each half of a cache has: some 10 MB of UUIDs in both directions.
const recentMax = 1 << 14

// recentCache caches pairs: those that were set or found among the last recentMax, and some before them.
type recentCache[K comparable, V any] struct {
	young, old map[K]V
	most       int // pairs in young; recentMax when 0
}

func (r *recentCache[K, V]) get(k K) (v V, ok bool) {
	if v, ok = r.young[k]; ok {
		return v, true
	}
	if v, ok = r.old[k]; ok {
		r.set(k, v)
	}
	return v, ok
}

func (r *recentCache[K, V]) set(k K, v V) {
	if r.young == nil || len(r.young) >= cmp.Or(r.most, recentMax) {
		r.young, r.old = map[K]V{}, r.young
	}
	r.young[k] = v
}

func (w *dictionaryCache) learn(of dictionary, name []byte, id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(name)
	w.ids.set(dictionaryString{of, text}, id)
	w.names.set(dictionaryID{of, id}, text)
}

// dictionaryLookup is a lookup of strings and ids in one dictionary.
type dictionaryLookup struct {
	dictionary
	parts    uint32
	seed     uint64 // the hash seed: a replica with a purged namespace of that name must not answer for this one
	names    [][]byte
	ids      []uint64
	answer   *ebbv1.NamesAnswer
	coverage ebbv1.Coverage // of the last round that asked shards
}

func (c *Coordinator) newLookup(table *Table, namespace string, names [][]byte, ids []uint64) *dictionaryLookup {
	ns := table.Namespace(namespace)
	return &dictionaryLookup{
		dictionary: dictionary{namespace, ns.GetVersion()}, parts: ns.GetDictionary().GetParts(), seed: ns.GetHashSeed(),
		names: names, ids: ids,
		answer: &ebbv1.NamesAnswer{Ids: make([]uint64, len(names)), Found: make([]bool, len(names)), Names: make([][]byte, len(ids)), AsOfUs: c.cfg.Now().UnixMicro()},
	}
}

// lookupIDsMax is how many ids one question asks about, so that the strings fit a message.
const lookupIDsMax = 4096

// lookUp finds pairs in the node's cache and in any replicas, however stale. It asks for the rest with the consistency
// of req.
func (c *Coordinator) lookUp(ctx context.Context, table *Table, w *dictionaryLookup, req *ebbv1.AskRequest) *proto.Error {
	c.lookUpCached(w)
	anywhere := &ebbv1.AskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_ANY}
	err := c.lookUpInShards(ctx, table, w, anywhere)
	if err == nil && req.GetConsistency() == ebbv1.Consistency_CONSISTENCY_ANY {
		return nil
	}
	return c.lookUpInShards(ctx, table, w, req)
}

// lookUpCached fills in the answers that the node's cache has.
func (c *Coordinator) lookUpCached(w *dictionaryLookup) {
	c.dictionaries.mu.Lock()
	defer c.dictionaries.mu.Unlock()
	for i, name := range w.names {
		w.answer.Ids[i], w.answer.Found[i] = c.dictionaries.ids.get(dictionaryString{w.dictionary, string(name)})
	}
	for i, id := range w.ids {
		if name, ok := c.dictionaries.names.get(dictionaryID{w.dictionary, id}); ok {
			w.answer.Names[i] = []byte(name)
		}
	}
}

// lookUpInShards asks the shards for the pairs that have no answer yet.
func (c *Coordinator) lookUpInShards(ctx context.Context, table *Table, w *dictionaryLookup, req *ebbv1.AskRequest) *proto.Error {
	p := &askPlan{req: req, consistency: cmp.Or(req.GetConsistency(), ebbv1.Consistency_CONSISTENCY_LINEARIZABLE)}
	var at [][]uint32 // for each question, the positions of its strings, or of its ids
	open := map[uint32]int{}
	add := func(shard uint32) (int, *ebbv1.NamesQuestion) {
		i, ok := open[shard]
		if !ok {
			i = len(p.parts)
			open[shard] = i
			ask := &ebbv1.Question_Names{Names: &ebbv1.NamesQuestion{HashSeed: w.seed}}
			q := &ebbv1.Question{Namespace: w.namespace, Ask: ask}
			p.parts, at = append(p.parts, askPart{question: &ebbv1.ShardQuestion{Shard: shard, Question: q}}), append(at, nil)
		}
		return i, p.parts[i].question.GetQuestion().GetNames()
	}
	for i, name := range w.names {
		if !w.answer.Found[i] {
			part, q := add(proto.NamePartShard(proto.NamePart(w.namespace, name, w.parts), table.Shards()))
			q.Names, at[part] = append(q.Names, name), append(at[part], uint32(i))
		}
	}
	clear(open) // a question has either strings or ids
	for i, id := range w.ids {
		if len(w.answer.Names[i]) > 0 {
			continue
		}
		shard := proto.NamePartShard(uint32(id%uint64(w.parts)), table.Shards())
		part, q := add(shard)
		q.Ids, at[part] = append(q.Ids, id), append(at[part], uint32(i))
		if len(q.Ids) == lookupIDsMax {
			delete(open, shard)
		}
	}
	if len(p.parts) == 0 {
		return nil
	}
	ctx, held := budget.Stage(ctx)
	defer held.Close()
	c.scatter(ctx, table, p)
	w.coverage = ebbv1.Coverage{}
	for i := range p.parts {
		cover(&w.coverage, nil, &p.parts[i])
		w.take(&c.dictionaries, p.parts[i].answer.GetAnswer().GetNames(), p.parts[i].question.GetQuestion().GetNames(), at[i])
	}
	if e := verdict(p.parts); e != nil {
		return proto.FromWire(e)
	}
	if len(w.coverage.ShardsFailed) > 0 {
		return proto.FromWire(incomplete(p.parts, &w.coverage))
	}
	return nil
}

// take stores the answer of a shard in the lookup.
func (w *dictionaryLookup) take(known *dictionaryCache, a *ebbv1.NamesAnswer, q *ebbv1.NamesQuestion, at []uint32) {
	if a == nil || len(a.GetIds()) != len(q.GetNames()) || len(a.GetFound()) != len(q.GetNames()) || len(a.GetNames()) != len(q.GetIds()) {
		return
	}
	w.answer.AsOfUs = max(w.answer.AsOfUs, a.GetAsOfUs())
	for i, name := range q.GetNames() {
		if a.Found[i] {
			w.answer.Ids[at[i]], w.answer.Found[at[i]] = a.Ids[i], true
			known.learn(w.dictionary, name, a.Ids[i])
		}
	}
	for i, id := range q.GetIds() {
		if name := a.Names[i]; len(name) > 0 {
			w.answer.Names[at[i]] = name
			known.learn(w.dictionary, name, id)
		}
	}
}

// askNames answers a question about a dictionary's strings or ids.
func (c *Coordinator) askNames(ctx context.Context, table *Table, req *ebbv1.AskRequest, q *ebbv1.Question) *ebbv1.Answer {
	namespace := cmp.Or(q.GetNamespace(), proto.DefaultNamespace)
	w := c.newLookup(table, namespace, q.GetNames().GetNames(), q.GetNames().GetIds())
	if err := c.lookUp(ctx, table, w, req); err != nil && (!req.GetAllowPartial() || isVerdict(err.Wire())) {
		return &ebbv1.Answer{Error: err.Wire(), Coverage: &w.coverage}
	}
	if w.coverage.ShardsTotal == 0 { // no shard was asked: cached pairs stay valid
		w.coverage = ebbv1.Coverage{AsOfMinUs: w.answer.AsOfUs, AsOfMaxUs: w.answer.AsOfUs}
	}
	answer := &ebbv1.Answer{Coverage: &w.coverage, Value: &ebbv1.Answer_Names{Names: w.answer}}
	if err := keep(ctx, answer); err != nil {
		return &ebbv1.Answer{Error: err.Wire(), Coverage: &w.coverage}
	}
	return answer
}

// checkNamed refuses strings in a namespace without a dictionary.
func checkNamed(ns *ebbv1.Namespace, q *ebbv1.Question) *proto.Error {
	if proto.HasDictionary(ns) || q.GetNames() == nil && len(q.GetBitmap().GetContains().GetNames()) == 0 {
		return nil
	}
	return proto.ErrNoDictionary(ns.GetName())
}

// noID replaces strings without ids: no string has this id.
const noID = math.MaxUint64

// withIDs replaces the strings in questions by ids. A string without an id is in no bitmap, whatever the shards answer:
// see withNames. Questions whose strings could not be looked up are refused, by their position.
func (c *Coordinator) withIDs(ctx context.Context, table *Table, req *ebbv1.AskRequest) (*ebbv1.AskRequest, map[int]*proto.Error) {
	var refused map[int]*proto.Error
	out := req
	for i, q := range req.GetQuestions() {
		list := q.GetBitmap().GetContains()
		namespace := cmp.Or(q.GetNamespace(), proto.DefaultNamespace)
		if len(list.GetNames()) == 0 || checkQuestion(table, q) != nil {
			continue
		}
		w := c.newLookup(table, namespace, list.GetNames(), nil)
		if err := c.lookUp(ctx, table, w, req); err != nil {
			if refused == nil {
				refused = map[int]*proto.Error{}
			}
			refused[i] = err
		}
		for at, found := range w.answer.Found {
			if !found {
				w.answer.Ids[at] = noID
			}
		}
		if out == req {
			out = withQuestions(req, nil, slices.Clone(req.GetQuestions()))
		}
		fit := pb.CloneOf(q)
		fit.GetBitmap().GetContains().Ids, fit.GetBitmap().GetContains().Names = w.answer.Ids, nil
		out.Questions[i] = fit
	}
	return out, refused
}

// namesRoom is how many bytes of strings an answer may list.
const namesRoom = proto.MessageBytesMax - 1<<20

// withNames adds strings to the ids of answers. A page ends early if the strings would not fit a message.
func (c *Coordinator) withNames(ctx context.Context, table *Table, req *ebbv1.AskRequest, answers []*ebbv1.Answer) {
	for i, q := range req.GetQuestions() {
		b := answers[i].GetBitmap()
		namespace := cmp.Or(q.GetNamespace(), proto.DefaultNamespace)
		if b == nil || !proto.HasDictionary(table.Namespace(namespace)) {
			continue
		}
		for at, id := range q.GetBitmap().GetContains().GetIds() {
			b.Contains[at] = b.Contains[at] && id != noID
		}
		if q.GetBitmap().GetIds().GetBare() {
			continue
		}
		silent, err := c.resolveNames(ctx, table, req, namespace, b)
		lack(answers[i].GetCoverage(), silent)
		if err != nil && (!req.GetAllowPartial() || isVerdict(err.Wire())) {
			answers[i] = &ebbv1.Answer{Error: err.Wire(), Coverage: answers[i].GetCoverage()}
		}
	}
}

// lack adds shards that did not answer to a coverage.
func lack(c *ebbv1.Coverage, silent []uint32) {
	for _, shard := range silent {
		if !slices.Contains(c.GetShardsFailed(), shard) {
			c.ShardsTotal++
			c.ShardsFailed = append(c.ShardsFailed, shard)
		}
	}
	slices.Sort(c.GetShardsFailed())
}

// resolveNames looks up the strings of an answer's ids, some at a time, while there is room. silent are the shards that
// did not answer; the strings that they hold stay empty.
func (c *Coordinator) resolveNames(ctx context.Context, table *Table, req *ebbv1.AskRequest, namespace string, b *ebbv1.BitmapAnswer) (silent []uint32, failure *proto.Error) {
	const some = 4 * lookupIDsMax
	room := namesRoom
	for from := 0; from < len(b.Ids); from += some {
		w := c.newLookup(table, namespace, nil, b.Ids[from:min(from+some, len(b.Ids))])
		if err := c.lookUp(ctx, table, w, req); err != nil {
			failure = err
			silent = append(silent, w.coverage.ShardsFailed...)
		}
		for at, name := range w.answer.Names {
			if room -= len(name) + keyRoom; room < 0 {
				b.More, b.Next, b.Ids = true, b.Ids[from+at], b.Ids[:from+at]
				return silent, failure
			}
			b.Names = append(b.Names, name)
		}
	}
	return silent, failure
}

// numbered returns a request whose changes have ids. In a namespace with a dictionary the ids replace the strings.
// Strings that are added get an id if they have none; strings without an id that are to be removed are left out.
func (r *Router) numbered(ctx context.Context, table *Table, namespace string, req *ebbv1.BitsRequest) (*ebbv1.BitsRequest, error) {
	ns := table.Namespace(namespace)
	var given, sought [][]byte
	for _, change := range req.GetChanges() {
		switch named := len(change.GetNames()) > 0; {
		case named && !proto.HasDictionary(ns):
			return nil, proto.ErrNoDictionary(namespace)
		case !named && proto.HasDictionary(ns):
			return nil, proto.ErrHasDictionary(namespace)
		case change.GetOp() == ebbv1.BitOp_BIT_OP_CLEAR:
			sought = append(sought, change.GetNames()...)
		default:
			given = append(given, change.GetNames()...)
		}
	}
	if !proto.HasDictionary(ns) {
		return req, nil
	}
	ids, err := r.assign(ctx, table, namespace, distinct(given))
	if err != nil {
		return nil, err
	}
	w := r.ask.newLookup(table, namespace, sought, nil)
	if err := r.ask.lookUp(ctx, table, w, &ebbv1.AskRequest{}); err != nil {
		return nil, err
	}
	for i, name := range sought {
		if w.answer.Found[i] {
			ids[string(name)] = w.answer.Ids[i]
		}
	}
	out := &ebbv1.BitsRequest{
		Namespace: req.GetNamespace(), IdempotencyKey: req.GetIdempotencyKey(), Together: req.GetTogether(),
	}
	for _, change := range req.GetChanges() {
		fit := &ebbv1.BitChange{Key: change.GetKey(), Op: change.GetOp(), Names: change.GetNames()}
		for _, name := range change.GetNames() {
			if id, has := ids[string(name)]; has {
				fit.Ids = append(fit.Ids, id)
			}
		}
		out.Changes = append(out.Changes, fit)
	}
	return out, nil
}

// assign returns the ids of strings, by string. Each string must occur only once. Strings without an id get one from
// the log of their shard. assign tries again when the outcome is unknown: a string that has an id keeps it.
func (r *Router) assign(ctx context.Context, table *Table, namespace string, names [][]byte) (map[string]uint64, error) {
	ids := make(map[string]uint64, len(names))
	w := r.ask.newLookup(table, namespace, names, nil)
	r.ask.lookUpCached(w)
	// Shards that fail find no strings.
	_ = r.ask.lookUpInShards(ctx, table, w, &ebbv1.AskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_ANY})
	left := map[uint32][][]byte{}
	for i, name := range names {
		if w.answer.Found[i] {
			ids[string(name)] = w.answer.Ids[i]
			continue
		}
		shard := proto.NamePartShard(proto.NamePart(namespace, name, w.parts), table.Shards())
		left[shard] = append(left[shard], name)
	}
	req, batches, err := nameCommands(table, namespace, left)
	for try := 1; err == nil && len(req.GetCommands()) > 0; try++ {
		again := &ebbv1.ApplyRequest{}
		var open [][][]byte
		for i, result := range r.apply(ctx, table, req, retryUntilLeader).GetResults() {
			switch e := result.GetError(); {
			case e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME && pause(ctx, try):
				again.Commands, open = append(again.Commands, req.Commands[i]), append(open, batches[i])
				continue
			case e != nil:
				return nil, proto.FromWire(e)
			case len(result.GetRefused()) > 0:
				return nil, proto.FromWire(result.GetRefused()[0].GetError())
			case len(result.GetIds()) != len(batches[i]):
				return nil, proto.ErrInternal.Errorf("shard %d gave %d ids to %d strings", req.Commands[i].GetShard(), len(result.GetIds()), len(batches[i]))
			}
			for at, name := range batches[i] {
				ids[string(name)] = result.GetIds()[at]
				r.ask.dictionaries.learn(w.dictionary, name, result.GetIds()[at])
			}
		}
		req, batches = again, open
	}
	return ids, err
}

// checkParts refuses strings from a request for another number of shards. Otherwise two shards would assign ids of the
// same part, and assigned ids never change.
func checkParts(table *Table, req *ebbv1.ApplyRequest) error {
	for _, c := range req.GetCommands() {
		if shards, ok := proto.NamesShards(c.GetCommand()); ok && shards != table.Shards() {
			return proto.ErrWrongShard.Errorf("strings for one of %d shards: the cluster has %d", shards, table.Shards()).WithShard(c.GetShard())
		}
	}
	return nil
}

// nameCommands divides strings into commands for their shards, each small enough for a log entry, and returns the
// strings of each command.
func nameCommands(table *Table, namespace string, by map[uint32][][]byte) (req *ebbv1.ApplyRequest, batches [][][]byte, err error) {
	req = &ebbv1.ApplyRequest{}
	for shard := uint32(1); shard <= table.Shards(); shard++ {
		for names := by[shard]; len(names) > 0; {
			n, size := 0, 0
			for n < len(names) && size < commandBytesSoft {
				size += len(names[n]) + keyRoom
				n++
			}
			cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Names{Names: &ebbv1.Names{Names: names[:n], Shards: table.Shards()}}}, namespace, nil)
			if err != nil {
				return nil, nil, err
			}
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: shard, Command: cmd})
			batches = append(batches, names[:n])
			names = names[n:]
		}
	}
	return req, batches, nil
}
