package main

// namespaceHelp and namespaceExamples are the help for creating a namespace (true) and for changing one (false).
var (
	namespaceHelp = map[bool]string{
		true: `Creates a namespace. What is not named has its default. Where bitmaps lie (--bitmap-placement), how
members of sets are hashed (--set-hash) and --dictionary are chosen here, and stay.`,
		false: `Changes settings of a namespace that exists; what is not named stays. --bitmap-placement,
--set-hash and --dictionary stay as they were chosen when it was created.

A half-life or decay holds from now on, for all distributions: what was counted before has faded by the old one
until then, and fades by the new one from then on, whether a key is written again or not. Under an event clock now
is the newest event that was acknowledged before. A shard that does not answer takes the settings over with its next
command. A key of another kind keeps the half-life that it was made with until it has
faded or is deleted: ebb describe KEY shows it. --kind, --size and --window are of keys that are made later.`,
	}
	namespaceExamples = map[bool]string{
		true: `  ebb namespace create history --clock event --half-life 1h --threshold 1e-9
  ebb namespace create visits --kind distinct --size distinct.precision=14
  ebb namespace create recent --kind distinct --window 1h
  ebb namespace create people --bitmap-placement slice --universe all
  ebb namespace create members --dictionary
  ebb namespace create fans --kind set --decay none --set-hash murmur3
  ebb namespace create plays --rollups week,month,quarter,year`,
		false: `  ebb namespace set history --half-life 6h --threshold 1e-6
  ebb namespace set visits --kind distinct --size distinct.precision=14
  ebb namespace set visits --window 1h
  ebb namespace set people --universe everyone
  ebb namespace set plays --rollups none
  ebb namespace set clicks --max-bytes 1GiB --max-keys 1M`,
	}
)
