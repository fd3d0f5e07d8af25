package shard

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// model is the state machine written the naive way: maps, everything
// remembered for ever, every value decayed at every step.
type model struct {
	limits     Limits
	now        sketch.Tick
	namespaces map[string]*modelNamespace
	sessions   map[uint64]*modelSession
	sources    map[sourceName]*modelSource
	owners     bool // BehaviourNamespaces is in force
	answered   map[idempotencyKey]*ebbv1.CommandResult
	lastID     uint64
	lastEpoch  uint64
}

type modelNamespace struct {
	def       *ebbv1.Namespace
	eventTime sketch.Tick
	keys      map[string]*modelKey
}

// modelKey holds counts as of a time.
type modelKey struct {
	at      sketch.Tick
	bins    map[string]float64
	z, z2   float64
	touched bool
	expires sketch.Tick // 0: when it has faded
}

type modelSession struct {
	namespace string // "": of any namespace
	secret    uint64
	top       uint64
	used      sketch.Tick
	results   map[uint64]*ebbv1.CommandResult
}

type modelSource struct {
	epoch, token, last uint64
	refused            map[uint64]ebbv1.Code
}

func newModel(limits Limits) *model {
	return &model{
		limits: limits, namespaces: map[string]*modelNamespace{}, sessions: map[uint64]*modelSession{},
		sources: map[sourceName]*modelSource{}, answered: map[idempotencyKey]*ebbv1.CommandResult{},
	}
}

func (m *model) apply(stamp int64, commands []*ebbv1.Command) []*ebbv1.CommandResult {
	m.now = max(m.now, sketch.Tick(stamp))
	var out []*ebbv1.CommandResult
	for _, c := range commands {
		out = append(out, m.command(c))
	}
	return out
}

func failure(code ebbv1.Code) *ebbv1.CommandResult {
	return &ebbv1.CommandResult{Error: &ebbv1.Error{Code: code}}
}

func (m *model) command(c *ebbv1.Command) *ebbv1.CommandResult {
	switch id := c.Identity.(type) {
	case *ebbv1.Command_Session:
		s := m.sessions[id.Session.Session]
		if s == nil || m.now-s.used > m.limits.SessionExpiry || !s.of(c.Namespace, id.Session.Secret) {
			return failure(ebbv1.Code_CODE_SESSION_EXPIRED)
		}
		seq := id.Session.Sequence
		s.used = m.now
		if m.owners && s.namespace == "" && id.Session.Secret != 0 {
			s.namespace, s.secret = namespaceOf(c.Namespace), id.Session.Secret
		}
		if seq+m.limits.SessionWindow <= s.top {
			return failure(ebbv1.Code_CODE_SEQUENCE_TOO_OLD)
		}
		if s.results[seq] == nil {
			s.results[seq] = m.body(c, nil)
			s.top = max(s.top, seq)
		}
		return s.results[seq]
	case *ebbv1.Command_Source:
		src := m.source(c.Namespace, id.Source.Name)
		if src == nil || src.epoch != id.Source.Epoch {
			return failure(ebbv1.Code_CODE_SOURCE_FENCED)
		}
		return m.body(c, src)
	case *ebbv1.Command_IdempotencyKey:
		return m.byKey(c, idempotencyKey{"", id.IdempotencyKey.IssuedAtUs, id.IdempotencyKey.Hi, id.IdempotencyKey.Lo})
	}
	return m.body(c, nil)
}

func (m *model) byKey(c *ebbv1.Command, key idempotencyKey) *ebbv1.CommandResult {
	if m.owners && m.answered[key] == nil {
		key.namespace = namespaceOf(c.Namespace)
	}
	issued := sketch.Tick(key.issuedAt)
	live := 0
	for k := range m.answered {
		if sketch.Tick(k.issuedAt) >= m.now-m.limits.IdempotencyWindow {
			live++
		}
	}
	switch {
	case issued < m.now-m.limits.IdempotencyWindow:
		return failure(ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD)
	case issued > m.now+m.limits.Future:
		return failure(ebbv1.Code_CODE_BAD_TIME)
	case m.answered[key] != nil:
		return m.answered[key]
	case live >= m.limits.IdempotencyKeys:
		return failure(ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS)
	}
	m.answered[key] = m.body(c, nil)
	return m.answered[key]
}

