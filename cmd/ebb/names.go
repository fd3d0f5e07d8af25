package main

import (
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto"
)

// In the JSON of the command line, names stand as they are, as in HTTP. Tables and TSV quote bytes that they cannot
// show; JSON escapes them. If a name is not UTF-8, its field has base64 and the suffix _base64. In a list, whose
// elements have no field of their own, such a name is an error.

// keyName is the name of a key in JSON.
type keyName struct {
	Key       *string `json:"key,omitempty"`
	KeyBase64 []byte  `json:"key_base64,omitempty"`
}

func keyNameOf(b []byte) keyName {
	text, binary := textOrBinary(b)
	return keyName{text, binary}
}

// shown returns the name for a table or TSV.
func (n keyName) shown() string { return shownName(n.Key, n.KeyBase64) }

// binName is the name of a bin in JSON.
type binName struct {
	Bin       *string `json:"bin,omitempty"`
	BinBase64 []byte  `json:"bin_base64,omitempty"`
}

func binNameOf(b []byte) binName {
	text, binary := textOrBinary(b)
	return binName{text, binary}
}

func (n binName) shown() string { return shownName(n.Bin, n.BinBase64) }

// none reports whether the name is absent.
func (n binName) none() bool { return n.Bin == nil && n.BinBase64 == nil }

// phraseName is a phrase in JSON.
type phraseName struct {
	Phrase       *string `json:"phrase,omitempty"`
	PhraseBase64 []byte  `json:"phrase_base64,omitempty"`
}

func phraseNameOf(b []byte) phraseName {
	text, binary := textOrBinary(b)
	return phraseName{text, binary}
}

// textOrBinary returns b as text, or b itself where it is not UTF-8.
func textOrBinary(b []byte) (text *string, binary []byte) {
	if utf8.Valid(b) {
		return new(string(b)), nil
	}
	return nil, b
}

// shownName returns a name for a table or TSV; "" if there is none.
func shownName(text *string, binary []byte) string {
	if text != nil {
		return printable([]byte(*text))
	}
	return printable(binary)
}

// listedName is a name in a list of JSON.
type listedName string

// MarshalText refuses a name that is not UTF-8: encoding/json would replace its bytes.
func (n listedName) MarshalText() ([]byte, error) {
	if !utf8.ValidString(string(n)) {
		return nil, proto.ErrNotUTF8.Errorf("name %q is not UTF-8, and a list in JSON holds only text", string(n)).
			WithHint("-o tsv or -o table print it quoted")
	}
	return []byte(n), nil
}

func listedNames(names [][]byte) []listedName {
	var out []listedName
	for _, name := range names {
		out = append(out, listedName(name))
	}
	return out
}
