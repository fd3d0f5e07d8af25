package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/backup"
	"github.com/ebbdb/ebb/proto"
)

func newBackup(s *session) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "backup STORE", Short: "Keep the state of the cluster in a directory or an S3 bucket", Args: argsBetween(1, 1, "STORE"),
		Long: `Writes what all shards hold, and the namespaces, to a directory or to s3://BUCKET/PREFIX, while the cluster
works. Every shard is read from the node that leads it, as it is at a moment of its own: all that was
acknowledged before is in it. The store may hold many backups, which share what they have in
common: a second one sends only what has changed. An interrupted backup cannot be restored; the next one
does not send again what it has sent.

For S3 the environment says where and who: AWS_ENDPOINT_URL (of another service than AWS's), AWS_REGION, AWS_ACCESS_KEY_ID
and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials. docs/backup.md says how to do this every night.`,
		Example: "  ebb backup /var/backups/ebb\n  ebb backup s3://backups/ebb/production\n  ebb backup list /var/backups/ebb\n  ebb backup verify /var/backups/ebb\n  ebb backup prune /var/backups/ebb --keep 14",
		RunE:    func(cmd *cobra.Command, args []string) error { return s.takeBackup(cmd, args[0], quiet) },
	}
	cmd.Flags().BoolVar(&quiet, "quiet", false, "no progress bar")
	cmd.AddCommand(newBackupList(s), newBackupVerify(s), newBackupPrune(s))
	return cmd
}

func newBackupList(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "list STORE", Short: "List the backups of a store, oldest first", Args: argsBetween(1, 1, "STORE"),
		Example: "  ebb backup list /var/backups/ebb --json",
		RunE:    func(cmd *cobra.Command, args []string) error { return s.listBackups(cmd.Context(), args[0]) },
	}
}

func newBackupVerify(s *session) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "verify STORE [BACKUP]", Short: "Read all of a backup and check it", Args: argsBetween(1, 2, "STORE [BACKUP]"),
		Long: `Reads every chunk of a backup, the newest if none is named, and checks its hash, the checksum of every
shard, and that its state can be restored. No cluster is needed.`,
		Example: "  ebb backup verify /var/backups/ebb",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.verifyBackup(cmd.Context(), args[0], append(args, "")[1], quiet)
		},
	}
	cmd.Flags().BoolVar(&quiet, "quiet", false, "no progress bar")
	return cmd
}

func newBackupPrune(s *session) *cobra.Command {
	var keep int
	cmd := &cobra.Command{
		Use: "prune STORE --keep N", Short: "Remove old backups, and what only they had", Args: argsBetween(1, 1, "STORE"),
		Long:    "Removes all but the newest N backups, and the chunks that no other needs. Take no backup while it runs.",
		Example: "  ebb backup prune /var/backups/ebb --keep 14",
		RunE: func(cmd *cobra.Command, args []string) error {
			if keep < 1 {
				return usagef("--keep %d: it must be 1 or more", keep)
			}
			return s.pruneBackups(cmd.Context(), args[0], keep)
		},
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "how many backups stay")
	return cmd
}

func newRestore(s *session) *cobra.Command {
	var f restoreFlags
	var cancel bool
	cmd := &cobra.Command{
		Use: "restore STORE", Short: "Bring a backup into an empty cluster", Args: argsBetween(0, 1, "STORE"),
		Long: `Brings a backup, the newest if none is named, into a cluster that is empty: a new one, of any number of nodes, that was
started with as many --shards as the backup's had; with another number, name it here too, and keys go to the shards that have them now
(docs/backup.md says what does not come along then). All of the backup is read and checked before the first shard is
touched. The cluster keeps its own id; it gets the namespaces, the keys, the dictionaries, and what it takes to know
repetitions: sessions, sources, idempotency keys.

While a shard is being restored it refuses writes with STARTING. A restore that was interrupted continues when it is
repeated; --cancel gives it up.`,
		Example: "  ebb restore /var/backups/ebb\n  ebb restore /var/backups/ebb --backup 20261122T033000.000Z-7d1c9a40be12f38e\n  ebb restore /var/backups/ebb --shards 256",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cancel && len(args) > 0:
				return usagef("--cancel takes no store: it gives up the restore that is under way (ebb restore --cancel)")
			case cancel:
				return s.cancelRestore(cmd)
			case len(args) == 0:
				return usagef("usage: %s STORE", cmd.CommandPath())
			}
			return s.restoreBackup(cmd, args[0], &f)
		},
	}
	cmd.Flags().StringVar(&f.id, "backup", "", "`name` of the backup, as ebb backup list has it")
	cmd.Flags().Uint32Var(&f.shards, "shards", 0, "how many shards this cluster has, if the backup is of another number")
	cmd.Flags().BoolVar(&f.forgetSources, "forget-sources", false, "with --shards: also if the backup has imports that could go on")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "give up a restore that was interrupted")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "no progress bar")
	return cmd
}

