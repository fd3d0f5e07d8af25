// Package swarm breaks whole simulated clusters in ways that a seed decides, and holds what they answer against an
// exact oracle.
//
//	seed ──Draw──> Plan ──Run in a bubble──> Verdict ──Shrink──> the smallest plan that still fails
//	                │                          │
//	        families of faults       invariants, and how often each was evaluated
//
// A plan is data: which faults, their doses and their order. A seed draws it from a subset of the families, so that
// different seeds break different things (swarm testing). During the faults, clients count, read, rename and set bits;
// each knows what the answers may be. At the end all is mended, and the cluster must answer everything correctly.
//
// A plan decides the faults and the network's chances, not how goroutines interleave: run again, it explores the same
// neighbourhood.
package swarm
