package proto

import (
	"bytes"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// CheckFeedKind refuses kinds that cannot count phrases.
func CheckFeedKind(kind ebbv1.Kind) *Error {
	switch kind {
	case ebbv1.Kind_KIND_QUANTILE, ebbv1.Kind_KIND_STRING, ebbv1.Kind_KIND_PHRASES, ebbv1.Kind_KIND_BITMAP:
		return ErrBadRequest.Errorf("kind %s counts no phrases", KindName(kind))
	}
	if kind < ebbv1.Kind_KIND_UNSPECIFIED || kind > KindMax {
		return ErrBadRequest.Errorf("kind %d is unknown: %s", kind, KindNames())
	}
	return nil
}

// ErrNoPhrases refuses a feed whose phrases do not exist. Without this error, a mistyped name would count nothing and
// report no error.
func ErrNoPhrases(key []byte) *Error {
	return ErrKeyNotFound.Errorf("key %q holds no phrases", key).WithHint("add some: ebb phrases add KEY PHRASE...")
}

// CheckFeed checks everything about a feed that does not depend on state.
func CheckFeed(f *ebbv1.FeedRequest) *Error {
	if err := CheckKey(f.GetPhrases()); err != nil {
		return err
	}
	if err := CheckKey(f.GetInto()); err != nil {
		return err
	}
	if err := CheckFeedKind(f.GetKind()); err != nil {
		return err
	}
	if len(f.GetMember()) > 0 {
		if err := CheckBin(f.GetMember()); err != nil {
			return err
		}
	}
	if n := len(f.GetTexts()); n == 0 || n > QuestionsMax {
		return ErrBadCount.Errorf("%d texts: a feed has 1 to %d", n, QuestionsMax)
	}
	size := 0
	for _, text := range f.GetTexts() {
		size += len(text)
	}
	if size > MatchTextMax {
		return ErrBadRequest.Errorf("texts of %d bytes together: the limit is %d", size, MatchTextMax).WithHint("send them in several requests")
	}
	return CheckTime(f.GetTimeUs())
}

// FeedQuestions are the questions of a feed, one for each text.
func FeedQuestions(f *ebbv1.FeedRequest) []*ebbv1.Question {
	questions := make([]*ebbv1.Question, len(f.GetTexts()))
	for i, text := range f.GetTexts() {
		questions[i] = &ebbv1.Question{Namespace: f.GetNamespace(), Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{Key: f.GetPhrases(), Text: text}}}
	}
	return questions
}

// FoundIn sums the matches in the answers to a feed's questions, ordered by the bytes of the phrase.
func FoundIn(f *ebbv1.FeedRequest, answers []*ebbv1.Answer) ([]*ebbv1.Found, *Error) {
	counts := map[string]uint32{}
	for _, a := range answers {
		if a.GetError() != nil {
			return nil, FromWire(a.GetError())
		}
		if !a.GetMatch().GetFound() {
			return nil, ErrNoPhrases(f.GetPhrases())
		}
		for _, m := range a.GetMatch().GetMatches() {
			counts[string(m.GetPhrase())]++
		}
	}
	found := make([]*ebbv1.Found, 0, len(counts))
	for phrase, count := range counts {
		found = append(found, &ebbv1.Found{Phrase: []byte(phrase), Count: count})
	}
	slices.SortFunc(found, func(a, b *ebbv1.Found) int { return bytes.Compare(a.GetPhrase(), b.GetPhrase()) })
	return found, nil
}

// FeedIncrements are the increments that count what a feed has found, one for each phrase.
func FeedIncrements(f *ebbv1.FeedRequest, found []*ebbv1.Found) []*ebbv1.Increment {
	increments := make([]*ebbv1.Increment, len(found))
	for i, x := range found {
		in := &ebbv1.Increment{Key: f.GetInto(), Bin: x.GetPhrase(), Amount: new(float64(x.GetCount())), TimeUs: f.GetTimeUs(), Kind: f.GetKind()}
		if len(f.GetMember()) > 0 {
			in.Key, in.Bin = slices.Concat(f.GetInto(), []byte("/"), x.GetPhrase()), f.GetMember()
		}
		switch {
		case in.Kind != 0:
		case len(f.GetMember()) > 0:
			in.Kind = ebbv1.Kind_KIND_SET
		default:
			in.Kind = ebbv1.Kind_KIND_DISTRIBUTION
		}
		increments[i] = in
	}
	return increments
}
