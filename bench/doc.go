// Package bench measures a cluster from outside, beside rivals in the same run.
package bench