// namespaceOf is the name of a namespace, which may be empty.
func namespaceOf(namespace string) string {
	if namespace == "" {
		return proto.DefaultNamespace
	}
	return namespace
}

func (s *modelSession) of(namespace string, secret uint64) bool {
	return s.namespace == "" || s.namespace == namespaceOf(namespace) && s.secret == secret
}

// source is one of a namespace, or else one that has none.
func (m *model) source(namespace, name string) *modelSource {
	if src := m.sources[sourceName{namespaceOf(namespace), name}]; src != nil {
		return src
	}
	return m.sources[sourceName{"", name}]
}

func (m *model) body(c *ebbv1.Command, src *modelSource) *ebbv1.CommandResult {
	switch b := c.Body.(type) {
	case *ebbv1.Command_Increments:
		return m.increments(c.Namespace, b.Increments.Increments, src)
	case *ebbv1.Command_DefineNamespace:
		m.define(b.DefineNamespace)
	case *ebbv1.Command_OpenSession:
		return m.openSession(c.Namespace, b.OpenSession.Secret)
	case *ebbv1.Command_CloseSession:
		if s := m.sessions[b.CloseSession.Session]; s != nil && s.of(c.Namespace, b.CloseSession.Secret) {
			delete(m.sessions, b.CloseSession.Session)
		}
	case *ebbv1.Command_OpenSource:
		return m.openSource(c.Namespace, b.OpenSource)
	case *ebbv1.Command_DropSource:
		delete(m.sources, sourceName{namespaceOf(c.Namespace), b.DropSource.Name})
		delete(m.sources, sourceName{"", b.DropSource.Name})
	case *ebbv1.Command_Behaviour:
		m.owners = m.owners || b.Behaviour.Version >= BehaviourNamespaces
	case *ebbv1.Command_Delete, *ebbv1.Command_Expire, *ebbv1.Command_Put:
		return m.aboutKeys(c)
	}
	return &ebbv1.CommandResult{}
}

func (m *model) aboutKeys(c *ebbv1.Command) *ebbv1.CommandResult {
	ns := m.namespaces[cmp.Or(c.Namespace, proto.DefaultNamespace)]
	if ns == nil {
		return failure(ebbv1.Code_CODE_NAMESPACE_NOT_FOUND)
	}
	clock, r := ns.clock(m.now), &ebbv1.CommandResult{}
	alive := func(name []byte) *modelKey {
		k := ns.keys[string(name)]
		if k == nil || k.expires != 0 && k.expires <= clock {
			return nil
		}
		if later := (&modelKey{at: k.at, bins: maps.Clone(k.bins), z: k.z, z2: k.z2}); !later.decayTo(clock, ns.def) {
			return nil
		}
		return k
	}
	switch b := c.Body.(type) {
	case *ebbv1.Command_Delete:
		for _, name := range b.Delete.Keys {
			if alive(name) != nil {
				delete(ns.keys, string(name))
				r.Applied++
			}
		}
	case *ebbv1.Command_Expire:
		at := sketch.Tick(0)
		switch until := b.Expire.Until.(type) {
		case *ebbv1.ExpireKeys_AtUs:
			at = sketch.Tick(until.AtUs)
		case *ebbv1.ExpireKeys_TtlUs:
			at = clock + sketch.Tick(until.TtlUs)
		}
		for _, name := range b.Expire.Keys {
			if k := alive(name); k != nil {
				k.expires = at
				r.Applied++
			}
		}
	case *ebbv1.Command_Put:
		k, to := alive(b.Put.GetFrom()), string(b.Put.Key)
		switch {
		case k == nil:
			return failure(ebbv1.Code_CODE_KEY_NOT_FOUND)
		case to == string(b.Put.GetFrom()):
		case alive(b.Put.Key) != nil && !b.Put.Overwrite:
			return failure(ebbv1.Code_CODE_KEY_EXISTS)
		default:
			delete(ns.keys, string(b.Put.GetFrom()))
			ns.keys[to] = k
		}
		r.Applied = 1
	}
	return r
}

func (m *model) openSession(namespace string, secret uint64) *ebbv1.CommandResult {
	maps.DeleteFunc(m.sessions, func(_ uint64, s *modelSession) bool { return m.now-s.used > m.limits.SessionExpiry })
	if len(m.sessions) >= m.limits.Sessions {
		return failure(ebbv1.Code_CODE_TOO_MANY_SESSIONS)
	}
	m.lastID = max(m.lastID+1, uint64(m.now))
	s := &modelSession{used: m.now, results: map[uint64]*ebbv1.CommandResult{}}
	if m.owners {
		s.namespace, s.secret = namespaceOf(namespace), secret
	}
	m.sessions[m.lastID] = s
	return &ebbv1.CommandResult{Session: m.lastID}
}

