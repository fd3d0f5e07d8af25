package rpc

import (
	"context"
	"encoding/binary"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// gocountme is the HTTP interface of gocountme, on keys of kind set:
//
//	/add?key=K&value=V           "OK"
//	/addhash?key=K&hash=H        "OK"; in a namespace whose set hash is murmur3
//	/addmulti?value=K,V[&value=...][&delimiter=,]
//	                             [{"key":K,"value":V,"status":"OK","code":200}, ...]
//	/get?key=K                   {"Key":K,"Data":{"k":1024,"data":[H, ...]},"Error":null}
//	/delete?key=K                {"Key":K,"Data":null,"Error":null}
//	/cardinality?key=K           a number
//	/jaccard?key=K&key=L         {"key":"","set":null,"result":J}
//	/correlation?key=K&key=L...  [{"keys":[K,L],"jaccard":J}, ...]
//	/query?q={"method":M,...}    {"key":..,"set":..,"result":..}; see kmvQuery
//	/exit                        403
//
// under /, /kmv and /ns/NAME (see doorOperation), in the envelope {"status_code":200,"status_txt":"","data":...}.
// Errors have HTTP status 500. The text of an error in the arguments is in status_txt, the text of other errors in
// data.
type gocountme struct {
	ebb *ebbServer
}

// The codes of gocountme. INVALID_URI is one of forgettable, too.
const (
	codeNoKey      = "MISSING_ARG_KEY"
	codeNoValue    = "MISSING_ARG_VALUE"
	codeNoHash     = "MISSING_ARG_HASH"
	codeNoQ        = "MISSING_ARG_Q"
	codeBadHash    = "INVALID_ARG_HASH"
	codeBadItem    = "INVALID_VALUE"
	codeTwoKeys    = "MUST_PROVIDE_2_KEYS"
	codeTwoOrMore  = "MUST_PROVIDE_2+_KEYS"
	kmvDone        = `"OK"`
	kmvKeysMax     = proto.OverlapKeysMax // that one request compares with one, or whose hashes it reads
	kmvPairsOf     = 32                   // one request compares each two of these: some 500 pairs
	kmvHashJSONMax = 21                   // bytes of a hash in JSON
)

// said is a refusal in the words of gocountme, in the place of an answer.
func said(text string, err *proto.Error) *doorError {
	return &doorError{code: text, err: err.Errorf("%s", text), inData: true}
}

func (g *gocountme) run(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	switch op.name {
	case "addmulti":
		return g.addMulti(ctx, op, args)
	case "query":
		return g.query(ctx, op, args)
	case "jaccard":
		if n := len(args["key"]); n != 2 {
			return doorReply{}, refuse(codeTwoKeys, proto.ErrBadCount.Errorf("%d keys: there must be 2", n))
		}
	}
	keys := args["key"]
	if len(keys) == 0 || keys[0] == "" || op.name == "jaccard" && keys[1] == "" {
		return doorReply{}, refuse(codeNoKey, proto.ErrBadKey.Errorf("argument key is missing"))
	}
	for _, key := range keys {
		if err := checkText("key", key); err != nil {
			return doorReply{}, refuse("", err) // it could never be read here again
		}
	}
	switch op.name {
	case "add":
		return g.add(ctx, op, args)
	case "addhash":
		return g.addHash(ctx, op, args)
	case "get":
		return g.get(ctx, op, keys[0])
	case "delete":
		return g.delete(ctx, op, keys[0])
	case "cardinality":
		return g.cardinality(ctx, op, keys[0])
	case "jaccard":
		return g.jaccard(ctx, op, keys)
	}
	return g.correlation(ctx, op, keys)
}

func (g *gocountme) add(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	value := args.Get("value")
	if value == "" {
		return doorReply{}, refuse(codeNoValue, proto.ErrBadBin.Errorf("argument value is missing"))
	}
	in := []*ebbv1.Increment{memberOf(args.Get("key"), value)}
	refused, err := g.addAll(ctx, op, in)
	if err == nil {
		err = refused[0]
	}
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: []byte(kmvDone)}, nil
}

func memberOf(key, value string) *ebbv1.Increment {
	return &ebbv1.Increment{Key: []byte(key), Bin: []byte(value), Kind: ebbv1.Kind_KIND_SET}
}

