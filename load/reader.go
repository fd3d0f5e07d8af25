package load

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Format is the format of a file's rows.
type Format uint8

const (
	// ByName finds the format by the file's name (.tsv, .csv, .jsonl, .ndjson, .json, with or without .gz). If the name
	// does not say it, the first line does: an object is JSON, a tab means TSV, anything else is CSV.
	ByName    Format = iota
	TSV              // tabs between columns
	CSV              // commas between columns, quotes as in RFC 4180
	JSONLines        // an object on each line
)

var formatNames = map[string]Format{
	"": ByName, "auto": ByName, "tsv": TSV, "csv": CSV, "jsonl": JSONLines, "json": JSONLines, "ndjson": JSONLines,
}

// ParseFormat parses auto, tsv, csv or jsonl.
func ParseFormat(text string) (Format, error) {
	f, ok := formatNames[strings.ToLower(text)]
	if !ok {
		return 0, fmt.Errorf("format %q: it is auto, tsv, csv or jsonl", text)
	}
	return f, nil
}

// LineMaxDefault is the longest line that is read, in bytes; longer lines are refused.
const LineMaxDefault = 64 << 10

// EmptyBin is the bin under which rows with an empty bin are counted.
const EmptyBin = "-"

// Options describe a file. A column is given by its name in the header, or by its number from 1. In JSON lines it is
// the name of a field, with dots for nested objects. A text with {column} is a template; a text that begins with '=' is
// a constant.
type Options struct {
	Format Format
	// Header says that the first line holds names, NoHeader that it is a row. With neither, there is a header if a
	// column is given by name. If all columns are given by number, the first lines decide. If they cannot, the error is
	// ErrColumn.
	Header, NoHeader bool
	Key              string // e.g. g, clicks/{g}, plays/{t:day} or =all
	Bin              string // e.g. country
	Time             string // "" : the shards' own time
	Amount           string // "" : 1
	// Value is the column of the values that a quantile measures. Rows of a quantile have no bins.
	Value    string
	Kind     ebbv1.Kind // of the keys; if unspecified, the kind of existing keys, or that of the namespace
	TimeUnit TimeUnit   // of Time
	// TimeFormat describes the times of the file: directives of strftime (%d/%b/%Y:%H:%M:%S %z), or a layout of package
	// time.
	TimeFormat string
	Zone       *time.Location // of times that name none; UTC when nil
	// SkipEmpty leaves out rows with an empty bin, value or amount, or with an empty column in the key. Without it an
	// empty bin counts as "-", and the others are refused.
	SkipEmpty bool
	// WholeLines leaves out a last line without a line end, and one whose quotes are still open, because the file may
	// be growing. Without WholeLines they are rows.
	WholeLines bool
	// LineMax is the longest line in bytes; 64 KiB when 0.
	LineMax int
}

// Row is one event.
type Row struct {
	Offset uint64 // number of its line, from 1
	Key    string
	Bin    string
	Amount float64
	Value  float64   // if there is a column of values
	Time   time.Time // zero if the Options name no column of times

	last    uint64    // number of its last line
	sum     uint64    // hash of the file up to that line
	aheadOf time.Time // for a row too far ahead: the event clock, as the rows before it have set it
}

// Refused is an error about one line. Reading continues after that line.
type Refused struct {
	Line   uint64
	Reason error
}

func (r *Refused) Error() string { return fmt.Sprintf("line %d: %v", r.Line, r.Reason) }

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Reason }

// Errors that end the reading of a file.
var (
	// ErrBinary: the file is not text.
	ErrBinary = errors.New("not a text file")
	// ErrTruncated: the compressed stream ends in the middle.
	ErrTruncated = errors.New("the gzip stream is truncated")
	// ErrCorrupt: the compressed stream is damaged.
	ErrCorrupt = errors.New("the gzip stream is corrupt")
)

