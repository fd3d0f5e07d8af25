package proto

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Field numbers of ebbv1.Command and ebbv1.Increment, for code that parses these messages by hand on the hot path. A
// test checks them against the descriptors.
const (
	FieldCommandNamespace       = 1
	FieldCommandSession         = 2
	FieldCommandSource          = 3
	FieldCommandIdempotencyKey  = 4
	FieldCommandIncrements      = 5
	FieldIncrementsIncrements   = 1
	FieldIncrementKey           = 1
	FieldIncrementBin           = 2
	FieldIncrementAmount        = 3
	FieldIncrementTimeUS        = 4
	FieldIncrementOffset        = 5
	FieldIncrementKind          = 6
	FieldIncrementValue         = 7
	FieldIncrementText          = 8
	FieldCommandDefineNamespace = 6
	FieldCommandDelete          = 13
	FieldCommandPut             = 14
	FieldCommandExpire          = 15
	FieldCommandBehaviour       = 11
	FieldCommandTick            = 12
	FieldCommandAudit           = 41
	FieldCommandPurge           = 48
	FieldCommandPutPiece        = 49
	FieldCommandEventClock      = 50
)

// CheckKey refuses an empty key and one over KeyLenMax bytes.
func CheckKey(key []byte) *Error {
	return checkKeyLen(len(key))
}

func checkKeyLen(n int) *Error {
	switch {
	case n == 0:
		return ErrBadKey.Errorf("empty key: a key has 1 to %d bytes", KeyLenMax)
	case n > KeyLenMax:
		return ErrBadKey.Errorf("key of %d bytes: the limit is %d", n, KeyLenMax)
	}
	return nil
}

// CheckBin refuses an empty bin and one over BinLenMax bytes.
func CheckBin(bin []byte) *Error {
	return checkBinLen(len(bin))
}

func checkBinLen(n int) *Error {
	switch {
	case n == 0:
		return ErrBadBin.Errorf("empty bin: a bin has 1 to %d bytes", BinLenMax)
	case n > BinLenMax:
		return ErrBadBin.Errorf("bin of %d bytes: the limit is %d", n, BinLenMax)
	}
	return nil
}

// CheckAmount refuses NaN, infinities and absolute values over AmountMax. It accepts negative amounts: the namespace
// decides whether they are allowed.
func CheckAmount(amount float64) *Error {
	switch {
	case math.IsNaN(amount):
		return ErrBadAmount.Errorf("amount is NaN: it must be a finite number")
	case math.IsInf(amount, 0):
		return ErrBadAmount.Errorf("amount is infinite: it must be a finite number")
	case amount > AmountMax || amount < -AmountMax:
		return ErrBadAmount.Errorf("amount %g: the limit is %g", amount, float64(AmountMax))
	}
	return nil
}

// CheckTime refuses times before 1970. How far ahead a time may be depends on the shard's stamp, so the shard checks
// that.
func CheckTime(timeUS int64) *Error {
	if timeUS < 0 {
		return ErrBadTime.Errorf("time %d µs is before 1970-01-01", timeUS)
	}
	return nil
}

// CheckIncrement checks everything about an increment that does not depend on state.
func CheckIncrement(in *ebbv1.Increment) *Error {
	if err := CheckKey(in.GetKey()); err != nil {
		return err
	}
	if err := CheckTime(in.GetTimeUs()); err != nil {
		return err
	}
	w := IncrementWire{Bin: in.GetBin(), Amount: 1, Kind: in.GetKind(), Value: in.GetValue(), HasValue: in.Value != nil, Text: in.GetText(), HasText: in.Text != nil}
	if in.Amount != nil {
		w.Amount = in.GetAmount()
	}
	return w.CheckEvent()
}

// CheckEvent checks bin, amount and value, whose rules depend on the kind.
func (in *IncrementWire) CheckEvent() *Error {
	if in.Kind < ebbv1.Kind_KIND_UNSPECIFIED || in.Kind > KindMax {
		return ErrBadRequest.Errorf("kind %d is unknown: %s", in.Kind, KindNames())
	}
	if !in.Nameless() || len(in.Bin) > 0 {
		if err := checkBinLen(len(in.Bin)); err != nil {
			return err
		}
	}
	switch {
	case in.Kind == ebbv1.Kind_KIND_BITMAP:
		return ErrWrongKind.Errorf("kind bitmap: it holds ids and no bins").WithHint("ebb bits set KEY ID...")
	case in.Kind == ebbv1.Kind_KIND_STRING && !in.HasText:
		return ErrBadRequest.Errorf("no text: a string wants its value")
	case in.HasText && in.Kind != 0 && in.Kind != ebbv1.Kind_KIND_STRING:
		return ErrBadRequest.Errorf("text for kind %s: only a string has one", KindName(in.Kind))
	case in.HasText && len(in.Bin) > 0:
		return ErrBadRequest.Errorf("bin %q beside a text: a string has no bins", in.Bin)
	case in.HasValue && in.Kind != 0 && in.Kind != ebbv1.Kind_KIND_QUANTILE:
		return ErrBadRequest.Errorf("value for kind %s: only a quantile has one", KindName(in.Kind))
	case len(in.Text) > TextLenMax:
		return ErrBadRequest.Errorf("text of %d bytes: the limit is %d", len(in.Text), TextLenMax)
	case in.Kind == ebbv1.Kind_KIND_PHRASES && !HasTokens(in.Bin):
		return ErrBadBin.Errorf("phrase %q: it has "+NoToken, in.Bin)
	case in.Kind == ebbv1.Kind_KIND_QUANTILE && !in.HasValue:
		return ErrBadAmount.Errorf("no value: a quantile wants what was measured")
	case math.IsNaN(in.Value) || math.IsInf(in.Value, 0):
		return ErrBadAmount.Errorf("value %g: it must be a finite number", in.Value)
	}
	return CheckAmount(in.Amount)
}

