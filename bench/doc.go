// Package bench measures a cluster from outside and the memory of shards from inside. Some runs also measure rivals,
// such as Redis.
package bench
