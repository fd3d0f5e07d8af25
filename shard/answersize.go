package shard

import (
	"cmp"
	"math"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The memory of an answer is bounded before the answer is built, so that the caller can keep a budget. Two functions
// return it in bytes:
//
//	AnswerBytes  before: at most what it takes to build the answer and to hold it
//	AnswerHeld   after: about what the answer holds
//
// AnswerBytes uses the question and the records of the keys that it names; it copies nothing. How many keys match a
// pattern is not known before all names were read. Such questions begin with room for a few keys, and are not answered
// if the room is too small.
const (
	answerLeast    = 1 << 10         // messages around an answer
	binNameBytes   = proto.BinLenMax // the longest name of a bin
	mergeBinBytes  = 64              // a bin in a copy, and in the sum that it is added to
	sortBinBytes   = 16              // a bin while all are put in order
	binBytes       = 144             // a bin of an answer, without its name
	partBinBytes   = 48              // a bin of a part while it is written, without its name
	changeBytes    = 320             // a bin of a comparison or a trend, without its name
	estimateBytes  = 112             // a small message: an estimate, a membership
	keyInfoBytes   = 400             // a key of a list, without its name
	heldCopies     = 3               // of a summary while it is merged and written
	bitmapLeast    = 64 << 10        // containers while an expression is evaluated
	bitmapTerm     = 512             // a term of an expression
	groupBytes     = 400             // a bitmap to count by, without its name
	patternRoom    = 1 << 20         // of a question with patterns, at first
	textMatchBytes = 256             // of matches, for each byte of text
)

// imageMost bounds the image in the answer to a question.
func imageMost(ask any) int {
	export, is := ask.(*ebbv1.Question_Export)
	switch {
	case !is || !export.Export.GetLarge():
		return proto.ImageBytesMax
	case export.Export.From == nil:
		return proto.LargeImageBytesMax
	}
	return proto.SketchBytesMax
}

// namesMax bounds the names of an answer: more than that is refused before it is copied.
func namesMax(bins int) int { return min(bins*binNameBytes, answerBytesMax) }

// mergedBytes bounds how much memory a body adds to the body that it is merged into. A merge of sparse bodies may be
// dense: it takes up to four times what they hold together, and never more than a full body.
func mergedBytes(b body) int { return max(b.Held(), min(b.Reserved(), 4*b.Held())) }

// AnswerBytes returns how many bytes of memory it takes at most to answer a question and to hold its answer. cost is
// the cost of the question, or the limit above which it was not computed. For a question with patterns it returns the
// room to begin with, see AskWithin.
func (f *frame) AnswerBytes(q *ebbv1.ShardQuestion, cost int) int {
	if len(proto.QuestionPatterns(q.GetQuestion())) > 0 {
		return answerLeast + patternRoom + len(proto.QuestionKeys(q.GetQuestion()))*16
	}
	keys := len(proto.QuestionKeys(q.GetQuestion()))
	switch ask := q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return answerLeast + distributionBytes(q, cost, keys > 1 || q.GetPartial())
	case *ebbv1.Question_Surprise:
		return answerLeast + comparisonBytes(cost/compareCost) + len(ask.Surprise.GetBins())*8
	case *ebbv1.Question_Trend:
		return answerLeast + comparisonBytes(cost/compareCost) + len(ask.Trend.GetBins())*changeBytes
	case *ebbv1.Question_Summary:
		return answerLeast + summaryBytes(ask.Summary, bytesPerCost*cost)
	case *ebbv1.Question_Overlap:
		return answerLeast + heldCopies*bytesPerCost*cost + keys*(proto.KeyLenMax+estimateBytes)
	case *ebbv1.Question_Graph:
		return answerLeast + heldCopies*bytesPerCost*cost + keys*(proto.KeyLenMax+(1+int(max(ask.Graph.GetLinks(), linksDefault)))*estimateBytes)
	case *ebbv1.Question_Keys:
		return answerLeast + min(listLimit(ask.Keys), int(f.summaries.keys.slots))*(2*keyInfoBytes+3*proto.KeyLenMax)
	case *ebbv1.Question_Sources:
		return answerLeast + min(sourcesLimit(ask.Sources),
			int(f.sources.live))*2*(estimateBytes+proto.SourceNameLenMax)
	case *ebbv1.Question_Describe, *ebbv1.Question_Export:
		return answerLeast + 2*proto.KeyLenMax + min(heldCopies*bytesPerCost*cost/describeBin+bitmapLeast,
			2*heldCopies*imageMost(ask))
	case *ebbv1.Question_Match:
		return answerLeast + min(len(ask.Match.GetText())*textMatchBytes, 6*answerBytesMax)
	case *ebbv1.Question_Bitmap, *ebbv1.Question_BitmapGroups, *ebbv1.Question_BitmapCohort:
		return answerLeast + bitmapBytes(q.GetQuestion(), keys)
	case *ebbv1.Question_Names:
		return answerLeast + len(ask.Names.GetNames())*9 + len(ask.Names.GetIds())*32 + namesMax(
			len(ask.Names.GetIds()))
	}
	return answerLeast
}

