package swarm

import (
	"fmt"
	"strings"
	"time"
)

// Invariant is what must hold whatever the faults are.
type Invariant struct {
	Name  string // as breaches name it
	Holds string // in words
}

// Invariants has all invariants. A run counts how often it has evaluated each.
var Invariants = []Invariant{
	{"acked-kept", "what was acknowledged is counted when all is mended"},
	{"counted-once", "no more is counted than was acknowledged or has an unknown outcome: no retry counts twice, nothing that failed counts"},
	{"read-fresh", "a linearizable read has all that was acknowledged before it began"},
	{"read-monotone", "a linearizable read has all that any read had that ended before it began"},
	{"linearizable", "one order of all that was written to strings and read of them explains every answer (porcupine)"},
	{"switches-in-order", "one order of all that was set, cleared and flipped of single bits, and read of them, explains every answer (porcupine)"},
	{"command-once", "each of many commands counts once if it was acknowledged, once or not at all if its outcome is unknown, and else not at all"},
	{"logs-agree", "the logs of a shard's replicas, read from their disks when all has ended, have the same committed entries"},
	{"log-in-order", "the committed log has every acknowledged command, behind those that were acknowledged before it was sent, and terms never fall; ids of strings, which it hands out, rise with it"},
	{"log-durable", "after a power loss a disk that does not lie has every entry that its node had applied"},
	{"read-possible", "a read has no more than was sent"},
	{"bounded-fresh", "a read of bounded staleness has all that was acknowledged that long before it began (where all clocks were right)"},
	{"any-possible", "a read of any replica, however stale, has no more than was sent"},
	{"estimate-bound", "an estimate of how many members a distinct, linear, bloom, set or morris has is off by no more than it says (6 standard errors and 1, of a morris 5)"},
	{"countmin-floor", "a count-min never says less of a bin than was acknowledged"},
	{"topk-bounds", "a top-k's bounds of a bin contain what was counted"},
	{"quantile-bounds", "a quantile lies between its bounds, and within what was measured"},
	{"bloom-members", "a bloom filter contains every member that was acknowledged"},
	{"coverage-honest", "an answer over many keys has all that was acknowledged in the shards that it says it includes, and no more than was sent"},
	{"coverage-adds-up", "the shards of an answer are counted right, and one that may not be partial lacks none"},
	{"ranking-right", "what the only owner of keys is told of their largest bins, of bins by name, of their entropy and of which keys there are is what they have: of one key, of many, of those that match a pattern, also in the query language"},
	{"surprise-right", "the distance of two distributions, and each bin's part of it, is that of what was acknowledged"},
	{"sets-compared", "what sets have in common, and which are most alike, is that of their members (up to 1,024 it is exact)"},
	{"expression-right", "expressions over bitmaps, groups, cohorts and what is stored have the ids that they should, also in the query language"},
	{"names-kept", "a string that was acknowledged is in, under one id for ever, which is no other's"},
	{"deletion-right", "an undeleted namespace has all that was acknowledged, one made anew nothing of the purged one"},
	{"deletion-ends", "a deleted namespace answers nothing and is purged within a minute when all was mended"},
	{"imported-once", "an import that was broken off and resumed counts every row once"},
	{"watch-fresh", "a watch has all that was acknowledged before it began, never less than it told before, and no more than was sent"},
	{"watch-tells", "a watch tells of what is acknowledged while it goes on, 10 s after all was mended at most"},
	{"keys-listed", "every key with something acknowledged is listed when all is mended"},
	{"answer-right", "a command of a key's only owner answers what the key's one possible state demands"},
	{"owner-reads", "the only owner of a key reads what it wrote last"},
	{"whole-or-not", "a command with an unknown outcome was done wholly or not at all"},
	{"bits-kept", "every acknowledged bit of a bitmap is as it was set or cleared last, and no other is in it"},
	{"bits-answer", "setting and clearing bits answers how many were changed"},
	{"slices-kept", "every acknowledged bit of a bitmap that lies in all shards is in it, and no other"},
	{"unaided-exact", "a client without the SDK, with retries of its own, reads what it wrote: each acknowledged write once"},
	{"repeat-same", "a command sent again under its idempotency key, to another node, answers the same"},
	{"window-edges", "a command that is sent again in its session is answered as before within the session's window, " +
		"and refused below it"},
	{"session-ends", "a session is known until it was idle for as long as it may be, and not after that " +
		"(where all clocks were right)"},
	{"key-window", "an idempotency key is known for as long as it is to be remembered, and refused after that " +
		"(where all clocks were right)"},
	{"room-kept", "a shard remembers no more sessions and idempotency keys than it may (where all clocks were right)"},
	{"changes-counted", "a namespace takes as many changes of its half-life as it may have, and no more"},
	{"changed-sum", "a sum in a namespace whose half-life changes lies between what the shortest half-life leaves and " +
		"what the longest leaves"},
	{"decayed-sum", "a decayed sum equals the oracle's to 1e-9"},
	{"dated-sum", "a sum in a namespace with an event clock equals the oracle's, at the time that the answer says, " +
		"but for what it says is lost"},
	{"event-clock-forward", "a client is told of the time of an event clock, never of an earlier one than before, " +
		"nor of one that has not come"},
	{"one-event-clock", "every key is answered as of the latest event of its namespace, a second after all was mended"},
	{"jump-refused", "an event that is dated further ahead of the event clock than max_jump allows is refused"},
	{"aged-right", "a distinct, a set, a count-min and a bloom that forget, and a distinct of a window, have what the oracle has left, off by no more than they say (where all clocks were right)"},
	{"trend-right", "the rates of a trend are the oracle's, under both half-lives (where all clocks were right)"},
	{"majority-serves", "a majority acknowledges again within 8 election timeouts of its leader's being cut off; within 3 in 99 of 100 cases of a run"},
	{"healed-writes", "writes are acknowledged within 8 s after all was mended"},
	{"healed-reads", "every key is readable when all was mended"},
	{"replicas-equal", "all replicas of a shard are equal when all was mended"},
	{"snapshot-continues", "the newest snapshot of a replica and the log behind it make the state that the replica has"},
	{"no-divergence", "two replicas with the same entries applied are equal, at any time"},
	{"one-leader", "a shard has one leader a term at most"},
	{"one-server-a-change", "each committed configuration of a group differs from the one before by one server " +
		"at most"},
	{"clock-forward", "a shard's clock never goes back at a replica that lives"},
	{"clock-true", "no shard's clock is ahead of the time (where a majority of clocks was right)"},
	{"no-collapse", "no node ends of itself, except where its disk failed, was damaged or was removed"},
	{"restarts", "whoever was killed, lost power or was stopped starts again, and becomes ready when all was mended"},
	{"damage-seen", "a flipped bit, a zeroed end of a log and a misdirected write are refused as corrupt, " +
		"or change nothing"},
	{"changes-accepted", "the cluster accepts the changes that it is asked for when all was mended"},
	{"members-as-asked", "the cluster has the members, replicas and no moves that it was asked for, 5 minutes after all was mended"},
	{"removed-ends", "a removed node ends, and again when it is started again"},
	{"leaders-home", "every shard is led where the table wants it, a minute after all was mended"},
	{"nothing-left", "when all nodes are ended, nothing of them runs"},
	{"time-goes-on", "no part of a node waits in a way that stops virtual time, or ends the process"},
}

