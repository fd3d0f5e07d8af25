package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// pipeWriter is an output stream that reports a broken pipe: its reader is gone.
//
// The report comes from the write that fails with EPIPE, and never from the signal SIGPIPE: the kernel sends that
// signal for every socket too whose other end has closed, and Go passes each on to whoever asked for it. A handler
// cannot tell the two apart, and a demo that kills a node has many such sockets.
type pipeWriter struct {
	to   io.Writer
	gone func() // is called at each write that finds no reader
}

// Write implements io.Writer.
func (w pipeWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		w.gone()
	}
	return n, err
}

// withBrokenPipe returns a context that ends when a write of the returned session finds that nothing reads its standard
// output or standard error, or when the terminal closes. Without it both would end the process in the middle of the
// command, with its files left behind. Until stop is called the process ignores SIGPIPE, so that such a write fails
// instead of ending it.
func withBrokenPipe(ctx context.Context, s *session) (until context.Context, shown *session, stop func()) {
	signal.Ignore(syscall.SIGPIPE)
	until, cancel := context.WithCancel(ctx)
	stopSignals := context.CancelFunc(func() {})
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		until, stopSignals = signal.NotifyContext(until, syscall.SIGHUP)
	}
	watched := *s
	watched.term.out, watched.term.err = watchPipe(s.term.out, cancel), watchPipe(s.term.err, cancel)
	return until, &watched, func() {
		stopSignals()
		cancel()
		signal.Reset(syscall.SIGPIPE)
	}
}

// watchPipe returns w with a report of a broken pipe. A terminal is returned as it is: one that closes sends SIGHUP.
func watchPipe(w io.Writer, gone func()) io.Writer {
	if f, ok := rawTerminal(w).(*os.File); ok && interactive(f) {
		return w
	}
	return pipeWriter{w, gone}
}