// distributionBytes bounds the memory of an answer with so many bins, without room for messages around it. merged says
// that the bins are copied and added up.
func distributionBytes(q *ebbv1.ShardQuestion, bins int, merged bool) int {
	n := 0
	if merged {
		n += bins * mergeBinBytes
	}
	if q.GetPartial() {
		return n + bins*partBinBytes + 2*namesMax(bins)
	}
	written := bins
	switch s := q.GetQuestion().GetDistribution().GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Bins:
		return n + len(s.Bins.GetBins())*binBytes
	case *ebbv1.DistributionQuestion_Top:
		written = min(bins, int(s.Top))
	}
	return n + bins*sortBinBytes + min(written, binsMost)*binBytes + namesMax(written)
}

// comparisonBytes bounds the memory to compare so many bins, and to send them.
func comparisonBytes(bins int) int {
	return bins*(2*mergeBinBytes+changeBytes) + 2*namesMax(bins)
}

// summaryBytes bounds the memory to merge summaries that hold so many bytes together, and to answer the question about
// them.
func summaryBytes(q *ebbv1.SummaryQuestion, held int) int {
	return heldCopies*held + (len(q.GetBins())+len(q.GetQuantiles()))*2*estimateBytes + min(int(q.GetTop()),
		held/bytesPerCost)*(estimateBytes+binNameBytes)
}

func bitmapBytes(q *ebbv1.Question, terms int) int {
	n := bitmapLeast + terms*bitmapTerm
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_BitmapGroups:
		return n + len(ask.BitmapGroups.GetKeys())*(groupBytes+proto.KeyLenMax)
	case *ebbv1.Question_BitmapCohort:
		periods := len(ask.BitmapCohort.GetPeriods())
		return n + periods*(periods*8+groupBytes)
	case *ebbv1.Question_Bitmap:
		switch s := ask.Bitmap.GetSelect().(type) {
		case *ebbv1.BitmapQuestion_Ids:
			return n + 20*int(cmp.Or(s.Ids.GetLimit(), proto.BitPageDefault))
		case *ebbv1.BitmapQuestion_Contains:
			return n + 9*len(s.Contains.GetIds())
		case *ebbv1.BitmapQuestion_Part:
			return n + 2*int(s.Part.GetBytes())
		}
	}
	return n
}

// answerWithin is AskWithin without the keys that are not there.
func (f *frame) answerWithin(q *ebbv1.ShardQuestion, at sketch.Tick, room int) *ebbv1.ShardAnswer {
	name := []byte(q.GetQuestion().GetNamespace())
	if err := f.refuseOlder(name, q); err != nil {
		return f.unanswered(err)
	}
	// An emptied namespace is treated as unknown. If it exists, it is a new one that this shard does not know yet.
	if err := f.refuseDeleted(name); err != nil && !f.find(name).emptied {
		return f.unanswered(err)
	}
	switch ask := q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return f.askDistribution(q, ask.Distribution, at, room)
	case *ebbv1.Question_Summary:
		return f.askSummary(q, ask.Summary, at, room)
	case *ebbv1.Question_Surprise:
		return f.askSurprise(q, ask.Surprise, at, room)
	case *ebbv1.Question_Graph:
		return f.askGraph(q, ask.Graph, at, room)
	}
	return f.ask(q, at)
}

