// Package sketch holds values that summarise a stream of events and forget it.
//
// Everything here is pure: time is an argument, nothing waits, nothing is random, and the same calls give the same
// bytes on every machine. What a namespace decides (half-life, floor, limits) comes as Params with each call.
//
// # The distribution
//
// A Distribution counts events by bin. An event of n at time t adds n * 2^((t-L)/h), where h is the half-life and L,
// the landmark, is a whole number of half-lives since the Unix epoch; a stored value v reads at time T as v *
// 2^-((T-L)/h).
//
//	stored            read at T
//	v  = sum n w      v / w(T)        w(t) = 2^((t-L)/h)
//	Z  = sum n w      Z / w(T)        over all bins, pruned ones too
//	Z2 = sum |n| w^2  Z2 / w(T)^2     n_eff = Z^2 / Z2
//
// Moving to a later landmark multiplies by 2^-k with k whole: no bit of a mantissa changes, so it does not matter when,
// or whether, it happens. The same holds for everything that is decided by comparing. A threshold is compared as v <
// threshold * w(now): both sides scale by the same power of two.
//
// # What has faded
//
// Under the prune floor a bin below the threshold is invisible to reads and counts as nothing on the next write,
// whether or not Prune has removed it. A summary whose Z is below the threshold is dead: it reads as empty, and the
// next Add starts afresh, whether or not the caller has removed it (see Death). So no answer depends on when cleaning
// happened. A threshold below 2^-100 is taken as 2^-100: what is smaller counts as nothing, and subnormal numbers never
// enter.
//
// # The other kinds
//
// A kind that carries its own parameters is made by a constructor that refuses what is out of range, and says in its
// comment what it promises, what it takes, and which laws its merge keeps.
//
//	TopK             the items that occur most, each count in a bracket
//	CountMin         how often any item occurred
//	Quantile         quantiles and ranks of values, with a bounded relative error
//	Distinct         how many distinct things there are; DistinctDecayed, DistinctWindow and
//	                 DistinctSliding forget
//	Set              the same, a sample of them, and what sets share; SetDecayed forgets
//	LinearCounter    distinct members, one by one while they are few
//	Bloom            whether a key was seen; BloomScalable grows, BloomExpiring forgets, BloomTimed does both
//	Morris           a count in one or two bytes
//
// Of these TopK, CountMin, Quantile and Morris forget by half-life, with one landmark for all that they hold.
package sketch