// Nameless says whether an event may lack a bin. Without a kind, it may if it has a value or a text: only the key
// decides the kind.
func (in *IncrementWire) Nameless() bool {
	switch in.Kind {
	case ebbv1.Kind_KIND_QUANTILE, ebbv1.Kind_KIND_STRING:
		return true
	case ebbv1.Kind_KIND_UNSPECIFIED:
		return in.HasValue || in.HasText
	}
	return false
}

// NoToken is the reason for refusing a phrase without a token.
const NoToken = "no letter, number, or symbol such as an emoji; punctuation, + and $ do not count"

// HasTokens is false for what is certainly not a phrase: only punctuation and spaces of ASCII. It uses no Unicode
// tables, which differ between versions, so that all replicas refuse the same phrases.
func HasTokens(phrase []byte) bool {
	return slices.ContainsFunc(phrase, func(c byte) bool {
		return c >= 0x80 || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	})
}

// KindMax is the last kind.
const KindMax = ebbv1.Kind_KIND_BITMAP

// EventKindMax is the last kind that increments can write: bitmaps are written by edits.
const EventKindMax = ebbv1.Kind_KIND_PHRASES

// KindName is the name of a kind as users write it: "distribution", "distinct".
func KindName(k ebbv1.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}

// KindNamed returns the kind with a name; false for an unknown name.
func KindNamed(name string) (ebbv1.Kind, bool) {
	k, ok := ebbv1.Kind_value["KIND_"+strings.ToUpper(name)]
	return ebbv1.Kind(k), ok && k != 0
}

// KindNames lists the names of all kinds.
func KindNames() string {
	names := make([]string, 0, KindMax)
	for k := ebbv1.Kind_KIND_DISTRIBUTION; k <= KindMax; k++ {
		names = append(names, KindName(k))
	}
	return strings.Join(names, ", ")
}

// CommandNamespace returns the namespace of a serialised Command: "" if it names none, or if raw is malformed.
func CommandNamespace(raw []byte) []byte {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
		if num == FieldCommandNamespace && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(raw)
			if n < 0 {
				return nil
			}
			return v
		}
		n = protowire.ConsumeFieldValue(num, typ, raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
	}
	return nil
}

// CommandOwner returns the namespace of a serialised Command, and the field that identifies its session or source.
// caller is nil if the command has neither.
func CommandOwner(raw []byte) (namespace, caller []byte) {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			break
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(num, typ, raw); n < 0 {
			break
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(raw)
			switch num {
			case FieldCommandNamespace:
				namespace = value
			case FieldCommandSession, FieldCommandSource:
				if _, _, n := protowire.ConsumeField(value); n > 0 { // the first field is the number or the name
					caller = value[:n]
				}
			}
		}
		raw = raw[n:]
	}
	return namespace, caller
}

// CommandGrows reports whether a serialised Command may make a shard larger. Commands that delete, that take ids out of
// bitmaps, or that keep a session open do not.
func CommandGrows(raw []byte) bool {
	switch _, field, body := CommandBody(raw); field {
	case FieldCommandIncrements, FieldCommandPut, FieldCommandPutPiece, FieldCommandStore, FieldCommandNames:
		return true
	case FieldCommandRestore:
		return restoreGrows(body)
	case FieldCommandBits:
		return bitsGrow(body)
	case FieldCommandHome:
		return homeGrows(body)
	}
	return false
}

// bitsGrow says whether a batch of edits adds ids: whether any edit is not a clear.
func bitsGrow(body []byte) bool {
	grows := false
	BitEdits(body, func(e *BitEditWire) bool {
		grows = e.Op != ebbv1.BitOp_BIT_OP_CLEAR
		return !grows
	})
	return grows
}

// CheckCommandSize refuses a serialised Command over CommandBytesMax, which does not fit an entry of the log. The error
// names the key if the command puts or stores one.
func CheckCommandSize(raw []byte) *Error {
	if len(raw) <= CommandBytesMax {
		return nil
	}
	key := []byte(nil)
	_, field, body := CommandBody(raw)
	WalkFields(body, func(num protowire.Number, _ uint64, b []byte) bool {
		if num == fieldPutKey && (field == FieldCommandPut || field == FieldCommandStore) {
			key = b
		}
		return true
	})
	if len(key) == 0 || len(key) > KeyLenMax {
		return ErrBatchTooLarge.Errorf("command of %d bytes: the limit is %d", len(raw), CommandBytesMax).
			WithHint("send it in smaller batches")
	}
	err := ErrKeyTooLarge.Errorf("key %q in a command of %d bytes: the limit is %d", key, len(raw), CommandBytesMax)
	if field == FieldCommandStore {
		return err.WithHint("name fewer keys, or store parts of it first, and then what is made of them")
	}
	return err.WithHint("bring an image of more bytes in pieces, as ebb sketch import does")
}

// CheckCommand checks a serialised Command from a client: its framing, its limits, and every increment and key. It
// refuses commands that only a shard's leader may write (define_namespace, behaviour, tick). It allocates only for an
// error.
func CheckCommand(raw []byte) *Error {
	if err := CheckCommandSize(raw); err != nil {
		return err
	}
	bodies, namespaces := 0, 0
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errMalformed("command")
		}
		raw = raw[n:]
		n = protowire.ConsumeFieldValue(num, typ, raw)
		if n < 0 {
			return errMalformed("command")
		}
		value := raw[:n]
		raw = raw[n:]
		switch {
		case num >= FieldCommandIncrements:
			bodies++
		case num == FieldCommandNamespace:
			namespaces++
		}
		if err := checkCommandField(num, typ, value); err != nil {
			return err
		}
	}
	if bodies != 1 {
		return ErrBadRequest.Errorf("command with %d bodies: it must have one", bodies)
	}
	if namespaces > 1 { // one would be authorized, and another one written to
		return ErrBadRequest.Errorf("command with %d namespaces: it must have one", namespaces)
	}
	return nil
}

