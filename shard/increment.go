package shard

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// increments applies a batch, of an ordered source if src is not nil. Each
// increment is applied or refused by itself.
func (s *State) increments(c *command, src *source) *ebbv1.CommandResult {
	r := &ebbv1.CommandResult{}
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	if proto.BySlice(ns.definition) {
		return failed(bitmapsOnly(ns))
	}
	ns = s.editNamespace(ns.space)
	clock := ns.clock(s.now)
	s.prefetch.now = ns.params().Now(clock)
	before := uint64(0) // the offset
	for rest, index := c.body, uint32(0); len(rest) > 0; {
		var n int
		n, rest = s.parse(ns, rest)
		for i := range s.prefetch.increments[:n] {
			var full bool
			if before, full = s.one(ns, src, &s.prefetch.increments[i], index, before, r); full {
				return failed(tooManyJumps(ns, src))
			}
			index++
		}
	}
	s.cleanUpBy(ns, clock, int(r.Applied))
	return r
}

// one applies one increment of a batch, of an ordered source if src is not nil, and adds the outcome to the result. It
// returns the largest offset so far. If full, this increment and all after it stay undecided: the source cannot
// remember one more refusal.
func (s *State) one(
	ns *namespace, src *source, in *incoming, index uint32, before uint64, r *ebbv1.CommandResult,
) (offset uint64, full bool) {
	code, again := ebbv1.Code(0), false
	if src == nil {
		code = s.increment(ns, in)
	} else {
		code, again, full = s.row(ns, src, in, before)
		before = max(before, in.Offset)
	}
	switch {
	case full:
	case again:
		r.Duplicates++
	case code == 0:
		r.Applied++
		if s.faded(ns, &in.IncrementWire) {
			r.Faded++
		}
	default:
		r.Refused = append(r.Refused, s.refuse(ns, index, &in.IncrementWire, code))
	}
	return before, full
}

// row applies a row of an ordered source, unless it has been decided before.
func (s *State) row(ns *namespace, src *source, in *incoming, before uint64) (code ebbv1.Code, again, full bool) {
	code, fresh := src.admit(in.Offset, before)
	switch {
	case code == ebbv1.Code_CODE_TIME_JUMP || code == ebbv1.Code_CODE_BAD_TIME && s.behaviour >= BehaviourAdds:
		// Not decided for good: the clock of the namespace, or of the shard, may have reached this time since.
		was := code
		if code = s.increment(ns, in); code != was {
			src.redecided(in.Offset, code)
		}
		return code, false, false
	case !fresh:
		return code, code == 0, false
	}
	if code = s.increment(ns, in); code != 0 && src.fullOfJumps(s.limits.SourceRefusals) {
		return code, false, true
	}
	src.decided(in.Offset, code, s.limits.SourceRefusals)
	return code, false, false
}

// increment applies one increment, or returns the code of its refusal.
func (s *State) increment(ns *namespace, in *incoming) ebbv1.Code {
	if code := checkIncrement(&in.IncrementWire); code != 0 {
		return code
	}
	t := sketch.Tick(in.TimeUS)
	switch {
	case t == 0 && ns.onEventTime():
		// Dated now, the event would move the namespace's clock to now, and all keys that live in its past would be
		// dead for good.
		return ebbv1.Code_CODE_BAD_TIME
	case t == 0:
		t = s.now
	case t > s.now+s.limits.Future:
		return ebbv1.Code_CODE_BAD_TIME
	}
	if in.Amount < 0 && !ns.params().AllowNegative && in.Kind != ebbv1.Kind_KIND_PHRASES {
		return ebbv1.Code_CODE_NEGATIVE_AMOUNT
	}
	if s.jumps(ns, t) {
		return ebbv1.Code_CODE_TIME_JUMP
	}
	// From here on the clock has advanced, even if there is no room. Otherwise a full summary that has faded completely
	// could never be written again.
	t = min(t, s.now)
	ns.eventTime = max(ns.eventTime, t)
	s.counted(ns, t)
	if slow := s.editSlow(ns); slow != nil {
		slow.eventTime = ns.eventTime
		s.counted(slow, t)
	}
	if in.Amount == 0 {
		return 0
	}
	clock := ns.clock(s.now)
	if t == clock && s.addExisting(ns, s.nowOf(ns, clock), in) {
		return 0
	}
	return s.add(ns, clock, t, in)
}

