// Package backup writes the state of a cluster to a store, and restores it into another cluster.
//
//	store/
//	  manifests/<time>-<hash>.json   one backup: see Manifest; hash: the first 64 bits of the SHA-256 of the file
//	  chunks/<2 digits>/<hash>       bytes of shards' snapshots, named by their SHA-256
//
// The manifest is written last: a backup is complete when its manifest is in the store. All backups of a store share
// its chunks, which never change. So a backup sends only chunks that the store does not have.
package backup
