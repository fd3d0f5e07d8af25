package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Match is a phrase that occurs in a text.
type Match struct {
	Phrase     string // as it was added
	Begin, End int    // bytes of the text
}

// Matches are all phrases that occur in a text, ordered by where they begin, shorter ones first. They include phrases
// that overlap or contain each other.
type Matches struct {
	Found    bool // false: no such key
	Matches  []Match
	AsOf     time.Time
	Coverage Coverage
}

// Match asks which phrases of a KindPhrases occur in a text of up to 256 KiB. It compares tokens, and ignores the case
// of letters. A token is a run of letters and numbers, a character of a script that has no spaces between words, or a
// symbol such as an emoji. Match ignores everything between tokens, and what is not UTF-8.
func (c *Client) Match(ctx context.Context, ns, key, text string, opts ...AskOption) (Matches, error) {
	a, err := c.askOne(ctx, "match", key, matchQuestion(ns, key, text), opts)
	if err != nil {
		return Matches{}, err
	}
	return matchesOf(a), nil
}

func matchQuestion(ns, key, text string) *ebbv1.Question {
	return &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{Key: []byte(key), Text: []byte(text)}}}
}

func matchesOf(a *ebbv1.Answer) Matches {
	w := a.GetMatch()
	m := Matches{Found: w.GetFound(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}
	for _, x := range w.GetMatches() {
		m.Matches = append(m.Matches, Match{Phrase: string(x.GetPhrase()), Begin: int(x.GetBegin()), End: int(x.GetEnd())})
	}
	return m
}

// Phrases returns the increments that add phrases to a key of KindPhrases. In a namespace with an event clock each
// needs a Time.
func Phrases(key string, phrases ...string) []Increment {
	all := make([]Increment, len(phrases))
	for i, p := range phrases {
		all[i] = Increment{Key: key, Bin: p, Amount: 1, Kind: KindPhrases}
	}
	return all
}

// Feeding decides where the phrases that are found in a text are counted.
type Feeding struct {
	// Phrases is a key of KindPhrases.
	Phrases string
	// Into is the key that counts: each phrase found is a bin. With Member it is the beginning of keys.
	Into string
	// Kind of the keys that count, if they are new; KindDistribution if not given, and with Member KindSet.
	Kind Kind
	// Member, if given, is the author of the texts. Then each phrase has a key Into/PHRASE of its own, and Member is
	// the bin.
	Member string
	// Time is the time of the texts; the shard's own when zero.
	Time time.Time
}

// Found is a phrase and how often it was found.
type Found struct {
	Phrase string
	Count  int
}

// Feed counts the phrases of a key that occur in texts, each text by itself, and returns how often each was found. Each
// counts once, even if it is sent several times. After an error some may be counted, as with Increment. What was found
// is returned all the same.
func (c *Client) Feed(ctx context.Context, ns string, to Feeding, texts ...string) ([]Found, error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	f := &ebbv1.FeedRequest{Namespace: ns, Phrases: []byte(to.Phrases), Into: []byte(to.Into), Kind: to.Kind, Member: []byte(to.Member)}
	found, err := c.look(ctx, f, texts)
	if err != nil {
		return nil, c.fail(attempt{op: "feed", key: to.Phrases}, err)
	}
	out := make([]Found, len(found))
	increments := make([]Increment, len(found))
	for i, in := range proto.FeedIncrements(f, found) {
		out[i] = Found{Phrase: string(found[i].GetPhrase()), Count: int(found[i].GetCount())}
		increments[i] = Increment{Key: string(in.GetKey()), Bin: string(in.GetBin()), Amount: in.GetAmount(), Kind: in.GetKind(), Time: to.Time}
	}
	return out, c.Increment(ctx, ns, increments...)
}

// look finds the phrases in texts, some texts at a time.
func (c *Client) look(ctx context.Context, f *ebbv1.FeedRequest, texts []string) ([]*ebbv1.Found, error) {
	var answers []*ebbv1.Answer
	for len(texts) > 0 {
		n := batchOf(texts)
		f.Texts = bytesOf(texts[:n]...)
		if err := proto.CheckFeed(f); err != nil {
			return nil, err
		}
		some, err := c.Ask(ctx, proto.FeedQuestions(f))
		if err != nil {
			return nil, err
		}
		answers, texts = append(answers, some...), texts[n:]
	}
	found, err := proto.FoundIn(f, answers)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// batchOf is how many of the texts are asked about at once: at least one.
func batchOf(texts []string) int {
	const bytesMax = 64 << 10
	n, size := 0, 0
	for n < len(texts) && n < proto.QuestionsMax && (n == 0 || size+len(texts[n]) <= bytesMax) {
		size += len(texts[n])
		n++
	}
	return n
}

// SetString sets the value of a key of KindString, and makes the key if necessary. It returns when the write is
// acknowledged.
func (c *Client) SetString(ctx context.Context, ns, key, value string) error {
	return c.SetStringAt(ctx, ns, key, value, time.Time{})
}

// SetStringAt is SetString with a time, which a namespace with an event clock needs. The value that was written last
// stays, whatever its time is.
func (c *Client) SetStringAt(ctx context.Context, ns, key, value string, at time.Time) error {
	return c.Increment(ctx, ns, Increment{Key: key, Amount: 1, Kind: KindString, Text: value, Time: at})
}

// Value is what a key of KindString holds.
type Value struct {
	Found    bool // false: no such key
	Text     string
	AsOf     time.Time
	Coverage Coverage
}

// String asks for the value of a key of KindString.
func (c *Client) String(ctx context.Context, ns, key string, opts ...AskOption) (Value, error) {
	s, err := c.Summary(ctx, ns, SummaryQuery{Keys: []string{key}}, opts...)
	switch {
	case err != nil:
		return Value{}, err
	case s.Found && s.Kind != KindString:
		return Value{}, c.otherKind("string", key, s.Kind, "has no value")
	}
	return Value{Found: s.Found, Text: s.Text, AsOf: s.AsOf, Coverage: s.Coverage}, nil
}
