// Package backup keeps the state of a cluster in a store, and brings it into another cluster.
//
//	store/
//	  manifests/<time>-<hash>.json   what a backup is: see Manifest; hash: the first 64 bits of the SHA-256 of the file
//	  chunks/<2 digits>/<hash>       bytes of shards' snapshots, by their SHA-256
//
// A backup is complete when its manifest is there, which is written last. Chunks are shared by all backups of a store
// and never change, so a backup sends only those that the store has not.
package backup
