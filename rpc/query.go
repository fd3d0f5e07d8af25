package rpc

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// checkParams refuses parameters that the route does not have, and a parameter given twice where only one is allowed.
func (c *call) checkParams(params []param) *proto.Error {
	names := make([]string, 0, len(c.query))
	for name := range c.query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		i := slices.IndexFunc(params, func(p param) bool { return p.name == name })
		switch {
		case i < 0:
			return proto.ErrBadRequest.Errorf("unknown parameter %s", quote(name)).WithHint(paramHint(name, params))
		case !params[i].repeated && len(c.query[name]) > 1:
			return proto.ErrBadRequest.Errorf("parameter %s is given %d times", name, len(c.query[name]))
		}
	}
	return nil
}

func paramHint(name string, params []param) string {
	var names []string
	for _, p := range params {
		names = append(names, p.name)
	}
	if len(names) == 0 {
		return "this path has no parameters"
	}
	return didYouMean(name, names)
}

// distributionQuestion reads a question from path and query.
func (c *call) distributionQuestion() (*ebbv1.DistributionQuestion, error) {
	q := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_All{All: true}}
	var err error
	if q.Keys, err = c.keys(); err != nil {
		return nil, err
	}
	if q.Patterns, err = texts("pattern", c.query["pattern"]); err != nil {
		return nil, err
	}
	if err := c.selection(q); err != nil {
		return nil, err
	}
	for _, p := range []struct{ param, field string }{
		{"as_of", "as_of_us"}, {"confidence", "confidence"}, {"rate", "rate"},
	} {
		if err := c.set(q.ProtoReflect(), p.param, p.field); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// keys reads the keys of a question from path or query.
func (c *call) keys() ([][]byte, error) {
	keys := c.query["key"]
	if key, ok := c.path["key"]; ok {
		keys = []string{key}
	}
	return texts("key", keys)
}

// texts returns parameters in the wire form of keys and bins.
func texts(what string, values []string) ([][]byte, error) {
	var out [][]byte
	for _, v := range values {
		if err := checkText(what, v); err != nil {
			return nil, err
		}
		out = append(out, []byte(v))
	}
	return out, nil
}

// summaryQuestion reads a question from path and query.
func (c *call) summaryQuestion() (*ebbv1.SummaryQuestion, error) {
	q := &ebbv1.SummaryQuestion{}
	var err error
	if q.Keys, err = c.keys(); err != nil {
		return nil, err
	}
	if q.Patterns, err = texts("pattern", c.query["pattern"]); err != nil {
		return nil, err
	}
	if q.Bins, err = texts("bin", c.query["bin"]); err != nil {
		return nil, err
	}
	for _, text := range c.query["quantile"] {
		part, err := proto.ParseNumber(text)
		if err != nil {
			return nil, proto.ErrBadRequest.Errorf("quantile: %s is not a number", quote(text))
		}
		q.Quantiles = append(q.Quantiles, part)
	}
	if q.Members, err = c.flag("members"); err != nil {
		return nil, err
	}
	return q, c.setAll(q.ProtoReflect(), "window", "as_of", "confidence", "limit")
}

// selection reads which bins are asked for: all by default.
func (c *call) selection(q *ebbv1.DistributionQuestion) error {
	bins := c.query["bin"]
	if list := c.query.Get("bins"); list != "" {
		bins = append(slices.Clone(bins), strings.Split(list, ",")...)
	}
	switch {
	case len(bins) > 0 && c.query.Has("top"):
		return proto.ErrBadRequest.Errorf("top and bins: only one of them may be given")
	case c.query.Has("top"):
		q.Select = nil
		return c.set(q.ProtoReflect(), "top", "top")
	case len(bins) == 0 && c.query.Has("bins"):
		return proto.ErrBadBin.Errorf("bins: no bin is named")
	case len(bins) == 0:
		return nil
	}
	list := &ebbv1.BinList{}
	var err error
	if list.Bins, err = texts("bin", bins); err != nil {
		return err
	}
	q.Select = &ebbv1.DistributionQuestion_Bins{Bins: list}
	return nil
}

// askOptions reads how the question is to be answered.
func (c *call) askOptions(req *ebbv1.AskRequest) error {
	if err := c.set(req.ProtoReflect(), "consistency", "consistency"); err != nil {
		return err
	}
	if err := c.set(req.ProtoReflect(), "max_staleness", "max_staleness_us"); err != nil {
		return err
	}
	var err error
	if req.AllowPartial, err = c.flag("allow_partial"); err != nil {
		return err
	}
	req.Strict, err = c.flag("strict")
	return err
}

// flag reads a parameter that is true or false; false if there is none.
func (c *call) flag(name string) (bool, error) {
	v := c.query.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, proto.ErrBadRequest.Errorf("%s: %s is not true or false", name, quote(v))
	}
	return b, nil
}

// setAll sets the fields that have the names of parameters. The names of times have their unit in addition.
func (c *call) setAll(m protoreflect.Message, names ...string) error {
	for _, name := range names {
		field := name
		if name == "as_of" || name == "window" {
			field += "_us"
		}
		if err := c.set(m, name, field); err != nil {
			return err
		}
	}
	return nil
}

// set gives a field the value of a parameter, if there is one.
func (c *call) set(m protoreflect.Message, name, field string) error {
	if !c.query.Has(name) {
		return nil
	}
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	v, err := parseNumeral(fd, c.query.Get(name))
	if err != nil {
		err.Message = name + ": " + err.Message
		return err
	}
	m.Set(fd, v)
	return nil
}

// checkText refuses text that could not be written in JSON again.
func checkText(what, s string) error {
	if !utf8.ValidString(s) {
		return proto.ErrNotUTF8.Errorf("%s is not UTF-8: bytes %s", what, hexHead([]byte(s))).
			WithHint("keys and bins that are not UTF-8 can be used over gRPC")
	}
	return nil
}
