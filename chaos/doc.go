// Package chaos tests real nodes under faults. It has switches between the nodes, scenarios in virtual time, faults,
// and checkers of invariants.
package chaos