// Reader reads the rows of one file. One goroutine at a time may use it.
type Reader struct {
	name string
	opts Options
	in   *bufio.Reader
	raw  *countingReader // counts bytes before decompression
	size int64           // of the file; 0: unknown
	path string          // of a regular file, which can be read again
	file io.Closer

	key, time, amount *spec
	bin, value        *spec          // one of them
	fields            []string       // of the current row
	names             []string       // of JSON fields
	columns           int            // how many columns the header names; 0 without a header
	line              uint64         // lines read so far
	sum               uint64         // hash of those lines
	ahead             uint64         // hash of those lines and of the lines that were read ahead
	unended           uint64         // number of a last line without a line end
	empty             uint64         // rows left out by SkipEmpty
	pending           []bufferedLine // lines that were read ahead
	times             *timeReader
	foundHeader       uint64 // hash up to a header that neither an option nor the name of a column said was one
	buf               []byte
	err               error // the error that ended the reading
}

// bufferedLine is a line that was read ahead and will be returned again.
type bufferedLine struct {
	line string
	err  error  // a *Refused, if any
	sum  uint64 // hash of the file up to this line
}

// countingReader counts the bytes that are read. Other goroutines may load n at any time.
type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Open opens a file for reading; "-" is the standard input. The first bytes of the file say how it is compressed. The
// caller closes the Reader.
func Open(path string, opts Options) (*Reader, error) {
	if path == "-" {
		return NewReader(os.Stdin, "stdin", opts)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := open(f, path, opts)
	if err != nil {
		_ = f.Close() // opened for reading
		return nil, err
	}
	return r, nil
}

func open(f *os.File, path string, opts Options) (*Reader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("open %s: it is a directory", path)
	}
	r, err := NewReader(f, path, opts)
	if err != nil {
		return nil, err
	}
	r.file = f
	if info.Mode().IsRegular() {
		r.size, r.path = info.Size(), path
	}
	return r, nil
}

// NewReader reads rows from in. name is the name of the file: it may decide the format, and errors show it.
func NewReader(in io.Reader, name string, opts Options) (*Reader, error) {
	if opts.LineMax <= 0 {
		opts.LineMax = LineMaxDefault
	}
	r := &Reader{name: name, opts: opts, raw: &countingReader{r: in}}
	if err := r.parseSpecs(); err != nil {
		return nil, err
	}
	if err := r.decompress(); err != nil {
		return nil, err
	}
	if err := r.begin(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

func (r *Reader) parseSpecs() (err error) {
	if r.times, err = newTimeReader(&r.opts); err != nil {
		return err
	}
	if r.opts.Header && r.opts.NoHeader {
		return columnErrorf("the first line holds names or is a row: --header or --no-header")
	}
	if r.key, err = parseSpec("key", r.opts.Key); err != nil {
		return err
	}
	if r.opts.Value != "" {
		r.value, err = parseSpec("value", r.opts.Value)
	} else {
		r.bin, err = parseSpec("bin", r.opts.Bin)
	}
	if err != nil {
		return err
	}
	if r.opts.Time != "" {
		if r.time, err = parseSpec("time", r.opts.Time); err != nil {
			return err
		}
	}
	if r.opts.Amount != "" {
		r.amount, err = parseSpec("amount", r.opts.Amount)
	}
	for _, s := range []*spec{r.key, r.bin, r.time, r.amount, r.value} {
		if s != nil {
			s.times = r.times
		}
	}
	return err
}

// archives are formats that are not text, with the bytes that they begin with.
var archives = []struct{ magic, name string }{
	{"PK\x03\x04", "a zip archive"},
	{"\x28\xb5\x2f\xfd", "zstd-compressed"},
	{"BZh", "bzip2-compressed"},
	{"\xfd7zXZ\x00", "xz-compressed"},
	{"PAR1", "a Parquet file"},
	{"SQLite format 3\x00", "an SQLite database"},
}

func (r *Reader) decompress() error {
	in := bufio.NewReaderSize(r.raw, 64<<10)
	head, err := in.Peek(2)
	if err == nil && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, gzipError(err))
		}
		in = bufio.NewReaderSize(z, 64<<10)
	} else if strings.HasSuffix(r.name, ".gz") && len(head) > 0 {
		return fmt.Errorf("%s: %w: it does not begin like one", r.name, ErrCorrupt)
	}
	r.in = in
	return nil
}

