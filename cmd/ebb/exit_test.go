package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// refused runs a command line that needs no cluster, and returns its exit code
// and what it says on standard error.
func refused(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var stderr bytes.Buffer
	code := run(t.Context(), args, terminal{in: strings.NewReader(""), out: io.Discard, err: &stderr})
	return code, stderr.String()
}

// A value that cannot be right ends with 2, whoever finds it.
func TestValuesThatCannotBeRight(t *testing.T) {
	for line, want := range map[string]string{
		"top k --n 0":                                          "n = 0",
		"top k --n -1":                                         "n = -1",
		"top k --n 1000000":                                    "n = 1000000",
		"top k --confidence 2":                                 "confidence 2",
		"top k --watch -1s":                                    "must not be negative",
		"top k --timeout 0":                                    "must be above zero",
		"top k --timeout -1s":                                  "must be above zero",
		"top k --timeout soon":                                 "write it as",
		"top k --as-of 1969-01-01":                             "before 1970",
		"top k --max-staleness 3s":                             "--max-staleness is of --consistency bounded",
		"top k --max-staleness 3s --consistency any":           "--max-staleness is of --consistency bounded",
		"top k --json -o tsv":                                  "--json and --output tsv",
		"dist k k":                                             "key k is named twice",
		"get k b --n 3":                                        "unknown flag --n",
		"incr k b --by NaN":                                    "amount is NaN",
		"incr k b --by 1_000":                                  "it has underscores: write 1000",
		"incr k b --by 0x1p4":                                  "it is hexadecimal",
		"incr k --kind quantile --value 1_0.5":                 "it has underscores",
		"incr k b --by abc":                                    "is not a number",
		"namespace create x --half-life 0s":                    "half-life of 0 s",
		"namespace create x --threshold NaN":                   "--threshold must be above zero",
		"namespace create x --decay none --half-life 3h":       "--half-life 3h has no effect",
		"namespace create x --decay linear --half-life none":   "--half-life none has no effect",
		"namespace create x --floor clamp --threshold 1":       "--threshold has no effect",
		"namespace create x --prior 2":                         "--prior has no effect",
		"demo --rate 0":                                        "--rate 0",
		"demo --for -2s":                                       "must not be negative",
		"bench write --duration 0s":                            "at least 1s",
		"bench memory --shape foo":                             `shape "foo": it is pareto`,
		"estimate k --bin=":                                    "--bin is empty",
		"trend k --bin=":                                       "--bin is empty",
		"surprise k --against b --bin=":                        "--bin is empty",
		"import ROWS --key nope --bin c":                       `no column "nope"; there are g, c`,
		"import ROWS --key a/{g --bin c":                       "'{' without '}'",
		"import ROWS --key 3 --bin c":                          `no column "3"`,
		"import ROWS --key g --bin 1 --no-header":              "no header",
		"serve --gossip - --data-dir=":                         "--data-dir is empty",
		"serve --gossip - --data-dir NOWHERE --node bob":       `node name "bob"`,
		"serve --gossip - --data-dir NOWHERE --shards 100000":  "the limit is 1024",
		"serve --gossip - --data-dir NOWHERE --log-level loud": "--log-level",
	} {
		t.Run(line, func(t *testing.T) {
			rows := filepath.Join(t.TempDir(), "rows.tsv")
			if err := os.WriteFile(rows, []byte("g\tc\nx\ty\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			code, said := refused(t, strings.Fields(strings.NewReplacer("NOWHERE", t.TempDir(), "ROWS", rows).Replace(line))...)
			if code != exitUsage || !strings.Contains(said, want) {
				t.Errorf("exit %d: %s", code, said)
			}
		})
	}
	if code, said := refused(t, "top", ""); code != exitUsage || !strings.Contains(said, "empty key") {
		t.Errorf("exit %d: %s", code, said)
	}
}

// The exit code is that of the error's own code, however deep it is.
func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"nothing":                     {nil, exitOK},
		"without a code":              {errors.New("no such file"), exitFailed},
		"a time that is ahead":        {&client.Error{Code: ebbv1.Code_CODE_BAD_TIME, Err: proto.ErrBadTime}, exitUsage},
		"a name taken":                {proto.ErrNamespaceExists, exitRefused},
		"no leader":                   {fmt.Errorf("top: %w", proto.ErrNoLeader), exitUnreachable},
		"late":                        {context.DeadlineExceeded, exitUnreachable},
		"late, and perhaps written":   {&client.Undelivered{Unknown: 1, Err: context.DeadlineExceeded}, exitUnknown},
		"some refused":                {partly(3, &client.Undelivered{Refused: 1, Err: proto.ErrTooManyBins}), exitRefused},
		"rows":                        {fmt.Errorf("3 of 4: %w", errRefusedRows), exitRefused},
		"a start on a full disk":      {startError{proto.ErrDisk}, exitFailed},
		"a start with a wrong name":   {startError{proto.ErrBadRequest}, exitUsage},
		"interrupted":                 {fmt.Errorf("import: %w", context.Canceled), exitInterrupted},
		"damaged":                     {proto.ErrCorrupt, exitFailed},
		"a producer that was away":    {proto.ErrSessionExpired, exitRefused},
		"phrases that are not there":  {proto.ErrNoPhrases([]byte("x")), exitRefused},
		"a namespace that is nowhere": {proto.ErrNamespaceNotFound, exitRefused},
		"a budget that is used up":    {proto.ErrBudgetExceeded, exitRefused},
	} {
		t.Run(name, func(t *testing.T) {
			if got := exitCode(io.Discard, c.err); got != c.want {
				t.Errorf("%v: exit %d, want %d", c.err, got, c.want)
			}
		})
	}
}

