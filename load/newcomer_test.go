package load

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Columns by number: the first line is a row or holds names as the lines below it say, and else the reader asks.
func TestHeaderOfNumberedColumns(t *testing.T) {
	byNumber := Options{Key: "1", Bin: "2"}
	names, row := byNumber, byNumber
	names.Header, row.NoHeader = true, true
	for _, test := range []struct {
		what, name, text string
		opts             Options
		want             string
	}{
		{"a name above a number", "a.csv", "link,n\na,1\nb,2\n", byNumber, "2 \"a\" \"1\" 1\n3 \"b\" \"2\" 1\n"},
		{"a name above a time", "a.tsv", "link\tt\na\t2001-01-01 00:47\n", byNumber, "2 \"a\" \"2001-01-01 00:47\" 1\n"},
		{"a name above a number in a column that is not asked for", "a.csv", "k,b,t\na,US,5\n", byNumber, "2 \"a\" \"US\" 1\n"},
		{"a number in the first line", "a.csv", "a,1\nb,2\n", byNumber, "1 \"a\" \"1\" 1\n2 \"b\" \"2\" 1\n"},
		{"a word that comes again", "a.csv", "a,US\nb,BR\nc,US\n", byNumber, "1 \"a\" \"US\" 1\n2 \"b\" \"BR\" 1\n3 \"c\" \"US\" 1\n"},
		{"a value that is missing, above a number", "a.csv", "a,-\na,1\n", byNumber, "1 \"a\" \"-\" 1\n2 \"a\" \"1\" 1\n"},
		{"one line", "a.csv", "a,US\n", byNumber, "1 \"a\" \"US\" 1\n"},
		{"words only", "a.csv", "link,country\na,US\n", byNumber, "open: a.csv: line 1 (\"link,country\") may hold the names of columns " +
			"or be a row: --header says that it holds names, --no-header that it is a row\n"},
		{"words only, said to be names", "a.csv", "link,country\na,US\n", names, "2 \"a\" \"US\" 1\n"},
		{"words only, said to be a row", "a.csv", "link,country\na,US\n", row, "1 \"link\" \"country\" 1\n2 \"a\" \"US\" 1\n"},
		{"names, said to be a row", "a.csv", "link,n\na,1\n", row, "1 \"link\" \"n\" 1\n2 \"a\" \"1\" 1\n"},
		{"no column at all", "a.csv", "link,country\na,US\n", Options{Key: "=k", Bin: "=b"}, "1 \"k\" \"b\" 1\n2 \"k\" \"b\" 1\n"},
		{"the second line without an end", "a.csv", "k,n\na,1", byNumber, "2 \"a\" \"1\" 1\n"},
	} {
		if got := read(t, test.name, test.text, test.opts); got != test.want {
			t.Errorf("%s:\n%s, not\n%s", test.what, got, test.want)
		}
	}
	r, err := NewReader(strings.NewReader("k,n\na,1"), "a.csv", byNumber)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != nil || r.Unended() != 2 || !r.Header() {
		t.Errorf("line %d without an end, header %v: %v", r.Unended(), r.Header(), err)
	}
}

// A source that was named when a header counted as a row keeps its name, and what was decided of it.
func TestFoundHeaderKeepsTheName(t *testing.T) {
	const text = "link,n\na,1\nb,2\n"
	opts := Options{Key: "1", Bin: "2"}
	found, err := NewReader(strings.NewReader(text), "a.csv", opts)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoHeader = true // as without the flag before
	row, err := NewReader(strings.NewReader(text), "a.csv", opts)
	if err != nil {
		t.Fatal(err)
	}
	row.opts.NoHeader = false
	if a, b := found.SourceName(""), row.SourceName(""); a != b {
		t.Errorf("%s, and before %s", a, b)
	}
	id := identity{salt: 1}
	id.points = checkpoints([]uint64{id.offset(1, found.foundHeader)})
	if _, err := id.reach(1, found.foundHeader); err != nil || len(id.points) > 0 {
		t.Errorf("a header that was decided as a row: %v, %d left", err, len(id.points))
	}
}