// transferJSON is the result of a backup or a restore as JSON.
type transferJSON struct {
	Backup     string  `json:"backup"`
	ClusterID  string  `json:"cluster_id"`
	Shards     int     `json:"shards"`
	Keys       uint64  `json:"keys"`
	Bytes      uint64  `json:"bytes"`
	BytesSent  uint64  `json:"bytes_sent"`
	Chunks     int     `json:"chunks,omitempty"`
	ChunksSent int     `json:"chunks_sent,omitempty"`
	Seconds    float64 `json:"seconds"`
}

func (s *session) takeBackup(cmd *cobra.Command, place string, quiet bool) error {
	store, err := openStore(place)
	if err != nil {
		return err
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	start := time.Now()
	show, done := s.transferBar(quiet, "backing up")
	m, p, err := backup.Take(cmd.Context(), c, store, backup.Options{Version: version, Now: time.Now, Progress: show})
	done()
	if err != nil {
		return err
	}
	out := transferJSON{m.ID, m.ClusterID, len(m.Shards), m.Keys(), m.Bytes(), p.Sent, p.Chunks, p.ChunksSent, time.Since(start).Seconds()}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	fmt.Fprintf(s.term.out, "backup %s\n%d keys of %d shards, %s; %s of it new, in %v\n", out.Backup, out.Keys, out.Shards, bytesText(out.Bytes), bytesText(out.BytesSent), tookSince(start))
	s.printDeleted(m)
	return nil
}

func tookSince(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }

func openStore(place string) (backup.Store, error) {
	store, err := backup.Open(place)
	if err != nil {
		return nil, usageError{err}
	}
	return store, nil
}

// backupJSON is a backup in a list. Error says why the backup cannot be read.
type backupJSON struct {
	Backup    string    `json:"backup"`
	Time      time.Time `json:"time"`
	ClusterID string    `json:"cluster_id"`
	Shards    int       `json:"shards"`
	Keys      uint64    `json:"keys"`
	Bytes     uint64    `json:"bytes"`
	Error     string    `json:"error,omitempty"`
	// the state of each deleted namespace, by name
	Deleted map[string]string `json:"deleted,omitempty"`
}

func (s *session) listBackups(ctx context.Context, place string) error {
	store, err := openStore(place)
	if err != nil {
		return err
	}
	ids, err := backup.IDs(ctx, store)
	if err != nil {
		return err
	}
	list := make([]backupJSON, 0, len(ids))
	for _, id := range ids {
		m, err := backup.Load(ctx, store, id)
		switch {
		case errors.Is(err, proto.ErrCorrupt), errors.Is(err, proto.ErrNewerVersion):
			list = append(list, backupJSON{Backup: id, Error: err.Error()})
		case err != nil:
			return err
		default:
			list = append(list, backupJSON{id, m.Time, m.ClusterID, len(m.Shards), m.Keys(), m.Bytes(), "", maps.Collect(deletedIn(m))})
		}
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"backups": list})
	}
	size := bytesText
	if s.output == "tsv" {
		size = func(n uint64) string { return strconv.FormatUint(n, 10) }
	}
	var rows [][]string
	for _, b := range list {
		row := []string{b.Backup, b.ClusterID, strconv.Itoa(b.Shards), strconv.FormatUint(b.Keys, 10), size(b.Bytes)}
		if b.Error != "" {
			row = []string{b.Backup, "unreadable: " + b.Error, "-", "-", "-"}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 && s.output == "table" {
		fmt.Fprintf(s.term.out, "%s has no backups\n", store)
		return nil
	}
	if err := s.printTable("BACKUP\tCLUSTER\tSHARDS\tKEYS\tSIZE", rows); err != nil || s.output != "table" {
		return err
	}
	for _, b := range list {
		for _, name := range slices.Sorted(maps.Keys(b.Deleted)) {
			fmt.Fprintf(s.term.out, "backup %s, namespace %s: %s\n", b.Backup, name, b.Deleted[name])
		}
	}
	return nil
}

func (s *session) verifyBackup(ctx context.Context, place, id string, quiet bool) error {
	store, err := openStore(place)
	if err != nil {
		return err
	}
	m, err := backup.Load(ctx, store, id)
	if err != nil {
		return err
	}
	start := time.Now()
	show, done := s.transferBar(quiet, "verifying")
	err = backup.Verify(ctx, store, m, show)
	done()
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, transferJSON{Backup: m.ID, ClusterID: m.ClusterID, Shards: len(m.Shards), Keys: m.Keys(), Bytes: m.Bytes(), Seconds: time.Since(start).Seconds()})
	}
	fmt.Fprintf(s.term.out, "backup %s is sound: %d keys of %d shards, %s, in %v\n", m.ID, m.Keys(), len(m.Shards), bytesText(m.Bytes()), tookSince(start))
	s.printDeleted(m)
	return nil
}

