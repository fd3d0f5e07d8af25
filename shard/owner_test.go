package shard

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// owners is a shard of two namespaces. Each command names one.
type owners struct {
	t   testing.TB
	s   *State
	now int64
}

func newOwners(t testing.TB, behaviour uint32) *owners {
	o := &owners{t: t, s: New(1, &wiping{}), now: 1_700_000_000 * second}
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name:    "a",
		Version: 1,
	}}})
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name:    "b",
		Version: 1,
	}}})
	o.behave(behaviour)
	return o
}

func (o *owners) behave(version uint32) {
	o.t.Helper()
	if version > 0 {
		o.apply("", &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}})
	}
}

func (o *owners) apply(namespace string, c *ebbv1.Command) *ebbv1.CommandResult {
	o.t.Helper()
	c.Namespace = namespace
	o.now += 8 // a probe takes as long, so that 5,000 take 40 ms
	return o.s.Apply(o.s.Applied()+1, encode(o.t, o.now, c), nil)[0]
}

func (o *owners) open(namespace string, secret uint64) (session uint64) {
	o.t.Helper()
	return o.apply(namespace, &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: secret}}}).GetSession()
}

func (o *owners) in(namespace string, session, sequence, secret uint64, bin string) *ebbv1.CommandResult {
	o.t.Helper()
	c := increments("k", bin)
	c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
		Session: session, Sequence: sequence,
		Secret: secret,
	}}
	return o.apply(namespace, c)
}

func (o *owners) closes(namespace string, session, secret uint64) {
	o.t.Helper()
	c := &ebbv1.CloseSession{Session: session, Secret: secret}
	if r := o.apply(namespace, &ebbv1.Command{Body: &ebbv1.Command_CloseSession{CloseSession: c}}); r.GetError() != nil {
		o.t.Errorf("closing a session says %v", r)
	}
}

func (o *owners) source(namespace, name string, token uint64) *ebbv1.CommandResult {
	o.t.Helper()
	return o.apply(namespace, &ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: name, Token: token}}})
}

func (o *owners) drop(namespace, name string) {
	o.t.Helper()
	o.apply(namespace, &ebbv1.Command{Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: name}}})
}

func (o *owners) row(namespace, name string, epoch, offset uint64) *ebbv1.CommandResult {
	o.t.Helper()
	c := increments("k", "row")
	c.GetIncrements().Increments[0].Offset = offset
	c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: name, Epoch: epoch}}
	return o.apply(namespace, c)
}

func (o *owners) keyed(namespace string, issued int64, bin string) *ebbv1.CommandResult {
	o.t.Helper()
	c := increments("k", bin)
	c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: issued, Hi: 1, Lo: 2}}
	return o.apply(namespace, c)
}

// counted is how much a bin of a namespace counts, rounded.
func (o *owners) counted(namespace, bin string) int {
	o.t.Helper()
	q := question(namespace, &ebbv1.DistributionQuestion{
		Keys:   [][]byte{[]byte("k")},
		Select: &ebbv1.DistributionQuestion_All{All: true},
	})
	for _, b := range o.s.Ask(q, 0).GetAnswer().GetDistribution().GetBins() {
		if string(b.Bin) == bin {
			return int(b.Count + 0.5)
		}
	}
	return 0
}