// addAll adds members to sets. It returns the error of each that was refused.
func (g *gocountme) addAll(ctx context.Context, op doorOp, in []*ebbv1.Increment) (map[uint32]error, error) {
	req := &ebbv1.IncrementRequest{Namespace: op.namespace, Increments: in}
	resp, err := guardedCall(ctx, g.ebb.Services, ebbv1grpc.Ebb_Increment_FullMethodName, req, g.ebb.Increment)
	refused := map[uint32]error{}
	for _, r := range resp.GetRefused() {
		refused[r.GetIndex()] = proto.FromWire(r.GetError())
	}
	return refused, err
}

// addMulti adds each item, KEY,VALUE, and returns the result of each.
func (g *gocountme) addMulti(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	items := args["value"]
	if len(items) == 0 {
		return doorReply{}, refuse(codeNoValue, proto.ErrBadBin.Errorf("argument value is missing"))
	}
	delimiter := orName(args.Get("delimiter"), ",")
	statuses := make([]string, len(items))
	var in []*ebbv1.Increment
	var at []int // of each increment its item
	for i, item := range items {
		key, value, ok := strings.Cut(item, delimiter)
		if !ok {
			statuses[i] = codeBadItem
			continue
		}
		member := memberOf(key, value)
		if err := checkText("key", key); err != nil {
			statuses[i] = err.Error()
		} else if err := checkIncrement(member); err != nil {
			statuses[i] = err.Error()
		} else {
			in, at = append(in, member), append(at, i)
		}
	}
	if len(in) > 0 {
		refused, err := g.addAll(ctx, op, in)
		if err != nil {
			return doorReply{}, refuse("", err)
		}
		for i, err := range refused {
			if int(i) < len(at) {
				statuses[at[i]] = err.Error()
			}
		}
	}
	size := 0
	for i, item := range items {
		size += 6*len(item) + 6*len(statuses[i]) + 64 // an escaped character has 6 bytes
	}
	if err := budget.From(ctx).Charge(ctx, jsonGrowth*size); err != nil {
		return doorReply{}, refuse("", err)
	}
	b := []byte{'['}
	for i, item := range items {
		key, value, _ := strings.Cut(item, delimiter)
		status, code := statuses[i], http.StatusInternalServerError
		switch status {
		case "":
			status, code = "OK", http.StatusOK
		case codeBadItem:
			key, value = "", ""
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"key":`...), strings.ToValidUTF8(key, "\uFFFD"))
		b = appendString(append(b, `,"value":`...), strings.ToValidUTF8(value, "\uFFFD"))
		b = appendString(append(b, `,"status":`...), status)
		b = append(strconv.AppendInt(append(b, `,"code":`...), int64(code), 10), '}')
	}
	return doorReply{data: append(b, ']')}, nil
}

// addHash adds the member that has a hash.
func (g *gocountme) addHash(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	raw := args.Get("hash")
	if raw == "" {
		return doorReply{}, refuse(codeNoHash, proto.ErrBadBin.Errorf("argument hash is missing"))
	}
	hash, err := strconv.ParseUint(raw, 10, 64)
	if err != nil {
		return doorReply{}, said(codeBadHash, proto.ErrBadBin)
	}
	table, err := g.ebb.table()
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	namespace := orName(op.namespace, proto.DefaultNamespace)
	if err := g.kmvKnown(table); err != nil {
		return doorReply{}, refuse("", err)
	}
	put := &ebbv1.PutKey{Key: []byte(args.Get("key")), Merge: true, What: &ebbv1.PutKey_Kmv{
		Kmv: proto.AppendKMV(nil, g.kmvSize(table, namespace), hash),
	}}
	cmd, err := protobuf.Marshal(&ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Put{Put: put}})
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	req := &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{
		Shard: proto.ShardOf(namespace, put.GetKey(), table.GetShards()), Command: cmd,
	}}}
	resp, err := guardedCall(
		ctx, g.ebb.Services, ebbv1grpc.Shards_Apply_FullMethodName, req, g.ebb.applyWaiting)
	if err == nil {
		err = refusedCommand(resp)
	}
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: []byte(kmvDone)}, nil
}

// applyWaiting is Apply of service Shards that waits for shards which are electing a leader. If one command is bad, all
// are refused.
func (s *ebbServer) applyWaiting(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	for _, refused := range checkCommands(req.GetCommands(), s.commandCheck(ctx)) {
		if err := proto.FromWire(refused.GetError()); err != nil {
			return nil, err
		}
	}
	return s.Router.ApplyWaiting(ctx, req)
}

// refusedCommand is the error of the only command of a request.
func refusedCommand(resp *ebbv1.ApplyResponse) error {
	if n := len(resp.GetResults()); n != 1 {
		return proto.ErrInternal.Errorf("%d results of one command", n)
	}
	if e := proto.FromWire(resp.GetResults()[0].GetError()); e != nil {
		return e
	}
	return nil
}

// kmvKnown refuses hashes while there may be a node of a build that does not support them.
func (g *gocountme) kmvKnown(table *ebbv1.Table) error {
	if v := table.GetVersion(); v < proto.VersionSetHash {
		return proto.ErrBadRequest.Errorf(
			"hashes of sets go in and out from storage version %d on, and this cluster has %d",
			proto.VersionSetHash, v).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	return nil
}

// kmvSize is k of a set that a namespace makes, in the counting of gocountme.
func (g *gocountme) kmvSize(table *ebbv1.Table, namespace string) uint64 {
	for _, ns := range table.GetNamespaces() {
		if ns.GetName() == namespace && ns.GetDeletion() == nil {
			return uint64(ns.GetSizes().GetSetMembers()) + 1
		}
	}
	return uint64(proto.DefaultNamespaceSettings().GetSizes().GetSetMembers()) + 1
}

func (g *gocountme) get(ctx context.Context, op doorOp, key string) (doorReply, *doorError) {
	value, err := g.hashes(ctx, op, keyOf(key))
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	b := appendString([]byte(`{"Key":`), key)
	b = value.appendJSON(append(b, `,"Data":`...))
	return doorReply{data: append(b, `,"Error":null}`...)}, nil
}

func (g *gocountme) delete(ctx context.Context, op doorOp, key string) (doorReply, *doorError) {
	req := &ebbv1.DeleteRequest{Namespace: op.namespace, Keys: [][]byte{[]byte(key)}}
	resp, err := guardedCall(ctx, g.ebb.Services, ebbv1grpc.Ebb_Delete_FullMethodName, req, g.ebb.Delete)
	if err == nil && len(resp.GetRefused()) > 0 {
		err = proto.FromWire(resp.GetRefused()[0].GetError())
	}
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: append(appendString([]byte(`{"Key":`), key), `,"Data":null,"Error":null}`...)}, nil
}

func (g *gocountme) cardinality(ctx context.Context, op doorOp, key string) (doorReply, *doorError) {
	o, err := g.overlap(ctx, op, keyOf(key))
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: appendDouble(nil, o.GetSets()[0].GetSize().GetValue())}, nil
}

func (g *gocountme) jaccard(ctx context.Context, op doorOp, keys []string) (doorReply, *doorError) {
	o, err := g.overlap(ctx, op, keyOf(keys[0]), keyOf(keys[1]))
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: kmvResult{number: o.GetJaccard().GetValue()}.append(nil)}, nil
}

// correlation compares each two keys. The same key twice is one key.
func (g *gocountme) correlation(ctx context.Context, op doorOp, keys []string) (doorReply, *doorError) {
	if len(keys) < 2 {
		return doorReply{}, refuse(codeTwoOrMore, proto.ErrBadCount.Errorf("1 key: there must be 2 or more"))
	}
	var terms []kmvTerm
	for _, key := range keys {
		terms = append(terms, kmvTerm{key, keyOf(key)})
	}
	terms = distinctTerms(terms)
	pairs, err := g.similar(ctx, op, terms)
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	b := []byte{'['}
	for i, p := range pairs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"keys":[`...), terms[p.a].name)
		b = appendString(append(b, ','), terms[p.b].name)
		b = append(appendDouble(append(b, `],"jaccard":`...), p.jaccard), '}')
	}
	return doorReply{data: append(b, ']')}, nil
}

