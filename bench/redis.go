package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

// ErrNoRedis says that redis-server is not installed, so Redis was not measured.
var ErrNoRedis = errors.New("redis-server is not installed")

// Redis measures the rival: one redis-server without replicas, with fsync always. It sends ZINCRBY of distinct (key,
// bin) pairs, 64 in a pipeline, from workers connections. It starts its own server, on a Unix socket in dir, and stops
// it at the end.
func Redis(ctx context.Context, dir string, workers, distributions, bins int, d time.Duration) (perSecond float64, err error) {
	server, err := startRedis(ctx, dir, "--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return 0, err
	}
	defer server.stop()
	socket := server.socket
	var done atomic.Int64
	start := time.Now()
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			errs <- zincrby(socket, w, distributions, bins, start.Add(d), &done)
		}()
	}
	for range workers {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	return float64(done.Load()) / time.Since(start).Seconds(), err
}

// redisServer is a redis-server process that this process has started.
type redisServer struct {
	cmd    *exec.Cmd
	socket string
}

// startRedis starts a redis-server that writes no snapshots, on a Unix socket in dir.
func startRedis(ctx context.Context, dir string, flags ...string) (*redisServer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	s := &redisServer{socket: filepath.Join(dir, "redis.sock")}
	s.cmd = exec.CommandContext(ctx, path, append([]string{
		"--port", "0", "--unixsocket", s.socket, "--dir", dir, "--save", "", "--daemonize", "no",
	}, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = nil, os.Stderr
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	if err := awaitSocket(ctx, s.socket); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *redisServer) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func awaitSocket(ctx context.Context, socket string) error {
	for {
		c, err := net.Dial("unix", socket)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

const redisPipeline = 64

func zincrby(socket string, worker, distributions, bins int, until time.Time, done *atomic.Int64) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	p := newPairs(uint64(worker), distributions, bins)
	var out []byte
	for time.Now().Before(until) {
		out = out[:0]
		for range redisPipeline {
			key, bin := p.next()
			out = append(out, "*4\r\n$7\r\nZINCRBY\r\n"...)
			out = bulk(append(bulk(out, key), "$1\r\n1\r\n"...), bin)
		}
		if _, err := c.Write(out); err != nil {
			return err
		}
		for range redisPipeline {
			if err := reply(r); err != nil {
				return err
			}
		}
		done.Add(redisPipeline)
	}
	return nil
}

// bulk appends a RESP bulk string.
func bulk(out []byte, b string) []byte {
	out = append(out, '$')
	out = strconv.AppendInt(out, int64(len(b)), 10)
	out = append(out, "\r\n"...)
	out = append(out, b...)
	return append(out, "\r\n"...)
}

// reply reads one bulk reply, such as that of ZINCRBY.
func reply(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if line[0] != '$' {
		return fmt.Errorf("redis answered %q", line)
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return err
	}
	_, err = r.Discard(n + 2)
	return err
}
