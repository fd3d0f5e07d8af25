package load

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// ReadIDs reads the ids of a file and passes each to yield, until yield returns an error. The format is ids (one a
// line), csv (the column of that name or number, from 1) or roaring (its portable format, of 32 or 64 bits). The format
// auto recognizes ids and roaring by the first bytes. An invalid id is a BAD_REQUEST that names its line.
func ReadIDs(in *bufio.Reader, format, column string, opts Options, yield func(id uint64) error) error {
	if format == "auto" {
		format = "ids"
		if head, _ := in.Peek(8); isRoaring(head) {
			format = "roaring"
		}
	}
	switch format {
	case "csv":
		return readIDColumn(in, column, opts, yield)
	case "roaring":
		return readRoaring(in, yield)
	}
	return readIDLines(in, yield)
}

// isRoaring recognizes the beginning of a portable bitmap: of 32 bits a cookie, of 64 bits a small number of 8 bytes.
func isRoaring(head []byte) bool {
	if len(head) < 8 {
		return false
	}
	cookie := uint32(head[0]) | uint32(head[1])<<8
	return cookie == 12346 && head[2] == 0 && head[3] == 0 || cookie == 12347 || head[4] == 0 && head[5] == 0 && head[6] == 0 && head[7] == 0
}

func readIDLines(in *bufio.Reader, yield func(id uint64) error) error {
	return readLines(in, func(n int, text []byte) error {
		id, ok := digits(text)
		if !ok {
			err := proto.ErrBadRequest.Errorf("line %d: %q is no id: it must be a whole number from 0 to 18446744073709551615", n, clipped(string(text)))
			if bytes.IndexByte(text, ',') >= 0 {
				return err.WithHint("of a CSV file, --column says which column holds the ids")
			}
			return err
		}
		return yield(id)
	})
}

// readLines yields the lines that are not empty, without blanks around them, and their numbers.
func readLines(in *bufio.Reader, yield func(n int, text []byte) error) error {
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		if err := yield(n, text); err != nil {
			return err
		}
	}
	return lines.Err()
}

// ReadNames reads the strings of a file as ReadIDs reads ids: one a line (ids, auto) or one column (csv). It yields
// each with the number of its line or row. If the column is given by number, opts or the first lines say whether there
// is a header, as for a Reader. If neither does, the error is ErrColumn.
func ReadNames(in *bufio.Reader, format, column string, opts Options, yield func(line int, name string) error) error {
	take := func(n int, name string) error {
		if err := proto.CheckName([]byte(name)); err != nil {
			err.Message = fmt.Sprintf("line %d: %s", n, err.Message)
			return err
		}
		return yield(n, name)
	}
	switch format {
	case "csv":
		return readColumn(in, column, opts, take)
	case "roaring":
		return proto.ErrBadRequest.Errorf("a bitmap in the format of Roaring has numbers, and the namespace has a dictionary: ids are strings there").
			WithHint("load strings, one a line, or a CSV column of them")
	}
	return readLines(in, func(n int, text []byte) error { return take(n, string(text)) })
}

// digits does what strconv.ParseUint does, without an allocation.
func digits(text []byte) (id uint64, ok bool) {
	if len(text) > 19 {
		id, err := strconv.ParseUint(string(text), 10, 64)
		return id, err == nil
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = 10*id + uint64(c-'0')
	}
	return id, len(text) > 0
}

func clipped(text string) string {
	if len(text) > 40 {
		return strings.ToValidUTF8(text[:40], "") + "..."
	}
	return text
}

func readIDColumn(in io.Reader, column string, opts Options, yield func(id uint64) error) error {
	rowOne := opts.NoHeader
	opts.NoHeader = !opts.Header // row 1 is a header if its field is no id
	return readColumn(in, column, opts, func(row int, text string) error {
		id, ok := digits([]byte(text))
		switch {
		case !ok && row == 1 && !rowOne:
			return nil // a header
		case !ok:
			return proto.ErrBadRequest.Errorf("row %d: %q is no id: it must be a whole number from 0 to 18446744073709551615", row, clipped(text))
		}
		return yield(id)
	})
}

// readColumn yields the fields of a column, without blanks around them, and the numbers of their rows. It leaves out
// the header.
func readColumn(in io.Reader, column string, opts Options, yield func(row int, text string) error) error {
	c := idColumn{csv: csv.NewReader(in), column: column, opts: opts, at: -1}
	c.csv.FieldsPerRecord = -1
	if n, err := strconv.Atoi(column); err == nil {
		if n < 1 {
			return proto.ErrBadRequest.Errorf("column %d: columns are numbered from 1", n)
		}
		c.at = n - 1
	}
	first, err := c.begin()
	if err != nil {
		return eofIsEnd(err)
	}
	for row := first; ; row++ {
		fields, err := c.next()
		if err != nil {
			return eofIsEnd(err)
		}
		if c.at >= len(fields) {
			return proto.ErrBadRequest.Errorf("row %d has %d columns: column %s is not there", row, len(fields), column)
		}
		if err := yield(row, strings.TrimSpace(fields[c.at])); err != nil {
			return err
		}
	}
}

func eofIsEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// idColumn is a column of a CSV file that is being read.
type idColumn struct {
	csv    *csv.Reader
	column string
	opts   Options
	at     int        // index of the column, from 0; -1: not known yet
	held   [][]string // rows that were read ahead
}

func (c *idColumn) next() ([]string, error) {
	if len(c.held) > 0 {
		fields := c.held[0]
		c.held = c.held[1:]
		return fields, nil
	}
	return c.csv.Read()
}

// begin finds the column, and returns the number of the first row that is not a header: 1 or 2.
func (c *idColumn) begin() (first int, err error) {
	head, err := c.csv.Read()
	if err != nil {
		return 0, err
	}
	if c.at < 0 {
		return 2, c.find(head)
	}
	header := c.opts.Header
	if !header && !c.opts.NoHeader {
		if header, err = c.judge(head); err != nil {
			return 0, err
		}
	}
	if header {
		return 2, nil
	}
	c.held = append([][]string{head}, c.held...)
	return 1, nil
}

// find looks a column up in the header.
func (c *idColumn) find(head []string) error {
	for i, name := range head {
		if strings.TrimSpace(name) == c.column || c.column == "" && len(head) == 1 {
			c.at = i
		}
	}
	if c.at < 0 {
		err := proto.ErrBadRequest.Errorf("the file has no column %q: it has %s", c.column, clipped(strings.Join(head, ", ")))
		if len(head) == 1 && strings.Contains(head[0], "\t") {
			return err.WithHint("columns of one bitmap are separated by commas; of a file with tabs send one column: " +
				"cut -f NUMBER FILE | ebb bits load KEY -")
		}
		return err
	}
	return nil
}

// judge finds out from the second row whether the first row holds names.
func (c *idColumn) judge(head []string) (bool, error) {
	second, err := c.csv.Read()
	if err != nil {
		return false, eofIsEnd(err) // or there is no second row
	}
	c.held = append(c.held, second)
	switch judgeFirst(head, second, nil, ',') {
	case isNames:
		return true, nil
	case undecided:
		return false, errUndecided(strings.Join(head, ","))
	}
	return false, nil
}

// readRoaring reads a portable bitmap of 32 bits, which begins with a cookie, or of 64 bits.
func readRoaring(in *bufio.Reader, yield func(id uint64) error) error {
	head, _ := in.Peek(4)
	read := bitmap.ReadPortable64
	if len(head) == 4 {
		if cookie := uint32(head[0]) | uint32(head[1])<<8; cookie == 12347 || cookie == 12346 && head[2] == 0 && head[3] == 0 {
			read = bitmap.ReadPortable32
		}
	}
	return read(in, func(slice uint64, c bitmap.Container) error {
		var err error
		c.Each(0, func(low uint16) bool {
			err = yield(slice<<16 | uint64(low))
			return err == nil
		})
		return err
	})
}

// IDs is a set of ids that are added in ascending order. The zero IDs is empty.
type IDs struct {
	slices     []uint64
	containers []bitmap.Container
	slice      uint64
	lows       []uint16
	scratch    [bitmap.ScratchWords]uint64
}

// Add adds an id, which must be larger than all ids before it.
func (d *IDs) Add(id uint64) {
	if id>>16 != d.slice {
		d.settle()
		d.slice = id >> 16
	}
	d.lows = append(d.lows, uint16(id))
}

// WriteRoaring writes the set in Roaring's portable format: of 32 bits if all ids are below 2^32, else of 64 bits.
func (d *IDs) WriteRoaring(w io.Writer) error {
	d.settle()
	if n := len(d.slices); n > 0 && d.slices[n-1] > 0xffff {
		return bitmap.WritePortable64(w, idDirectory{d})
	}
	return bitmap.WritePortable32(w, idDirectory{d})
}

// settle makes a container of the current slice.
func (d *IDs) settle() {
	if len(d.lows) == 0 {
		return
	}
	c, _ := bitmap.Edit(d.scratch[:], bitmap.Container{}, bitmap.Set, d.lows)
	c.Words = append([]uint64(nil), c.Words...)
	d.slices, d.containers = append(d.slices, d.slice), append(d.containers, c)
	d.lows = d.lows[:0]
}

// idDirectory is a set as a bitmap.Directory.
type idDirectory struct{ *IDs }

func (d idDirectory) Len() int                         { return len(d.slices) }
func (d idDirectory) Slice(i int) uint64               { return d.slices[i] }
func (d idDirectory) Lows(i int) int                   { return int(d.containers[i].Count) }
func (d idDirectory) Container(i int) bitmap.Container { return d.containers[i] }