// checkIncrement repeats what is needed of the checks made before the log: an increment must not break anything,
// whichever build wrote the entry.
func checkIncrement(in *proto.IncrementWire) ebbv1.Code {
	switch {
	case len(in.Key) == 0 || len(in.Key) > proto.KeyLenMax:
		return ebbv1.Code_CODE_BAD_KEY
	case len(in.Bin) == 0 && !in.Nameless() || len(in.Bin) > proto.BinLenMax:
		return ebbv1.Code_CODE_BAD_BIN
	case in.Kind < 0 || in.Kind > proto.KindMax || len(in.Text) > proto.TextLenMax:
		return ebbv1.Code_CODE_BAD_REQUEST
	case !(math.Abs(in.Value) <= math.MaxFloat64):
		return ebbv1.Code_CODE_BAD_AMOUNT
	case !(in.Amount >= -proto.AmountMax && in.Amount <= proto.AmountMax):
		return ebbv1.Code_CODE_BAD_AMOUNT
	case in.TimeUS < 0:
		return ebbv1.Code_CODE_BAD_TIME
	}
	return 0
}

// add adds an increment to its summary.
func (s *State) add(ns *namespace, clock, t sketch.Tick, in *incoming) ebbv1.Code {
	key, created := s.handle(ns, clock, in)
	kind := in.Kind
	switch {
	case !created:
		kind = s.kind(key)
	case kind == 0:
		kind = ns.definition.GetKind()
	}
	switch {
	case in.Kind != 0 && in.Kind != kind:
		return ebbv1.Code_CODE_WRONG_KIND
	case kind != ebbv1.Kind_KIND_DISTRIBUTION:
		return s.addToBody(ns, key, kind, clock, t, &in.IncrementWire)
	}
	sum := s.loadForWrite(key)
	if len(in.Bin) == 0 {
		if created {
			s.dropKey(ns, key, &sum)
		}
		return ebbv1.Code_CODE_BAD_BIN
	}
	if slow := s.editSlow(ns); slow != nil {
		return s.addBoth(side{ns: ns, key: key, created: created}, side{ns: slow}, clock, t, &in.IncrementWire)
	}
	if err := s.addTo(ns, &sum, clock, t, &in.IncrementWire); err != nil {
		if created {
			s.dropKey(ns, key, &sum)
		} else {
			s.put(key, &sum)
		}
		return codeOf(err)
	}
	if created || ns.signed {
		return s.settle(ns, key, &sum, clock)
	}
	s.put(key, &sum)
	return 0
}

// settle schedules the cleanup of a summary that is new, or smaller than it was. It drops a summary with nothing left.
// Where the order of events matters, it also drops one that an old event made, and that is dead from the beginning.
func (s *State) settle(ns *namespace, key uint32, sum *summary, clock sketch.Tick) ebbv1.Code {
	if sum.over(ns.params(), clock) {
		s.dropKey(ns, key, sum)
		return 0
	}
	s.schedule(ns, key, sum, clock)
	return 0
}

// addTo adds to one bin and maintains the reference counts of bins.
func (s *State) addTo(ns *namespace, sum *summary, clock, t sketch.Tick, in *proto.IncrementWire) error {
	tag := tagOf(in.Bin, 0)
	bin, known := s.bins.find(tag, in.Bin)
	if !known {
		bin = s.bins.add(tag, in.Bin, s.epoch)
	}
	now := s.nowOf(ns, clock)
	s.pruneForBin(ns, sum, now, bin)
	before := sum.dist.Len()
	err := sum.dist.AddNow(ns.params(), now, t, bin, in.Amount)
	if err == sketch.ErrTooManyBins && s.worthPruning(ns, sum, clock) {
		s.prune(ns, sum, clock)
		before = sum.dist.Len()
		err = sum.dist.AddNow(ns.params(), now, t, bin, in.Amount)
	}
	switch {
	case sum.dist.Len() > before:
		s.bins.retain(bin, s.epoch)
		if uint32(sum.dist.Len()) > sum.pruneAt && !ns.boundsLoss() {
			s.prune(ns, sum, clock)
		}
	case !known:
		s.bins.drop(bin, tag, s.epoch)
	}
	return err
}