// A next step that sends a reader to a help or to a document names it, and it is there.
func TestNextStepsLeadSomewhere(t *testing.T) {
	named := regexp.MustCompile("`ebb ([a-z ]+) --help`|(docs/[a-z]+\\.md)|(--help)")
	for _, c := range codes {
		for _, to := range named.FindAllStringSubmatch(c.next, -1) {
			switch {
			case to[1] != "":
				cmd, rest, err := quietRoot().Find(strings.Fields(to[1]))
				if err != nil || len(rest) > 0 || cmd.Example == "" {
					t.Errorf("%v: no help of %s, %v", c.code, to[1], err)
				}
			case to[2] != "":
				text, err := os.ReadFile("../../" + to[2])
				if err != nil || !bytes.Contains(text, []byte("\n## Limits")) {
					t.Errorf("%v: no limits in %s, %v", c.code, to[2], err)
				}
			default:
				t.Errorf("%v: --help of which command?", c.code)
			}
		}
	}
	var help strings.Builder
	root := quietRoot()
	root.SetOut(&help)
	root.SetArgs([]string{"query", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, f := range query.Forms() {
		if !strings.Contains(help.String(), f.Usage) {
			t.Errorf("ebb query --help lacks %s", f.Usage)
		}
	}
}

// Every code has a meaning and a next step, which is printed where the error
// names none.
func TestEveryCodeHasANextStep(t *testing.T) {
	for number, name := range ebbv1.Code_name {
		i := slices.IndexFunc(codes, func(c codeAdvice) bool { return int32(c.code) == number })
		if number == 0 {
			continue
		}
		if i < 0 || codes[i].meaning == "" || codes[i].next == "" {
			t.Errorf("%s has none", name)
			continue
		}
		bare := &proto.Error{Code: ebbv1.Code(number), Message: "bare"}
		for _, err := range []error{bare, &client.Error{Op: "top", Code: bare.Code, Err: errors.New("late")}, startError{bare}} {
			var said bytes.Buffer
			exitCode(&said, err)
			if !strings.Contains(said.String(), "\ntry:  "+codes[i].next+"\n") {
				t.Errorf("%s: %s", name, said.String())
			}
		}
		var said bytes.Buffer
		exitCode(&said, bare.WithHint("its own"))
		if !strings.HasSuffix(said.String(), "\ntry:  its own\n") {
			t.Errorf("%s with a hint: %s", name, said.String())
		}
	}
	if !slices.IsSortedFunc(codes, func(a, b codeAdvice) int { return int(a.code) - int(b.code) }) {
		t.Error("the codes are out of order")
	}
}

// A watch continues over failures that pass, and says how old the last answer is. It ends without an error when it is
// interrupted, or with one that does not pass.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr bytes.Buffer
		s := &session{output: "json", term: terminal{out: &stdout, err: &stderr}}
		results := []error{proto.ErrNoLeader, nil, proto.ErrDeadline, proto.ErrNoLeader, nil}
		asked := 0
		err := s.repeat(ctx, time.Second, func() error {
			if asked++; asked > len(results) {
				cancel()
				return context.Canceled
			}
			return results[asked-1]
		})
		if err != nil {
			t.Errorf("interrupted: %v", err)
		}
		want := `error: no leader (EBB-1003); no answer yet
error: deadline exceeded (EBB-1007); the last answer is 1.0 s old
error: no leader (EBB-1003); the last answer is 2.0 s old
`
		if stderr.String() != want {
			t.Errorf("it said\n%s", stderr.String())
		}
		err = s.repeat(t.Context(), time.Second, func() error { return proto.ErrNamespaceNotFound })
		if !errors.Is(err, proto.ErrNamespaceNotFound) {
			t.Errorf("a failure that does not pass: %v", err)
		}
		if err := s.repeat(t.Context(), 0, func() error { return proto.ErrNoLeader }); !errors.Is(err, proto.ErrNoLeader) {
			t.Errorf("asked once: %v", err)
		}
	})
}

