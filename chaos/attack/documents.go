package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// jsonHeader says that a body is JSON.
var jsonHeader = map[string]string{"Content-Type": "application/json"}

// lengths returns attempts with lengths, times and numbers beyond any real value.
func lengths() (out []Attempt) {
	const of = "lengths"
	field := func(num protowire.Number, length uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.BytesType), length)
	}
	wrong := func(name, method string, message []byte) {
		out = append(out, Attempt{
			Group: of, Name: name + " to " + method, Mode: Open, Grows: 64 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				if _, err := a.send(ctx, "", method, message); err == nil {
					return broke("it was taken")
				}
				return nil
			},
		})
	}
	for _, method := range []string{
		ebbv1grpc.Ebb_Increment_FullMethodName, ebbv1grpc.Ebb_Ask_FullMethodName,
		ebbv1grpc.Ebb_Bits_FullMethodName, ebbv1grpc.Shards_Apply_FullMethodName, ebbv1grpc.Shards_Ask_FullMethodName,
	} {
		for name, n := range map[string]uint64{"2^31": 1 << 31, "2^63-1": 1<<63 - 1, "2^64-1": 1<<64 - 1} {
			wrong("a field of "+name+" bytes", method, append(field(1, n), "x"...))
		}
	}
	command := func(body []byte) []byte {
		inner := protowire.AppendBytes(protowire.AppendTag(protowire.AppendVarint(protowire.AppendTag(nil, 1,
			protowire.VarintType), 1), 2, protowire.BytesType), body)
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner)
	}
	for _, num := range []protowire.Number{5, 13, 14, 16, 17, 18, 20, 40} {
		out = append(out, Attempt{
			Group: of, Name: fmt.Sprintf("a command's body %d of 2^63-1 bytes", num), Mode: Open,
			Grows: 64 * mib, Run: func(ctx context.Context, a *Arena) error {
				return a.commandRefused(ctx, command(append(field(num, 1<<63-1), "x"...)),
					command(protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType),
						append(field(1, 1<<63-1), "x"...))))
			},
		})
	}
	frame := func(name string, length uint32, flag byte) {
		out = append(out, Attempt{
			Group: of, Name: name, Mode: Open, Grows: 64 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				return together(20, func(int) error {
					f, err := dialFrames(ctx, a, "grpc")
					if err != nil {
						return err
					}
					defer f.Close()
					stream, err := f.request(ebbv1grpc.Ebb_Increment_FullMethodName)
					if err != nil {
						return err
					}
					if err := f.data(stream, binary.BigEndian.AppendUint32([]byte{flag}, length), false); err != nil {
						return nil // it was cut off
					}
					if got, err := f.status(ctx, stream); err == nil && got == "0" {
						return broke("it was taken")
					}
					return nil
				})
			},
		})
	}
	frame("a message of gRPC of 2^32-1 bytes", math.MaxUint32, 0)
	frame("a compressed message of gRPC of 2^32-1 bytes", math.MaxUint32, 1)
	frame("a message of gRPC with a flag of 255", 4, 255)
	out[len(out)-1].Long = true // the attempt waits for an answer
	for _, length := range []string{"9223372036854775807", "18446744073709551615", "99999999999999999999999", "-1"} {
		out = append(out, Attempt{
			Group: of, Name: "a body of " + length + " bytes over HTTP", Mode: Open, Grows: 64 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				c, err := a.raw(ctx, "http")
				if err != nil {
					return err
				}
				defer c.Close()
				fmt.Fprintf(c,
					"POST /v1/increment HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %s\r\n\r\n{}", a.at["http"], length)
				if text := string(drainConn(c, mib)); strings.HasPrefix(text, "HTTP/1.1 2") {
					return broke("it was taken: %.60q", text)
				}
				return nil
			},
		})
	}
	return append(append(out, lengthsOverHTTP()...),
		Attempt{Group: of, Name: "a timeout of 99,999,999 hours", Mode: Open, Run: longTimeout})
}