func marshalled(t testing.TB, c *ebbv1.Command) []byte {
	t.Helper()
	raw, err := pb.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (o *owners) same(what string, got, want any) {
	o.t.Helper()
	if got != want {
		o.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// unknownSession is the answer to a command of a session that there is not.
const unknownSession = ebbv1.Code_CODE_SESSION_EXPIRED

// A writer of another namespace guesses the number of a session. It uses no sequence, does not keep the session
// from expiring, does not end it, and does not learn that it is there.
func TestSessionIsOfItsOpener(t *testing.T) {
	o := newOwners(t, BehaviourNamespaces)
	secret := rand.Uint64() | 1
	before := uint64(o.now)
	session := o.open("b", secret)
	used := o.s.sessions.at(o.s.sessionSlots[session]).used

	unknown := o.in("a", before-1, 1, 0, "x").GetError()
	for id := before; id < before+5000; id++ {
		for _, namespace := range []string{"a", "b", ""} { // a writer of the same namespace does not know the secret either
			r := o.in(namespace, id, 1+id%9, id%3*7, "theirs")
			said := strings.ReplaceAll(r.GetError().GetMessage(), strconv.FormatUint(id, 10), strconv.FormatUint(before-1, 10))
			if r.GetError().GetCode() != unknown.GetCode() || said != unknown.GetMessage() ||
				r.GetError().GetHint() != unknown.GetHint() || r.GetApplied() != 0 {
				t.Fatalf("a guess of session %d is answered %v, and one of no session %v", id, r, unknown)
			}
		}
	}
	if w := o.s.sessions.at(o.s.sessionSlots[session]); w.top != 0 || w.used != used {
		t.Errorf("guesses changed the session: its last command is number %d of %d, and was 0 of %d", w.top, w.used, used)
	}
	o.closes("a", session, secret)
	o.closes("b", session, secret+1)
	o.closes("b", session, 0)
	for sequence := range uint64(9) {
		if r := o.in("b", session, 1+sequence, secret, "mine"); r.GetApplied() != 1 {
			t.Fatalf("command %d of the session: %v", 1+sequence, r)
		}
	}
	o.same("acknowledged writes that are counted", o.counted("b", "mine"), 9)
	o.same("writes of those who guessed", o.counted("a", "theirs")+o.counted("b", "theirs"), 0)
	o.s = reopen(t, o.s)
	o.same("a guess after a restart", o.in("b", session, 10, secret+1, "theirs").GetError().GetCode(), unknownSession)
	o.same("another namespace with the secret", o.in("a", session, 10, secret, "theirs").GetError().GetCode(),
		unknownSession)
	o.same("a retry after a restart", o.in("b", session, 9, secret, "mine").GetApplied(), uint64(1))
	o.same("what it counts", o.counted("b", "mine"), 9)
	o.closes("b", session, secret)
	o.same("a command of a session that is closed", o.in("b", session, 10, secret, "mine").GetError().GetCode(),
		unknownSession)
	o.same("an id", o.open("b", secret) > session, true)
}

// The empty name is that of the namespace default.
func TestSessionOfTheDefaultNamespace(t *testing.T) {
	o := newOwners(t, BehaviourNamespaces)
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
	one, two := o.open("", 7), o.open("default", 7)
	for _, session := range []uint64{one, two} {
		o.same("without a name", o.in("", session, 1, 7, "x").GetApplied(), uint64(1))
		o.same("by name", o.in("default", session, 2, 7, "x").GetApplied(), uint64(1))
		o.same("another", o.in("a", session, 3, 7, "x").GetError().GetCode(), unknownSession)
	}
	o.same("what is counted", o.counted("default", "x"), 4)
	sourced := o.source("", "s", 1)
	o.same("a source", o.source("default", "s", 1).GetEpoch(), sourced.GetEpoch())
	o.keyed("", o.now, "y")
	o.keyed("default", o.now-8, "y")
	o.same("what one key counts", o.counted("default", "y"), 1)
}

// A client from before has no secret and works after the upgrade. Its session of before can be used by any writer
// until it expires. One that it opens later is of its namespace.
func TestClientFromBefore(t *testing.T) {
	o := newOwners(t, 0)
	session := o.open("b", 0)
	o.same("before", o.in("b", session, 1, 0, "x").GetApplied(), uint64(1))
	o.behave(BehaviourNamespaces)
	o.same("after", o.in("b", session, 2, 0, "x").GetApplied(), uint64(1))
	o.s = reopen(t, o.s)
	o.same("a retry", o.in("b", session, 2, 0, "x").GetApplied(), uint64(1))
	o.same("counted", o.counted("b", "x"), 2)
	o.same("under the old rule", o.in("a", session, 3, 0, "x").GetApplied(), uint64(1))
	again := o.open("b", 0)
	o.same("one opened since, in another namespace", o.in("a", again, 1, 0, "x").GetError().GetCode(), unknownSession)
	o.same("in its own", o.in("b", again, 1, 0, "x").GetApplied(), uint64(1))
	o.now += int64(o.s.limits.SessionExpiry) + 1
	o.same("the one of before, later", o.in("b", session, 4, 0, "x").GetError().GetCode(), unknownSession)
}

// A client of this version opens its session while the older version is in force. The session is the client's own
// from its first command after that.
func TestSessionIsBoundByItsFirstSecret(t *testing.T) {
	o := newOwners(t, 0)
	session := o.open("b", 7)
	o.same("before", o.in("b", session, 1, 7, "x").GetApplied(), uint64(1))
	o.same("by the old rule", o.in("a", session, 2, 0, "x").GetApplied(), uint64(1))
	o.behave(BehaviourNamespaces)
	o.same("a retry", o.in("b", session, 1, 7, "x").GetApplied(), uint64(1))
	for _, guess := range []uint64{0, 8} {
		o.same("a guess", o.in("b", session, 3, guess, "x").GetError().GetCode(), unknownSession)
	}
	o.same("another namespace", o.in("a", session, 3, 7, "x").GetError().GetCode(), unknownSession)
	o.same("its own", o.in("b", session, 3, 7, "x").GetApplied(), uint64(1))
	o.same("counted", o.counted("b", "x"), 2)
}

// Sources of one name in two namespaces are two. Neither fences the other, takes its rows for decided, or is
// dropped with it.
func TestSourceIsOfItsNamespace(t *testing.T) {
	o := newOwners(t, BehaviourNamespaces)
	a, b := o.source("a", "file", 1), o.source("b", "file", 2)
	o.same("of b, where a source of a has come", o.row("b", "file", b.GetEpoch(), 5).GetApplied(), uint64(1))
	o.same("of a", o.row("a", "file", a.GetEpoch(), 1).GetApplied(), uint64(1))
	o.same("another's epoch", o.row("a", "file", b.GetEpoch(), 2).GetError().GetCode(), ebbv1.Code_CODE_SOURCE_FENCED)
	o.drop("a", "file")
	o.s = reopen(t, o.s)
	o.same("of b, when that of a is dropped", o.row("b", "file", b.GetEpoch(), 6).GetApplied(), uint64(1))
	o.same("how far b is", o.source("b", "file", 2).GetLastOffset(), uint64(6))
	o.same("how far a is", o.source("a", "file", 3).GetLastOffset(), uint64(0))
	o.same("rows of a", o.counted("a", "row"), 1)
	o.same("rows of b", o.counted("b", "row"), 2)
}

// A source from before has no namespace. Each namespace that opens it continues where it was, and takes nothing
// from another. Its holder of before is fenced.
func TestSourceFromBefore(t *testing.T) {
	o := newOwners(t, 0)
	old := o.source("b", "file", 1)
	o.row("b", "file", old.GetEpoch(), 5)
	o.behave(BehaviourNamespaces)
	o.same("its holder", o.row("b", "file", old.GetEpoch(), 6).GetApplied(), uint64(1))
	theirs := o.source("a", "file", 9)
	o.same("of another namespace", theirs.GetLastOffset(), uint64(6))
	o.same("its holder then", o.row("b", "file", old.GetEpoch(), 7).GetError().GetCode(), ebbv1.Code_CODE_SOURCE_FENCED)
	o.same("rows of another namespace", o.row("a", "file", theirs.GetEpoch(), 100).GetApplied(), uint64(1))
	o.s = reopen(t, o.s)
	mine := o.source("b", "file", 2)
	o.same("where its owner continues", mine.GetLastOffset(), uint64(6))
	o.same("a row that was decided", o.row("b", "file", mine.GetEpoch(), 6).GetApplied(), uint64(0))
	o.same("the next", o.row("b", "file", mine.GetEpoch(), 7).GetApplied(), uint64(1))
	o.same("the other namespace continues", o.row("a", "file", theirs.GetEpoch(), 101).GetApplied(), uint64(1))
	o.same("rows", o.counted("b", "row"), 3)
	o.drop("b", "file")
	o.same("after a drop", o.source("b", "file", 3).GetLastOffset(), uint64(0))
	o.same("that of the other namespace, after that", o.source("a", "file", 9).GetLastOffset(), uint64(101))
	audit(t, o.s)
}

// A shard that is full of sources from before takes each of them up again, and nothing more.
func TestFullOfSourcesFromBefore(t *testing.T) {
	o := newOwners(t, 0)
	limits := smallLimits()
	o.s.SetLimits(limits)
	names := []string{"one", "two"}
	for _, name := range names {
		o.source("b", name, 1)
	}
	o.behave(BehaviourNamespaces)
	for _, name := range names {
		o.same(name, o.source("b", name, 1).GetError().GetCode(), ebbv1.Code(0))
	}
	o.same("a third", o.source("b", "three", 1).GetError().GetCode(), ebbv1.Code_CODE_TOO_MANY_SOURCES)
	for _, name := range names {
		o.drop("b", name)
	}
	o.same("after both are dropped", o.source("b", "three", 1).GetError().GetCode(), ebbv1.Code(0))
	audit(t, o.s)
}

// An idempotency key of one namespace suppresses nothing in another. One that was used before the upgrade still
// counts once.
func TestIdempotencyKeyIsOfItsNamespace(t *testing.T) {
	o := newOwners(t, 0)
	old := o.now
	o.same("before", o.keyed("b", old, "x").GetApplied(), uint64(1))
	o.behave(BehaviourNamespaces)
	o.same("its retry since", o.keyed("b", old, "x").GetApplied(), uint64(1))
	o.same("counted", o.counted("b", "x"), 1)
	issued := o.now
	o.keyed("a", issued, "y")
	o.keyed("b", issued, "y")
	o.s = reopen(t, o.s)
	o.keyed("b", issued, "y")
	o.same("counted by a", o.counted("a", "y"), 1)
	o.same("counted by b", o.counted("b", "y"), 1)
	o.same("of a namespace that there is not", o.keyed("absent", issued, "y").GetError().GetCode(),
		ebbv1.Code_CODE_NAMESPACE_NOT_FOUND)
	o.now += int64(o.s.limits.IdempotencyWindow) + second
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	o.same("keys remembered", o.s.answered.live, uint32(0))
	audit(t, o.s)
}

// The number of a bitmap that is placed by slice belongs to the namespace that reserved it. Another one can
// neither put it nor say that it is swept.
func TestNumberOfABitmapIsOfItsNamespace(t *testing.T) {
	o := newOwners(t, BehaviourNamespaces)
	for _, name := range []string{"people", "others"} {
		ns := &ebbv1.Namespace{
			Name: name, Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE,
			Kind: ebbv1.Kind_KIND_BITMAP,
		}
		if r := o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}}); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	number := &ebbv1.HomeNumber{Key: []byte("k"), Number: 77}
	home := func(namespace string, h *ebbv1.HomeCommand) *ebbv1.CommandResult {
		return o.apply(namespace, &ebbv1.Command{Body: &ebbv1.Command_Home{Home: h}})
	}
	reserve := &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: number}}
	put := &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: number, Count: 3}}}
	swept := &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Swept{Swept: &ebbv1.HomeSwept{Numbers: []uint64{77}}}}
	o.same("reserved", home("people", reserve).GetError().GetCode(), ebbv1.Code(0))
	o.same("reserved by another", home("others", reserve).GetError().GetCode(), ebbv1.Code_CODE_BAD_REQUEST)
	o.same("put by another", home("others", put).GetError().GetCode(), ebbv1.Code_CODE_KEY_BUSY)
	home("others", swept)
	o.same("put", home("people", put).GetChanged(), uint64(3))
	o.apply("people", &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}}})
	o.now += 2 * proto.SliceSweepUS
	home("others", swept)
	o.same("numbers to sweep, when another says it is done", o.s.OrphanCount(), uint32(1))
	home("people", swept)
	o.same("numbers to sweep, when its namespace says so", o.s.OrphanCount(), uint32(0))
}

