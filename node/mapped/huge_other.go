//go:build !linux || race

package mapped

func inHugePages([]byte, int) {}
