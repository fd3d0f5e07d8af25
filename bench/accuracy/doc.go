// Package accuracy measures the error of the estimates of sketches, and compares it with theory.
//
// The protocol is that of O. Ertl's hash4j: many trials from fixed seeds, each over a logarithmic grid of sizes. At
// every size it takes bias, root mean square and quantiles of the relative error:
//
//	e      = estimate / truth - 1
//	bias   = mean of e                 rmse = sqrt(mean of e^2)
//	outside of theory: rmse > 1.05 theory, or |bias| > 4.5 standard errors
//
// Hashes are uniform random numbers. The first Options.Exact things are added one by one, through the sketch's own Add.
// Beyond that, only the things that change the state are added, at random times with the right distribution (see
// skipper). That reaches 10^18 in the time of about a million additions.
package accuracy