// refuseOlder refuses a question of a coordinator that does not know yet that its namespace was purged and made anew.
// Such a question has ids of the older namespace, and goes to the shards of that namespace's keys. A namespace that was
// made anew has another hash seed, unless its maker chose the same.
func (f *frame) refuseOlder(name []byte, q *ebbv1.ShardQuestion) *proto.Error {
	if q.GetNamespaceVersion() == 0 {
		return nil
	}
	ns := f.find(name)
	if ns == nil || q.GetNamespaceVersion() >= ns.definition.GetVersion() || q.GetHashSeed() == ns.seed {
		return nil
	}
	return proto.ErrStaleTable.Errorf("namespace %s was purged and made anew: version %d was asked for, the shard "+
		"has %d",
		ns.definition.GetName(), q.GetNamespaceVersion(), ns.definition.GetVersion()).WithHint("try again")
}

// unlimited is the room of a caller that keeps no budget.
const unlimited = math.MaxInt

// errNoRoom means that the keys that match take more memory than there is room for. It never leaves the package: see
// unanswered.
var errNoRoom = proto.ErrResponseTooLarge.Errorf("the keys that match take more memory than there is room for")

// AnswerHeld returns about how many bytes of memory an answer of a shard holds.
func AnswerHeld(a *ebbv1.ShardAnswer) int {
	if a.GetAnswer() != nil {
		return AnswerSize(a.GetAnswer())
	}
	return answerLeast/2 + len(a.GetPart()) + 4*len(a.GetMissing())
}

// AnswerSize returns about how many bytes of memory an answer holds.
func AnswerSize(a *ebbv1.Answer) int {
	small := 0 // messages
	switch v := a.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		n := answerLeast + len(v.Distribution.GetBins())*binBytes
		for _, b := range v.Distribution.GetBins() {
			n += len(b.GetBin())
		}
		return n
	case *ebbv1.Answer_CountKeys:
		return answerLeast / 2
	case *ebbv1.Answer_Summary:
		s := v.Summary
		small = len(s.GetItems()) + len(s.GetBins()) + len(s.GetMemberships()) + len(s.GetQuantiles())
	case *ebbv1.Answer_Surprise:
		small = len(v.Surprise.GetBins())
	case *ebbv1.Answer_Trend:
		small = 2 * (len(v.Trend.GetRising()) + len(v.Trend.GetFalling()) + len(v.Trend.GetBins()))
	case *ebbv1.Answer_Keys:
		small = 3 * len(v.Keys.GetKeys())
	case *ebbv1.Answer_Match:
		small = len(v.Match.GetMatches())
	case *ebbv1.Answer_Groups:
		small = len(v.Groups.GetGroups())
	case *ebbv1.Answer_Graph:
		for _, node := range v.Graph.GetNodes() {
			small += 2 + 2*len(node.GetLinks())
		}
	case *ebbv1.Answer_Bitmap:
		return answerLeast + 8*len(v.Bitmap.GetIds()) + len(v.Bitmap.GetContains()) + 24*len(
			v.Bitmap.GetNames()) + pb.Size(v.Bitmap)
	}
	return answerLeast + small*estimateBytes + 2*pb.Size(a)
}

// MergeBytes returns about how many bytes of memory it takes to merge the parts of a question, in addition to the parts
// themselves.
func MergeBytes(answers []*ebbv1.ShardAnswer) int {
	const expansion = 10 // a short bin of a part, decoded and added up
	n := 0
	for _, a := range answers {
		n += expansion * len(a.GetPart())
	}
	return n
}

// binsMost is the largest number of bins that an answer lists: each takes 40 bytes of a message at least.
const binsMost = answerBytesMax / 40