// kmvPair is how similar two terms are.
type kmvPair struct {
	a, b    int
	jaccard float64
}

// similar compares each two of some sets. Each but the last is asked about once, with those that follow.
func (g *gocountme) similar(ctx context.Context, op doorOp, terms []kmvTerm) ([]kmvPair, error) {
	if n := len(terms); n > kmvPairsOf {
		return nil, proto.ErrBadCount.Errorf("%d sets: a request compares each two of %d at most", n, kmvPairsOf).
			WithHint("ask about fewer, or for a graph: ebb graph")
	}
	n := len(terms)
	if err := budget.From(ctx).Charge(ctx, n*n/2*(64+kmvNamesBytes(terms)/max(n, 1))); err != nil {
		return nil, err
	}
	var questions []*ebbv1.Question
	for i := range len(terms) - 1 {
		ask := &ebbv1.OverlapQuestion{First: true}
		for _, t := range terms[i:] {
			ask.Of = append(ask.Of, t.expr)
		}
		questions = append(questions, op.overlap(ask))
	}
	answers, err := g.ask(ctx, questions)
	var pairs []kmvPair
	for i, a := range answers {
		for j, s := range a.GetOverlap().GetSimilar() {
			pairs = append(pairs, kmvPair{i, i + 1 + j, s.GetValue()})
		}
	}
	return pairs, err
}

