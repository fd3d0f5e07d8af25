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

// The offset of a row in its ordered source identifies its line and all lines before it:
//
//	line << 24 | 24 bits of the hash of the file up to that line
//
// So the last offsets that the shards remember are checkpoints. The next import compares them with its file. A file
// that was only appended to agrees with all checkpoints. Another file differs at the last checkpoint, except with a
// probability of 2^-24.
const (
	markBits = 24
	markMask = 1<<markBits - 1
)

// LineOf returns the line number in an offset of an import.
func LineOf(offset uint64) uint64 { return offset >> markBits }

// ErrOtherFile says that the file is not the one that was imported under this source: it is another file, it was
// changed other than by appending, or it is read with other options.
var ErrOtherFile = errors.New("this is not the file that was imported under this source")

// salt hashes the namespace and the options that decide how a line counts.
func (r *Reader) salt(namespace string) uint64 {
	o := r.opts
	if namespace == "" {
		namespace = proto.DefaultNamespace
	}
	text := fmt.Sprintf("%q %d %v %q %q %q %q %d %v", namespace, o.Format, o.NoHeader, o.Key, o.Bin, o.Time, o.Amount, o.TimeUnit, o.SkipEmpty)
	if o.Kind != 0 || o.Value != "" { // without them the hash stays as it was before there were kinds
		text += fmt.Sprintf(" %d %q", o.Kind, o.Value)
	}
	if o.Header || o.TimeFormat != "" || o.Zone != nil { // the same for these options
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

// SourceName proposes a name for the import of this file into a namespace. It is made from the namespace, the file's
// base name, the options, the header and the first row. A second import finds the same name again, even if the file has
// moved or grown. Call it before Next; it reads a line.
func (r *Reader) SourceName(namespace string) string {
	if len(r.pending) == 0 {
		_, _ = r.peek() // at the end, or on an error, Next returns the same again
	}
	sum := r.sum
	switch {
	case r.foundHeader != 0:
		sum = r.foundHeader // as for a row: so an import that took it for one is found again
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

// checkpoint is a row that was decided: the number of its line, and its offset.
type checkpoint struct{ line, offset uint64 }

// checkpoints makes checkpoints from the last offsets of the shards, sorted by line.
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

// identity computes the offsets of the rows of one import.
type identity struct {
	salt   uint64
	points []checkpoint // not yet reached
	lax    bool         // only line numbers count, not the content of the file
}

func (id *identity) offset(line, sum uint64) uint64 {
	return line<<markBits | mix(sum, id.salt)&markMask
}

// reach compares the checkpoints up to a line with the file, and returns the offset of the row that ends in that line.
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
			offset = p.offset // the row was decided, even if the line is another one now
		}
	}
	return offset, nil
}

// end returns an error if the file ends before the last checkpoint.
func (id *identity) end() error {
	if len(id.points) == 0 || id.lax {
		return nil
	}
	return fmt.Errorf("it ends before line %d: %w", id.points[len(id.points)-1].line, ErrOtherFile)
}

// verify reads a regular file up to the last checkpoint, before the import writes anything. Read errors are left to the
// import itself.
func (id *identity) verify(ctx context.Context, r *Reader) error {
	if id.lax || len(id.points) == 0 || !r.Regular() {
		return nil
	}
	again, err := Open(r.path, r.opts)
	if err != nil {
		return err
	}
	defer func() { _ = again.Close() }() // closing a file that was only read cannot lose data
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
