package snap

import (
	"errors"
	"io"
	iofs "io/fs"

	"github.com/ebbdb/ebb/proto"
)

// Verify reads the newest snapshot. wait is called before each chunk with its length; its error ends the reading and is
// returned. If the snapshot is damaged, Verify returns proto.ErrCorrupt, and the snapshot is set aside.
func (s *Store) Verify(wait func(bytes int) error) (err error) {
	metas, err := s.List()
	if err != nil || len(metas) == 0 {
		return err
	}
	_, r, err := s.Open(metas[0].ID)
	if errors.Is(err, iofs.ErrNotExist) && !errors.Is(err, proto.ErrCorrupt) {
		return nil // there are newer ones by now
	}
	if err != nil {
		return err
	}
	content := r.(*Content)
	defer func() { err = errors.Join(err, content.Close()) }()
	for _, item := range content.Items() {
		if err := wait(int(item.Length)); err != nil {
			return err
		}
		if _, err := content.Next(); err != nil {
			return err
		}
	}
	if _, err = content.Next(); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
