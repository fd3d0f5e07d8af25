package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// onTerminal runs ebb with a terminal for its output, and returns what the terminal gets.
func (a *Arena) onTerminal(ctx context.Context, args ...string) (string, error) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer screen.Close()
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		return "", err
	}
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return "", err
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, a.binary, append([]string{"--addr", a.at["grpc"]}, args...)...)
	cmd.Stdout, cmd.Stderr = terminal, terminal
	if err := cmd.Start(); err != nil {
		return "", errors.Join(err, terminal.Close())
	}
	if err := terminal.Close(); err != nil {
		return "", err
	}
	text, err := io.ReadAll(screen)
	if errors.Is(err, syscall.EIO) { // the last writer has gone
		err = nil
	}
	_ = cmd.Wait() // an error is printed, too
	if err == nil && len(text) == 0 {
		err = errors.New("nothing is printed")
	}
	return string(text), err
}