// begin looks at the first lines: whether the file is text, its format, and whether it has a header.
func (r *Reader) begin() error {
	first, err := r.peek()
	if err == io.EOF {
		return nil // no rows
	}
	if err != nil {
		return err
	}
	head := first.line
	if first.err != nil { // too long: the beginning that was kept shows what the file is
		head = string(r.buf)
	}
	if err := textual(head); err != nil {
		return fmt.Errorf("line 1: %w", err)
	}
	first.line, head = strings.TrimPrefix(first.line, "\ufeff"), strings.TrimPrefix(head, "\ufeff")
	if r.opts.Format == ByName {
		r.opts.Format = formatOf(r.name, head)
	}
	if r.opts.Format == JSONLines {
		if err := checkOneLine(head); err != nil {
			return err
		}
		r.resolveJSON()
		return nil
	}
	header := *first // a copy: further lines may be read ahead
	has, err := r.hasHeader(header.line)
	if err != nil {
		return err
	}
	if !has {
		return r.resolve(nil)
	}
	r.pending, r.line, r.sum = r.pending[1:], 1, header.sum
	if header.err != nil {
		return header.err
	}
	return r.takeHeader(header.line)
}

// checkOneLine refuses JSON whose first line is not a whole object: an array, or an object over several lines.
func checkOneLine(first string) error {
	text, way := strings.TrimSpace(first), ""
	switch {
	case strings.HasPrefix(text, "["):
		text, way = "an array", "jq -c '.[]'"
	case text == "{":
		text, way = "an object over several lines", "jq -c ."
	default:
		return nil
	}
	return columnErrorf("line 1: it begins %s, and JSON lines have an object on each line: "+
		"%s FILE | ebb import - --format jsonl", text, way)
}

// peek reads one more line ahead. A refused line counts as one.
func (r *Reader) peek() (*bufferedLine, error) {
	at := r.line
	r.line += uint64(len(r.pending))
	line, err := r.nextLine()
	r.line = at
	var refused *Refused
	if err != nil && !errors.As(err, &refused) {
		return nil, err
	}
	r.pending = append(r.pending, bufferedLine{line, err, r.ahead})
	return &r.pending[len(r.pending)-1], nil
}

// textual returns an error if the first line shows that the file is not text.
func textual(line string) error {
	for _, a := range archives {
		if strings.HasPrefix(line, a.magic) {
			return fmt.Errorf("%w: it is %s", ErrBinary, a.name)
		}
	}
	if strings.IndexByte(line, 0) >= 0 {
		return fmt.Errorf("%w: there is a NUL byte in it", ErrBinary)
	}
	return nil
}

func formatOf(name, first string) Format {
	name = strings.TrimSuffix(strings.ToLower(name), ".gz")
	switch filepath.Ext(name) {
	case ".tsv", ".tab":
		return TSV
	case ".csv":
		return CSV
	case ".json", ".jsonl", ".ndjson":
		return JSONLines
	}
	switch {
	case strings.HasPrefix(strings.TrimSpace(first), "{"), strings.TrimSpace(first) == "[", strings.HasPrefix(first, "[{"):
		return JSONLines
	case strings.IndexByte(first, '\t') >= 0:
		return TSV
	}
	return CSV
}

// hasHeader reports whether the first line holds names.
func (r *Reader) hasHeader(first string) (bool, error) {
	switch {
	case r.opts.NoHeader:
		return false, nil
	case r.opts.Header || r.key.named() || r.bin.named() || r.time.named() || r.amount.named() || r.value.named():
		return true, nil
	case !r.numbered():
		return false, nil
	}
	has, err := r.headed(first)
	if has {
		r.foundHeader = r.pending[0].sum
	}
	return has, err
}

