// Package sketch holds values that summarise a stream of events and forget it.
//
// Every function here is pure: time is an argument, nothing waits, nothing is random. The same calls give the same
// bytes on every machine. The settings of a namespace (half-life, floor, limits) are passed as Params with each call.
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
// Moving to a later landmark multiplies all values by 2^-k with k whole. No bit of a mantissa changes, so it does not
// matter when a value is moved, or whether it is. The same holds for comparisons. A threshold is compared as v <
// threshold * w(now): both sides scale by the same power of two.
//
// # What has faded
//
// Under the Prune floor, a bin below the threshold is invisible to reads. The next write to it starts from 0, whether
// or not Prune has removed it. A summary whose Z is below the threshold is dead: it reads as empty, and the next Add
// starts from an empty summary, whether or not the caller has removed the dead one (see Death). So no answer depends on
// when cleaning happened. A threshold below 2^-100 is taken as 2^-100: smaller values count as 0, so subnormal numbers
// never occur.
//
// # The other kinds
//
// A kind with its own parameters is made by a constructor that refuses parameters out of range. The comment on the type
// states its guarantees, its memory and the laws that its merge keeps.
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