func checkCommandField(num protowire.Number, typ protowire.Type, value []byte) *Error {
	if typ != protowire.BytesType {
		return ErrBadRequest.Errorf("command field %d has an unknown type", num)
	}
	v, _ := protowire.ConsumeBytes(value)
	switch num {
	case FieldCommandNamespace:
		if len(v) > 0 {
			return CheckNamespaceName(string(v))
		}
	case FieldCommandIncrements:
		return checkIncrements(v)
	case FieldCommandDelete, FieldCommandPut, FieldCommandExpire:
		return checkKeysCommand(int(num), v)
	case FieldCommandBits:
		return checkBitEdits(v)
	case FieldCommandStore:
		return checkStoreCommand(v)
	case FieldCommandNames:
		return checkNamesCommand(v)
	case FieldCommandHome:
		return checkHomeCommand(v)
	case FieldCommandRestore:
		return checkRestoreCommand(v)
	case FieldCommandPutPiece:
		return checkPutPiece(v)
	default:
		s, known := flatShapes[num]
		if !known {
			return ErrBadRequest.Errorf("command field %d is not for clients", num)
		}
		if !s.fits(v) {
			return errMalformed("command")
		}
	}
	return nil
}

// flatShapes are the shapes of the command fields that have no limits of their own.
var flatShapes = map[protowire.Number]shape{
	FieldCommandSession:        shapeOf(&ebbv1.SessionIdentity{}),
	FieldCommandSource:         shapeOf(&ebbv1.SourceIdentity{}),
	FieldCommandIdempotencyKey: shapeOf(&ebbv1.IdempotencyKey{}),
	FieldCommandOpenSession:    shapeOf(&ebbv1.OpenSession{}),
	FieldCommandCloseSession:   shapeOf(&ebbv1.CloseSession{}),
	FieldCommandOpenSource:     shapeOf(&ebbv1.OpenSource{}),
	FieldCommandDropSource:     shapeOf(&ebbv1.DropSource{}),
	FieldCommandEventClock:     shapeOf(&ebbv1.EventClock{}),
}

const (
	FieldCommandOpenSession  = 7
	FieldCommandCloseSession = 8
	FieldCommandOpenSource   = 9
	FieldCommandDropSource   = 10
)

func errMalformed(what string) *Error {
	return ErrBadRequest.Errorf("malformed %s: not a valid protobuf message", what)
}

func checkIncrements(raw []byte) *Error {
	count := 0
	for len(raw) > 0 {
		one, rest, ok := NextIncrement(raw)
		if !ok {
			return errMalformed("batch of increments")
		}
		raw = rest
		if err := checkIncrementWire(one); err != nil {
			err.Message = fmt.Sprintf("increment %d: %s", count, err.Message)
			return err
		}
		count++
	}
	if count > BatchOpsMax {
		return ErrBatchTooLarge.Errorf("batch of %d increments: the limit is %d", count, BatchOpsMax)
	}
	return nil
}

func checkIncrementWire(raw []byte) *Error {
	var in IncrementWire
	if !in.Parse(raw) || in.beyond {
		return errMalformed("increment")
	}
	if err := checkKeyLen(len(in.Key)); err != nil {
		return err
	}
	if err := in.CheckEvent(); err != nil {
		return err
	}
	return CheckTime(in.TimeUS)
}

