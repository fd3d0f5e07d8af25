// Package browsertest asks a real Chromium what a web page can do to a node: nothing, but for pages of the node's own
// names.
//
// It is a module of its own, so that the product does not depend on what drives a browser. `make browser` runs it.
package browsertest
