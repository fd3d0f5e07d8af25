package load

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebbdb/ebb/client"
)

func TestMain(m *testing.M) {
	// memberlist's last probe outlives its Shutdown by up to a few seconds
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// read returns the rows of a text, one to a line, errors among them.
func read(t *testing.T, name, text string, opts Options) string {
	t.Helper()
	r, err := NewReader(strings.NewReader(text), name, opts)
	if err != nil {
		return "open: " + err.Error() + "\n"
	}
	var b strings.Builder
	for {
		row, err := r.Next()
		var refused *Refused
		switch {
		case err == io.EOF:
			if r.Empty() > 0 {
				fmt.Fprintf(&b, "%d empty\n", r.Empty())
			}
			return b.String()
		case errors.As(err, &refused):
			fmt.Fprintf(&b, "refused %s\n", err)
		case err != nil:
			fmt.Fprintf(&b, "error %s\n", err)
			return b.String()
		default:
			fmt.Fprintf(&b, "%d %q %q %g", row.Offset, row.Key, row.Bin, row.Amount)
			if !row.Time.IsZero() {
				fmt.Fprintf(&b, " %s", row.Time.UTC().Format(time.RFC3339Nano))
			}
			b.WriteByte('\n')
		}
	}
}

func TestReader(t *testing.T) {
	clicks := Options{Key: "clicks/{g}", Bin: "country", Time: "t"}
	tests := []struct {
		what, name, text string
		opts             Options
		want             string
	}{
		{
			"columns by name, an empty bin, a template key", "a.tsv",
			"t\tcountry\tg\n1331923247\tUS\tabc\n1331923248\t\tdef\n", clicks,
			`2 "clicks/abc" "US" 1 2012-03-16T18:40:47Z` + "\n" + `3 "clicks/def" "-" 1 2012-03-16T18:40:48Z` + "\n",
		},
		{
			"columns by number need no header", "a.tsv", "x\tUS\t3\ny\tGB\t4.5\n",
			Options{Key: "1", Bin: "2", Amount: "3"},
			"1 \"x\" \"US\" 3\n2 \"y\" \"GB\" 4.5\n",
		},
		{
			"empty bins can be skipped", "a.tsv", "k\tb\nx\t\nx\tUS\n",
			Options{Key: "k", Bin: "b", SkipEmpty: true},
			"3 \"x\" \"US\" 1\n1 empty\n",
		},
		{
			"a constant key, and a last line without an end", "a.csv", "b\nUS\nGB",
			Options{Key: "=all", Bin: "b"},
			"2 \"all\" \"US\" 1\n3 \"all\" \"GB\" 1\n",
		},
		{
			"quotes in CSV", "a.csv", "k,b\n\"a,b\",\"say \"\"hi\"\"\"\n\"two\nlines\",US\nx,GB\n",
			Options{Key: "k", Bin: "b"},
			"2 \"a,b\" \"say \\\"hi\\\"\" 1\n3 \"two\\nlines\" \"US\" 1\n5 \"x\" \"GB\" 1\n",
		},
		{
			"quotes gone wrong", "a.csv", "k,b\nx\"y,US\nx,GB\n\"never,US\nx,GB\n",
			Options{Key: "k", Bin: "b"},
			"refused line 2: malformed: a quote in a field that does not begin with one\n3 \"x\" \"GB\" 1\n" +
				"refused line 4: malformed: a quote is not closed\n5 \"x\" \"GB\" 1\n",
		},
		{
			"a quote that is never closed costs its own line, also where other lines have quotes", "a.csv",
			"k,b\n\"never,US\nx,GB\ny,\"F\nR\"\n\"z\",US\nw,\"US\n\"v\",\"GB\"\nu,FR",
			Options{Key: "k", Bin: "b"},
			"refused line 2: malformed: text after a closing quote\n3 \"x\" \"GB\" 1\n4 \"y\" \"F\\nR\" 1\n6 \"z\" \"US\" 1\n" +
				"refused line 7: malformed: text after a closing quote\n8 \"v\" \"GB\" 1\n9 \"u\" \"FR\" 1\n",
		},
		{
			"a record in quotes is no longer than a line", "a.csv",
			"k,b\n\"a" + strings.Repeat("\nx,GB", 4) + "\n\"b\nb\",US\n\"c\n" + strings.Repeat("y", 30) + "\nd\",US\n",
			Options{Key: "k", Bin: "b", LineMax: 20},
			"refused line 2: malformed: a quote is not closed within 20 bytes\n" +
				"3 \"x\" \"GB\" 1\n4 \"x\" \"GB\" 1\n5 \"x\" \"GB\" 1\n6 \"x\" \"GB\" 1\n7 \"b\\nb\" \"US\" 1\n" +
				"refused line 9: malformed: a quote is not closed within 20 bytes\nrefused line 10: too long: the limit of a line is 20 bytes\n" +
				"refused line 11: malformed: a quote in a field that does not begin with one\n",
		},
		{
			"a bare quote", "a.csv", "k,b\nx\"y\",US\n\"x\"y,US\nx,GB\n",
			Options{Key: "k", Bin: "b"},
			"refused line 2: malformed: a quote in a field that does not begin with one\n" +
				"refused line 3: malformed: text after a closing quote\n4 \"x\" \"GB\" 1\n",
		},
		{
			"JSON lines", "a.jsonl",
			`{"g":"abc","geo":{"c":"US"},"t":1331923247,"n":2}` + "\n" +
				`{"g":"abc","geo":{"c":null},"t":"2012-03-16T18:40:47Z","n":1}` + "\n" +
				`{"geo":{"c":"US"},"t":1,"n":1}` + "\n[1]\n{\"g\":{},\"geo\":null,\"t\":1,\"n\":1}\n",
			Options{Key: "g", Bin: "geo.c", Time: "t", Amount: "n"},
			`1 "abc" "US" 2 2012-03-16T18:40:47Z` + "\n" + `2 "abc" "-" 1 2012-03-16T18:40:47Z` + "\n" +
				"refused line 3: no field \"g\"; there are \"geo\", \"n\", \"t\"\n" +
				"refused line 4: malformed: an array; each line must be an object {...}\n" +
				"refused line 5: malformed: field g is an object or a list\n",
		},
		{
			"formats told by their first line", "", "{\"k\":\"a\",\"b\":\"c\"}\n", Options{Key: "k", Bin: "b"}, "1 \"a\" \"c\" 1\n",
		},
		{
			"more columns than the header names: the last may be empty", "a.csv",
			"k,b\nx,US,\nx,Korea, Republic of\nx,\"Korea, Republic of\"\n",
			Options{Key: "k", Bin: "b"},
			"2 \"x\" \"US\" 1\n" +
				"refused line 3: 3 columns, and the header names 2: a text with a comma in it stands in quotes\n" +
				"4 \"x\" \"Korea, Republic of\" 1\n",
		},
		{
			"more columns than the header names, without a header", "a.csv", "x,US,1\nx,GB\n",
			Options{Key: "1", Bin: "2", NoHeader: true},
			"1 \"x\" \"US\" 1\n2 \"x\" \"GB\" 1\n",
		},
		{
			"CRLF, a byte-order mark, blank lines", "a.csv", "\ufeffk,b\r\na,US\r\n\r\nb,GB\r\n",
			Options{Key: "k", Bin: "b"},
			"2 \"a\" \"US\" 1\n4 \"b\" \"GB\" 1\n",
		},
		{
			"lines that cannot be used", "a.tsv",
			"t\tcountry\tg\nsoon\tUS\tabc\n1331923247\tUS\n-5\tUS\tabc\n\tUS\tabc\n1331923247\tUS\t\n1331923247\tU\x00S\tabc\n" +
				"1331923247\t" + strings.Repeat("b", 257) + "\tabc\n1331923247\tUS\t" + strings.Repeat("k", 600) + "\n1\tUS\tabc\n", clicks,
			"refused line 2: bad time \"soon\": it is not a number, nor like 2006-01-02T15:04:05Z; --time-format describes others\n" +
				"refused line 3: not enough columns: 2, and g is number 3\n" +
				"refused line 4: bad time \"-5\": it is before 1970\n" +
				"refused line 5: bad time: it is empty\n" +
				"refused line 6: column g is empty (--skip-empty leaves such rows out)\n" +
				"refused line 7: malformed: not a text file: there is a NUL byte in it\n" +
				"refused line 8: bin of 257 bytes: the limit is 256 (EBB-2003)\n" +
				"refused line 9: key of 607 bytes: the limit is 512 (EBB-2002)\n" +
				`10 "clicks/abc" "US" 1 1970-01-01T00:00:01Z` + "\n",
		},
		{
			"amounts", "a.csv", "k,b,n\nx,b,1e3\nx,b,NaN\nx,b,Inf\nx,b,many\nx,b,1e300\nx,b,-2\n",
			Options{Key: "k", Bin: "b", Amount: "n"},
			"2 \"x\" \"b\" 1000\n" +
				"refused line 3: amount is NaN: it must be a finite number (EBB-2004)\n" +
				"refused line 4: amount is infinite: it must be a finite number (EBB-2004)\n" +
				"refused line 5: bad amount \"many\": it is not a number\n" +
				"refused line 6: amount 1e+300: the limit is 1e+15 (EBB-2004)\n7 \"x\" \"b\" -2\n",
		},
		{
			"a line that is too long", "a.tsv", "k\tb\nx\t" + strings.Repeat("y", 200) + "\nx\tGB\n",
			Options{Key: "k", Bin: "b", LineMax: 100},
			"refused line 2: too long: the limit of a line is 100 bytes\n3 \"x\" \"GB\" 1\n",
		},
		{
			"no such column", "a.tsv", "t\tcountry\n1\tUS\n",
			Options{Key: "gg", Bin: "country"},
			"open: a.tsv: key \"gg\": no column \"gg\"; there are t, country (a constant is written =gg)\n",
		},
		{
			"no such column in a key of several parts", "a.tsv", "t\tcountry\n1\tUS\n",
			Options{Key: "all/{gg}", Bin: "country"},
			"open: a.tsv: key \"all/{gg}\": no column \"gg\"; there are t, country\n",
		},
		{"column zero", "a.tsv", "x\ty\n", Options{Key: "0", Bin: "1"}, "open: a.tsv: key \"0\": columns are numbered from 1\n"},
		{"no key", "a.tsv", "x\ty\n", Options{Bin: "1"}, "open: key: no column is named\n"},
		{"half a template", "a.tsv", "x\ty\n", Options{Key: "a{b", Bin: "1"}, "open: key \"a{b\": '{' without '}'\n"},
		{"an empty file", "a.tsv", "", Options{Key: "k", Bin: "b"}, ""},
		{"a zip file", "a.tsv", "PK\x03\x04rest", Options{Key: "k", Bin: "b"}, "open: a.tsv: line 1: not a text file: it is a zip archive\n"},
		{"a binary file", "a", "\x7fELF\x02\x00\x00", Options{Key: "k", Bin: "b"}, "open: a: line 1: not a text file: there is a NUL byte in it\n"},
		{"no gzip in spite of its name", "a.gz", "hello", Options{Key: "k", Bin: "b"}, "open: a.gz: the gzip stream is corrupt: it does not begin like one\n"},
	}
	for _, test := range tests {
		if got := read(t, test.name, test.text, test.opts); got != test.want {
			t.Errorf("%s:\n%s\nnot\n%s", test.what, got, test.want)
		}
	}
}

// A last line without an end is a row and is known as one, or is left out.
func TestUnended(t *testing.T) {
	tests := []struct {
		text    string
		whole   bool
		want    string
		unended uint64
	}{
		{"x,y\n", false, "1 \"x\" \"y\" 1\n", 0},
		{"x,y\nz,y", false, "1 \"x\" \"y\" 1\n2 \"z\" \"y\" 1\n", 2},
		{"x,y\n", true, "1 \"x\" \"y\" 1\n", 0},
		{"x,y\nz,y", true, "1 \"x\" \"y\" 1\n", 2},
		{"x,y\n\"z\nz\nz,y\n", true, "1 \"x\" \"y\" 1\n", 2},
		{"x,y", true, "", 1},
	}
	for _, test := range tests {
		opts := Options{Key: "1", Bin: "2", WholeLines: test.whole}
		if got := read(t, "a.csv", test.text, opts); got != test.want {
			t.Errorf("%q: %s", test.text, got)
		}
		r, err := NewReader(strings.NewReader(test.text), "a.csv", opts)
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF || r.Unended() != test.unended {
			t.Errorf("%q: line %d, %v", test.text, r.Unended(), err)
		}
	}
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGzip(t *testing.T) {
	var text strings.Builder
	text.WriteString("k\tb\n")
	for i := range 5000 {
		fmt.Fprintf(&text, "key-%d\tbin-%x\n", i*7919%5000, i*i)
	}
	whole := zipped(t, text.String())
	opts := Options{Key: "k", Bin: "b"}
	drain := func(b []byte, name string) (int, error) {
		r, err := NewReader(bytes.NewReader(b), name, opts)
		if err != nil {
			return 0, err
		}
		for n := 0; ; n++ {
			if _, err := r.Next(); err != nil {
				if again, same := r.Next(); same != err || again != (Row{}) {
					t.Errorf("after %v: %v", err, same)
				}
				return n, err
			}
		}
	}
	for _, name := range []string{"a.tsv.gz", "stdin"} { // told by the first bytes
		if n, err := drain(whole, name); n != 5000 || err != io.EOF {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	n, err := drain(whole[:len(whole)/2], "a.tsv.gz")
	if !errors.Is(err, ErrTruncated) || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), fmt.Sprintf("a.tsv.gz: line %d: ", n+2)) {
		t.Errorf("truncated after %d rows: %v", n, err)
	}
	quoted := zipped(t, "k,b\n"+strings.Repeat("x,y\n", 5000)+"\"in quotes"+strings.Repeat("\na,b", 5000))
	if n, err := drain(quoted[:len(quoted)-12], "a.csv.gz"); n != 5000 || !errors.Is(err, ErrTruncated) {
		t.Errorf("truncated in quotes after %d rows: %v", n, err)
	}
	broken := bytes.Clone(whole)
	broken[len(broken)-6] ^= 0x55
	if _, err := drain(broken, "a.tsv.gz"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("corrupt: %v", err)
	}
	if _, err := drain(whole[:5], "a.tsv.gz"); !errors.Is(err, ErrTruncated) {
		t.Errorf("cut in the header: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tsv.gz")
	content := zipped(t, "k\tb\nx\ty\nx\tz\n")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{Key: "k", Bin: "b"}
	r, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	name := r.SourceName("ns")
	if !r.Regular() {
		t.Error("a file that cannot be read again")
	}
	for range 2 {
		if row, err := r.Next(); err != nil || row.Key != "x" {
			t.Fatal(row, err)
		}
	}
	if r.Size() != int64(len(content)) || r.Bytes() != r.Size() || r.line != 3 {
		t.Errorf("%d of %d bytes, line %d", r.Bytes(), r.Size(), r.line)
	}
	if !strings.HasPrefix(name, "import/ns/a.tsv/") {
		t.Errorf("source name %q", name)
	}
	again, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if n := again.SourceName("ns"); n != name {
		t.Errorf("source names %q and %q", n, name)
	}
	if n := again.SourceName("other"); n == name {
		t.Errorf("two namespaces, one source name %q", n)
	}
	other, err := NewReader(strings.NewReader("k\tb\nother\ty\n"), path[:len(path)-3], opts)
	if err != nil {
		t.Fatal(err)
	}
	if n := other.SourceName("ns"); n == name {
		t.Errorf("two files, one source name %q", n)
	}
	if other.Regular() {
		t.Error("a stream that can be read again")
	}
	for _, changed := range []Options{
		{Key: "k", Bin: "b", SkipEmpty: true}, {Key: "1", Bin: "2", NoHeader: true}, {Key: "k", Bin: "=b"},
	} {
		r, err := NewReader(bytes.NewReader(content), path, changed)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.SourceName("ns"); n == name {
			t.Errorf("%+v: the same source name", changed)
		}
	}
	if row, err := other.Next(); err != nil || row.Key != "other" || row.Offset != 2 {
		t.Errorf("%+v %v: the name has eaten a row", row, err)
	}
	if _, err := Open(filepath.Join(dir, "none"), opts); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Open(dir, opts); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Error(err)
	}
}

func TestTimes(t *testing.T) {
	tests := []struct {
		text string
		unit TimeUnit
		want string
	}{
		{"1331923247", Autodetect, "2012-03-16T18:40:47Z"},
		{"1331923247000", Autodetect, "2012-03-16T18:40:47Z"},
		{"1331923247000001", Autodetect, "2012-03-16T18:40:47.000001Z"},
		{"1331923247.25", Autodetect, "2012-03-16T18:40:47.25Z"},
		{"1331923247.7", Autodetect, "2012-03-16T18:40:47.7Z"},
		{"1.331923247e9", Autodetect, "2012-03-16T18:40:47Z"},
		{" 5 ", Seconds, "1970-01-01T00:00:05Z"},
		{"5", Milliseconds, "1970-01-01T00:00:00.005Z"},
		{"5", Microseconds, "1970-01-01T00:00:00.000005Z"},
		{"1331923247000", Seconds, "out of range"},
		{"99999999999999999999", Autodetect, "out of range"},
		{"2012-03-16T18:40:47Z", Autodetect, "2012-03-16T18:40:47Z"},
		{"2012-03-16T20:40:47.5+02:00", Autodetect, "2012-03-16T18:40:47.5Z"},
		{"2012-03-16 18:40:47", RFC3339, "2012-03-16T18:40:47Z"},
		{"2012-03-16", Autodetect, "2012-03-16T00:00:00Z"},
		{"1331923247", RFC3339, "not like"},
		{"2012-03-16T18:40:47Z", Milliseconds, "2012-03-16T18:40:47Z"},
		{"2012-03-16", Seconds, "2012-03-16T00:00:00Z"},
		{"5e-1", Seconds, "1970-01-01T00:00:00.5Z"},
		{"5e-1", Autodetect, "1970-01-01T00:00:00.5Z"},
		{"1969-12-31T23:59:59Z", Autodetect, "before 1970"},
		{"-0.5", Autodetect, "before 1970"},
		{"NaN", Autodetect, "not a number"},
		{"1.5.2", Autodetect, "not a number"},
		{"-", Autodetect, "not a number"},
		{"", Autodetect, "empty"},
	}
	for _, test := range tests {
		at, err := (&timeReader{unit: test.unit}).parse(test.text)
		got := at.UTC().Format(time.RFC3339Nano)
		if err != nil {
			got = err.Error()
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
			t.Errorf("%q: %s, not %s", test.text, got, test.want)
		}
	}
}

func TestNamesOfFormatsAndUnits(t *testing.T) {
	for _, name := range []string{"auto", "TSV", "csv", "jsonl"} {
		if _, err := ParseFormat(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"auto", "s", "ms", "us", "rfc3339"} {
		if _, err := ParseTimeUnit(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := ParseFormat("xls"); err == nil {
		t.Error("xls is a format")
	}
	if _, err := ParseTimeUnit("week"); err == nil {
		t.Error("week is a unit")
	}
}

// FuzzReader: any bytes are rows, refused lines or an error, and line numbers grow.
func FuzzReader(f *testing.F) {
	f.Add([]byte("t\tk\tb\n1\tx\ty\n"), uint8(0))
	f.Add([]byte("k,b\n\"a\nb\",c\n"), uint8(1))
	f.Add([]byte(`{"k":"a","b":{"c":1}}`), uint8(2))
	f.Add([]byte("\x1f\x8b\x08"), uint8(3))
	options := []Options{
		{Format: TSV, Key: "{1}/x", Bin: "2", Time: "3", LineMax: 64},
		{Format: CSV, Key: "k", Bin: "b", LineMax: 64},
		{Format: JSONLines, Key: "k", Bin: "b.c", Amount: "n", LineMax: 64},
		{Key: "1", Bin: "2", SkipEmpty: true, LineMax: 64},
	}
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		r, err := NewReader(bytes.NewReader(b), "fuzz", options[int(which)%len(options)])
		if err != nil {
			return
		}
		last := uint64(0)
		for {
			row, err := r.Next()
			var refused *Refused
			if err != nil && !errors.As(err, &refused) {
				return
			}
			if row.Offset <= last || row.Offset > r.line {
				t.Fatalf("line %d after %d, %d read", row.Offset, last, r.line)
			}
			last = row.Offset
			if err == nil && (row.Key == "" || row.Bin == "" || len(row.Key) > 512) {
				t.Fatalf("%+v", row)
			}
		}
	})
}

// FuzzSplitCommas: what encoding/csv reads, we read the same.
func FuzzSplitCommas(f *testing.F) {
	for _, s := range []string{"a,b", `"a,b",c`, `"a""b"`, `a"b`, `"a"b`, `"`, ",", `"",""`, "\"a\nb\",c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, record string) {
		for i := range len(record) {
			if record[i] == '\r' {
				return
			}
		}
		lines, open := strings.Split(record, "\n"), false
		for i, line := range lines {
			if i > 0 && !open {
				return // not one record
			}
			open, _ = quotes(line, open)
		}
		if record == "" {
			return
		}
		r := csv.NewReader(strings.NewReader(record))
		want, wantErr := r.Read()
		if _, err := r.Read(); wantErr == nil && err != io.EOF {
			return // more than one record
		}
		got, err := splitCommas(record, nil)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v, encoding/csv says %v", record, err, wantErr)
		}
		if err == nil && strings.Join(got, "\x1f") != strings.Join(want, "\x1f") {
			t.Fatalf("%q: %q, encoding/csv says %q", record, got, want)
		}
	})
}

func FuzzTime(f *testing.F) {
	for _, s := range []string{"1331923247", "2012-03-16T18:40:47Z", "-1", "1e9", "1.5", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for unit := Autodetect; unit <= RFC3339; unit++ {
			if at, err := (&timeReader{unit: unit}).parse(text); err == nil && (at.UnixMicro() < 0 || at.Year() > 9999) {
				t.Fatalf("%q: %s", text, at)
			}
		}
	})
}