// lengthsOverHTTP returns the attempts of lengths that send JSON documents.
func lengthsOverHTTP() (out []Attempt) {
	const of = "lengths"
	const top = math.MaxUint64
	for _, c := range []struct {
		name, path, body string
		refused          bool
	}{
		{
			"bits at the end of all ids", "/v1/ns/clicks/bits/far",
			fmt.Sprintf(`{"op":"SET","ids":["%d","%d","0"]}`, uint64(top), uint64(top-1)), false,
		},
		{
			"bits from the first to the last", "/v1/ns/clicks/bits/far",
			fmt.Sprintf(`{"op":"SET","range":{"first":"0","last":"%d"}}`, uint64(top)), true,
		},
		{
			"bits flipped from the last to the first", "/v1/ns/clicks/bits/far",
			fmt.Sprintf(`{"op":"FLIP","range":{"first":"%d","last":"0"}}`, uint64(top)), true,
		},
		{
			"1,000 ranges of the most ids", "/v1/bits",
			`{"namespace":"clicks","changes":[` + strings.TrimSuffix(strings.Repeat(`{"key":"r","op":"FLIP","range":{"first":"0","last":"134217727"}},`, 1000), ",") + `]}`, true,
		},
		{
			"sketches of 2^64-1 members", "/v1/namespaces",
			`{"create":true,"namespace":{"name":"huge","sizes":{"linear_capacity":"18446744073709551615","bloom_capacity":"18446744073709551615"}}}`, true,
		},
		{
			"sketches of no error", "/v1/namespaces",
			`{"create":true,"namespace":{"name":"huge","sizes":{"countmin_epsilon":1e-300,"quantile_error":1e-300}}}`, true,
		},
		{
			"sketches of errors below 0", "/v1/namespaces",
			`{"create":true,"namespace":{"name":"huge","sizes":{"countmin_epsilon":-0.5}}}`, true,
		},
		{
			"sketches of errors that are no number", "/v1/namespaces",
			`{"create":true,"namespace":{"name":"huge","sizes":{"countmin_epsilon":"NaN"}}}`, true,
		},
		{
			"a half-life of 2^63-1", "/v1/namespaces",
			`{"create":true,"namespace":{"name":"huge","half_life_us":"9223372036854775807"}}`, true,
		},
		{
			"the top 2^32-1", "/v1/ask", `{"questions":[{"namespace":"clicks","distribution":{"keys":["k"],"top":4294967295}}]}`,
			true,
		},
		{"an amount of 1e308", "/v1/increment", `{"increments":[{"key":"k","bin":"b","amount":1e308}]}`, true},
		{"an amount of 1e999", "/v1/increment", `{"increments":[{"key":"k","bin":"b","amount":1e999}]}`, true},
		{
			"a time of 2^63-1", "/v1/increment", `{"increments":[{"key":"k","bin":"b","time_us":"9223372036854775807"}]}`,
			false,
		},
		{"a time of -2^63", "/v1/increment", `{"increments":[{"key":"k","bin":"b","time_us":"-9223372036854775808"}]}`, true},
		{
			"a page of 2^32-1 ids from the last", "/v1/ask",
			fmt.Sprintf(`{"questions":[{"namespace":"clicks","bitmap":{"expr":{"key":"far"},"ids":{"from":"%d","limit":4294967295}}}]}`, uint64(top)), true,
		},
	} {
		out = append(out, Attempt{
			Group: of, Name: c.name, Mode: Open, Grows: 128 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				r, err := a.http(ctx, request{method: "POST", path: c.path, body: c.body, header: jsonHeader})
				switch {
				case err != nil:
					return broke("no answer: %v", err)
				case r.status >= 500 && r.status != http.StatusServiceUnavailable:
					return broke("%d %.80s", r.status, r.body)
				case c.refused && r.status < 300 && !strings.Contains(r.body, `"error"`):
					return broke("it was taken: %.80s", r.body)
				}
				return nil
			},
		})
	}
	return out
}

func longTimeout(ctx context.Context, a *Arena) error {
	f, err := dialFrames(ctx, a, "grpc")
	if err != nil {
		return err
	}
	defer f.Close()
	stream, err := f.request(ebbv1grpc.Ebb_Table_FullMethodName, [2]string{"grpc-timeout", "99999999H"})
	if err != nil {
		return err
	}
	if err := f.data(stream, smallest, true); err != nil {
		return err
	}
	if got, err := f.status(ctx, stream); err != nil || got != "0" {
		return broke("it ends with %q, %v", got, err)
	}
	return nil
}

// commandRefused checks that requests to apply a command are refused, whole or in their result.
func (a *Arena) commandRefused(ctx context.Context, requests ...[]byte) error {
	for i, message := range requests {
		answer, err := a.send(ctx, "", ebbv1grpc.Shards_Apply_FullMethodName, message)
		if err != nil {
			continue
		}
		// results, each with an error
		_, _, n := protowire.ConsumeTag(answer)
		if n < 0 {
			return broke("request %d has an answer without results", i)
		}
		result, _ := protowire.ConsumeBytes(answer[n:])
		if num, _, n := protowire.ConsumeTag(result); n < 0 || num != 1 {
			return broke("request %d was applied", i)
		}
	}
	return nil
}