func codeOf(err error) ebbv1.Code {
	if errors.Is(err, sketch.ErrTooManyBins) {
		return ebbv1.Code_CODE_TOO_MANY_BINS
	}
	return ebbv1.Code_CODE_BAD_AMOUNT
}

// refuse writes the error of a refusal. It depends only on the code, the increment and the namespace, so that a
// repetition gets the same error.
func (f *frame) refuse(ns *namespace, index uint32, in *proto.IncrementWire, code ebbv1.Code) *ebbv1.Refusal {
	err := refusal(ns, in, code).WithShard(uint32(f.id))
	return &ebbv1.Refusal{Index: index, Error: err.Wire()}
}

func refusal(ns *namespace, in *proto.IncrementWire, code ebbv1.Code) *proto.Error {
	switch code {
	case ebbv1.Code_CODE_BAD_KEY:
		return proto.ErrBadKey.Errorf("key of %d bytes: it has 1 to %d", len(in.Key), proto.KeyLenMax)
	case ebbv1.Code_CODE_BAD_BIN:
		if len(in.Bin) > 0 && len(in.Bin) <= proto.BinLenMax {
			return proto.ErrBadBin.Errorf("phrase %s for key %s: it has "+proto.NoToken, quote(in.Bin), quote(in.Key))
		}
		return proto.ErrBadBin.Errorf("bin of %d bytes: it has 1 to %d", len(in.Bin), proto.BinLenMax)
	case ebbv1.Code_CODE_BAD_TIME:
		return refusedTime(ns, in.TimeUS)
	case ebbv1.Code_CODE_TIME_JUMP:
		return refusedJump(ns, in.TimeUS)
	case ebbv1.Code_CODE_WRONG_KIND:
		return wrongKind(ns, in)
	case ebbv1.Code_CODE_OVERFLOW:
		return proto.ErrOverflow.Errorf("amount %g for key %s: with what is there it is more than a summary can hold", in.Amount, quote(in.Key))
	case ebbv1.Code_CODE_RESOURCE_EXHAUSTED:
		return proto.ErrResourceExhausted.Errorf("key %s: the summaries of its shard, distributions apart, have reached their limit of %d MiB", quote(in.Key), proto.BodyBytesMax>>20).
			WithHint("delete keys or let them fade, or give the namespace smaller sizes: ebb namespace set NAME --size")
	case ebbv1.Code_CODE_BAD_REQUEST:
		if in.Kind < 0 || in.Kind > proto.KindMax {
			return proto.ErrBadRequest.Errorf("kind %d is unknown: %s", in.Kind, proto.KindNames())
		}
		if len(in.Text) > proto.TextLenMax || in.Kind == ebbv1.Kind_KIND_STRING && !in.HasText {
			return proto.ErrBadRequest.Errorf("text of %d bytes for key %s: a string wants one of at most %d", len(in.Text), quote(in.Key), proto.TextLenMax)
		}
		return proto.ErrBadRequest.Errorf("offset %d: offsets of a source begin at 1 and grow", in.Offset)
	case ebbv1.Code_CODE_TOO_MANY_BINS:
		if in.Kind == ebbv1.Kind_KIND_PHRASES {
			return proto.ErrTooManyBins.Errorf("phrase %s is one too many for key %s: it holds %d phrases of %d bytes together, and %d of the same words",
				quote(in.Bin), quote(in.Key), sketch.PhrasesMax, sketch.PhrasesBytesMax, sketch.PhrasesAlikeMax)
		}
		if in.Kind == ebbv1.Kind_KIND_QUANTILE || in.HasValue {
			return proto.ErrTooManyBins.Errorf("value %g for key %s needs another bucket, and the key has as many as it may",
				in.Value, quote(in.Key)).
				WithHint("a key that begins later has more with --size quantile.buckets=N (up to 65536) of ebb namespace set, " +
					"and needs fewer with a larger quantile.error")
		}
		return proto.ErrTooManyBins.Errorf("bin %s is one too many for key %s: bins_max of its namespace is %d", quote(in.Bin), quote(in.Key), binsMax(ns))
	case ebbv1.Code_CODE_NEGATIVE_AMOUNT:
		if ns != nil && ns.params().AllowNegative {
			return proto.ErrNegativeAmount.Errorf("amount %g for key %s: only distributions take negative amounts, and phrases if the kind is named", in.Amount, quote(in.Key))
		}
		return proto.ErrNegativeAmount.Errorf("amount %g for bin %s of key %s: the namespace does not allow negative amounts", in.Amount, quote(in.Bin), quote(in.Key))
	case ebbv1.Code_CODE_BAD_AMOUNT:
		if in.Kind == ebbv1.Kind_KIND_QUANTILE || in.HasValue {
			return proto.ErrBadAmount.Errorf("value %g (amount %g) for key %s: both must be finite, and their sums must not overflow", in.Value, in.Amount, quote(in.Key))
		}
		if ns != nil && ns.params().Decay == sketch.Linear && math.Abs(in.Amount) <= proto.AmountMax {
			return proto.ErrBadAmount.Errorf("amount %g for bin %s of key %s: under linear decay a bin holds micro-counts, at most about %.2g counts less what has leaked since 1970",
				in.Amount, quote(in.Bin), quote(in.Key), math.MaxInt64/1e6)
		}
		return proto.ErrBadAmount.Errorf("amount %g for bin %s of key %s: it must be finite, at most %g, and its sum must not overflow", in.Amount, quote(in.Bin), quote(in.Key), float64(proto.AmountMax))
	}
	return &proto.Error{Code: code, Message: "refused"}
}

