package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
)

// isTemplate reports whether a key is made from the columns of a row.
func isTemplate(key string) bool { return strings.ContainsAny(key, "{}") }

// loadRows sets the ids of a column in the bitmaps that the rows name. The key is a template such as play/{day}.
func (s *session) loadRows(cmd *cobra.Command, key, path string, f bitsLoadFlags) (err error) {
	if f.column == "" {
		return usagef("key %q is made from the columns of FILE: --column names the one that holds the ids", key)
	}
	opts := load.Options{Key: key, Bin: f.column, SkipEmpty: true}
	if opts.Format, err = load.ParseFormat(f.format); err != nil {
		return noneOf("--format", f.format, formats)
	}
	if err := f.columns.settle(&opts); err != nil {
		return err
	}
	file, err := s.open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	m := &countingReader{Reader: file}
	rows, err := load.NewReader(m, path, opts)
	if errors.Is(err, load.ErrColumn) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := load.CheckNamespace(cmd.Context(), c, s.namespace); err != nil {
		return err
	}
	l := &rowsLoader{began: time.Now(), show: s.loadProgress(file, m, f.quiet)}
	if c.HasDictionary(cmd.Context(), s.namespace) {
		err = l.strings(cmd.Context(), c, s.namespace, rows)
	} else {
		err = l.numbers(cmd.Context(), c.BitWriter(client.BitWriterOptions{Namespace: s.namespace, MaxBatch: 64 << 10, Timeout: 2 * time.Minute}), rows)
	}
	l.show(l.ids, l.rate(), true)
	if n := rows.Empty(); n > 0 {
		say(s, "%s: %d rows without an id left out", path, n)
		if err == nil && l.ids == 0 {
			return proto.ErrBadRequest.Errorf("%s: no row has an id in column %q", path, f.column).
				WithHint("--column names the column, or in JSON lines the field, that holds the ids")
		}
	}
	return s.loaded(path, l.ids, l.changed, l.rate(), err)
}

// rowsLoader loads rows, each with a key and an id.
type rowsLoader struct {
	began        time.Time
	ids, changed int
	show         func(ids int, rate float64, done bool)
}

func (l *rowsLoader) rate() float64 { return float64(l.ids) / max(time.Since(l.began).Seconds(), 1e-9) }

// read passes the rows to take, one after the other. A row that cannot be used ends it.
func (l *rowsLoader) read(rows *load.Reader, take func(row load.Row) error) error {
	for {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if refused := (*load.Refused)(nil); errors.As(err, &refused) {
			return proto.ErrBadRequest.Errorf("%v", err)
		}
		if err = cmp.Or(err, take(row)); err != nil {
			return err
		}
		if l.ids++; l.ids%(16<<10) == 0 {
			l.show(l.ids, l.rate(), false)
		}
	}
}

// numbers sets ids, with a writer that groups the ids of each key.
func (l *rowsLoader) numbers(ctx context.Context, w *client.BitWriter, rows *load.Reader) error {
	err := l.read(rows, func(row load.Row) error {
		id, err := strconv.ParseUint(row.Bin, 10, 64)
		if err != nil {
			return proto.ErrBadRequest.Errorf("line %d: %q is no id: it must be a whole number from 0 to 18446744073709551615", row.Offset, row.Bin)
		}
		return w.Set(ctx, row.Key, id)
	})
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	if err != nil {
		cancel() // buffered ids need not be written: the load has to be run again in any case
	}
	err = cmp.Or(err, w.Close(closing))
	l.changed = int(w.Stats().Changed)
	return err
}

// namesHeldMax bounds the bytes of strings that wait until there are more strings of their key.
const namesHeldMax = 64 << 20

// namesRequests is how many requests are in flight at a time, each with the strings of some keys.
const namesRequests = 32

// strings sets strings, with as many of a key in one request as it may carry.
func (l *rowsLoader) strings(ctx context.Context, c *client.Client, namespace string, rows *load.Reader) error {
	type held struct {
		names []string
		bytes int
	}
	waiting, bytes, changed := map[string]*held{}, 0, atomic.Int64{}
	put := func(ctx context.Context, sets map[string][]string) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		n, err := c.SetNamesIn(ctx, namespace, sets)
		changed.Add(int64(n))
		return err
	}
	all := func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(namesRequests)
		some, names, size := map[string][]string{}, 0, 0
		send := func() {
			sets := some
			g.Go(func() error { return put(ctx, sets) })
			some, names, size = map[string][]string{}, 0, 0
		}
		for _, key := range slices.Sorted(maps.Keys(waiting)) {
			h := waiting[key]
			if len(some) == proto.BitChangesMax || names+len(h.names) > proto.NamesMax ||
				size+h.bytes > proto.BatchBytesMax {
				send()
			}
			some[key], names, size = h.names, names+len(h.names), size+h.bytes
		}
		send()
		err := g.Wait()
		clear(waiting)
		bytes = 0
		return err
	}
	defer func() { l.changed = int(changed.Load()) }()
	err := l.read(rows, func(row load.Row) error {
		if err := proto.CheckName([]byte(row.Bin)); err != nil {
			return proto.ErrBadRequest.Errorf("line %d: %s", row.Offset, err.Message)
		}
		h := waiting[row.Key]
		if h == nil {
			h = &held{}
			waiting[row.Key] = h
		}
		h.names = append(h.names, row.Bin)
		h.bytes, bytes = h.bytes+len(row.Bin)+len(row.Key), bytes+len(row.Bin)+len(row.Key)
		switch {
		case len(h.names) == proto.NamesMax || h.bytes >= proto.BatchBytesMax/2:
			bytes -= h.bytes
			delete(waiting, row.Key)
			return put(ctx, map[string][]string{row.Key: h.names})
		case bytes >= namesHeldMax:
			return all()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return all()
}
