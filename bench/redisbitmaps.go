package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redis asks a redis-server the same question, by BITOP OR into another key and BITCOUNT of that key.
func (w *bitmapWorld) redis(ctx context.Context, r *BitmapsResult) error {
	server, err := startRedis(ctx, w.Redis, "--appendonly", "no")
	if err != nil {
		return err
	}
	defer server.stop()
	conn, err := net.Dial("unix", server.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := respConn{conn: conn, in: bufio.NewReader(conn)}
	image := make([]byte, (w.IDs+7)/8)
	for day := range bitmapDays[len(bitmapDays)-1] {
		clear(image)
		if err := w.eachSlice(day, 0, 1, func(ids []uint64) error {
			for _, id := range ids {
				image[id/8] |= 0x80 >> (id % 8)
			}
			return ctx.Err()
		}); err != nil {
			return err
		}
		if _, err := c.call("SET", string(bitmapKey(day)), string(image)); err != nil {
			return err
		}
	}
	for i := range r.Windows {
		window := &r.Windows[i]
		command := []string{"BITOP", "OR", "union"}
		for day := range window.Days {
			command = append(command, string(bitmapKey(day)))
		}
		var took []time.Duration
		for range w.Rounds {
			w.fillCaches()
			start := time.Now()
			if _, err := c.call(command...); err != nil {
				return err
			}
			n, err := c.call("BITCOUNT", "union")
			if err != nil {
				return err
			}
			took = append(took, time.Since(start))
			if uint64(n) != window.Count {
				return fmt.Errorf("%d days: redis-server counts %d users, ebb %d", window.Days, n, window.Count)
			}
		}
		slices.Sort(took)
		window.Redis = took[len(took)/2]
	}
	return nil
}

// respConn is a connection for commands whose reply is a number or a word.
type respConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func (c *respConn) call(words ...string) (n int64, err error) {
	out := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		out = bulk(out, w)
	}
	if _, err := c.conn.Write(out); err != nil {
		return 0, err
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	switch line = strings.TrimSpace(line); {
	case strings.HasPrefix(line, ":"):
		return strconv.ParseInt(line[1:], 10, 64)
	case strings.HasPrefix(line, "+"):
		return 0, nil
	}
	return 0, fmt.Errorf("redis answered %q to %s", line, words[0])
}