func (m *model) openSource(namespace string, o *ebbv1.OpenSource) *ebbv1.CommandResult {
	name := sourceName{name: o.Name}
	if m.owners {
		name.namespace = namespaceOf(namespace)
	}
	src, most, from := m.sources[name], m.limits.Sources, &modelSource{}
	if old := m.sources[sourceName{"", o.Name}]; old != nil && src == nil {
		m.lastEpoch++
		old.epoch = m.lastEpoch // fenced
		most, from = 2*most, old
	}
	switch {
	case src == nil && len(m.sources) >= most:
		return failure(ebbv1.Code_CODE_TOO_MANY_SOURCES)
	case src == nil:
		m.lastEpoch++
		src = &modelSource{epoch: m.lastEpoch, token: o.Token, last: from.last, refused: map[uint64]ebbv1.Code{}}
		maps.Copy(src.refused, from.refused)
		m.sources[name] = src
	case src.token != o.Token:
		m.lastEpoch++
		src.epoch, src.token = m.lastEpoch, o.Token
	}
	return &ebbv1.CommandResult{Epoch: src.epoch, LastOffset: src.last}
}

func (m *model) define(def *ebbv1.Namespace) {
	ns := m.namespaces[def.Name]
	if ns == nil {
		m.namespaces[def.Name] = &modelNamespace{def: def, keys: map[string]*modelKey{}}
		return
	}
	if def.Version <= ns.def.Version {
		return
	}
	clock := ns.clock(m.now)
	for name, k := range ns.keys {
		if !k.decayTo(clock, ns.def) {
			delete(ns.keys, name)
		}
	}
	ns.eventTime = max(ns.eventTime, clock)
	ns.def = def
}

func (ns *modelNamespace) clock(now sketch.Tick) sketch.Tick {
	if ns.def.Clock == ebbv1.Clock_CLOCK_EVENT {
		return ns.eventTime
	}
	return now
}

// decayTo moves a key's counts to a time and reports whether it lives then.
func (k *modelKey) decayTo(at sketch.Tick, def *ebbv1.Namespace) bool {
	if def.Decay == ebbv1.Decay_DECAY_NONE {
		k.at = at
		return true
	}
	w := math.Exp2(-float64(at-k.at) / float64(def.HalfLifeUs))
	k.at = at
	k.z *= w
	k.z2 *= w * w
	for bin := range k.bins {
		k.bins[bin] *= w
	}
	return k.magnitude(def) >= def.Threshold
}

// magnitude is what has to fade for a key to be dead.
func (k *modelKey) magnitude(def *ebbv1.Namespace) float64 {
	m := math.Abs(k.z)
	if def.GetAllowNegative() {
		for _, v := range k.bins {
			m = max(m, math.Abs(v))
		}
	}
	return m
}

func (m *model) increments(namespace string, batch []*ebbv1.Increment, src *modelSource) *ebbv1.CommandResult {
	if namespace == "" {
		namespace = proto.DefaultNamespace
	}
	ns := m.namespaces[namespace]
	if ns == nil {
		return failure(ebbv1.Code_CODE_NAMESPACE_NOT_FOUND)
	}
	r := &ebbv1.CommandResult{}
	before := uint64(0)
	for i, in := range batch {
		code := ebbv1.Code(0)
		fresh := true
		if src != nil {
			code, fresh = src.admit(in.Offset, before)
			before = max(before, in.Offset)
		}
		if fresh {
			code = m.increment(ns, in)
			if src != nil {
				src.last = in.Offset
				if code != 0 {
					src.refused[in.Offset] = code
				}
			}
		}
		switch {
		case code != 0:
			r.Refused = append(r.Refused, &ebbv1.Refusal{Index: uint32(i), Error: &ebbv1.Error{Code: code}})
		case fresh:
			r.Applied++
		default:
			r.Duplicates++
		}
	}
	return r
}

func (src *modelSource) admit(offset, before uint64) (ebbv1.Code, bool) {
	switch {
	case offset <= before:
		return ebbv1.Code_CODE_BAD_REQUEST, false
	case offset > src.last:
		return 0, true
	}
	return src.refused[offset], false
}

