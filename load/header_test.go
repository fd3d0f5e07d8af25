package load

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// Columns by number: the first line is a row or holds names as the lines below it say, and else the reader asks.
func TestHeaderOfNumberedColumns(t *testing.T) {
	byNumber := Options{Key: "1", Bin: "2"}
	asks := func(line string) string { return "open: a.csv: " + errUndecided(line).Error() + "\n" }
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
		{"years as names, above numbers", "a.csv", "year,2020\n2001,3\n2002,5\n", byNumber, "2 \"2001\" \"3\" 1\n3 \"2002\" \"5\" 1\n"},
		{"a name above a number, a number above a number", "a.csv", "year,2\n2001,3\n2002,5\n", byNumber, asks("year,2")},
		{"a word, and a year above counts", "a.csv", "country,2020\nFR,3\nUS,5\n", byNumber, asks("country,2020")},
		{"a word, and a year above a count in a later line", "a.csv", "country,2020\nFR,1999\nUS,5\n", byNumber, asks("country,2020")},
		{"a word, and a day above counts", "a.csv", "country,2020-01-02\nFR,3\n", byNumber, asks("country,2020-01-02")},
		{"nothing, and years above counts", "a.csv", ",2020,2021\nFR,3,4\n", byNumber, asks(",2020,2021")},
		{"years only, above counts", "a.csv", "2019,2020\n3,4\n", byNumber, asks("2019,2020")},
		{"a word, and 1, 2, 3", "a.csv", "shop,1,2,3\na,70,80,0\n", byNumber, asks("shop,1,2,3")},
		{"a year above years", "a.csv", "song,1997\nother,2001\n", byNumber, "1 \"song\" \"1997\" 1\n2 \"other\" \"2001\" 1\n"},
		{"a day above days", "a.csv", "a,2020-01-02\nb,2020-01-03\n", byNumber, "1 \"a\" \"2020-01-02\" 1\n2 \"b\" \"2020-01-03\" 1\n"},
		{"a year, and a word that comes again", "a.csv", "a,2020\na,5\n", byNumber, "1 \"a\" \"2020\" 1\n2 \"a\" \"5\" 1\n"},
		{"numbers only", "a.csv", "1,2\n3,4\n", byNumber, "1 \"1\" \"2\" 1\n2 \"3\" \"4\" 1\n"},
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
		{"%d %b %Y %k:%M:%S", nil, "18 Mar 1995 15:17:06", "1995-03-18T15:17:06Z"},
		{"%d %b %Y %k:%M:%S", nil, "18 Mar 1995  5:17:06", "1995-03-18T05:17:06Z"},
		{"%d/%b/%Y:%H:%M:%S %z", nil, "10/Oct/2000:13:55:36 -07:00", "2000-10-10T20:55:36Z"},
		{"%Y%m%d", nil, "20150226", "2015-02-26T00:00:00Z"},
		{"%Y%m%d%H", berlin, "2015022614", "2015-02-26T13:00:00Z"},
		{"%F %T.%f", nil, "2015-02-26 13:00:00.25", "2015-02-26T13:00:00.25Z"},
		{"%m/%d/%y %I:%M %p", nil, "02/26/15 01:30 PM", "2015-02-26T13:30:00Z"},
		{"02.01.2006", nil, "26.02.2015", "2015-02-26T00:00:00Z"},
		{"%b %d %Y", nil, "Jan 1 2000", "2000-01-01T00:00:00Z"},
		{"%b %d %Y", nil, "Jan 01 2000", "2000-01-01T00:00:00Z"},
		{"%m/%d/%Y %I:%M:%S.%f %p %z", nil, "2/6/2015 1:3:5.25 PM +0100", "2015-02-06T12:03:05.25Z"},
		{"%F %T%z", nil, "2015-2-6 1:3:5+01:00", "2015-02-06T00:03:05Z"},
		{"%Y_%m_%d", nil, "2015_02_26", "2015-02-26T00:00:00Z"},
		{"%Y%m%d", nil, "2015226", `bad time "2015226": it is not as --time-format says`},
		{"%Y", nil, "1997", "1997-01-01T00:00:00Z"},
		{"2006", berlin, "1997", "1996-12-31T23:00:00Z"},
		{"%m.%Y", nil, "3.1997", "1997-03-01T00:00:00Z"},
		{"%Y %H:%M", nil, "", "it needs a year; with a day or a time"},
		{"%Y-%j", nil, "2015-057", "2015-02-26T00:00:00Z"},
		{"%Y%m%d", nil, "26.02.2015", `bad time "26.02.2015": it is not as --time-format says`},
		{"YYYY-MM-DD", nil, "", "it needs a year; with a day or a time"},
		{"%H:%M", nil, "", "it needs a year; with a day or a time"},
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

// RFC 3339 allows a small t and z, and a leap second, which is refused with a reason.
func TestSmallLettersOfTimes(t *testing.T) {
	const want = "2016-12-31T23:59:59Z"
	for _, text := range []string{
		"2016-12-31t23:59:59z", "2016-12-31T23:59:59z", "2016-12-31t23:59:59Z", "2017-01-01t00:59:59+01:00",
		"2016-12-31 23:59:59z", "2016/12/31t23:59:59z",
	} {
		got, err := ParseTime(text)
		date, ok := ParseDate(text)
		if err != nil || got.UTC().Format(time.RFC3339) != want || !ok || !date.Equal(got) {
			t.Errorf("%s is %v, %v and %v, %v: want %s", text, got, err, date, ok, want)
		}
	}
	for _, text := range []string{"2016-12-31T23:59:60Z", "2016-12-31t23:59:60z", "2016-12-31 23:59:60"} {
		if _, err := ParseTime(text); err == nil || !strings.HasSuffix(err.Error(), proto.LeapSecond) {
			t.Errorf("%s: %v", text, err)
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

// So are years, which are numbers as well: as seconds they are minutes after 1970.
func TestAmbiguousYears(t *testing.T) {
	for _, text := range []string{"1000", "1997", "2999"} {
		_, err := ParseTime(text)
		var both *AmbiguousTime
		if !errors.As(err, &both) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		date, number := both.Readings()
		if date != text+"-01-01" || !strings.HasPrefix(number, "1970-01-01T00:") ||
			both.Format != "%Y" || both.Unit != "s" {
			t.Errorf("%s: %s or %s, %+v", text, date, number, both)
		}
	}
	for _, text := range []string{"0999", "999", "3000", "1997.5", "19970", "-1997"} {
		if _, err := ParseTime(text); errors.As(err, new(*AmbiguousTime)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	const want = `refused line 2: bad time "1997": it may be the year that begins on 1997-01-01, ` +
		`or 1997 seconds after 1970, ` +
		"which is 1970-01-01T00:33:17Z; say which with --time-format %Y or --time-unit s\n"
	if got := read(t, "a.csv", "y,b\n1997,x\n", Options{Key: "b", Bin: "b", Time: "y"}); got != want {
		t.Errorf("%s, not %s", got, want)
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

// SkipEmpty leaves rows out whose key, bin, value or amount is empty.
func TestSkipEmptyNumbers(t *testing.T) {
	for _, test := range []struct {
		name, text string
		opts       Options
		want       string
	}{
		{"a.csv", "k,b,n\na,x,\na,y,2\n", Options{Key: "k", Bin: "b", Amount: "n", SkipEmpty: true}, "3 \"a\" \"y\" 2\n1 empty\n"},
		{
			"a.csv", "k,b,n\na,x,1_0.5\n",
			Options{Key: "k", Bin: "b", Amount: "n"},
			"refused line 2: bad amount \"1_0.5\": it has underscores: write 1000 for 1_000\n",
		},
		{"a.csv", "k,b,n\na,x,\n", Options{Key: "k", Bin: "b", Amount: "n"}, "refused line 2: bad amount: it is empty (--skip-empty leaves such rows out)\n"},
		{"a.csv", "k,v\na, \na,0.5\n", Options{Key: "k", Value: "v", Kind: 4, SkipEmpty: true}, "3 \"a\" \"\" 1\n1 empty\n"},
		{"a.csv", "k,b\n,x\na,y\n", Options{Key: "s/{k}", Bin: "b", SkipEmpty: true}, "3 \"s/a\" \"y\" 1\n1 empty\n"},
		{"a.csv", "k,b\n,x\na,y\n", Options{Key: "k", Bin: "b", SkipEmpty: true}, "3 \"a\" \"y\" 1\n1 empty\n"},
		{
			"a.csv", "k,b,c\na,x,\na,y,z\n",
			Options{Key: "k", Bin: "{b}-{c}", SkipEmpty: true},
			"3 \"a\" \"y-z\" 1\n1 empty\n",
		},
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
	long := `[{"k":"` + strings.Repeat("x", 70_000) + `"}]`
	for _, name := range []string{"a.json", ""} {
		if got := read(t, name, long, Options{Key: "k", Bin: "k"}); !strings.Contains(got, "it begins an array") {
			t.Errorf("a long line: %s", got)
		}
	}
	if got := read(t, "a.json", long[1:], Options{Key: "k", Bin: "k"}); !strings.Contains(got, "line 1: too long") {
		t.Errorf("a long object: %s", got)
	}
	if got := read(t, "a.csv", "[x],b\n[y],c\n", Options{Key: "1", Bin: "2", NoHeader: true}); !strings.HasPrefix(got, "1 \"[x]\"") {
		t.Error(got)
	}
}

// A file whose fields are separated by something else than its format says is refused with the way on.
func TestOtherSeparators(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a.csv", "a;b;c\n1;2;3\n", `there are a;b;c; the file seems to be separated by semicolons: tr ';' '\t' <FILE`},
		{"a.csv", "a|b|c\n1|2|3\n", `the file seems to be separated by bars: tr '|' '\t' <FILE`},
		{"a.csv", "a\tb\n1\t2\n", "the file seems to be separated by tabs: --format tsv"},
		{"a.tsv", "a,b\n1,2\n", "the file seems to be separated by commas: --format csv"},
	} {
		if got := read(t, test.name, test.text, Options{Key: "b", Bin: "a"}); !strings.Contains(got, test.want) {
			t.Errorf("%q: %s, not %s", test.text, got, test.want)
		}
	}
	if got := read(t, "a.csv", "a,b;c\n1,2\n", Options{Key: "b", Bin: "a"}); strings.Contains(got, "separated") {
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
		{"user,2020\nann,3\n", Options{}, errUndecided("user,2020").Error()},
		{"user,day\nann,x\n", Options{}, errUndecided("user,day").Error()},
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

// A bin of JSON lines that is mistyped, a list or an object is refused, as a key is; null and "" are empty.
func TestFieldsOfJSON(t *testing.T) {
	const text = `{"k":"a","b":"x","n":1}` + "\n" + `{"k":"a","b":["x"],"n":[2]}` + "\n" +
		`{"k":"a","b":{"x":1},"n":{}}` + "\n" + `{"k":"a","b":null,"n":1}` + "\n" + `{"k":"a","b":"","n":1}` + "\n" +
		`{"k":"a"}` + "\n"
	refused := func(field string) string {
		return "refused line 2: malformed: field " + field + " is an object or a list\n" +
			"refused line 3: malformed: field " + field + " is an object or a list\n"
	}
	amount := Options{Key: "k", Bin: "=x", Amount: "n", SkipEmpty: true}
	for _, test := range []struct {
		what string
		opts Options
		want string
	}{
		{
			"a bin",
			Options{Key: "k", Bin: "b"},
			"1 \"a\" \"x\" 1\n" + refused("b") +
				"4 \"a\" \"-\" 1\n5 \"a\" \"-\" 1\nrefused line 6: no field \"b\"; there are \"k\"\n",
		},
		{
			"without those that are empty",
			Options{Key: "k", Bin: "b", SkipEmpty: true},
			"1 \"a\" \"x\" 1\n" + refused("b") + "3 empty\n",
		},
		{
			"an amount, without those that are empty", amount,
			"1 \"a\" \"x\" 1\n" + refused("n") +
				"4 \"a\" \"x\" 1\n5 \"a\" \"x\" 1\n1 empty\n",
		},
	} {
		if got := read(t, "a.jsonl", text, test.opts); got != test.want {
			t.Errorf("%s:\n%s, not\n%s", test.what, got, test.want)
		}
	}
	got := read(t, "a.jsonl", `{"k":"a","b":1}`+"\n", Options{Key: "k", Bin: "wrod"})
	if want := "refused line 1: no field \"wrod\"; there are \"b\", \"k\"\n"; got != want {
		t.Errorf("a mistyped bin: %s, not %s", got, want)
	}
	const nested = `{"k":"a","b":{"c":1}}` + "\n" + `{"k":"a","b":null}` + "\n" + `{"k":"a","b":1}` + "\n"
	got = read(t, "a.jsonl", nested, Options{Key: "k", Bin: "b.d"})
	if want := "refused line 1: in field b: no field \"d\"; there are \"c\"\n2 \"a\" \"-\" 1\n" +
		"refused line 3: malformed: field b is not an object, so it has no field \"d\"\n"; got != want {
		t.Errorf("a field of an object: %s, not %s", got, want)
	}
}

// Local times that a change of clocks leaves out are taken as ones as much before or after it, and of those that come
// twice one is taken: as the help of ebb import says.
func TestLocalTimesAtAChangeOfClocks(t *testing.T) {
	for _, c := range []struct{ zone, local, want string }{
		{"Europe/Berlin", "2024-03-31 02:30", "2024-03-31T01:30:00Z"},    // 03:30 there
		{"America/New_York", "2024-03-10 02:30", "2024-03-10T06:30:00Z"}, // 01:30 there
		{"Europe/Berlin", "2024-10-27 02:30", "2024-10-27T01:30:00Z"},    // the second of two
		{"America/New_York", "2024-11-03 01:30", "2024-11-03T05:30:00Z"}, // the first of two
		{"Europe/Berlin", "2024-03-31T02:30:00+01:00", "2024-03-31T01:30:00Z"},
		{"Europe/Berlin", "2024-10-27T02:30:00+02:00", "2024-10-27T00:30:00Z"},
	} {
		zone, err := ParseZone(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		opts := Options{Key: "=k", Bin: "b", Time: "t", Zone: zone}
		r, err := NewReader(strings.NewReader("t,b\n"+c.local+",x\n"), "a.csv", opts)
		if err != nil {
			t.Fatal(err)
		}
		row, err := r.Next()
		if got := row.Time.UTC().Format(time.RFC3339); err != nil || got != c.want {
			t.Errorf("%s in %s is %s, not %s: %v", c.local, c.zone, got, c.want, err)
		}
	}
}
