package query

// Limits of one question. An error that refuses a question over a limit names the limit.
const (
	// TextBytesMax is the longest question, in bytes.
	TextBytesMax = 1 << 20
	// TermsMax is the most keys and patterns in a question; a range counts each of its periods.
	TermsMax = 10_000
	// DepthMax is how deep parentheses and operators may be nested.
	DepthMax = 1_000
)