// documentsOverHTTP returns attempts with deep and wide JSON documents.
func documentsOverHTTP() (out []Attempt) {
	const of = "documents"
	post := func(name, path, body string) {
		out = append(out, Attempt{
			Group: of, Name: name, Mode: Open, Grows: 160 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				r, err := a.http(ctx, request{method: "POST", path: path, body: body, header: jsonHeader})
				if err == nil && r.status < 300 && !strings.Contains(r.body, `"error"`) {
					return broke("%s took it: %.80s", path, r.body)
				}
				return nil
			},
		})
	}
	const deep = 1_000_000
	post("JSON: a million lists in each other", "/v1/ask", strings.Repeat("[", 2*deep))
	post("JSON: objects in each other", "/v1/ask", strings.Repeat(`{"questions":[`, 200_000))
	post("JSON: an expression in itself", "/v1/store",
		`{"namespace":"clicks","key":"d","expr":`+strings.Repeat(`{"not":{"of":`, 200_000))
	post("JSON: a field that is not known, deep", "/v1/ask", `{"x":`+strings.Repeat(`[{"y":`, 300_000))
	post("JSON: a million fields", "/v1/ask", "{"+strings.Repeat(`"namespace":"x",`, 200_000)+`"x":1}`)
	post("JSON: a string of escapes", "/v1/ask", `{"questions":[{"namespace":"`+strings.Repeat(`\u0041`, 600_000)+`"}]}`)
	post("JSON: a number of a million digits", "/v1/increment",
		`{"increments":[{"key":"k","bin":"b","amount":`+strings.Repeat("9", deep)+`}]}`)
	post("JSON: an exponent of a million digits", "/v1/increment",
		`{"increments":[{"key":"k","bin":"b","amount":1e`+strings.Repeat("9", deep)+`}]}`)
	post("JSON: halves of characters", "/v1/ask", `{"questions":[{"namespace":"`+strings.Repeat(`\ud800`, 100_000)+`"}]}`)
	return out
}

// documents returns attempts with deep and wide documents, over every interface.
func documents() (out []Attempt) {
	const of = "documents"
	out = documentsOverHTTP()
	query := func(name, text string) {
		out = append(out, Attempt{
			Group: of, Name: name, Mode: Open, Grows: 160 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				resp := &ebbv1.QueryResponse{}
				err := a.call(ctx, "", ebbv1grpc.Ebb_Query_FullMethodName, &ebbv1.QueryRequest{Namespace: own, Text: text}, resp)
				if err == nil && resp.GetAnswer().GetError() == nil {
					return broke("it was answered")
				}
				return nil
			},
		})
	}
	query("query: 500,000 parentheses", "count("+strings.Repeat("(", 500_000))
	query("query: 500,000 complements", "count("+strings.Repeat("~", 500_000)+"a)")
	query("query: a union of 200,000 bitmaps", "count("+strings.TrimSuffix(strings.Repeat("a | ", 200_000), " | ")+")")
	query("query: atleast within atleast", "count("+strings.Repeat("atleast(1, ", 80_000)+"a"+strings.Repeat(")",
		80_000)+")")
	query("query: a range of all days", "count(p/0001-01-01 .. 9999-12-31)")
	query("query: all hours of all years by year", "cohort(p/0001-01-01T00 .. 9999-12-31T23 by year)")
	query("query: a string without end", `count("`+strings.Repeat(`\\`, 500_000))
	query("query: comments alone", strings.Repeat("#\n", 500_000))
	nested := func(name, method string, path []protowire.Number, repeat []protowire.Number, times int) {
		out = append(out, Attempt{
			Group: of, Name: name, Mode: Open, Grows: 160 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				var message []byte
				for i := range times * len(repeat) {
					num := repeat[len(repeat)-1-i%len(repeat)]
					message = protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), message)
					if len(message) > 3*mib {
						break
					}
				}
				for i := len(path) - 1; i >= 0; i-- {
					message = protowire.AppendBytes(protowire.AppendTag(nil, path[i], protowire.BytesType), message)
				}
				if _, err := a.send(ctx, "", method, message); err == nil {
					return broke("it was answered")
				}
				return nil
			},
		})
	}
	nested("protobuf: an expression in itself", ebbv1grpc.Ebb_StoreBitmap_FullMethodName, []protowire.Number{3},
		[]protowire.Number{7, 1}, 20_000)
	nested("protobuf: a plan in itself", ebbv1grpc.Ebb_Query_FullMethodName, []protowire.Number{2, 24, 2},
		[]protowire.Number{2, 2}, 20_000)
	return append(out,
		Attempt{
			Group: of, Name: "protobuf: groups in each other", Mode: Open, Grows: 160 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				message := []byte(strings.Repeat("\x7b", 3*mib)) // begin group 15
				for _, method := range []string{ebbv1grpc.Ebb_Ask_FullMethodName, ebbv1grpc.Shards_Apply_FullMethodName} {
					if _, err := a.send(ctx, "", method, message); err == nil {
						return broke("%s took it", method)
					}
				}
				return nil
			},
		},
		Attempt{
			Group: of, Name: "protobuf: fields that nobody knows, 4 MiB", Mode: Open, Fresh: true, Grows: 192 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				field := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
				message := []byte(strings.Repeat(string(field), 1_200_000))
				return together(8, func(int) error {
					_, _ = a.send(ctx, "", ebbv1grpc.Ebb_Ask_FullMethodName, message)
					return nil
				})
			},
		},
		Attempt{Group: of, Name: "patterns of stars", Mode: Open, Within: 15 * time.Second, Run: stars},
		Attempt{Group: of, Name: "an URL of a MiB", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			r, err := a.http(ctx, request{path: "/v1/ns/clicks/distribution?key=" + strings.Repeat("k", mib)})
			if err == nil && r.status < 400 {
				return broke("%d", r.status)
			}
			return nil
		}},
		Attempt{Group: of, Name: "an URL of 30,000 parameters", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			r, err := a.http(ctx, request{path: "/v1/ns/clicks/distribution?" + strings.Repeat("&&&", 10_000) + "key=k"})
			if err == nil && r.status >= 500 {
				return broke("%d", r.status)
			}
			return nil
		}},
	)
}