// CheckNamespaceName refuses a name that is not 1 to NamespaceLenMax letters, digits, '_', '-' and '.'.
func CheckNamespaceName(name string) *Error {
	if name == "" || len(name) > NamespaceLenMax {
		return ErrBadNamespace.Errorf("namespace name of %d bytes: it has 1 to %d", len(name), NamespaceLenMax)
	}
	for i := range len(name) {
		c := name[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
		if !ok {
			return ErrBadNamespace.Errorf("namespace name %s: only letters, digits, '_', '-' and '.' are allowed", strconv.Quote(name))
		}
	}
	return nil
}

// CheckHalfLife refuses half-lives below 1 s and above 100 years.
func CheckHalfLife(us int64) *Error {
	if us < HalfLifeMinUS || us > HalfLifeMaxUS {
		return ErrBadHalfLife.Errorf("half-life of %g s: it must be from 1 s to 100 years", float64(us)/1e6)
	}
	return nil
}

// CheckNamespace checks a complete definition, with the defaults filled in.
func CheckNamespace(ns *ebbv1.Namespace) *Error { return CheckNamespaceAt(ns, StorageVersion) }

// CheckNamespaceAt is CheckNamespace while a storage version is in force: values of later versions are out of range.
func CheckNamespaceAt(ns *ebbv1.Namespace, version uint32) *Error {
	if err := CheckNamespaceName(ns.GetName()); err != nil {
		return err
	}
	if err := CheckHalfLife(ns.GetHalfLifeUs()); err != nil {
		return err
	}
	switch {
	case !(ns.GetThreshold() > 0 && ns.GetThreshold() <= 1e9):
		return ErrBadNamespace.Errorf("threshold %g: it must be above 0 and at most 1e9", ns.GetThreshold())
	case !(ns.GetPrior() >= 0 && ns.GetPrior() <= 1e9):
		return ErrBadNamespace.Errorf("prior %g: it must be from 0 to 1e9", ns.GetPrior())
	case ns.GetSlowHalfLifeUs() != 0 && CheckHalfLife(ns.GetSlowHalfLifeUs()) != nil:
		return ErrBadHalfLife.Errorf("second half-life of %g s: it must be from 1 s to 100 years, or 0 for none", float64(ns.GetSlowHalfLifeUs())/1e6)
	case ns.GetBinsMax() == 0 || ns.GetBinsMax() > BinsMaxLimit:
		return ErrBadNamespace.Errorf("bins_max %d: it must be from 1 to %d", ns.GetBinsMax(), BinsMaxLimit)
	}
	if w := ns.GetWindowUs(); w != 0 && (w < HalfLifeMinUS || w > HalfLifeMaxUS) {
		return ErrBadNamespace.Errorf("window of %g s: it must be from 1 s to 100 years, or 0 for none", float64(w)/1e6)
	}
	if ns.GetWindowUs() != 0 && ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR {
		return ErrBadNamespace.Errorf("a window is for distinct keys: a namespace under linear decay holds distributions only")
	}
	if err := checkNamespaceEnums(ns); err != nil {
		return err
	}
	if err := checkEventClock(ns); err != nil {
		return err
	}
	if err := checkBitmapSettings(ns); err != nil {
		return err
	}
	if err := checkDictionary(ns); err != nil {
		return err
	}
	if b := ns.GetBudget(); b.GetBytes() > BudgetBytesMax || b.GetKeys() > BudgetKeysMax {
		return ErrBadNamespace.Errorf("budget of %d bytes and %d keys: they are at most %d and %d",
			b.GetBytes(), b.GetKeys(), uint64(BudgetBytesMax), uint64(BudgetKeysMax))
	}
	return checkTemplate(ns, version)
}

// Texts of CheckSecondHalfLife, for callers that word them differently.
const (
	HintNoSecondHalfLife = "turn it off with slow_half_life_us 0"
	HalfLivesTooClose    = "half-lives of "
)

// CheckSecondHalfLife checks whether the second half-life of a complete definition, if any, is compatible with its
// other settings.
func CheckSecondHalfLife(ns *ebbv1.Namespace) *Error {
	slow, own := ns.GetSlowHalfLifeUs(), ns.GetHalfLifeUs()
	switch {
	case slow == 0:
		return nil
	case ns.GetDecay() != ebbv1.Decay_DECAY_HALF_LIFE:
		return ErrBadNamespace.Errorf("namespace %s: a second half-life goes with decay half-life only", ns.GetName()).
			WithHint(HintNoSecondHalfLife)
	case ns.GetAllowNegative():
		return ErrBadNamespace.Errorf("namespace %s: a second half-life is for rates, and there are none of negative amounts", ns.GetName()).
			WithHint(HintNoSecondHalfLife)
	case slow < 2*own && own < 2*slow:
		return ErrBadHalfLife.Errorf(HalfLivesTooClose+"%g s and %g s: one must be at least twice the other",
			float64(own)/1e6, float64(slow)/1e6)
	}
	return nil
}

func checkNamespaceEnums(ns *ebbv1.Namespace) *Error {
	switch {
	case ns.GetDecay() < ebbv1.Decay_DECAY_HALF_LIFE || ns.GetDecay() > ebbv1.Decay_DECAY_NONE:
		return ErrBadNamespace.Errorf("decay %d is unknown: half-life, linear or none", ns.GetDecay())
	case ns.GetFloor() < ebbv1.Floor_FLOOR_PRUNE || ns.GetFloor() > ebbv1.Floor_FLOOR_PRIOR:
		return ErrBadNamespace.Errorf("floor %d is unknown: prune, clamp or prior", ns.GetFloor())
	case ns.GetClock() < ebbv1.Clock_CLOCK_WALL || ns.GetClock() > ebbv1.Clock_CLOCK_EVENT:
		return ErrBadNamespace.Errorf("clock %d is unknown: wall or event", ns.GetClock())
	case ns.GetPrecision() < ebbv1.Precision_PRECISION_DEFAULT || ns.GetPrecision() > ebbv1.Precision_PRECISION_COMPACT:
		return ErrBadNamespace.Errorf("precision %d is unknown: default or compact", ns.GetPrecision())
	case ns.GetBitmapPlacement() < ebbv1.BitmapPlacement_BITMAP_PLACEMENT_UNSPECIFIED || ns.GetBitmapPlacement() > ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE:
		return ErrBadNamespace.Errorf("bitmap placement %d is unknown: key or slice", ns.GetBitmapPlacement())
	case ns.GetSetHash() < ebbv1.SetHash_SET_HASH_UNSPECIFIED || ns.GetSetHash() > ebbv1.SetHash_SET_HASH_MURMUR3:
		return ErrBadNamespace.Errorf("set hash %d is unknown: xxh3 or murmur3", ns.GetSetHash())
	}
	return nil
}

// FillNamespace sets every field of ns that has its zero value to the value in base, and returns ns.
func FillNamespace(ns, base *ebbv1.Namespace) *ebbv1.Namespace {
	fill(&ns.Decay, base.Decay)
	fill(&ns.HalfLifeUs, base.HalfLifeUs)
	fill(&ns.Floor, base.Floor)
	fill(&ns.Threshold, base.Threshold)
	fill(&ns.Prior, base.Prior)
	fill(&ns.Clock, base.Clock)
	fill(&ns.Precision, base.Precision)
	fill(&ns.AllowNegative, base.AllowNegative)
	fill(&ns.BinsMax, base.BinsMax)
	fill(&ns.HashSeed, base.HashSeed)
	fill(&ns.Kind, base.Kind)
	ns.Sizes = fillSizes(ns.Sizes, base.Sizes)
	fill(&ns.WindowUs, base.WindowUs)
	fill(&ns.SlowHalfLifeUs, base.SlowHalfLifeUs)
	fill(&ns.BitmapPlacement, base.BitmapPlacement)
	fill(&ns.Dictionary, base.Dictionary)
	if ns.Universe == nil {
		ns.Universe = base.Universe
	}
	if len(ns.Universe) == 0 {
		ns.Universe = nil // it was removed
	}
	if ns.Rollups == nil {
		ns.Rollups = base.Rollups
	}
	if len(ns.Rollups.GetUnits()) == 0 {
		ns.Rollups = nil
	}
	fill(&ns.MaxJumpUs, base.MaxJumpUs)
	fill(&ns.ClockSetting, base.ClockSetting)
	ns.Budget = fillBudget(ns.Budget, base.Budget)
	return ns
}

// fillBudget returns budget with its absent limits taken from base. A limit of 0 is left out; without limits it returns
// nil.
func fillBudget(budget, base *ebbv1.NamespaceBudget) *ebbv1.NamespaceBudget {
	bytes, keys := base.GetBytes(), base.GetKeys()
	if budget != nil && budget.Bytes != nil {
		bytes = *budget.Bytes
	}
	if budget != nil && budget.Keys != nil {
		keys = *budget.Keys
	}
	if bytes == 0 && keys == 0 {
		return nil
	}
	out := &ebbv1.NamespaceBudget{}
	if bytes != 0 {
		out.Bytes = &bytes
	}
	if keys != 0 {
		out.Keys = &keys
	}
	return out
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// SameArithmetic reports whether stored values mean the same under both definitions, and fade at the same time. If not,
// shards convert what they store and record the change, so the number of such changes is limited to HalfLifeChangesMax.
// The other settings matter only when a value is written or read, and may change any number of times.
func SameArithmetic(a, b *ebbv1.Namespace) bool {
	return a.GetDecay() == b.GetDecay() && a.GetHalfLifeUs() == b.GetHalfLifeUs() &&
		a.GetThreshold() == b.GetThreshold() && a.GetPrecision() == b.GetPrecision() &&
		a.GetAllowNegative() == b.GetAllowNegative()
}

// DefaultNamespaceSettings are the settings of a namespace that sets none itself.
func DefaultNamespaceSettings() *ebbv1.Namespace {
	return &ebbv1.Namespace{
		Decay: ebbv1.Decay_DECAY_HALF_LIFE, HalfLifeUs: DefaultHalfLifeUS,
		Floor: ebbv1.Floor_FLOOR_PRUNE, Threshold: DefaultThreshold, Prior: DefaultPriorPseudo,
		Clock: ebbv1.Clock_CLOCK_WALL, Precision: ebbv1.Precision_PRECISION_DEFAULT,
		BinsMax: BinsMaxDefault,
		Kind:    ebbv1.Kind_KIND_DISTRIBUTION, Sizes: DefaultSizes(),
		BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY,
	}
}

// CheckQuestion checks everything about a question that does not depend on state.
func CheckQuestion(q *ebbv1.Question) *Error {
	if err := checkNamespaceNamed(q); err != nil {
		return err
	}
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return checkDistributionQuestion(ask.Distribution)
	case *ebbv1.Question_Summary:
		return checkSummaryQuestion(ask.Summary)
	case *ebbv1.Question_Surprise:
		return checkSurpriseQuestion(ask.Surprise)
	case *ebbv1.Question_Overlap:
		return checkOverlapQuestion(ask.Overlap, 2)
	case *ebbv1.Question_Graph:
		return checkGraphQuestion(ask.Graph)
	case *ebbv1.Question_Keys:
		return checkKeysQuestion(ask.Keys)
	case *ebbv1.Question_Describe:
		return checkDescribeQuestion(ask.Describe)
	case *ebbv1.Question_Export:
		return CheckKey(ask.Export.GetKey())
	case *ebbv1.Question_Match:
		return checkMatchQuestion(ask.Match)
	case *ebbv1.Question_Trend:
		return checkTrendQuestion(ask.Trend)
	case *ebbv1.Question_Bitmap:
		return checkBitmapQuestion(ask.Bitmap)
	case *ebbv1.Question_BitmapGroups:
		return checkBitmapGroupsQuestion(ask.BitmapGroups)
	case *ebbv1.Question_BitmapCohort:
		return checkBitmapCohortQuestion(ask.BitmapCohort)
	case *ebbv1.Question_Names:
		return checkNamesQuestion(ask.Names)
	case *ebbv1.Question_Sources:
		return checkSourcesQuestion(ask.Sources)
	case *ebbv1.Question_CountKeys, *ebbv1.Question_EventClock:
		return nil
	}
	return ErrUnknownQuestion()
}

// ErrUnknownQuestion refuses a question of a type that this version does not know.
func ErrUnknownQuestion() *Error {
	return ErrBadRequest.Errorf("a question must ask for something: distribution, summary, surprise, overlap, graph, keys, describe, match, trend, bitmap, bitmap_groups, bitmap_cohort, names, sources, event_clock or count_keys")
}

// QuestionKeys returns the keys that a question names; keys of a baseline are last. It returns none if the question is
// about a namespace.
func QuestionKeys(q *ebbv1.Question) [][]byte {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return ask.Distribution.GetKeys()
	case *ebbv1.Question_Summary:
		return ask.Summary.GetKeys()
	case *ebbv1.Question_Trend:
		return ask.Trend.GetKeys()
	case *ebbv1.Question_Surprise:
		return slices.Concat(ask.Surprise.GetKeys(), ask.Surprise.GetAgainst())
	case *ebbv1.Question_Overlap:
		return OverlapKeys(ask.Overlap)
	case *ebbv1.Question_Graph:
		return ask.Graph.GetKeys()
	case *ebbv1.Question_Describe:
		return [][]byte{ask.Describe.GetKey()}
	case *ebbv1.Question_Export:
		return [][]byte{ask.Export.GetKey()}
	case *ebbv1.Question_Match:
		return [][]byte{ask.Match.GetKey()}
	case *ebbv1.Question_BitmapGroups:
		return append(ExprKeys(BitmapExprs(q)...), ask.BitmapGroups.GetKeys()...)
	case *ebbv1.Question_Bitmap, *ebbv1.Question_BitmapCohort:
		return ExprKeys(BitmapExprs(q)...)
	}
	return nil
}

