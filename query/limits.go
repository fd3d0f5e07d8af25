package query

// Limits of one question. Each is named in the error of what exceeds it.
const (
	// TextBytesMax is the longest question.
	TextBytesMax = 1 << 20
	// TermsMax is how many keys and patterns one names, of a range every period.
	TermsMax = 10_000
	// DepthMax is how deep parentheses and operators stand in each other.
	DepthMax = 1_000
)
