// Package chaos is a world to break: switches between real nodes, scenarios in
// virtual time, faults, and checkers of what must hold.
package chaos
