// Package load reads event files and imports them, and generates a click stream
// shaped on a real one.
package load