func TestFormatsOfTimes(t *testing.T) {
	berlin := time.FixedZone("+01:00", 3600)
	for _, test := range []struct {
		format string
		zone   *time.Location
		text   string
		want   string
	}{
		{"", nil, "2001-01-01 00:47", "2001-01-01T00:47:00Z"},
		{"", nil, "2001/01/01 00:47:05", "2001-01-01T00:47:05Z"},
		{"", nil, "2001-01-01 00:47 UTC", "2001-01-01T00:47:00Z"},
		{"", berlin, "2001-01-01 00:47 UTC", "2001-01-01T00:47:00Z"},
		{"", nil, "2026-11-20 18:49:58.880 UTC", "2026-11-20T18:49:58.88Z"},
		{"", nil, "2001-01-01T00:47:05+0200", "2000-12-31T22:47:05Z"},
		{"", nil, "2001-01-01 00:47:05 +02:00", "2000-12-31T22:47:05Z"},
		{"", berlin, "2001-01-01 00:47", "2000-12-31T23:47:00Z"},
		{"", berlin, "2001-01-01", "2000-12-31T23:00:00Z"},
		{"", berlin, "1363608000", "2013-03-18T12:00:00Z"},
		{"%d/%b/%Y:%H:%M:%S %z", nil, "10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36Z"},
		{"%d/%b/%Y:%H:%M:%S %z", nil, "10/Oct/2000:13:55:36 -07:00", "2000-10-10T20:55:36Z"},
		{"%Y%m%d", nil, "20150226", "2015-02-26T00:00:00Z"},
		{"%Y%m%d%H", berlin, "2015022614", "2015-02-26T13:00:00Z"},
		{"%F %T.%f", nil, "2015-02-26 13:00:00.25", "2015-02-26T13:00:00.25Z"},
		{"%m/%d/%y %I:%M %p", nil, "02/26/15 01:30 PM", "2015-02-26T13:30:00Z"},
		{"02.01.2006", nil, "26.02.2015", "2015-02-26T00:00:00Z"},
		{"%Y-%j", nil, "2015-057", "2015-02-26T00:00:00Z"},
		{"%Y%m%d", nil, "26.02.2015", `bad time "26.02.2015": it is not as --time-format says`},
		{"YYYY-MM-DD", nil, "", "it needs a year, a month and a day"},
		{"%H:%M", nil, "", "it needs a year, a month and a day"},
		{"%Y-%m-%d %Z", nil, "", "names of zones have several meanings"},
		{"%Y-%m-%d %Q", nil, "", "%Q is not known"},
		{"%s", nil, "", "--time-unit s"},
		{"20%y%m%d", nil, "", "digits that stand for themselves"},
		{"%Y-%m-%d %", nil, "", "at its end stands for nothing"},
		{"%Y-%m-%d %f", nil, "", "%f is read behind %S only"},
	} {
		times, err := newTimeReader(&Options{TimeFormat: test.format, Zone: test.zone})
		var at time.Time
		if err == nil {
			at, err = times.parse(test.text)
		}
		got := at.UTC().Format(time.RFC3339Nano)
		if err != nil {
			got = err.Error()
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
			t.Errorf("%q of %q in %v: %s, not %s", test.text, test.format, test.zone, got, test.want)
		}
	}
}

