// Command bugs works on bugs that are planted in the source and on bugs that were found. It needs a clone of the
// source and the go command, so it is not part of the binary ebb.
//
//	go run ./chaos/bugs mutants            plant bugs, one after the other, and see that tests and the swarm notice them
//	go run ./chaos/bugs museum             list the bugs that were found
//	go run ./chaos/bugs museum NAME --run  tell one bug's story, and run its test without the bug and with it
//
// Package chaos/mutants has the planted bugs and runs their checkers, package chaos/museum has the bugs that were
// found. The exit status is 2 if the command line cannot be right, 130 if the run was interrupted, and 1 if it failed
// otherwise.
package main