func TestClicks(t *testing.T) {
	noonInNewYork := time.Date(2013, 3, 1, 17, 0, 0, 0, time.UTC)
	noonInTokyo := time.Date(2013, 3, 1, 3, 0, 0, 0, time.UTC)
	share := func(at time.Time, country string) float64 {
		c := NewClicks(1)
		n, known := 0, 0
		for range 40_000 {
			switch c.Next(at).Country {
			case country:
				n++
				known++
			case EmptyBin:
			default:
				known++
			}
		}
		return float64(n) / float64(known)
	}
	if day, night := share(noonInTokyo, "JP"), share(noonInNewYork, "JP"); day < 2*night {
		t.Errorf("Japan does not follow the sun: %g by day, %g by night", day, night)
	}
	if us := share(noonInNewYork, "US"); us < 0.65 || us > 0.8 {
		t.Errorf("%g of clicks from the US", us)
	}
	a, b, other := NewClicks(5), NewClicks(5), NewClicks(6)
	same := 0
	for i := range 1000 {
		at := noonInTokyo.Add(time.Duration(i) * time.Minute)
		x := a.Next(at)
		if x != b.Next(at) {
			t.Fatal("one seed, two streams")
		}
		if x == other.Next(at) {
			same++
		}
	}
	if same > 10 {
		t.Errorf("two seeds agree on %d of 1000 clicks", same)
	}
}

