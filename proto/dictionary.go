package proto

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A namespace may have a dictionary, which gives each string an id, so that bitmaps can hold strings. See
// docs/adr/0025.

// Limits of dictionaries.
const (
	// NameLenMax is the longest string, in bytes.
	NameLenMax = BinLenMax
	// NamesMax is the most strings in a command, a request or a question.
	NamesMax = BatchOpsMax
	// NamedIDsMax is the most ids whose strings a question asks for.
	NamedIDsMax = BitPageMax
	// PartNamesMax is the most strings in a part of a dictionary.
	PartNamesMax = 1 << 28
)

// Field numbers of ebbv1.Names. A test holds them to the descriptors.
const (
	FieldCommandNames = 18
	FieldNamesNames   = 1
	FieldNamesShards  = 2
)

// HasDictionary says whether ids of the bitmaps of a namespace stand for strings.
func HasDictionary(ns *ebbv1.Namespace) bool { return ns.GetDictionary().GetParts() > 0 }

// NamePart returns the part, 0 to parts-1, that stores a string in the dictionary of a namespace. Like ShardOf it is
// part of the wire contract.
//
//	part = xxh3-64(uvarint(len(ns)) ns name) % parts
//
// The ids of a part are part, part+parts, part+2*parts and so on.
func NamePart(namespace string, name []byte, parts uint32) uint32 {
	var room [128]byte
	b := binary.AppendUvarint(room[:0], uint64(len(namespace)))
	b = append(b, namespace...)
	b = append(b, name...)
	return uint32(xxh3.Hash(b) % uint64(parts))
}

// NamePartShard returns the shard, 1 to shards, that holds a part of a dictionary.
func NamePartShard(part, shards uint32) uint32 { return 1 + part%shards }

// CheckName refuses strings that cannot be in a dictionary. A string must be text without control characters, so that a
// list of strings can be written with one string a line.
func CheckName(name []byte) *Error {
	switch {
	case len(name) == 0:
		return ErrBadRequest.Errorf("an empty string: one that gets an id has 1 to %d bytes", NameLenMax)
	case len(name) > NameLenMax:
		return ErrBadRequest.Errorf("string of %d bytes: the limit of one that gets an id is %d", len(name), NameLenMax)
	case !utf8.Valid(name):
		return ErrNotUTF8.Errorf("string %q is not UTF-8: one that gets an id is text", name)
	case hasControls(name):
		return ErrBadRequest.Errorf("string %q has control characters: one that gets an id has none", name)
	}
	return nil
}

// hasControls decodes runes only if there are bytes outside of ASCII.
func hasControls(name []byte) bool {
	for _, c := range name {
		switch {
		case c >= utf8.RuneSelf:
			return bytes.ContainsFunc(name, unicode.IsControl)
		case c < ' ' || c == 0x7f:
			return true
		}
	}
	return false
}

func checkNames(names [][]byte) *Error {
	if len(names) > NamesMax {
		return ErrBatchTooLarge.Errorf("batch of %d strings: the limit is %d", len(names), NamesMax).WithHint("send them in several")
	}
	size := 0
	for i, name := range names {
		if err := CheckName(name); err != nil {
			err.Message = fmt.Sprintf("string %d: %s", i, err.Message)
			return err
		}
		size += len(name)
	}
	if size > BatchBytesMax {
		return ErrBatchTooLarge.Errorf("strings of %d bytes together: the limit is %d", size, BatchBytesMax).WithHint("send them in several")
	}
	return nil
}

// Names visits the strings of a serialised Names message in order, until visit returns false. It returns the number of
// shards in the message, and whether the message is well formed and all strings were visited.
func Names(raw []byte, visit func(name []byte) bool) (shards uint32, ok bool) {
	ok = WalkFields(raw, func(num protowire.Number, v uint64, b []byte) bool {
		switch num {
		case FieldNamesNames:
			return visit(b)
		case FieldNamesShards:
			shards = uint32(min(v, ShardsMax+1))
		}
		return true
	})
	return shards, ok
}

// NamesShards returns the number of shards in a serialised Command that gives ids to strings. ok is false for any other
// command.
func NamesShards(command []byte) (shards uint32, ok bool) {
	WalkFields(command, func(num protowire.Number, _ uint64, body []byte) bool {
		if num == FieldCommandNames {
			shards, _ = Names(body, func([]byte) bool { return true })
			ok = true
		}
		return true
	})
	return shards, ok
}

// checkNamesCommand checks a serialised Names message.
var namesShape = shapeOf(&ebbv1.Names{})

func checkNamesCommand(raw []byte) *Error {
	if !namesShape.fits(raw) {
		return errMalformed("batch of strings")
	}
	var names [][]byte
	shards, ok := Names(raw, func(name []byte) bool {
		names = append(names, name)
		return len(names) <= NamesMax
	})
	switch {
	case !ok && len(names) <= NamesMax:
		return errMalformed("batch of strings")
	case len(names) == 0:
		return ErrBadRequest.Errorf("no strings: a batch has 1 to %d", NamesMax)
	case shards == 0 || shards > ShardsMax:
		return ErrBadRequest.Errorf("strings for one of %d shards: there are 1 to %d", shards, ShardsMax)
	}
	return checkNames(names)
}

func checkNamesQuestion(q *ebbv1.NamesQuestion) *Error {
	switch n := len(q.GetIds()); {
	case n+len(q.GetNames()) == 0:
		return ErrBadRequest.Errorf("a question about a dictionary names strings or ids")
	case n > NamedIDsMax:
		return ErrBadCount.Errorf("%d ids: a question looks for 1 to %d", n, NamedIDsMax)
	}
	return checkNames(q.GetNames())
}

// checkDictionary checks the settings of a definition about its dictionary.
func checkDictionary(ns *ebbv1.Namespace) *Error {
	switch d := ns.GetDictionary(); {
	case d == nil:
		return nil
	case d.GetParts() > ShardsMax:
		return ErrBadNamespace.Errorf("dictionary of %d parts: the limit is %d", d.GetParts(), ShardsMax)
	case ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR:
		return ErrBadNamespace.Errorf("a dictionary is for bitmaps: a namespace under linear decay holds distributions only")
	}
	return nil
}

// ErrNoDictionary refuses strings where ids are numbers.
func ErrNoDictionary(namespace string) *Error {
	return ErrBadRequest.Errorf("namespace %s has no dictionary: ids are numbers there", namespace).
		WithHint("make one that has, and write to it: ebb namespace create NAME --dictionary")
}

// ErrHasDictionary refuses numbers in a namespace whose ids stand for strings.
func ErrHasDictionary(namespace string) *Error {
	return ErrBadRequest.Errorf("namespace %s has a dictionary: ids are strings there, and not numbers", namespace).
		WithHint("name strings: ebb bits set KEY alice bob; without a dictionary, another namespace takes numbers")
}
