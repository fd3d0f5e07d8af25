package main

import (
	"context"
	"errors"
	"slices"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// codeAdvice is the description of an error code in docs/cli.md. The command line prints its next step if the error has
// none.
type codeAdvice struct {
	code          ebbv1.Code
	meaning, next string
}

const (
	nextMajority = "`ebb status` shows which nodes answer; reads with --consistency any work without a majority"
	nextWait     = "try again in a moment; `ebb status` shows how far the nodes are"
	nextForm     = "correct what the message names; `ebb query --help` has the form of each question, " +
		"`ebb help COMMAND` that of a command"
	nextLimit  = "keep to the limit in the message; docs/query.md has those of questions, docs/authorization.md others"
	nextReport = "the node's log says more; `ebb status` shows the other nodes"
)

// codes has an entry for each code, in order.
var codes = []codeAdvice{
	{ebbv1.Code_CODE_UNREACHABLE, "no node answered", nextMajority},
	{ebbv1.Code_CODE_NOT_LEADER, "another node leads the shard", nextWait},
	{ebbv1.Code_CODE_NO_LEADER, "the shard has no leader now", nextMajority},
	{ebbv1.Code_CODE_OVERLOADED, "the node has more to do than it can hold", "send less at a time, or try again in a moment"},
	{ebbv1.Code_CODE_CLOCK_SKEW, "the clocks of the nodes are too far apart", "set the machines' clocks by NTP"},
	{ebbv1.Code_CODE_SHUTTING_DOWN, "the node is stopping", "name another node with --addr, or try again when it is back"},
	{ebbv1.Code_CODE_DEADLINE, "there was no answer in time", nextMajority},
	{ebbv1.Code_CODE_INCOMPLETE, "some shards did not answer", "--allow-partial takes the answer of the others; `ebb status --shards` shows which have no leader"},
	{ebbv1.Code_CODE_TOO_STALE, "no replica is as fresh as was asked for", "a longer --max-staleness, or --consistency any"},
	{ebbv1.Code_CODE_STARTING, "the node is starting", nextWait},
	{ebbv1.Code_CODE_KEY_BUSY, "the key is written while it is renamed", "stop writing it for a moment; `ebb keys` shows which names are there"},
	{
		ebbv1.Code_CODE_OUT_OF_MEMORY, "a node has no memory left for more; what makes room is still taken",
		"forget keys (`ebb del`, `ebb expire`), shorten half-lives, or give the nodes more memory",
	},
	{ebbv1.Code_CODE_DISK_NOT_LOST, "a member of the joining node's name has another disk, which may not be lost", nextWait},
	{
		ebbv1.Code_CODE_BUDGET_EXCEEDED, "a namespace has used up its budget, or its share of a node's memory; what makes room is still taken",
		"see what it holds (`ebb namespace usage`), delete keys or let them fade, or raise its budget (`ebb namespace set NAME --max-bytes` or `--max-keys`)",
	},
	{
		ebbv1.Code_CODE_DISK_FULL, "a node that holds the shard has no disk space left for more; reads and deletes go on",
		"free some space on its disk, or delete keys (`ebb del`); writes go on by themselves then",
	},
	{
		ebbv1.Code_CODE_STALE_TABLE,
		"the node that was asked knows an older namespace of that name, which was purged and made anew since", nextWait,
	},
	{ebbv1.Code_CODE_BAD_REQUEST, "the request cannot be right", nextForm},
	{ebbv1.Code_CODE_BAD_KEY, "a key is empty or too long", nextForm},
	{ebbv1.Code_CODE_BAD_BIN, "a bin is empty or too long", nextForm},
	{ebbv1.Code_CODE_BAD_AMOUNT, "an amount is no finite number, or too large", nextForm},
	{ebbv1.Code_CODE_BAD_TIME, "a time is missing, before 1970, or too far ahead", "write it as 2013-05-17T21:04:00Z, as a date, or in seconds since 1970"},
	{ebbv1.Code_CODE_BAD_HALF_LIFE, "a half-life is out of its limits", "write it as 30s, 10m, 6h, 7d, 2y or none"},
	{ebbv1.Code_CODE_BAD_COUNT, "a number of things is out of its limits", nextLimit},
	{ebbv1.Code_CODE_BAD_NAMESPACE, "the name or a setting of a namespace cannot be right", "`ebb namespace create --help` has the settings"},
	{ebbv1.Code_CODE_BATCH_TOO_LARGE, "a batch is over its limits", "send it in several; a Writer of the SDK does"},
	{ebbv1.Code_CODE_MESSAGE_TOO_LARGE, "a message is over its limit", "send it in several; a Writer of the SDK does"},
	{ebbv1.Code_CODE_RESPONSE_TOO_LARGE, "an answer is over its limit", "ask for less: `ebb top --n`, or `ebb get` for some bins"},
	{ebbv1.Code_CODE_NOT_UTF8, "a key or bin is not UTF-8, which JSON needs", "-o tsv or -o table print it quoted"},
	{ebbv1.Code_CODE_NAMESPACE_NOT_FOUND, "the namespace does not exist", "`ebb namespace list` shows those that do; `ebb namespace create` makes one"},
	{ebbv1.Code_CODE_NAMESPACE_EXISTS, "the namespace exists", "`ebb namespace set` changes it"},
	{ebbv1.Code_CODE_WRONG_KIND, "the key holds another kind of summary", "use another key or namespace"},
	{ebbv1.Code_CODE_TOO_MANY_BINS, "the distribution has as many bins as its namespace allows", "`ebb namespace set NAME --bins-max` allows more"},
	{
		ebbv1.Code_CODE_NEGATIVE_AMOUNT, "the namespace, or the kind, allows no negative amounts",
		"`ebb namespace set NAME --allow-negative` allows them in distributions; other kinds take none",
	},
	{ebbv1.Code_CODE_WRONG_SHARD, "a key was sent to a shard that does not hold it", "use a client that hashes as the cluster does: the SDK or `ebb`"},
	{ebbv1.Code_CODE_UNMERGEABLE, "the keys were made with different sizes, half-lives or hashes", "ask about each by itself"},
	{ebbv1.Code_CODE_OVERFLOW, "a sum is larger than a summary can hold", "ask about fewer keys, or count in larger units"},
	{ebbv1.Code_CODE_RESOURCE_EXHAUSTED, "the summaries of a shard have reached their limit, or a bitmap has", "let keys fade or delete them; `ebb namespace set NAME --size` makes new ones smaller"},
	{
		ebbv1.Code_CODE_TIME_JUMP, "an event is dated further ahead of its namespace's event clock than max_jump allows",
		"if the date is right, `ebb namespace clock NAME --set TIME`; `ebb namespace set NAME --max-jump` allows more",
	},
	{ebbv1.Code_CODE_KEY_NOT_FOUND, "there is no such key, or all of it has faded", "`ebb keys` lists those that there are"},
	{ebbv1.Code_CODE_KEY_EXISTS, "there is a key of that name", "--overwrite replaces it, `ebb del` forgets it"},
	{ebbv1.Code_CODE_KEY_TOO_LARGE, "the key holds more than goes from one shard to another", "a new name in the same shard has no limit: `ebb describe` says where a name is"},
	{
		ebbv1.Code_CODE_MISSING_KEYS, "a strict question names keys that are not there",
		"correct the names: `ebb keys` lists those that there are; or ask without --strict, and they count as empty",
	},
	{ebbv1.Code_CODE_BAD_QUERY, "a question in the query language cannot be read", "`ebb query --help` has an example of each question"},
	{ebbv1.Code_CODE_QUERY_TOO_COSTLY, "a question would read more than one may", "name fewer keys, or a narrower pattern; `ebb query --explain` says what a question costs"},
	{
		ebbv1.Code_CODE_UNAUTHENTICATED, "the caller shows no token, or one that the cluster does not know, or not any more",
		"name a file with a token by --token-file, or put one into EBB_TOKEN; an operator makes them with `ebb token create`",
	},
	{
		ebbv1.Code_CODE_PERMISSION_DENIED, "the caller's token lacks a role for this",
		"an operator makes a token with the role that the message names: `ebb token create --help`",
	},
	{ebbv1.Code_CODE_SESSION_EXPIRED, "the producer was silent for too long", "find out what was counted before sending it again"},
	{ebbv1.Code_CODE_SEQUENCE_TOO_OLD, "what was sent again is older than the cluster remembers", "find out what was counted before sending it again"},
	{ebbv1.Code_CODE_SOURCE_FENCED, "another process has taken over the source", "let one process at a time write to a source"},
	{ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD, "the idempotency key is older than the cluster remembers", "find out what was counted before sending it again"},
	{ebbv1.Code_CODE_UNKNOWN_OUTCOME, "a write may or may not have been applied", "look whether it was: `ebb get` shows what was counted, `ebb describe` what a key is, `ebb token list` the tokens; an import is safe to run again"},
	{ebbv1.Code_CODE_TOO_MANY_SESSIONS, "the shard holds as many producers as it can", "close clients that are done, or wait for idle ones to expire"},
	{ebbv1.Code_CODE_TOO_MANY_SOURCES, "the shard remembers as many sources as it can", "use fewer names of sources"},
	{ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS, "the shard remembers as many idempotency keys as it can", "send less often with a key of its own, or try again later"},
	{ebbv1.Code_CODE_INTERNAL, "a defect, or a failure that has no code", nextReport},
	{ebbv1.Code_CODE_CORRUPT, "data on disk is damaged", "move the data directory away, and do not delete it: if there are other nodes, this one takes its data from them when it starts without"},
	{ebbv1.Code_CODE_WRONG_CLUSTER, "the node belongs to another cluster", "check --addr, --join and --data-dir"},
	{ebbv1.Code_CODE_NEWER_VERSION, "the data was written by a newer version", "run that version, or a newer one"},
	{ebbv1.Code_CODE_LOCKED, "another process uses the data directory", "stop it, or choose another --data-dir"},
	{ebbv1.Code_CODE_DISK, "the disk is full or failing", "free some space or replace the disk, and start the node again"},
	{ebbv1.Code_CODE_DUPLICATE_NODE, "two nodes have one name", "give each its own --node"},
}

// codeOfError returns the code that err carries; 0 if it carries none.
func codeOfError(err error) ebbv1.Code {
	if errors.Is(err, client.ErrUnknownOutcome) {
		return ebbv1.Code_CODE_UNKNOWN_OUTCOME
	}
	var ce *client.Error
	if errors.As(err, &ce) {
		return ce.Code
	}
	var pe *proto.Error
	if errors.As(err, &pe) {
		return pe.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ebbv1.Code_CODE_DEADLINE
	}
	return 0
}

// errorPosition returns the line and column that err names; 0 if it names none.
func errorPosition(err error) (line, column int) {
	var pe *proto.Error
	if errors.As(err, &pe) {
		return int(pe.Line), int(pe.Column)
	}
	return 0, 0
}

// advice is an error with a next step of the command line. The cluster's own next step also has to suit programs.
type advice struct {
	error
	hint string
}

func (a advice) Unwrap() error { return a.error }

// advised returns err with another next step.
func advised(err error, hint string) error { return advice{err, hint} }

// advisedOf returns err with another next step if it carries this code, and otherwise err.
func advisedOf(err error, code ebbv1.Code, hint string) error {
	if codeOfError(err) != code {
		return err
	}
	return advised(err, hint)
}

// ofPrograms are the cluster's next steps that make sense only for programs. The command line uses the next step of the
// code instead.
var ofPrograms = []string{proto.HintSession, proto.HintWithinWindow}

// nextStep returns what to do about err: the next step of the command or of the error, or else of the error's code.
func nextStep(err error) string {
	if a := (advice{}); errors.As(err, &a) {
		return a.hint
	}
	var ce *client.Error
	if errors.As(err, &ce) && ce.Hint != "" && !slices.Contains(ofPrograms, ce.Hint) {
		return ce.Hint
	}
	var pe *proto.Error
	if errors.As(err, &pe) && pe.Hint != "" && !slices.Contains(ofPrograms, pe.Hint) {
		return pe.Hint
	}
	code := codeOfError(err)
	for _, c := range codes {
		if c.code == code {
			return c.next
		}
	}
	return ""
}
