//go:build !race

package main

var scripts = []string{"*"}
