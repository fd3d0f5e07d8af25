// Package sim runs whole clusters in virtual time: a network, disks and clocks
// that exist only inside a testing/synctest bubble, and faults drawn from a
// seed.
//
//	        ┌────────── bubble ───────────┐
//	seed ──>│ nemesis ──> Net, Disk, Clock │
//	        │             │    │     │     │
//	        │           node.Node × N      │──> history ──> checkers
//	        │             ▲                │
//	        │           clients            │
//	        └──────────────────────────────┘
//
// No mutex here is held while anything waits: a bubble's time stands still
// while a goroutine waits for a mutex.
package sim