// kmvNamesBytes is how many bytes the names of terms take in JSON, at most.
func kmvNamesBytes(terms []kmvTerm) (n int) {
	for _, t := range terms {
		n += 12 * len(t.name) // twice, and an escaped character has 6 bytes
	}
	return n
}

func (op *doorOp) overlap(ask *ebbv1.OverlapQuestion) *ebbv1.Question {
	return &ebbv1.Question{Namespace: op.namespace, Ask: &ebbv1.Question_Overlap{Overlap: ask}}
}

// overlap asks what sets have in common.
func (g *gocountme) overlap(ctx context.Context, op doorOp, of ...*ebbv1.BitmapExpr) (*ebbv1.Overlap, error) {
	answers, err := g.ask(ctx, []*ebbv1.Question{op.overlap(&ebbv1.OverlapQuestion{Of: of})})
	if err != nil {
		return nil, err
	}
	if n := len(answers[0].GetOverlap().GetSets()); n != len(of) {
		return nil, proto.ErrInternal.Errorf("%d sets in the answer about %d", n, len(of))
	}
	return answers[0].GetOverlap(), nil
}

// ask asks questions, which must all be answered.
func (g *gocountme) ask(ctx context.Context, questions []*ebbv1.Question) ([]*ebbv1.Answer, error) {
	if len(questions) == 0 {
		return nil, nil
	}
	for _, q := range questions {
		if err := proto.CheckQuestion(q); err != nil {
			return nil, err // before Ask says "question 0"
		}
	}
	req := &ebbv1.AskRequest{Questions: questions}
	resp, err := guardedCall(ctx, g.ebb.Services, ebbv1grpc.Ebb_Ask_FullMethodName, req, g.ebb.Ask)
	if err != nil {
		return nil, err
	}
	if n := len(resp.GetAnswers()); n != len(questions) {
		return nil, proto.ErrInternal.Errorf("%d answers to %d questions", n, len(questions))
	}
	for _, a := range resp.GetAnswers() {
		if e := proto.FromWire(a.GetError()); e != nil {
			return nil, e
		}
	}
	return resp.GetAnswers(), nil
}

// kmvSet is a set in the form of gocountme: the smallest hashes of its members, in ascending order. If it is full, the
// last hash is the smallest that does not count as a member.
type kmvSet struct {
	k      uint64
	hashes []uint64
}

func (s *kmvSet) full() bool { return uint64(len(s.hashes)) >= s.k }

// below returns the hashes of members below a limit; 0 means no limit.
func (s *kmvSet) below(limit uint64) []uint64 {
	hashes := s.hashes
	if s.full() && len(hashes) > 0 {
		hashes = hashes[:len(hashes)-1]
	}
	if limit == 0 {
		return hashes
	}
	n, _ := slices.BinarySearch(hashes, limit)
	return hashes[:n]
}

// appendJSON writes the hashes from the largest on, as gocountme does.
func (s *kmvSet) appendJSON(b []byte) []byte {
	b = append(strconv.AppendUint(append(b, `{"k":`...), s.k, 10), `,"data":[`...)
	for i, h := range slices.Backward(s.hashes) {
		b = strconv.AppendUint(b, h, 10)
		if i > 0 {
			b = append(b, ',')
		}
	}
	return append(b, `]}`...)
}

// hashes returns the set that an expression makes of others, with the hashes of its members. Keys that do not exist are
// empty sets.
func (g *gocountme) hashes(ctx context.Context, op doorOp, of *ebbv1.BitmapExpr) (*kmvSet, error) {
	table, err := g.ebb.table()
	if err != nil {
		return nil, err
	}
	if err := g.kmvKnown(table); err != nil {
		return nil, err
	}
	keys := proto.ExprKeys(of)
	if n := len(keys); n > kmvKeysMax {
		return nil, proto.ErrBadCount.Errorf("%d sets: a request reads the hashes of %d at most", n, kmvKeysMax).
			WithHint("ask for cardinality_union or cardinality_intersection")
	}
	var questions []*ebbv1.Question
	for _, key := range keys {
		questions = append(questions, &ebbv1.Question{Namespace: op.namespace, Ask: &ebbv1.Question_Export{
			Export: &ebbv1.ExportQuestion{Key: key, Kmv: true},
		}})
	}
	k := g.kmvSize(table, orName(op.namespace, proto.DefaultNamespace))
	const room = proto.MessageBytesMax - 64<<10
	var answers []*ebbv1.Answer
	for some := range slices.Chunk(questions, max(1, room/int(8*k+64))) { // what one response has room for
		part, err := g.ask(ctx, some)
		if err != nil {
			return nil, err
		}
		size := 0
		for _, a := range part {
			size += len(a.GetExport().GetImage())
		}
		if err := budget.From(ctx).Charge(ctx, size*(3+jsonGrowth*kmvHashJSONMax/8)); err != nil {
			return nil, err
		}
		answers = append(answers, part...)
	}
	sets := map[string]*kmvSet{}
	for i, a := range answers {
		set := &kmvSet{k: k}
		if e := a.GetExport(); e.GetFound() {
			if set, err = decodeKMVSet(e.GetImage()); err != nil {
				return nil, err
			}
		}
		sets[string(keys[i])] = set
	}
	return kmvOf(ctx, of, sets)
}

