package rpc

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A time over HTTP is RFC 3339 or microseconds. Numbers that are too small for these are refused, with what may be
// meant.
func TestMicrosThatCannotBeMeant(t *testing.T) {
	fields := []protoreflect.FieldDescriptor{
		new(ebbv1.Increment).ProtoReflect().Descriptor().Fields().ByName("time_us"),
		new(ebbv1.FeedRequest).ProtoReflect().Descriptor().Fields().ByName("time_us"),
		new(ebbv1.ExpireRequest).ProtoReflect().Descriptor().Fields().ByName("at_us"),
		new(ebbv1.DistributionQuestion).ProtoReflect().Descriptor().Fields().ByName("as_of_us"),
		new(ebbv1.SummaryQuestion).ProtoReflect().Descriptor().Fields().ByName("as_of_us"),
		new(ebbv1.KeysQuestion).ProtoReflect().Descriptor().Fields().ByName("as_of_us"),
	}
	for _, fd := range fields {
		for text, want := range map[string]int64{
			"2013-03-18T12:00:00Z": 1363608000000000, "1363608000000000": 1363608000000000, "0": 1,
			"1971-01-01T00:00:00Z": 31536000000000, "100000000000000": 100000000000000,
			"1971-01-01t00:00:00z": 31536000000000,
		} {
			if v, err := parseNumeral(fd, text); err != nil || v.Int() != want {
				t.Errorf("%s %s: %d, %v", fd.FullName(), text, v.Int(), err)
			}
		}
		for text, want := range map[string]string{
			"1363608000":     "if 2013-03-18T12:00:00Z is meant, write it so or as 1363608000000000;",
			"1.363608e9":     "if 2013-03-18T12:00:00Z is meant",
			"1363608000500":  "if 2013-03-18T12:00:00Z is meant",
			"20150226":       "if 2015-02-26T00:00:00Z is meant",
			"20150226143005": "if 2015-02-26T14:30:05Z is meant",
			"5":              "if 1970-01-01T00:00:05Z is meant, write it so; a time before 1973-03-03",
		} {
			_, err := parseNumeral(fd, text)
			if err == nil || err.Code != ebbv1.Code_CODE_BAD_TIME || !strings.Contains(err.Hint, want) {
				t.Errorf("%s %s: %v", fd.FullName(), text, err)
			}
		}
	}
	_, err := parseNumeral(fields[0], "2016-12-31T23:59:60Z")
	if err == nil || !strings.Contains(err.Message, proto.LeapSecond) {
		t.Errorf("a leap second: %v", err)
	}
	// durations are small numbers of microseconds
	for _, fd := range []protoreflect.FieldDescriptor{
		new(ebbv1.ExpireRequest).ProtoReflect().Descriptor().Fields().ByName("ttl_us"),
		new(ebbv1.DeleteNamespaceRequest).ProtoReflect().Descriptor().Fields().ByName("grace_us"),
	} {
		for text, want := range map[string]int64{"3600000000": 3_600_000_000, "1h": 3_600_000_000} {
			if v, err := parseNumeral(fd, text); err != nil || v.Int() != want {
				t.Errorf("%s %s: %v, %v", fd.FullName(), text, v, err)
			}
		}
	}
}