// printDeleted says which namespaces of a backup are deleted.
func (s *session) printDeleted(m *backup.Manifest) {
	for name, state := range deletedIn(m) {
		fmt.Fprintf(s.term.out, "namespace %s: %s\n", name, state)
	}
}

// deletedIn yields the deleted namespaces of a backup, by name, and the state of each.
func deletedIn(m *backup.Manifest) iter.Seq2[string, string] {
	return func(yield func(name, state string) bool) {
		for _, ns := range m.Deleted() {
			state := "deleted, being purged"
			if d := ns.GetDeletion(); !d.GetPurging() {
				state = "deleted, can be undeleted until " + time.UnixMicro(d.GetPurgeUs()).UTC().Format(time.RFC3339)
			}
			if !yield(ns.GetName(), state) {
				return
			}
		}
	}
}

func (s *session) pruneBackups(ctx context.Context, place string, keep int) error {
	store, err := openStore(place)
	if err != nil {
		return err
	}
	p, err := backup.Prune(ctx, store, keep)
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"removed": append([]string{}, p.Backups...), "chunks": p.Chunks})
	}
	for _, id := range p.Backups {
		fmt.Fprintf(s.term.out, "removed %s\n", id)
	}
	fmt.Fprintf(s.term.out, "%s and %s removed\n", plural(len(p.Backups), "backup", "backups"), plural(p.Chunks, "chunk", "chunks"))
	return nil
}

// restoreFlags are the flags of ebb restore.
type restoreFlags struct {
	id            string
	shards        uint32
	forgetSources bool
	quiet         bool
}

// rehash returns the backup with as many shards as the flags say. Its store is temporary: done removes it.
func (f *restoreFlags) rehash(ctx context.Context, store backup.Store, m *backup.Manifest) (backup.Store, *backup.Manifest, func(), error) {
	if f.shards == 0 || int(f.shards) == len(m.Shards) {
		return store, m, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "ebb-restore-*")
	if err != nil {
		return nil, nil, nil, err
	}
	done := func() { _ = os.RemoveAll(dir) } // a temporary directory that stays does no harm
	moved, err := backup.Open(dir)
	if err == nil {
		m, err = backup.Rehash(ctx, store, m, f.shards, f.forgetSources, moved)
	}
	if err != nil {
		done()
		return nil, nil, nil, err
	}
	return moved, m, done, nil
}

func (s *session) restoreBackup(cmd *cobra.Command, place string, f *restoreFlags) error {
	if cmd.Flags().Changed("shards") && (f.shards == 0 || f.shards > proto.ShardsMax) {
		return usagef("--shards %d: it must be from 1 to %d", f.shards, proto.ShardsMax)
	}
	store, err := openStore(place)
	if err != nil {
		return err
	}
	m, err := backup.Load(cmd.Context(), store, f.id)
	if err != nil {
		return err
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	start, id := time.Now(), m.ID // rehash changes the id and the store; results name the original id
	store, m, forget, err := f.rehash(cmd.Context(), store, m)
	if err != nil {
		return err
	}
	defer forget()
	show, done := s.transferBar(f.quiet, "restoring")
	p, err := backup.Restore(cmd.Context(), c, store, m, show)
	done()
	if err != nil {
		if p.Sent > 0 {
			fmt.Fprintln(s.term.err, "run the same command again to go on, or ebb restore --cancel to give it up")
		}
		return err
	}
	out := transferJSON{
		Backup: id, ClusterID: m.ClusterID, Shards: len(m.Shards), Keys: m.Keys(), Bytes: m.Bytes(), BytesSent: p.Sent,
		Seconds: time.Since(start).Seconds(),
	}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	fmt.Fprintf(s.term.out, "restored backup %s: %d keys of %d shards, %s, in %v\n", out.Backup, out.Keys, out.Shards, bytesText(out.Bytes), tookSince(start))
	return nil
}

func (s *session) cancelRestore(cmd *cobra.Command) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := backup.Cancel(cmd.Context(), c); err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"canceled": true})
	}
	fmt.Fprintln(s.term.out, "no restore is under way any more")
	return nil
}

// transferBar draws a progress bar if stderr is a terminal. done ends it.
func (s *session) transferBar(quiet bool, what string) (show func(backup.Progress), done func()) {
	if quiet || !interactive(s.term.err) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(rawTerminal(s.term.err)), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(p backup.Progress) {
		if p.BytesTotal > 0 {
			bar.ChangeMax64(int64(p.BytesTotal))
		}
		bar.Describe(fmt.Sprintf("%s: %d of %d shards, %s sent", what, p.Shards, p.ShardsTotal, bytesText(p.Sent)))
		_ = bar.Set64(int64(p.Bytes))
	}, func() { _ = bar.Finish() }
}

var _ backup.Source = (*client.Client)(nil)
