package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

func newKMV(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "kmv", Short: "Bring stored sets of gocountme in, and give sets out as gocountme stores them",
		Long: `A file has a line of JSON for each set:

  {"key":"fans","value_base64":"AAAAAAAABAD..."}

The value is what gocountme stores under the key: k, and the least k hashes of the members from the largest on, each
8 bytes in big endian. A key that is not UTF-8 stands under key_base64. docs/doors.md has a line of Python that makes
such a file of gocountme's database.

The namespace must hash the members of sets as gocountme does: --set-hash murmur3, when it is created.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKMVImport(s), newKMVExport(s))
	return cmd
}

// kmvLine is a set, as a line of a file.
type kmvLine struct {
	Key       string `json:"key,omitempty"`
	KeyBase64 []byte `json:"key_base64,omitempty"`
	Value     []byte `json:"value_base64"`
}

// kmvLineMax bounds a line in bytes: the value in base64, and a key with each byte escaped.
const kmvLineMax = proto.KMVBytesMax*4/3 + 8*proto.KeyLenMax + 1024

// parseKMVLine reads a line of a file.
func parseKMVLine(line []byte) (key string, value []byte, err error) {
	var l kmvLine
	if !utf8.Valid(line) {
		return "", nil, proto.ErrNotUTF8.Errorf("the line is not UTF-8").WithHint("write such a key as key_base64")
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return "", nil, proto.ErrBadRequest.Errorf("the line is no JSON of a set: %v", err).
			WithHint(`it is {"key":"...","value_base64":"..."}`)
	}
	switch {
	case (l.Key == "") == (len(l.KeyBase64) == 0):
		return "", nil, proto.ErrBadKey.Errorf("the line must have one of key and key_base64")
	case strings.ContainsRune(l.Key, utf8.RuneError): // also half of a surrogate pair is invalid
		return "", nil, proto.ErrNotUTF8.Errorf("the key has a character that stands for what is not UTF-8").
			WithHint("write such a key as key_base64")
	case l.Value == nil:
		return "", nil, proto.ErrBadRequest.Errorf("the line has no value_base64")
	}
	key = l.Key + string(l.KeyBase64)
	if err := proto.CheckKey([]byte(key)); err != nil {
		return "", nil, err
	}
	if err := proto.CheckKMV(l.Value); err != nil {
		return "", nil, err
	}
	return key, l.Value, nil
}

// appendKMVLine appends a set as a line of a file.
func appendKMVLine(b []byte, key string, value []byte) ([]byte, error) {
	l := kmvLine{Key: key, Value: value}
	if !utf8.ValidString(key) || strings.ContainsRune(key, utf8.RuneError) {
		l.Key, l.KeyBase64 = "", []byte(key)
	}
	raw, err := json.Marshal(l)
	return append(append(b, raw...), '\n'), err
}

func newKMVImport(s *session) *cobra.Command {
	var most int
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Bring stored sets of gocountme into keys",
		Args: argsBetween(1, 1, "FILE (- for standard input)"),
		Long: `A key that is there then has the members of both, so that a file can be imported again: what is there
already changes nothing. A value of a larger k than the namespace keeps is cut to that: --size set.members=N
keeps up to k = N + 1, which is 65,537 at most. Lines that cannot be right are reported and left out.

The namespace must hash the members of sets as gocountme does: --set-hash murmur3, when it is created.`,
		Example: "  ebb kmv import sets.jsonl -n sets\n" +
			"  zcat sets.jsonl.gz | ebb kmv import - -n sets",
		RunE: func(cmd *cobra.Command, args []string) error { return s.importKMV(cmd, args[0], most) },
	}
	cmd.Flags().IntVar(&most, "show-refused", 10, "how many refused lines to print with their reasons")
	return cmd
}

func (s *session) importKMV(cmd *cobra.Command, file string, most int) error {
	in, size := s.term.in, int64(-1)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			size = info.Size()
		}
	}
	c, err := s.dial(cmd) // --timeout applies to each key
	if err != nil {
		return err
	}
	defer c.Close()
	lines, refused, done := 0, 0, 0
	refuse := func(err error) {
		if refused++; refused <= most {
			fmt.Fprintf(s.term.err, "refused: line %d: %v%s\n", lines, err, hintOf(err))
		} else if refused == most+1 {
			fmt.Fprintln(s.term.err, "refused: and more (--show-refused prints more of them)")
		}
	}
	bar := s.kmvBar("importing", size)
	r := bufio.NewReaderSize(in, kmvLineMax)
	for {
		line, read := r.ReadSlice('\n')
		switch {
		case errors.Is(read, bufio.ErrBufferFull):
			return proto.ErrBadRequest.Errorf(
				"line %d has more than %d bytes: no stored value of gocountme takes so many",
				lines+1,
				kmvLineMax,
			)
		case read != nil && read != io.EOF:
			return read
		}
		bar(int64(len(line)))
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines++
			err := s.importKMVLine(cmd, c, line)
			switch {
			case err == nil:
				done++
			case isKMVRefusal(err):
				refuse(err)
			default:
				fmt.Fprintf(s.term.err, "%s imported; import the file again: what is there already changes nothing\n",
					plural(done, "key is", "keys are"))
				return err
			}
		}
		if read == io.EOF {
			break
		}
	}
	if s.output == "json" {
		err = printJSON(s.term.out, map[string]int{"imported": done, "refused": refused})
	} else {
		_, err = fmt.Fprintf(s.term.out, "imported %s, refused %d\n", plural(done, "key", "keys"), refused)
	}
	if err == nil && refused > 0 {
		err = fmt.Errorf("%d of %d lines: %w", refused, lines, errRefusedRows)
	}
	return err
}

func (s *session) importKMVLine(cmd *cobra.Command, c *client.Client, line []byte) error {
	key, value, err := parseKMVLine(line)
	if err != nil {
		return err
	}
	return c.ImportKMV(cmd.Context(), s.namespace, key, value)
}

// hintOf returns the hint of an error, to be printed after its text.
func hintOf(err error) string {
	var e *proto.Error
	if errors.As(err, &e) && e.Hint != "" {
		return ": " + e.Hint
	}
	return ""
}

// isKMVRefusal reports whether an error is about one line only.
func isKMVRefusal(err error) bool {
	for _, one := range []*proto.Error{
		proto.ErrBadRequest, proto.ErrBadKey, proto.ErrNotUTF8, proto.ErrWrongKind, proto.ErrUnmergeable,
		proto.ErrBudgetExceeded,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// kmvBar draws a progress bar if stderr is a terminal.
func (s *session) kmvBar(what string, size int64) (done func(int64)) {
	if !interactive(s.term.err) {
		return func(int64) {}
	}
	bar := progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(rawTerminal(s.term.err)), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
	return func(n int64) { _ = bar.Add64(n) }
}

func newKMVExport(s *session) *cobra.Command {
	var file string
	var patterns []string
	cmd := &cobra.Command{
		Use: "export [KEY...]", Short: "Write sets as gocountme stores them", Args: argsBetween(0, -1, "[KEY...]"),
		Long: `Each set is written as it is at a moment of its own. A set of n hashes is a value of k = n + 1, so what
came from gocountme goes out as it came. A set that forgets is refused when it keeps a sample only.

The namespace must hash the members of sets as gocountme does: --set-hash murmur3, when it is created. The hash of a
namespace cannot be changed later.`,
		Example: "  ebb kmv export stars/go stars/rust -n sets -f sets.jsonl\n" +
			"  ebb kmv export --matching 'stars/*' -n sets -f -",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkExport(args, patterns, file); err != nil {
				return err
			}
			return s.exportKMV(cmd, args, patterns, file)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "write to this `file`, - for standard output")
	cmd.Flags().StringSliceVar(&patterns, "matching", nil,
		"also all sets whose key matches this `pattern`, as of ebb keys; may be repeated")
	return cmd
}

func (s *session) exportKMV(cmd *cobra.Command, keys, patterns []string, file string) error {
	c, err := s.dial(cmd) // --timeout applies to each key
	if err != nil {
		return err
	}
	defer c.Close()
	if keys, err = s.withMatching(cmd.Context(), c, keys, patterns, client.KindSet); err != nil {
		return err
	}
	write := func(to io.Writer) error {
		w := bufio.NewWriter(to)
		for _, key := range keys {
			value, err := c.ExportKMV(cmd.Context(), s.namespace, key)
			if err != nil {
				return err
			}
			line, err := appendKMVLine(nil, key, value)
			if err != nil {
				return err
			}
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	if file == "-" {
		err = write(s.term.out)
	} else {
		err = writeSketches(file, write)
	}
	if err == nil {
		fmt.Fprintf(s.term.err, "exported %s\n", plural(len(keys), "key", "keys"))
	}
	return err
}
