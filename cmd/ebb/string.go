package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newString(s *session) *cobra.Command {
	var from, at string
	set := &cobra.Command{
		Use: "set KEY [VALUE]", Short: "Replace the value of a key, or make one", Args: argsBetween(1, 2, "KEY [VALUE]"),
		Long: "Writes a value of up to 131,072 bytes: the one named, or what --file holds. It stays until it is replaced or the key is deleted.",
		Example: "  ebb string set motd \"hello\"\n  ebb string set config --file config.json\n" +
			"  ebb string set motd \"hello\" -n archive --at 2026-11-20",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) > 1) == (from != "") {
				return usagef("which value? give VALUE or --file")
			}
			var value []byte
			if from != "" {
				var err error
				if value, err = s.bytesOf(from); err != nil {
					return err
				}
			} else {
				value = []byte(args[1])
			}
			happened, err := instantTime(at)
			if err != nil {
				return err
			}
			return s.setString(cmd, args[0], value, happened)
		},
	}
	set.Flags().StringVar(&from, "file", "", "the `file` that holds the value; - is the standard input")
	set.Flags().StringVar(&at, "at", "",
		"`time` of the write ("+timeForms+") instead of now; the last write stays, whatever its time")
	var q questionFlags
	get := &cobra.Command{
		Use: "get KEY", Short: "The value of a key", Args: argsBetween(1, 1, "KEY"),
		Long:    "Prints the value and the end of a line; -o tsv prints the value alone, byte by byte.",
		Example: "  ebb string get motd",
		RunE: func(cmd *cobra.Command, args []string) error {
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: keysOf(args)}}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error { return s.printString(a, args[0]) })
		},
	}
	q.addReading(get)
	return children(&cobra.Command{Use: "string", Short: "Keys that hold one value"}, set, get)
}

// bytesOf reads a file, up to the longest value.
func (s *session) bytesOf(path string) ([]byte, error) {
	in, err := s.open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, proto.TextLenMax+1))
}

func (s *session) setString(cmd *cobra.Command, key string, value []byte, at time.Time) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	if err := c.SetStringAt(ctx, s.namespace, key, string(value), at); err != nil {
		return err
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, map[string]int{"bytes": len(value)})
	case "tsv":
		_, err = fmt.Fprintln(s.term.out, len(value))
	default:
		_, err = fmt.Fprintf(s.term.out, "set %d bytes\n", len(value))
	}
	return err
}

type stringJSON struct {
	Namespace string `json:"namespace"`
	keyName
	Found    bool         `json:"found"`
	Value    *string      `json:"value,omitempty"`
	AsOfUS   int64        `json:"as_of_us"`
	Coverage coverageJSON `json:"coverage"`
}

func (s *session) printString(a *ebbv1.Answer, key string) error {
	w := a.GetSummary()
	if w.GetFound() && w.GetKind() != ebbv1.Kind_KIND_STRING {
		return proto.ErrWrongKind.Errorf("key %q is a %s, and has no value", key, proto.KindName(w.GetKind())).WithHint("ask for its summary: ebb estimate")
	}
	if !w.GetFound() {
		s.notePattern(key)
	}
	if s.output == "json" {
		out := stringJSON{Namespace: s.namespace, keyName: keyNameOf([]byte(key)), Found: w.GetFound(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
		if out.Found {
			value, err := text("the value", w.GetText())
			if err != nil {
				return err
			}
			out.Value = &value
		}
		return printJSON(s.term.out, out)
	}
	if !w.GetFound() {
		if s.output == "table" {
			return printNothing(s.term.out, a, "nothing known", whyAbsent, w.GetAsOfUs())
		}
		return nil
	}
	_, err := s.term.out.Write(w.GetText())
	if err == nil && s.output == "table" && !bytes.HasSuffix(w.GetText(), []byte("\n")) {
		_, err = fmt.Fprintln(s.term.out)
	}
	return err
}