// QuestionSides returns the keys of a question about distributions, and those of its baseline if it has one.
func QuestionSides(q *ebbv1.Question) (keys, against [][]byte) {
	if s := q.GetSurprise(); s != nil {
		return s.GetKeys(), s.GetAgainst()
	}
	return QuestionKeys(q), nil
}

// WithQuestions returns a request with the options of req and with the given questions.
func WithQuestions(req *ebbv1.ShardAskRequest, questions []*ebbv1.ShardQuestion) *ebbv1.ShardAskRequest {
	return &ebbv1.ShardAskRequest{
		Questions: questions, Consistency: req.GetConsistency(), MaxStalenessUs: req.GetMaxStalenessUs(), NowUs: req.GetNowUs(), Follow: req.GetFollow(),
		AnswerBytes: req.GetAnswerBytes(),
	}
}

// CheckShardQuestion checks a question from a node to a shard. A partial question may leave out the side of a
// comparison that has no keys in the shard, unless there are patterns. It may also name a single set of an overlap.
func CheckShardQuestion(q *ebbv1.ShardQuestion) *Error {
	if len(q.GetQuestion().GetBitmap().GetContains().GetNames()) > 0 {
		return ErrBadRequest.Errorf("contains: a shard knows ids, and not for which strings they stand").WithHint("ask any node: Ask, or ebb bits get")
	}
	if o := q.GetQuestion().GetOverlap(); o != nil && q.GetPartial() {
		return cmp.Or(checkNamespaceNamed(q.GetQuestion()), checkOverlapPart(o))
	}
	if t := q.GetQuestion().GetTrend(); t != nil && q.GetPartial() && q.GetBeginnings() {
		if len(t.GetKeys()) > 0 {
			return ErrBadRequest.Errorf("when rates of a namespace begin is asked without keys")
		}
		return checkNamespaceNamed(q.GetQuestion())
	}
	ask := q.GetQuestion().GetSurprise()
	if ask == nil || !q.GetPartial() || Everywhere(q.GetQuestion()) || len(ask.GetKeys()) > 0 && len(ask.GetAgainst()) > 0 {
		return CheckQuestion(q.GetQuestion())
	}
	if err := checkNamespaceNamed(q.GetQuestion()); err != nil {
		return err
	}
	if err := checkKeys(QuestionKeys(q.GetQuestion())); err != nil {
		return err
	}
	return checkSurpriseSelection(ask)
}

