package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
)

// What identifies a row is its line and all lines before it. The offset of a row
// in its ordered source says both:
//
//	line << 24 | 24 bits of the sum of the file up to that line
//
// so the last offsets that the shards remember are checkpoints, which the next
// import compares with its file: one that was only appended to agrees with all,
// another one differs at the last with a probability of 1 - 2^-24.
const (
	markBits = 24
	markMask = 1<<markBits - 1
)

// LineOf is the line of an offset of an import.
func LineOf(offset uint64) uint64 { return offset >> markBits }

// ErrOtherFile says that what the source has decided was in another file, or that
// this one was changed other than by appending, or is read with other options.
var ErrOtherFile = errors.New("this is not the file that was imported under this source")

// salt sums up what else decides how a line counts.
func (r *Reader) salt(namespace string) uint64 {
	o := r.opts
	if namespace == "" {
		namespace = proto.DefaultNamespace
	}
	text := fmt.Sprintf("%q %d %v %q %q %q %q %d %v", namespace, o.Format, o.NoHeader, o.Key, o.Bin, o.Time, o.Amount, o.TimeUnit, o.SkipEmpty)
	if o.Kind != 0 || o.Value != "" { // without, it is what it was before there were kinds
		text += fmt.Sprintf(" %d %q", o.Kind, o.Value)
	}
	if o.Header || o.TimeFormat != "" || o.Zone != nil { // nor these
		text += fmt.Sprintf(" %v %q %q", o.Header, o.TimeFormat, zoneName(o.Zone))
	}
	return xxh3.HashString(text)
}

func zoneName(zone *time.Location) string {
	if zone == nil {
		return ""
	}
	return zone.String()
}

// SourceName proposes a name for the import of this file into a namespace, of the
// namespace, the file's base name, the options, the header and the first row. A
// second import finds it again, also when the file has moved or grown. It is
// called before Next, and reads a line.
func (r *Reader) SourceName(namespace string) string {
	if len(r.pending) == 0 {
		_, _ = r.peek() // at the end, or on an error, Next says so again
	}
	sum := r.sum
	switch {
	case r.foundHeader != 0:
		sum = r.foundHeader // as when it was taken for a row: so an older import of the file is found again
	case len(r.pending) > 0:
		sum = r.pending[0].sum
	}
	base := strings.TrimSuffix(filepath.Base(r.name), ".gz")
	if len(base) > 100 {
		base = base[:100]
	}
	return fmt.Sprintf("import/%s/%s/%016x", namespace, base, mix(sum, r.salt(namespace)))
}

func mix(sum, salt uint64) uint64 {
	return xxh3.HashString(fmt.Sprint(sum, salt))
}

// checkpoint is a row that was decided: its line, and the offset it had.
type checkpoint struct{ line, offset uint64 }

// checkpoints returns those of the last offsets of shards, by line.
func checkpoints(last []uint64) []checkpoint {
	var points []checkpoint
	for _, offset := range last {
		if offset > 0 {
			points = append(points, checkpoint{offset >> markBits, offset})
		}
	}
	slices.SortFunc(points, func(a, b checkpoint) int { return cmp.Compare(a.offset, b.offset) })
	return points
}

// identity gives the rows of one import their offsets.
type identity struct {
	salt   uint64
	points []checkpoint // not yet reached
	lax    bool         // lines decide alone
}

func (id *identity) offset(line, sum uint64) uint64 {
	return line<<markBits | mix(sum, id.salt)&markMask
}

// reach compares the checkpoints up to a line, and returns the offset of the row
// that ends there.
func (id *identity) reach(line, sum uint64) (uint64, error) {
	offset := id.offset(line, sum)
	for len(id.points) > 0 && id.points[0].line <= line {
		p := id.points[0]
		id.points = id.points[1:]
		switch {
		case p.offset == offset:
		case !id.lax:
			return 0, fmt.Errorf("lines 1 to %d: %w", p.line, ErrOtherFile)
		case p.line == line:
			offset = p.offset // decided, whatever is there now
		}
	}
	return offset, nil
}

// end is called at the end of the file.
func (id *identity) end() error {
	if len(id.points) == 0 || id.lax {
		return nil
	}
	return fmt.Errorf("it ends before line %d: %w", id.points[len(id.points)-1].line, ErrOtherFile)
}

// verify reads a regular file up to the last checkpoint, before anything of it is
// written. What cannot be read is left to the import to report.
func (id *identity) verify(ctx context.Context, r *Reader) error {
	if id.lax || len(id.points) == 0 || !r.Regular() {
		return nil
	}
	again, err := Open(r.path, r.opts)
	if err != nil {
		return err
	}
	defer func() { _ = again.Close() }() // opened for reading
	ahead := identity{salt: id.salt}
	for _, p := range id.points {
		for again.line < p.line {
			_, err := again.takeLine()
			var refused *Refused
			switch {
			case err == io.EOF:
				ahead.points = id.points
				return ahead.end()
			case err != nil && !errors.As(err, &refused):
				return nil
			case again.line%(1<<16) == 0 && ctx.Err() != nil:
				return context.Cause(ctx)
			}
		}
		ahead.points = []checkpoint{p}
		if _, err := ahead.reach(again.line, again.sum); err != nil {
			return err
		}
	}
	return nil
}
