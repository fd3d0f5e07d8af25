package query

import (
	"errors"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Check checks a plan from elsewhere: it is valid if parsing its text gives the same plan.
func Check(plan *ebbv1.Plan) *proto.Error {
	text := Text(plan)
	again, err := Parse(text)
	var wrong *Error
	switch {
	case errors.As(err, &wrong):
		e := proto.AsError(wrong)
		e.Message = "the plan, written as " + shortened(text) + ": " + e.Message
		return e
	case !pb.Equal(plan, again):
		return proto.ErrBadQuery.Errorf("the plan says more than can be written: %s is all of it", shortened(text)).WithHint("leave out fields that its question does not have")
	}
	return nil
}

// shortened is a text cut to a length that an error can show.
func shortened(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
