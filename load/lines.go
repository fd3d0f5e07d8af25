package load

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/zeebo/xxh3"
)

// record returns the next line, or several lines if a CSV field in quotes has line ends. If the lines that follow do
// not close the quote properly within LineMax, the quote is wrong. Then only its line is refused, and the lines that
// follow are read as lines of their own.
func (r *Reader) record() (string, error) {
	line, err := r.takeLine()
	if err != nil || r.opts.Format != CSV {
		return line, err
	}
	open, wrong := quotes(line, false)
	if !open {
		return line, nil
	}
	start, sum, size := r.line, r.sum, len(line)
	var held []bufferedLine
	for open && wrong == nil {
		more, err := r.takeLine()
		var refused *Refused
		switch {
		case err == io.EOF && r.opts.WholeLines:
			r.unended = start
			return "", io.EOF
		case err == io.EOF:
			wrong = errOpenedQuote
			continue
		case err != nil && !errors.As(err, &refused):
			return "", err // the line may be correct: reading failed before its end
		}
		held = append(held, bufferedLine{more, err, r.sum})
		if size += 1 + len(more); err != nil || size > r.opts.LineMax {
			wrong = fmt.Errorf("%w within %d bytes", errOpenedQuote, r.opts.LineMax)
			continue
		}
		open, wrong = quotes(more, true)
	}
	if wrong != nil {
		r.unreadLines(held)
		r.sum = sum
		return "", &Refused{Line: start, Reason: wrong}
	}
	return join(line, held), nil
}

func join(line string, more []bufferedLine) string {
	var b strings.Builder
	b.WriteString(line)
	for _, m := range more {
		b.WriteByte('\n')
		b.WriteString(m.line)
	}
	return b.String()
}

// unreadLines puts back the lines that were taken last, so that they are read again.
func (r *Reader) unreadLines(held []bufferedLine) {
	r.pending = append(held, r.pending...)
	r.line -= uint64(len(held))
}

func (r *Reader) takeLine() (string, error) {
	if len(r.pending) > 0 {
		next := r.pending[0]
		r.pending = r.pending[1:]
		r.line++
		r.sum = next.sum
		return next.line, next.err
	}
	line, err := r.nextLine()
	r.sum = r.ahead
	return line, err
}

// nextLine reads one line, without its line end.
func (r *Reader) nextLine() (string, error) {
	r.buf = r.buf[:0]
	long, sum := false, r.ahead
	for {
		part, err := r.in.ReadSlice('\n')
		if !long {
			r.buf = append(r.buf, part...)
		}
		long = long || len(r.buf) > r.opts.LineMax+2
		if err == bufio.ErrBufferFull {
			sum = xxh3.HashSeed(part, sum)
			continue
		}
		if err == io.EOF && len(r.buf) == 0 {
			return "", io.EOF
		}
		if err == io.EOF {
			r.unended = r.line + 1
			if r.opts.WholeLines {
				return "", io.EOF
			}
		}
		if err != nil && err != io.EOF {
			return "", fmt.Errorf("line %d: %w", r.line+1, gzipError(err))
		}
		r.ahead = xxh3.HashSeed(trimEnd(part), sum)
		break
	}
	r.line++
	line := trimEnd(r.buf)
	if long || len(line) > r.opts.LineMax {
		return "", &Refused{Line: r.line, Reason: fmt.Errorf("too long: the limit of a line is %d bytes", r.opts.LineMax)}
	}
	return string(line), nil
}

// trimEnd removes the end of a line.
func trimEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

func gzipError(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", ErrTruncated, io.ErrUnexpectedEOF)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