// Some of several increments failed: how many were counted is said first.
func TestPartlyCounted(t *testing.T) {
	for want, u := range map[string]*client.Undelivered{
		"2 counted, 4 refused: too many bins (EBB-2016)":                             {Refused: 4, Err: proto.ErrTooManyBins},
		"1 counted, 2 not counted, 3 of unknown outcome: no leader (EBB-1003)":       {Lost: 2, Unknown: 3, Err: proto.ErrNoLeader},
		"0 counted, 1 refused, 3 not counted, 2 of unknown outcome: late (EBB-1007)": {Refused: 1, Lost: 3, Unknown: 2, Err: proto.ErrDeadline.Errorf("late")},
	} {
		if got := partly(6, u); got.Error() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// An event that has faded below what its namespace keeps is remarked on.
func TestFadedNote(t *testing.T) {
	hourly := client.Namespace{Name: "US", Clock: client.ClockWall, Decay: client.DecayHalfLife, HalfLife: time.Hour, Threshold: 0.001}
	event, never := hourly, hourly
	event.Clock, never.Decay = client.ClockEvent, client.DecayNone
	for name, c := range map[string]struct {
		ns     client.Namespace
		age    time.Duration
		amount float64
		noted  bool
	}{
		"years ago":                  {hourly, 24 * 365 * time.Hour, 1, true},
		"just below the threshold":   {hourly, 10 * time.Hour, 1, true},
		"just above it":              {hourly, 9 * time.Hour, 1, false},
		"much, so that some is left": {hourly, 10 * time.Hour, 100, false},
		"a little negative":          {hourly, 10 * time.Hour, -1, true},
		"ahead":                      {hourly, -time.Hour, 1, false},
		"by the clock of its events": {event, 24 * 365 * time.Hour, 1, false},
		"where nothing is forgotten": {never, 24 * 365 * time.Hour, 1, false},
	} {
		if note := fadedNote(c.ns, c.age, c.amount); (note != "") != c.noted {
			t.Errorf("%s: %q", name, note)
		}
	}
	for kind, fades := range map[client.Kind]bool{client.KindDistribution: true, client.KindSet: true, client.KindLinear: false, client.KindString: false} {
		if fadesByWeight(kind) != fades {
			t.Errorf("%v fades by weight: %t", kind, !fades)
		}
	}
	want := "this event is 8760 half-lives old in namespace US and weighs less than its threshold; history is replayed in a namespace with --clock event"
	if note := fadedNote(hourly, 24*365*time.Hour, 1); note != want {
		t.Errorf("%s", note)
	}
}

// Counts are plain decimals with a whole integer part, as far as floats are whole.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{0, "0"},
		{1, "1"},
		{1.99999, "2"},
		{4.4987, "4.499"},
		{118243.4, "118243"},
		{1e6, "1000000"},
		{12345678.9, "12345679"},
		{0.00123456, "0.001235"},
		{0.5, "0.5"},
		{-118243, "-118243"},
		{9007199254740991, "9007199254740991"},
		{1e16, "1e+16"},
		{1e-9, "1e-09"},
		{999.96, "1000"},
		{100.04, "100"},
	} {
		if got := figure(c.v, 4); got != c.want {
			t.Errorf("%g prints as %s, want %s", c.v, got, c.want)
		}
	}
}