func TestClicksAreAsUnequalAsTheRealOnes(t *testing.T) {
	c := NewClicks(2)
	counts := map[string]int{}
	const n = 200_000
	at := time.Date(2013, 3, 1, 17, 0, 0, 0, time.UTC)
	for i := range n {
		counts[c.Next(at.Add(time.Duration(i)*100*time.Millisecond)).Link]++
	}
	first, hundred := counts[c.names[0]], 0
	for rank := range 100 {
		hundred += counts[c.names[rank]]
	}
	if share := float64(first) / n; share < 0.02 || share > 0.05 {
		t.Errorf("the first link has %g of the clicks; 0.039 is real", share)
	}
	if share := float64(hundred) / n; share < 0.35 || share > 0.55 {
		t.Errorf("the first hundred links have %g of the clicks; 0.49 is real", share)
	}
	if len(counts) < 10_000 {
		t.Errorf("%d links", len(counts))
	}
}

func BenchmarkClicks(b *testing.B) {
	c := NewClicks(1)
	at := time.Date(2013, 3, 1, 17, 0, 0, 0, time.UTC)
	for b.Loop() {
		c.Next(at)
	}
}

func BenchmarkReader(b *testing.B) {
	var text strings.Builder
	text.WriteString("t\tcountry\tg\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "%d\tUS\t%06d\n", 1331923247+i, i)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		r, err := NewReader(strings.NewReader(text.String()), "a.tsv", Options{Key: "clicks/{g}", Bin: "country", Time: "t"})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func ExampleNewReader() {
	file := strings.NewReader("t\tcountry\tg\n1331923247\tUS\tA6qOVH\n1331923249\t\tzCaLwp\n")
	r, err := NewReader(file, "clicks.tsv", Options{Key: "clicks/{g}", Bin: "country", Time: "t"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		row, err := r.Next()
		if err == io.EOF {
			break
		}
		fmt.Println(row.Offset, row.Key, row.Bin, row.Time.UTC(), err)
	}
	// Output:
	// 2 clicks/A6qOVH US 2012-03-16 18:40:47 +0000 UTC <nil>
	// 3 clicks/zCaLwp - 2012-03-16 18:40:49 +0000 UTC <nil>
}

func ExampleNewClicks() {
	clicks := NewClicks(1)
	at := time.Date(2013, 3, 1, 17, 0, 0, 0, time.UTC)
	click := clicks.Next(at)
	increment := client.One("clicks/"+click.Link, click.Country)
	fmt.Println(len(increment.Key), len(increment.Bin) > 0)
	// Output: 13 true
}
