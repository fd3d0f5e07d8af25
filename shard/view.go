package shard

// View is a state as it was when it was frozen. Other goroutines, also several at once, may ask it and write it out
// while the state changes.
type View struct {
	frame
	release func() // of the memory
}

// Release lets go of what the view shares with the state. The view must not be
// used afterwards, and neither must anything that an answer of it has not copied.
func (v *View) Release() {
	v.frame = frame{}
	v.release()
}