// checkNamespaceNamed refuses a malformed namespace name; no name means the default namespace.
func checkNamespaceNamed(q *ebbv1.Question) *Error {
	if q.GetNamespace() == "" {
		return nil
	}
	return CheckNamespaceName(q.GetNamespace())
}

// OverlapKeys are the keys of a question about an overlap, each once: the keys that it names, or the keys in its
// expressions.
func OverlapKeys(q *ebbv1.OverlapQuestion) [][]byte {
	if len(q.GetOf()) == 0 {
		return q.GetKeys()
	}
	return ExprKeys(q.GetOf()...)
}

// checkSetExprs refuses set expressions of wrong types, and too many of them.
func checkSetExprs(q *ebbv1.OverlapQuestion) *Error {
	most := OverlapKeysMax
	if q.GetFirst() {
		most = GraphKeysMax
	}
	if n := len(q.GetOf()); len(q.GetKeys()) > 0 || n > most {
		return ErrBadCount.Errorf(
			"%d keys and %d sets made of others: a question about an overlap has either, at most %d",
			len(q.GetKeys()), n, most)
	}
	terms := 0
	for _, x := range q.GetOf() {
		if err := checkSetExpr(x, 1, &terms); err != nil {
			return err
		}
	}
	keys := OverlapKeys(q)
	if n := len(keys); n == 0 || n > GraphKeysMax {
		return ErrBadCount.Errorf("%d keys: the sets of an overlap are made of 1 to %d", n, GraphKeysMax)
	}
	return checkDifferentKeys(keys)
}

func checkSetExpr(x *ebbv1.BitmapExpr, depth int, terms *int) *Error {
	if *terms++; *terms > BitTermsMax {
		return ErrBadCount.Errorf("a set is made of more than %d terms", BitTermsMax)
	}
	if depth > BitDepthMax {
		return ErrBadRequest.Errorf("a set is made of expressions more than %d deep", BitDepthMax)
	}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Key:
		return nil // see checkDifferentKeys
	case *ebbv1.BitmapExpr_Or: // an `or` of nothing is empty
	case *ebbv1.BitmapExpr_And, *ebbv1.BitmapExpr_AndNot, *ebbv1.BitmapExpr_Xor:
		if len(ExprTerms(x)) == 0 {
			return ErrBadRequest.Errorf("a set that is made of nothing")
		}
	case *ebbv1.BitmapExpr_AtLeast:
		if t, n := e.AtLeast.GetTimes(), len(e.AtLeast.GetOf()); t < 1 || int(t) > n {
			return ErrBadCount.Errorf("at least %d of %d: it must be from 1 to their number", t, n)
		}
	default:
		return ErrBadRequest.Errorf("a set is made of keys by or, and, and_not, xor and at_least")
	}
	for _, term := range ExprTerms(x) {
		if err := checkSetExpr(term, depth+1, terms); err != nil {
			return err
		}
	}
	return nil
}

