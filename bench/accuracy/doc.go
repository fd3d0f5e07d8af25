// Package accuracy measures how far the estimates of sketches are from the truth, and compares with what theory says of
// them.
//
// The protocol is that of O. Ertl's hash4j: many trials from fixed seeds, each over a logarithmic grid of sizes. At
// every size it takes bias, root mean square and quantiles of the relative error:
//
//	e      = estimate / truth - 1
//	bias   = mean of e                 rmse = sqrt(mean of e^2)
//	outside of theory: rmse > 1.05 theory, or |bias| > 4.5 standard errors
//
// Hashes are uniform random numbers. Up to Options.Exact things each is added through the sketch's own Add. Beyond
// that, only the things that change its state are added, at times drawn from the distribution of when each change comes
// first (see skipper). That reaches 10^18 in the time of about a million additions.
package accuracy