// A snapshot says what each owner has, in all sections that have owners, and so do the checksums of audits.
func TestSnapshotKeepsOwners(t *testing.T) {
	o := newOwners(t, 0)
	o.s = furnished(t)
	o.now = int64(o.s.now)
	o.behave(BehaviourNamespaces)
	session := o.open("history", 1<<63+5)
	o.in("history", session, 1, 1<<63+5, "us")
	o.open("", 0)
	o.source("history", "file/0", 3) // a copy
	o.source("history", "another", 3)
	o.keyed("history", o.now, "us")
	o.keyed("absent", o.now, "us")
	audit(t, o.s)
	first := snapshot(t, o.s)
	back := reopen(t, o.s)
	audit(t, back)
	if !bytes.Equal(first, snapshot(t, back)) {
		t.Fatal("a restored state has another snapshot")
	}
	if described(o.s) != described(back) {
		t.Fatalf("got\n%s\nwant\n%s", described(back), described(o.s))
	}
	part := Audit{Part: 0, Of: 1}
	sum := back.PartChecksum(part)
	back.editSession(back.sessionSlots[session]).secret++
	if back.PartChecksum(part) == sum {
		t.Error("an audit does not see that a replica has another secret")
	}
	for name, change := range map[string]func(s *State){
		"a session without a namespace that has a secret": func(s *State) { s.editSession(s.sessionSlots[session]).namespace = "" },
		"a namespace that cannot be":                      func(s *State) { s.editSession(s.sessionSlots[session]).namespace = "a/b" },
	} {
		s := reopen(t, o.s)
		change(s)
		if _, err := Restore(1, &wiping{}, bytes.NewReader(snapshot(t, s))); !errors.Is(err, proto.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Until the version is in force, snapshots have the format that older builds read.
func TestFormatRisesWithTheBehaviour(t *testing.T) {
	o := newOwners(t, 0)
	for _, c := range []struct {
		behaviour uint32
		format    byte
	}{{0, 5}, {1, 5}, {2, 6}, {3, 7}} {
		o.behave(c.behaviour)
		if raw := snapshot(t, o.s); raw[blockOverhead+len(snapshotMagic)] != c.format {
			t.Errorf("behaviour version %d: format %d, want %d", c.behaviour, raw[blockOverhead+len(snapshotMagic)], c.format)
		}
	}
	wrong := resealed(snapshot(t, o.s), func(section byte, payload []byte) []byte {
		if section == sectionHeader {
			payload[len(snapshotMagic)] = formatOldest
		}
		return payload
	})
	if _, err := Restore(1, &wiping{}, bytes.NewReader(wrong)); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("the older format with the newer behaviour: %v", err)
	}
}

// A backup of the newer behaviour is not restored into a shard of the older one, since an older build may have a
// replica of it. One of the older is restored into the newer.
func TestRestoreAcrossBehaviours(t *testing.T) {
	newer := newOwners(t, BehaviourNamespaces)
	newer.in("b", newer.open("b", 7), 1, 7, "x")
	older := newOwners(t, 0)
	older.in("b", older.open("b", 0), 1, 0, "x")
	for _, c := range []struct {
		name string
		from *State
		to   uint32
		want ebbv1.Code
	}{
		{"newer into older", newer.s, 0, ebbv1.Code_CODE_NEWER_VERSION},
		{"newer into newer", newer.s, BehaviourNamespaces, 0},
		{"older into newer", older.s, BehaviourNamespaces, 0},
		{"older into older", older.s, 0, 0},
	} {
		r := &restorer{t: t, s: New(1, &wiping{}), now: newer.now}
		r.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: c.to}}})
		raw := snapshot(t, c.from)
		piece := &ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: pieceOf(raw, 0, len(raw))}}
		if got := RestoredBehaviour(marshalled(t, piece)); got != c.from.behaviour {
			t.Errorf("%s: the first piece says behaviour version %d, want %d", c.name, got, c.from.behaviour)
		}
		r.step(begins(raw))
		r.step(pieceOf(raw, 0, len(raw)))
		if got := r.step(commits()).GetError().GetCode(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if c.want == 0 && r.s.behaviour != max(c.to, c.from.behaviour) {
			t.Errorf("%s: behaviour version %d", c.name, r.s.behaviour)
		}
		if c.want != 0 && r.s.staged.name != "" {
			t.Errorf("%s: the restore was not given up", c.name)
		}
		audit(t, r.s)
	}
	for _, c := range []*ebbv1.Command{increments("k", "x"), {Body: &ebbv1.Command_Restore{Restore: begins(nil)}}} {
		if got := RestoredBehaviour(marshalled(t, c)); got != 0 {
			t.Errorf("%v has behaviour version %d", c, got)
		}
	}
}

