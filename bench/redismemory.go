package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// RedisMemory measures the memory of the same distributions in a redis-server of its own. They have forgettable's
// layout: a sorted set for each, with its sum in the key NAME._Z and its time in NAME._T. The result is by how many
// bytes the process has grown.
func RedisMemory(ctx context.Context, m Memory) (resident int64, err error) {
	sizes, err := m.Shape.sizes(m.N)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "ebb-bench-redis-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := startRedis(ctx, dir, "--appendonly", "no")
	if err != nil {
		return 0, err
	}
	defer server.stop()
	pid := strconv.Itoa(server.cmd.Process.Pid)
	before := residentOf(pid)
	names := 260
	for _, n := range sizes {
		names = max(names, int(n))
	}
	if err := fillRedis(ctx, server.socket, sizes, names); err != nil {
		return 0, err
	}
	return residentOf(pid) - before, nil
}

// fillRedis adds one distribution after the other, with one command for all bins of each. So no distribution grows
// later, which is best for Redis.
func fillRedis(ctx context.Context, socket string, sizes []uint16, names int) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	var out, key, bin []byte
	waiting := 0
	for i, n := range sizes {
		key = memoryKey(key[:0], i)
		out = fmt.Appendf(out, "*%d\r\n$4\r\nZADD\r\n", 2+2*int(n))
		out = bulk(out, string(key))
		for j := range int(n) {
			bin = memoryBin(bin[:0], i, j, names)
			out = bulk(append(out, "$1\r\n1\r\n"...), string(bin))
		}
		out = set(out, append(key, "._Z"...), strconv.Itoa(int(n)))
		out = set(out, append(key, "._T"...), "1700000000")
		waiting += 3
		if len(out) < 64<<10 && i < len(sizes)-1 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := c.Write(out); err != nil {
			return err
		}
		if err := agreed(r, waiting); err != nil {
			return err
		}
		out, waiting = out[:0], 0
	}
	return nil
}

func set(out, key []byte, value string) []byte {
	out = append(out, "*3\r\n$3\r\nSET\r\n"...)
	return bulk(bulk(out, string(key)), value)
}

// agreed reads n replies, each of them an integer or OK.
func agreed(r *bufio.Reader, n int) error {
	for range n {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if line[0] != ':' && line[0] != '+' {
			return fmt.Errorf("redis answered %q", line)
		}
	}
	return nil
}
