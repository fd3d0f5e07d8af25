//go:build race

package main

// A process under the race detector starts slowly, and a script starts a hundred. These meet every kind of server and
// of background work; what they run on is raced by the packages' own tests.
var scripts = []string{"tour", "cluster", "bits", "backup", "alert", "import"}