// wrongKind explains why a key does not take an event of this kind. It does not name the kind that the key holds: a
// repetition gets the same error, and by then the key may hold something else.
func wrongKind(ns *namespace, in *proto.IncrementWire) *proto.Error {
	if ns != nil && ns.params().Decay == sketch.Linear && in.Kind > ebbv1.Kind_KIND_DISTRIBUTION {
		return proto.ErrWrongKind.Errorf("kind %s for key %s: a namespace under linear decay holds distributions only",
			proto.KindName(in.Kind), quote(in.Key)).
			WithHint("other kinds go into a namespace with a half-life: ebb namespace create NAME --half-life 1h")
	}
	if in.Kind == ebbv1.Kind_KIND_BITMAP {
		return proto.ErrWrongKind.Errorf("kind bitmap for key %s: it holds ids and no bins", quote(in.Key)).WithHint("ebb bits set KEY ID...")
	}
	if in.Kind == 0 {
		return proto.ErrWrongKind.Errorf("bin %s for key %s: its kind wants a value, a text or ids", quote(in.Bin), quote(in.Key)).
			WithHint("give kind and value: ebb incr KEY --kind quantile --value 0.25, ebb string set KEY VALUE, ebb bits set KEY ID")
	}
	return proto.ErrWrongKind.Errorf("kind %s for key %s: it holds another", proto.KindName(in.Kind), quote(in.Key)).
		WithHint("a key keeps the kind of its first write until it has faded; ebb describe KEY says which; choose another key")
}

func binsMax(ns *namespace) int {
	if ns == nil {
		return proto.BinsMaxDefault
	}
	return ns.params().BinsMax
}

func refusedTime(ns *namespace, us int64) *proto.Error {
	switch {
	case us < 0:
		return proto.ErrBadTime.Errorf("time %d µs is before 1970", us)
	case us == 0 && ns != nil:
		return proto.ErrBadTime.Errorf("no time given: namespace %s has an event clock and lives by the times of its events", quote([]byte(ns.definition.GetName()))).
			WithHint("say when it happened: --at for one event, --time COLUMN for an import, time_us in a request")
	}
	return proto.ErrBadTime.Errorf("time %s is more than %s ahead of the shard's clock", time.UnixMicro(us).UTC().Format(time.RFC3339Nano), text(proto.FutureMaxUS)).
		WithHint("what is still to come is not counted; if the time is right, set the machines' clocks by NTP")
}

func namespaceNotFound(name []byte) *proto.Error {
	if len(name) == 0 {
		name = []byte(proto.DefaultNamespace)
	}
	return proto.ErrNamespaceNotFound.Errorf("namespace %s is not defined in this shard", quote(name))
}

func quote(b []byte) string { return strconv.Quote(string(b)) }

// text writes a duration for people.
func text(d sketch.Tick) string { return (time.Duration(d) * time.Microsecond).String() }