// decodeKMVSet decodes a stored value of gocountme.
func decodeKMVSet(raw []byte) (*kmvSet, error) {
	if err := proto.CheckKMV(raw); err != nil {
		return nil, err
	}
	s := &kmvSet{k: binary.BigEndian.Uint64(raw)}
	for at := len(raw) - 8; at > 0; at -= 8 {
		s.hashes = append(s.hashes, binary.BigEndian.Uint64(raw[at:]))
	}
	return s, nil
}

// kmvOf makes a set of others, from the hashes below the smallest limit of all. Its k is the smallest of theirs. If it
// holds fewer hashes of more members, its k is their number, so that gocountme's estimate is right.
func kmvOf(ctx context.Context, of *ebbv1.BitmapExpr, sets map[string]*kmvSet) (*kmvSet, error) {
	limit, out := uint64(0), &kmvSet{}
	for _, key := range proto.ExprKeys(of) {
		s := sets[string(key)]
		if out.k == 0 || s.k < out.k {
			out.k = s.k
		}
		if n := len(s.hashes); s.full() && n > 0 && (limit == 0 || s.hashes[n-1] < limit) {
			limit = s.hashes[n-1]
		}
	}
	var err error
	if out.hashes, err = kmvHashes(ctx, of, sets, limit); err != nil {
		return nil, err
	}
	if most := int(out.k) - 1; len(out.hashes) > most {
		limit, out.hashes = out.hashes[most], out.hashes[:most]
	}
	if limit != 0 {
		out.hashes = append(slices.Clip(out.hashes), limit)
		out.k = uint64(len(out.hashes))
	}
	return out, nil
}

// kmvHashes returns the hashes below a limit that an expression of get, union and intersection has, in ascending order.
// It holds no more than two sets at a time, and ends with its context.
func kmvHashes(ctx context.Context, of *ebbv1.BitmapExpr, sets map[string]*kmvSet, limit uint64) ([]uint64, error) {
	operands, both := of.GetOr().GetOf(), false
	switch x := of.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Key:
		return sets[string(x.Key)].below(limit), ctx.Err()
	case *ebbv1.BitmapExpr_And:
		operands, both = x.And.GetOf(), true
	}
	var out []uint64
	for i, x := range operands {
		one, err := kmvHashes(ctx, x, sets, limit)
		switch {
		case err != nil:
			return nil, err
		case i == 0:
			out = one
		default:
			out = combined(out, one, both)
		}
	}
	return out, nil
}

// combined returns what two ascending lists have together, or what both have.
func combined(a, b []uint64, both bool) []uint64 {
	var out []uint64
	if !both {
		out = make([]uint64, 0, len(a)+len(b))
	}
	for len(a) > 0 && len(b) > 0 {
		x, y := a[0], b[0]
		if x <= y {
			a = a[1:]
		}
		if y <= x {
			b = b[1:]
		}
		if x == y || !both {
			out = append(out, min(x, y))
		}
	}
	if both {
		return out
	}
	return append(append(out, a...), b...)
}

func (*gocountme) write(w http.ResponseWriter, reply doorReply) {
	writeEnvelope(w, http.StatusOK, "", reply.data)
}

func (*gocountme) writeError(w http.ResponseWriter, _ doorOp, e *doorError) {
	status := e.status(w)
	if e.code != "" && !e.inData {
		writeEnvelope(w, status, e.code, []byte("null"))
		return
	}
	text := e.code
	if text == "" {
		text = e.withHint(e.err.Error())
	}
	writeEnvelope(w, status, "", appendString(nil, text))
}