var invariantIndex = func() map[string]int {
	m := map[string]int{}
	for i, v := range Invariants {
		m[v.Name] = i
	}
	return m
}()

// Breach is an invariant that did not hold.
type Breach struct {
	Invariant string        `json:"invariant"`
	At        time.Duration `json:"at_ns"` // since the run began, in virtual time
	What      string        `json:"what"`
}

func (b Breach) String() string {
	return fmt.Sprintf("%v %s: %s", b.At.Round(time.Millisecond), b.Invariant, b.What)
}

// breachesMax is how many breaches a run keeps.
const breachesMax = 50

// hold counts an evaluation of an invariant, and records a breach if ok is false. It returns ok.
func (w *world) hold(name string, ok bool, format string, args ...any) bool {
	return w.holdAt(w.now(), name, ok, format, args...)
}

// holdAt does the same for a state at another time.
func (w *world) holdAt(at time.Duration, name string, ok bool, format string, args ...any) bool {
	if _, known := invariantIndex[name]; !known {
		panic("no invariant is called " + name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict.Checks[name]++
	if !ok && len(w.verdict.Breaches) < breachesMax {
		b := Breach{Invariant: name, At: at, What: fmt.Sprintf(format, args...)}
		w.verdict.Breaches = append(w.verdict.Breaches, b)
		w.verdict.Story = append(w.verdict.Story, Line{b.At, LineBreach, name + ": " + b.What})
	}
	return ok
}

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }

func join(words []string) string { return strings.Join(words, ", ") }