// Digits that form a date are refused with both readings, and taken once one is chosen.
func TestAmbiguousTimes(t *testing.T) {
	for _, text := range []string{"20150226", "201502261430", "20150226143005"} {
		_, err := ParseTime(text)
		var both *AmbiguousTime
		if !errors.As(err, &both) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		date, number := both.Readings()
		if !strings.HasPrefix(date, "2015-02-26") || strings.Contains(number, "2015") {
			t.Errorf("%s: %s or %s", text, date, number)
		}
		for _, chosen := range []Options{{TimeFormat: both.Format}, {TimeUnit: unitNames[both.Unit]}} {
			times, err := newTimeReader(&chosen)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := times.parse(text); err != nil {
				t.Errorf("%s with %+v: %v", text, chosen, err)
			}
		}
	}
	for _, text := range []string{"20151326", "12345678", "1363608000", "1363608000000", "2015022614", "99991231"} {
		if _, err := ParseTime(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A template makes keys of periods, in the zone of the times.
func TestPeriodsInTemplates(t *testing.T) {
	text := "t,song,t:day\n2011-11-01 23:30,x,y\n"
	for _, test := range []struct{ key, want string }{
		{"plays/{t:hour}", "plays/2011-11-01T23"},
		{"plays/{t:week}", "plays/2011-W44"},
		{"{t:month}", "2011-11"},
		{"{song}/{t:quarter}", "x/2011-Q4"},
		{"{t:year}", "2011"},
		{"{t:day}", "y"},
		{"{1:day}", "2011-11-01"},
	} {
		want := fmt.Sprintf("2 %q \"x\" 1\n", test.want)
		if got := read(t, "a.csv", text, Options{Key: test.key, Bin: "song"}); got != want {
			t.Errorf("%s: %s, not %s", test.key, got, want)
		}
	}
	zone := Options{Key: "{t:day}", Bin: "b", Zone: time.FixedZone("+02:00", 7200)}
	for text, want := range map[string]string{
		`{"t":"2011-11-01 23:30","b":"x"}`:  "2011-11-01",
		`{"t":"2011-11-01T23:30Z","b":"x"}`: "2011-11-02",
		`{"t":1320190200,"b":"x"}`:          "2011-11-02",
	} {
		if got := read(t, "a.jsonl", text, zone); !strings.Contains(got, `"`+want+`"`) {
			t.Errorf("%s: %s", text, got)
		}
	}
	if got := read(t, "a.csv", text, Options{Key: "{t:minute}", Bin: "song"}); !strings.Contains(got, "of a time {t:hour}, or day, week") {
		t.Error(got)
	}
	if got := read(t, "a.csv", "t,b\nsoon,x\n", Options{Key: "{t:day}", Bin: "b"}); !strings.HasPrefix(got, "refused line 2: bad time") {
		t.Error(got)
	}
}

// SkipEmpty leaves rows out whose bin, value or amount is empty.
func TestSkipEmptyNumbers(t *testing.T) {
	for _, test := range []struct {
		name, text string
		opts       Options
		want       string
	}{
		{"a.csv", "k,b,n\na,x,\na,y,2\n", Options{Key: "k", Bin: "b", Amount: "n", SkipEmpty: true}, "3 \"a\" \"y\" 2\n1 empty\n"},
		{"a.csv", "k,b,n\na,x,\n", Options{Key: "k", Bin: "b", Amount: "n"}, "refused line 2: bad amount: it is empty (--skip-empty leaves such rows out)\n"},
		{"a.csv", "k,v\na, \na,0.5\n", Options{Key: "k", Value: "v", Kind: 4, SkipEmpty: true}, "3 \"a\" \"\" 1\n1 empty\n"},
		{"a.jsonl", "{\"k\":\"a\",\"v\":null}\n{\"k\":\"a\"}\n", Options{Key: "k", Value: "v", Kind: 4, SkipEmpty: true}, "2 empty\n"},
	} {
		if got := read(t, test.name, test.text, test.opts); got != test.want {
			t.Errorf("%s: %s, not %s", test.text, got, test.want)
		}
	}
}

// JSON that is not JSON lines is refused with the way on.
func TestSpreadJSON(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a.json", "[{\"k\":1}]", "an array"}, {"", "[\n{\"k\":1}\n]", "an array"}, {"a.json", "{\n\"k\":1}", "an object over several lines"},
	} {
		got := read(t, test.name, test.text, Options{Key: "k", Bin: "k"})
		if !strings.Contains(got, "it begins "+test.want) || !strings.Contains(got, "jq -c") {
			t.Errorf("%s: %s", test.text, got)
		}
	}
	if got := read(t, "a.csv", "[x],b\n[y],c\n", Options{Key: "1", Bin: "2", NoHeader: true}); !strings.HasPrefix(got, "1 \"[x]\"") {
		t.Error(got)
	}
}

// A column of strings by number has a header as a reader's has.
func TestHeaderOfNames(t *testing.T) {
	names := func(text string, opts Options) string {
		var got []string
		err := ReadNames(bufio.NewReader(strings.NewReader(text)), "csv", "1", opts, func(_ int, name string) error {
			got = append(got, name)
			return nil
		})
		if err != nil {
			return err.Error()
		}
		return strings.Join(got, " ")
	}
	for _, test := range []struct {
		text string
		opts Options
		want string
	}{
		{"user,n\nann,1\n", Options{}, "ann"},
		{"ann,1\nbob,2\n", Options{}, "ann bob"},
		{"ann,a\nbob,a\n", Options{}, "ann bob"},
		{"user,day\nann,x\n", Options{}, errWordsOnly("user,day").Error()},
		{"user,day\nann,x\n", Options{Header: true}, "ann"},
		{"user,day\nann,x\n", Options{NoHeader: true}, "user ann"},
		{"", Options{}, ""},
		{"ann\n", Options{}, "ann"},
	} {
		if got := names(test.text, test.opts); got != test.want {
			t.Errorf("%q with %+v: %q, not %q", test.text, test.opts, got, test.want)
		}
	}
}

// FuzzTimeFormat: a format is refused, or it reads what it writes.
func FuzzTimeFormat(f *testing.F) {
	for _, s := range []string{"%d/%b/%Y:%H:%M:%S %z", "2006-01-02", "%Y%m%d", "%S.%f", "%", "MST"} {
		f.Add(s, "2015-02-26 13:00:00")
	}
	f.Fuzz(func(t *testing.T, format, text string) {
		times, err := newTimeReader(&Options{TimeFormat: format})
		if err != nil {
			return
		}
		if at, err := times.parse(text); err == nil && (at.UnixMicro() < 0 || at.Year() > 9999) {
			t.Fatalf("%q with %q: %s", text, format, at)
		}
	})
}