func (m *model) increment(ns *modelNamespace, in *ebbv1.Increment) ebbv1.Code {
	amount := 1.0
	if in.Amount != nil {
		amount = *in.Amount
	}
	t := sketch.Tick(in.TimeUs)
	switch {
	case len(in.Key) == 0 || len(in.Key) > proto.KeyLenMax:
		return ebbv1.Code_CODE_BAD_KEY
	case len(in.Bin) == 0 || len(in.Bin) > proto.BinLenMax:
		return ebbv1.Code_CODE_BAD_BIN
	case math.IsNaN(amount) || math.Abs(amount) > proto.AmountMax:
		return ebbv1.Code_CODE_BAD_AMOUNT
	case t < 0 || t > m.now+m.limits.Future || t == 0 && ns.def.GetClock() == ebbv1.Clock_CLOCK_EVENT:
		return ebbv1.Code_CODE_BAD_TIME
	case amount < 0 && !ns.def.GetAllowNegative():
		return ebbv1.Code_CODE_NEGATIVE_AMOUNT
	case t == 0 || t > m.now:
		t = m.now
	}
	ns.eventTime = max(ns.eventTime, t)
	if amount != 0 && !ns.add(ns.clock(m.now), t, string(in.Key), string(in.Bin), amount) {
		return ebbv1.Code_CODE_TOO_MANY_BINS
	}
	return 0
}

func (ns *modelNamespace) add(clock, t sketch.Tick, key, bin string, n float64) bool {
	k := ns.keys[key]
	if k == nil || k.expires != 0 && k.expires <= clock || !k.decayTo(clock, ns.def) {
		k = &modelKey{at: clock, bins: map[string]float64{}}
		defer func() {
			if k.touched {
				ns.keys[key] = k
			}
		}()
		delete(ns.keys, key)
	}
	w, threshold := 1.0, 0x1p-100
	if ns.def.Decay != ebbv1.Decay_DECAY_NONE {
		w, threshold = math.Exp2(-float64(clock-t)/float64(ns.def.HalfLifeUs)), ns.def.Threshold
	}
	maps.DeleteFunc(k.bins, func(b string, v float64) bool { return math.Abs(v) < threshold })
	_, known := k.bins[bin]
	sum := k.bins[bin] + n*w
	if known || math.Abs(sum) >= threshold {
		if !known && len(k.bins) >= int(ns.def.BinsMax) {
			return false
		}
		k.bins[bin] = sum
	}
	k.z += n * w
	k.z2 += math.Abs(n) * w * w
	k.touched = true
	return true
}

// ask returns the visible bins of a key at a time, most probable first, and its Z.
func (m *model) ask(namespace, key string, at sketch.Tick) (bins []string, counts []float64, z float64, found bool) {
	ns := m.namespaces[namespace]
	if ns == nil || ns.keys[key] == nil {
		return nil, nil, 0, false
	}
	k := *ns.keys[key]
	if k.expires != 0 && k.expires <= at {
		return nil, nil, 0, false
	}
	k.bins = maps.Clone(k.bins)
	if !k.decayTo(at, ns.def) {
		return nil, nil, 0, false
	}
	threshold := ns.def.Threshold
	if ns.def.Decay == ebbv1.Decay_DECAY_NONE {
		threshold = 0x1p-100
	}
	for bin, v := range k.bins {
		if math.Abs(v) >= threshold {
			bins = append(bins, bin)
		}
	}
	slices.Sort(bins)
	slices.SortStableFunc(bins, func(a, b string) int {
		switch {
		case k.bins[a] > k.bins[b]:
			return -1
		case k.bins[a] < k.bins[b]:
			return 1
		}
		return 0
	})
	for _, bin := range bins {
		counts = append(counts, k.bins[bin])
	}
	return bins, counts, k.z, true
}

// verdict is what a result says, without its words.
func verdict(r *ebbv1.CommandResult) string {
	out := fmt.Sprintf("code=%d applied=%d duplicates=%d session=%d epoch=%d last=%d",
		r.GetError().GetCode(), r.Applied, r.Duplicates, r.Session, r.Epoch, r.LastOffset)
	for _, x := range r.Refused {
		out += fmt.Sprintf(" %d:%d", x.Index, x.Error.Code)
	}
	return out
}
