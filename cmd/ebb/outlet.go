package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// outlet is a stream of output that reports when its reader is gone.
//
// The report comes from the write that fails with EPIPE, and never from the signal SIGPIPE: the kernel sends that
// signal for every socket too whose other end has closed, and Go passes each on to whoever asked for it. A handler
// cannot tell the two apart, and a demo that kills a node has many such sockets.
type outlet struct {
	to   io.Writer
	gone func() // is called at each write that finds no reader
}

// Write implements io.Writer.
func (o outlet) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		o.gone()
	}
	return n, err
}

// untilUnread returns a context that ends when a write of the returned session finds that nothing reads its standard
// output or standard error, or when the terminal closes. Without it both would end the process in the middle of the
// command, with its files left behind. Until stop is called the process ignores SIGPIPE, so that such a write fails
// instead of ending it.
func untilUnread(ctx context.Context, s *session) (until context.Context, shown *session, stop func()) {
	signal.Ignore(syscall.SIGPIPE)
	until, cancel := context.WithCancel(ctx)
	stopSignals := context.CancelFunc(func() {})
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		until, stopSignals = signal.NotifyContext(until, syscall.SIGHUP)
	}
	watched := *s
	watched.term.out, watched.term.err = watch(s.term.out, cancel), watch(s.term.err, cancel)
	return until, &watched, func() {
		stopSignals()
		cancel()
		signal.Reset(syscall.SIGPIPE)
	}
}

// watch is w with a report of a reader that is gone. A terminal stays what it is: one that closes sends SIGHUP.
func watch(w io.Writer, gone func()) io.Writer {
	if f, ok := undisplayed(w).(*os.File); ok && interactive(f) {
		return w
	}
	return outlet{w, gone}
}
