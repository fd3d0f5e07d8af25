// Package browsertest checks with a real Chromium what a web page can do to a node: nothing, except for pages under the
// node's own names.
//
// It is a module of its own, so that the product does not depend on the driver of a browser. `make browser` runs it.
package browsertest
