// Package bench measures a cluster from outside, and the memory of shards from inside, with rivals in the same run.
package bench
