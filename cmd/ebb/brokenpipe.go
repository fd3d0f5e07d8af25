package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// pipeWriter is an output stream that reports a broken pipe, one whose reader is gone.
//
// The report comes from the write that fails with EPIPE, and never from the signal SIGPIPE. The kernel also sends that
// signal for each socket whose other end has closed, and Go passes every one to the handler. A handler cannot
// distinguish the two, and a demo that kills a node has many such sockets.
type pipeWriter struct {
	to   io.Writer
	gone func() // called at each write that finds no reader
}

// Write implements io.Writer.
func (w pipeWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		w.gone()
	}
	return n, err
}

// withBrokenPipe returns a context that ends when nothing reads the standard output or standard error of the returned
// session any more, or when the terminal closes. Without that context, either event would end the process in the middle
// of the command and leave its files behind. Until stop is called, the process ignores SIGPIPE, so that such a write
// returns an error instead of ending the process.
func withBrokenPipe(ctx context.Context, s *session) (until context.Context, shown *session, stop func()) {
	signal.Ignore(syscall.SIGPIPE)
	until, cancel := context.WithCancel(ctx)
	stopSignals := context.CancelFunc(func() {})
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
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

// watchPipe returns w with a report of a broken pipe. It returns a terminal as it is, because a terminal that closes
// sends SIGHUP.
func watchPipe(w io.Writer, gone func()) io.Writer {
	if f, ok := rawTerminal(w).(*os.File); ok && interactive(f) {
		return w
	}
	return pipeWriter{w, gone}
}