// checkOverlapPart allows a partial question as many sets as all expressions together may name.
func checkOverlapPart(q *ebbv1.OverlapQuestion) *Error {
	if n := len(q.GetKeys()); n > OverlapKeysMax && n <= GraphKeysMax && len(q.GetOf()) == 0 {
		return cmp.Or(checkDifferentKeys(q.GetKeys()), checkConfidence(q.GetConfidence()), CheckTime(q.GetAsOfUs()))
	}
	return checkOverlapQuestion(q, 1)
}

func checkOverlapQuestion(q *ebbv1.OverlapQuestion, least int) *Error {
	if len(q.GetOf()) > 0 {
		return cmp.Or(checkSetExprs(q), checkConfidence(q.GetConfidence()), CheckTime(q.GetAsOfUs()))
	}
	if n := len(q.GetKeys()); n < least || n > OverlapKeysMax {
		return ErrBadCount.Errorf("%d keys: a question about an overlap names %d to %d", n, least, OverlapKeysMax)
	}
	return cmp.Or(checkDifferentKeys(q.GetKeys()), checkConfidence(q.GetConfidence()), CheckTime(q.GetAsOfUs()))
}

func checkGraphQuestion(q *ebbv1.GraphQuestion) *Error {
	if n := len(q.GetKeys()); n == 0 && len(q.GetPatterns()) == 0 || n > GraphKeysMax {
		return ErrBadCount.Errorf("%d keys: a question about a graph names 1 to %d", n, GraphKeysMax)
	}
	if err := checkKeysOrPatterns(q.GetKeys(), q.GetPatterns()); err != nil {
		return err
	}
	if n := q.GetLinks(); n > LinksMax {
		return ErrBadCount.Errorf("%d links: a graph has 1 to %d of each set", n, LinksMax)
	}
	if j := q.GetMinJaccard(); !(j >= 0 && j <= 1) {
		return ErrBadRequest.Errorf("min_jaccard %g: it must be from 0 to 1", j)
	}
	return cmp.Or(checkDifferentKeys(q.GetKeys()), checkConfidence(q.GetConfidence()), CheckTime(q.GetAsOfUs()))
}

// checkDifferentKeys refuses keys that are out of bounds, and keys that are named twice.
func checkDifferentKeys(keys [][]byte) *Error {
	seen := make(map[string]bool, len(keys))
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return err
		}
		if seen[string(key)] {
			return ErrBadRequest.Errorf("key %q is named twice: a set is compared with others", key)
		}
		seen[string(key)] = true
	}
	return nil
}

func checkMatchQuestion(q *ebbv1.MatchQuestion) *Error {
	if err := CheckKey(q.GetKey()); err != nil {
		return err
	}
	if n := len(q.GetText()); n > MatchTextMax {
		return ErrBadRequest.Errorf("text of %d bytes: the limit is %d", n, MatchTextMax).WithHint("send it in several, each to the end of a sentence")
	}
	return nil
}

func checkSurpriseQuestion(q *ebbv1.SurpriseQuestion) *Error {
	if err := checkKeysOrPatterns(q.GetKeys(), q.GetPatterns()); err != nil {
		return err
	}
	if len(q.GetAgainst()) == 0 && len(q.GetAgainstPatterns()) == 0 {
		return ErrBadCount.Errorf("no baseline: a question about surprise names what it is against")
	}
	if err := checkKeysOrPatterns(q.GetAgainst(), q.GetAgainstPatterns()); err != nil {
		return err
	}
	return checkSurpriseSelection(q)
}

func checkSurpriseSelection(q *ebbv1.SurpriseQuestion) *Error {
	return checkSelection(q.GetBins(), q.GetTop(), q.GetAsOfUs())
}

func checkTrendQuestion(q *ebbv1.TrendQuestion) *Error {
	if err := checkKeys(q.GetKeys()); err != nil {
		return err
	}
	if err := checkConfidence(q.GetConfidence()); err != nil {
		return err
	}
	return checkSelection(q.GetBins(), q.GetTop(), q.GetAsOfUs())
}

// checkSelection checks the fields that comparisons share: bins, the number of other bins (0 for the default), and a
// time.
func checkSelection(bins [][]byte, top uint32, asOfUS int64) *Error {
	if n := len(bins); n > BatchOpsMax {
		return ErrBadCount.Errorf("%d bins: a question names %d at most", n, BatchOpsMax)
	}
	for _, bin := range bins {
		if err := CheckBin(bin); err != nil {
			return err
		}
	}
	if top != 0 {
		if err := CheckTop(int64(top)); err != nil {
			return err
		}
	}
	return CheckTime(asOfUS)
}

func checkKeys(keys [][]byte) *Error {
	if n := len(keys); n == 0 || n > KeysPerAskMax {
		return ErrBadCount.Errorf("%d keys: a question names 1 to %d", n, KeysPerAskMax)
	}
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	return nil
}

func checkConfidence(c float64) *Error {
	if c != 0 && !(c >= 0.5 && c <= 0.9999) {
		return ErrBadRequest.Errorf("confidence %g: it must be from 0.5 to 0.9999", c)
	}
	return nil
}

func checkSummaryQuestion(q *ebbv1.SummaryQuestion) *Error {
	if err := checkKeysOrPatterns(q.GetKeys(), q.GetPatterns()); err != nil {
		return err
	}
	if n := len(q.GetBins()) + len(q.GetQuantiles()); n > BatchOpsMax {
		return ErrBadCount.Errorf("%d bins and quantiles: a question names %d at most", n, BatchOpsMax)
	}
	for _, bin := range q.GetBins() {
		if err := CheckBin(bin); err != nil {
			return err
		}
	}
	for _, part := range q.GetQuantiles() {
		if !(part >= 0 && part <= 1) {
			return ErrBadRequest.Errorf("quantile %g: it must be from 0 to 1", part)
		}
	}
	if q.GetTop() > TopMax {
		return ErrBadCount.Errorf("n = %d: it must be from 1 to %d", q.GetTop(), TopMax)
	}
	if w := q.GetWindowUs(); w < 0 || w > HalfLifeMaxUS {
		return ErrBadRequest.Errorf("window of %g s: it must be above 0 and at most 100 years", float64(w)/1e6)
	}
	if q.GetLimit() > TopMax {
		return ErrBadCount.Errorf("limit %d: it must be from 1 to %d", q.GetLimit(), TopMax)
	}
	if q.GetLimit() > 0 && !q.GetMembers() {
		return ErrBadRequest.Errorf("limit %d: it is one of members, and none are asked for", q.GetLimit())
	}
	if err := checkConfidence(q.GetConfidence()); err != nil {
		return err
	}
	return CheckTime(q.GetAsOfUs())
}

