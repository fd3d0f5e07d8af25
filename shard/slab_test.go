package shard

import "testing"

// Every number of words has a class whose blocks are large enough, and not by more than an eighth, or a fifth above 4
// KiB; of its runs no more than a sixteenth is left over.
func TestClasses(t *testing.T) {
	for words, class := range classOf {
		c := classes[class]
		step := 8
		if words > PageWords {
			step = 5
		}
		if size := int(c.size); size < words || words > smallLeast && (size-words)*step > size {
			t.Errorf("%d words lie in blocks of %d", words, size)
		}
		if used, all := int(c.count)*int(c.size), int(c.pages)*PageWords; c.count == 0 || used > all || used*16 < all*15 || c.pages > largeRun {
			t.Errorf("%d blocks of %d words in a run of %d pages", c.count, c.size, c.pages)
		}
	}
}
