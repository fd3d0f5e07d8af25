package proto

import (
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"2001-01-01T00:00:00Z": "2001-01-01T00:00:00Z", "2001-01-01t00:00:00z": "2001-01-01T00:00:00Z",
		"2001-01-01T00:00:00z": "2001-01-01T00:00:00Z", "2001-01-01t00:00:00Z": "2001-01-01T00:00:00Z",
		"2001-01-01t01:00:00.25+01:00": "2001-01-01T00:00:00.25Z",
		"2016-12-31T23:59:60Z":         "", "2016-12-31t23:59:60z": "",
		"2017-01-01T00:59:60+01:00": "", "2001-01-01": "", "2001-01-01z": "", "z": "", "": "", "2001-01-01tz": "",
		"2001-01-01T00:00:00zz": "", "tomorrow's time is z": "",
	} {
		got, err := ParseTime(text)
		if (err == nil) != (want != "") || err == nil && got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("%q is %v, %v: want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]bool{
		"2016-12-31T23:59:60Z": true, "2017-01-01t00:59:60.5+01:00": true, "2016-12-31 23:59:60": true,
		"2016-12-31T23:59:59Z": false, "2016-12-31T23:60": false, "": false, "2016-12-31": false,
	} {
		if HasLeapSecond(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}