func checkDistributionQuestion(q *ebbv1.DistributionQuestion) *Error {
	if err := checkKeysOrPatterns(q.GetKeys(), q.GetPatterns()); err != nil {
		return err
	}
	if err := checkConfidence(q.GetConfidence()); err != nil {
		return err
	}
	if r := q.GetRate(); q.Rate != nil && !(r >= 0 && r <= 1e6) {
		return ErrBadRequest.Errorf("rate %g per second: it must be from 0 to 1e6", r)
	}
	if err := CheckTime(q.GetAsOfUs()); err != nil {
		return err
	}
	return checkSelect(q)
}

func checkSelect(q *ebbv1.DistributionQuestion) *Error {
	switch s := q.GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Top:
		return CheckTop(int64(s.Top))
	case *ebbv1.DistributionQuestion_Bins:
		if n := len(s.Bins.GetBins()); n == 0 || n > BatchOpsMax {
			return ErrBadCount.Errorf("%d bins: a question names 1 to %d", n, BatchOpsMax)
		}
		for _, bin := range s.Bins.GetBins() {
			if err := CheckBin(bin); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckWatch checks everything about a watch that does not depend on state, except its consistency.
func CheckWatch(req *ebbv1.WatchRequest) *Error {
	if err := checkWatched(req); err != nil {
		return err
	}
	if us := req.GetMinIntervalUs(); us != 0 && (us < WatchIntervalMinUS || us > WatchIntervalMaxUS) {
		return ErrBadRequest.Errorf("interval of %g s: it must be from 100 ms to 1 h", float64(us)/1e6)
	}
	if t := req.GetTolerance(); !(t >= 0 && t <= 1) {
		return ErrBadRequest.Errorf("tolerance %g: it must be from 0 to 1", t)
	}
	if a := req.GetAlert(); a != nil {
		if req.GetQuery() == "" && req.GetQuestion().GetSurprise() == nil {
			return ErrBadAlertQuestion()
		}
		return checkAlert(a)
	}
	return nil
}

// checkWatched checks the question of a watch. The parser checks the text of a query.
func checkWatched(req *ebbv1.WatchRequest) *Error {
	switch {
	case req.GetQuery() == "":
		return CheckQuestion(req.GetQuestion())
	case req.GetQuestion() != nil:
		return ErrBadRequest.Errorf("question and query: only one of them may be given")
	case req.GetConsistency() != 0 || req.GetMaxStalenessUs() != 0 || req.GetAllowPartial():
		return ErrBadRequest.Errorf("consistency, max_staleness_us and allow_partial: a query says them itself").WithHint("top 10 clicks/country with consistency any allow partial")
	}
	return nil
}

// ErrBadAlertQuestion refuses an alert whose question is not about surprise.
func ErrBadAlertQuestion() *Error {
	return ErrBadRequest.Errorf("an alert is of a question about surprise, and this asks for something else")
}

// checkAlert refuses thresholds that nothing passes, or that everything passes. It also refuses thresholds for clearing
// that are stricter than the thresholds for raising.
func checkAlert(a *ebbv1.Alert) *Error {
	p, distance := a.GetPValue(), a.GetJensenShannonBits()
	switch {
	case !(p >= 0 && p < 1):
		return ErrBadRequest.Errorf("alert at p-value %g: it must be from 0 to below 1, which everything passes", p)
	case !(distance >= 0 && distance <= 1):
		return ErrBadRequest.Errorf("alert at a distance of %g bits: it must be from 0 to 1", distance)
	case p == 0 && distance == 0:
		return ErrBadRequest.Errorf("an alert without threshold: give it a p-value, a distance, or both")
	case a.ClearPValue != nil && p == 0:
		return ErrBadRequest.Errorf("alert cleared at p-value %g, and raised at any: give it a p-value to be raised at, too", a.GetClearPValue())
	case a.ClearJensenShannonBits != nil && distance == 0:
		return ErrBadRequest.Errorf("alert cleared at a distance of %g bits, and raised at any: give it a distance to be raised at, too", a.GetClearJensenShannonBits())
	case a.ClearPValue != nil && !(a.GetClearPValue() >= p && a.GetClearPValue() < 1):
		return ErrBadRequest.Errorf("alert cleared at p-value %g: it must be from %g, where it is raised, to below 1, or nothing ever clears it", a.GetClearPValue(), p)
	case a.ClearJensenShannonBits != nil && !(a.GetClearJensenShannonBits() > 0 && a.GetClearJensenShannonBits() <= distance):
		return ErrBadRequest.Errorf("alert cleared at a distance of %g bits: it must be above 0, or nothing ever clears it, and at most %g, where it is raised", a.GetClearJensenShannonBits(), distance)
	}
	return nil
}

// CheckTop refuses an n that is not from 1 to TopMax.
func CheckTop(n int64) *Error {
	if n < 1 || n > TopMax {
		return ErrBadCount.Errorf("n = %d: it must be from 1 to %d", n, TopMax)
	}
	return nil
}