// The holder of a source drops it, and no other: whoever opened it before changes nothing. A shard of before refuses
// the command.
func TestDropByTheHolder(t *testing.T) {
	o := newOwners(t, BehaviourHolderDrops)
	held := func(namespace, identity, name string, epoch uint64) ebbv1.Code {
		t.Helper()
		return o.apply(namespace, &ebbv1.Command{
			Identity: &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: identity, Epoch: epoch}},
			Body:     &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: name}},
		}).GetError().GetCode()
	}
	const fenced, none = ebbv1.Code_CODE_SOURCE_FENCED, ebbv1.Code(0)
	first := o.source("a", "f", 1).GetEpoch()
	second := o.source("a", "f", 2).GetEpoch()
	other := o.source("b", "f", 2).GetEpoch()
	o.same("a row", o.row("a", "f", second, 7).GetApplied(), uint64(1))
	o.same("a drop by the holder of before", held("a", "f", "f", first), fenced)
	o.same("a drop by the holder in another namespace", held("a", "f", "f", other), fenced)
	o.same("a drop of another source", held("a", "f", "g", second), ebbv1.Code_CODE_BAD_REQUEST)
	o.same("what the source has decided", o.source("a", "f", 2).GetLastOffset(), uint64(7))
	o.same("a drop by the holder", held("a", "f", "f", second), none)
	o.same("the same again", held("a", "f", "f", second), fenced)
	o.same("what a new source has decided", o.source("a", "f", 3).GetLastOffset(), uint64(0))
	o.same("the source of another namespace", o.row("b", "f", other, 1).GetApplied(), uint64(1))

	o = newOwners(t, BehaviourHolderDrops-1)
	epoch := o.source("a", "f", 1).GetEpoch()
	o.row("a", "f", epoch, 7)
	o.same("a drop in a shard of before", held("a", "f", "f", epoch), ebbv1.Code_CODE_BAD_REQUEST)
	o.same("what it has decided", o.source("a", "f", 1).GetLastOffset(), uint64(7))
}
