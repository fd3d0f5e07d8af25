package shard

// View is a state as it was when it was frozen. Other goroutines, also several at once, may ask it and write it out
// while the state changes.
type View struct {
	frame
	release func() // of the memory
}

// Release gives back the memory that the view shares with the state. After that, the view must not be used, and neither
// must anything of its answers that refers to its memory.
func (v *View) Release() {
	v.frame = frame{}
	v.release()
}
