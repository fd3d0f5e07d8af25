// Package swarm injects faults into whole simulated clusters, as a seed decides, and compares the clusters' answers
// with an exact oracle.
//
//	seed ──Draw──> Plan ──Run in a bubble──> Verdict ──Shrink──> the smallest plan that still fails
//	                │                          │
//	        families of faults       invariants, and how often each was evaluated
//
// A plan is data: which faults, their doses and their order. A seed draws the plan from a subset of the families, so
// that different seeds break different things (swarm testing). During the faults, clients count, read, rename and set
// bits; each client knows which answers are possible. At the end all faults are mended, and the cluster must answer
// everything correctly.
//
// A plan decides the faults and the random choices of the network, but not how goroutines interleave. A second run of a
// plan may therefore take another course.
package swarm