// numbered reports whether a column is given by its number.
func (r *Reader) numbered() bool {
	for _, s := range []*spec{r.key, r.bin, r.time, r.amount, r.value} {
		if s == nil {
			continue
		}
		for i := range s.parts {
			if !s.parts[i].isLiteral() {
				return true
			}
		}
	}
	return false
}

func (r *Reader) takeHeader(line string) error {
	fields, err := r.split(line, nil)
	if err != nil {
		return fmt.Errorf("line 1: %w", err)
	}
	r.columns = len(fields)
	return r.resolve(fields)
}

func (r *Reader) resolve(header []string) error {
	return errors.Join(r.key.resolve("key", header), r.bin.resolve("bin", header),
		r.time.resolve("time", header), r.amount.resolve("amount", header), r.value.resolve("value", header))
}

// resolveJSON gives each field that a spec names an index in fields.
func (r *Reader) resolveJSON() {
	for _, s := range []*spec{r.key, r.bin, r.time, r.amount, r.value} {
		if s == nil {
			continue
		}
		for i := range s.parts {
			p := &s.parts[i]
			if p.isLiteral() {
				continue
			}
			if p.column = slices.Index(r.names, p.field); p.column < 0 {
				p.column = len(r.names)
				r.names = append(r.names, p.field)
			}
		}
	}
}

// Next returns the next row. At the end the error is io.EOF. For a line that cannot be used the error is a *Refused,
// and the next call continues after it. Any other error names the file and the line, and ends the reading.
func (r *Reader) Next() (Row, error) {
	if r.err != nil {
		return Row{}, r.err
	}
	for {
		row, err := r.next()
		var refused *Refused
		switch {
		case err == errSkip:
			continue
		case err == nil || errors.As(err, &refused):
			return row, err
		case err != io.EOF:
			err = fmt.Errorf("%s: %w", r.name, err)
		}
		r.err = err
		return Row{}, err
	}
}

// errSkip says that a line is left out without an error.
var errSkip = errors.New("skip")

func (r *Reader) next() (Row, error) {
	line, err := r.record()
	var refused *Refused
	if errors.As(err, &refused) {
		return Row{Offset: refused.Line}, err
	}
	if err != nil {
		return Row{}, err
	}
	start := r.line - uint64(strings.Count(line, "\n"))
	if line == "" {
		return Row{}, errSkip
	}
	row, err := r.parse(line)
	row.Offset, row.last, row.sum = start, r.line, r.sum
	switch {
	case err == errSkip:
		r.empty++
		return Row{}, err
	case err != nil:
		return Row{Offset: start}, &Refused{Line: start, Reason: err}
	}
	return row, nil
}

// Bytes returns how many bytes of the file have been read, before decompression.
// It may be called by another goroutine.
func (r *Reader) Bytes() int64 { return r.raw.n.Load() }

// Size returns the file's size in bytes, and 0 if it is not known.
func (r *Reader) Size() int64 { return r.size }

// Empty returns how many rows SkipEmpty has left out.
func (r *Reader) Empty() uint64 { return r.empty }

// Unended returns the number of the last line if it was reached and has no line end, and 0 otherwise. If the file is
// still being written, that line may become longer.
func (r *Reader) Unended() uint64 { return r.unended }

// Regular reports whether Open opened a regular file, which can be read twice, and not a pipe.
func (r *Reader) Regular() bool { return r.path != "" }

// Header reports whether the first line was taken for a header although neither an option nor the name of a column says
// so.
func (r *Reader) Header() bool { return r.foundHeader != 0 }

// Unzoned returns the first time that names no zone, if no option names one; "" if there was no such time.
func (r *Reader) Unzoned() string { return r.times.unzoned }

// Name returns the name that the Reader was given.
func (r *Reader) Name() string { return r.name }

// Close closes the file that Open opened.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