func stars(ctx context.Context, a *Arena) error {
	key := strings.Repeat("a", 500)
	req := &ebbv1.IncrementRequest{Namespace: own}
	for i := range 2_000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "%s%04d", key, i), Bin: []byte("b")})
	}
	if err := a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName, req, &ebbv1.IncrementResponse{}); err != nil {
		return err
	}
	for _, pattern := range []string{
		strings.Repeat("*a", 250) + "*b", strings.Repeat("[a-z]*", 80) + "b",
		strings.Repeat("{a,", 100) + strings.Repeat("}", 100), strings.Repeat("?", 511) + "*",
	} {
		_, _ = a.http(ctx, request{
			method: "POST", path: "/v1/ask", header: jsonHeader,
			body: fmt.Sprintf(`{"questions":[{"namespace":"clicks","keys":{"pattern":%q}}]}`, pattern),
		})
	}
	return nil
}

func healthWatches(ctx context.Context, a *Arena) error {
	conn, err := a.grpc("")
	if err != nil {
		return err
	}
	defer conn.Close()
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	refused := 0
	for range 300 {
		stream, err := grpc_health_v1.NewHealthClient(conn).Watch(limited, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if codeIs(err, codes.ResourceExhausted, codes.Unavailable) {
			refused++
		}
	}
	if refused == 0 {
		return broke("300 watches of health from one address, without a token")
	}
	return nil
}

func manyWatches(ctx context.Context, a *Arena) error {
	conn, err := a.grpc("")
	if err != nil {
		return err
	}
	defer conn.Close()
	second, err := a.grpc("")
	if err != nil {
		return err
	}
	defer second.Close()
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	refused := make([]bool, 1_100)
	req := &ebbv1.WatchRequest{Question: &ebbv1.Question{
		Namespace: own,
		Ask:       &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}},
	}}
	_ = together(len(refused), func(i int) error {
		on := conn
		if i%2 == 1 {
			on = second
		}
		stream, err := ebbv1grpc.NewEbbClient(on).Watch(limited, req)
		if err == nil {
			_, err = stream.Recv()
		}
		refused[i] = err != nil
		return nil
	})
	n := 0
	for _, r := range refused {
		if r {
			n++
		}
	}
	if n == 0 {
		return broke("%d watches are open", len(refused))
	}
	return nil
}

func manySeries(ctx context.Context, a *Arena) error {
	series := func() (int, error) {
		r, err := a.http(ctx, request{listener: "admin", path: "/metrics"})
		return strings.Count(r.body, "\n"), err
	}
	before, err := series()
	if err != nil {
		return err
	}
	conn, err := a.grpc("")
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range 500 {
		in, out := raw(nil), raw(nil)
		_ = conn.Invoke(ctx, fmt.Sprintf("/ebb.v1.Ebb/M%d", i), &in, &out, rawCall)
		if _, err := a.http(ctx, request{
			method: fmt.Sprintf("M%d", i),
			path:   fmt.Sprintf("/v1/ns/n%d/keys%d", i, i),
		}); err != nil {
			return err
		}
	}
	after, err := series()
	if err != nil {
		return err
	}
	if after-before > 100 {
		return broke("%d further series after 1,000 requests of new names", after-before)
	}
	return nil
}
