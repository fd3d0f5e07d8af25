package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

var (
	decays     = map[string]ebbv1.Decay{"half-life": ebbv1.Decay_DECAY_HALF_LIFE, "linear": ebbv1.Decay_DECAY_LINEAR, "none": ebbv1.Decay_DECAY_NONE}
	floors     = map[string]ebbv1.Floor{"prune": ebbv1.Floor_FLOOR_PRUNE, "clamp": ebbv1.Floor_FLOOR_CLAMP, "prior": ebbv1.Floor_FLOOR_PRIOR}
	clocks     = map[string]ebbv1.Clock{"wall": ebbv1.Clock_CLOCK_WALL, "event": ebbv1.Clock_CLOCK_EVENT}
	rollups    = map[string]ebbv1.Period{"day": client.PeriodDay, "week": client.PeriodWeek, "month": client.PeriodMonth, "quarter": client.PeriodQuarter, "year": client.PeriodYear}
	setHashes  = map[string]ebbv1.SetHash{"xxh3": client.SetHashXXH3, "murmur3": client.SetHashMurmur3}
	placements = map[string]ebbv1.BitmapPlacement{"key": client.PlaceByKey, "slice": client.PlaceBySlice}
	precisions = map[string]ebbv1.Precision{"default": ebbv1.Precision_PRECISION_DEFAULT, "compact": ebbv1.Precision_PRECISION_COMPACT}
)

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

// nameOf returns the word for an enum value.
func nameOf[E comparable](values map[string]E, v E) string {
	for word, value := range values {
		if value == v {
			return word
		}
	}
	return "?"
}

func newNamespace(s *session) *cobra.Command {
	return children(
		&cobra.Command{Use: "namespace", Aliases: []string{"ns"}, Short: "Create, change, delete and list namespaces"},
		newNamespaceSet(s, "create", "Create a namespace", true),
		newNamespaceSet(s, "set", "Change settings of a namespace; what is not named stays", false),
		newNamespaceClock(s),
		newNamespaceCopy(s),
		&cobra.Command{
			Use: "show NAME", Short: "The settings of a namespace, with the sizes of the keys it makes", Args: argsBetween(1, 1, "NAME"),
			Example: "  ebb namespace show visits",
			RunE:    func(cmd *cobra.Command, args []string) error { return s.showNamespace(cmd, args[0]) },
		},
		newNamespaceUsage(s),
		newNamespaceDelete(s),
		newNamespaceUndelete(s),
		&cobra.Command{
			Use: "list", Short: "List the namespaces, also those that are deleted", Args: noArgs,
			Long: "Lists the namespaces. Those that are deleted follow until all of their keys are purged.\n" +
				"With -o tsv the last column says live, deleted or purging.",
			RunE: func(cmd *cobra.Command, _ []string) error { return s.listNamespaces(cmd) },
		},
	)
}

// namespaceFlags are the settings of a namespace as the user writes them.
type namespaceFlags struct {
	halfLife, slowHalfLife, decay, floor, clock, precision, window string
	threshold, prior                                               float64
	allowNegative                                                  bool
	binsMax                                                        uint32
	kind                                                           string
	sizes                                                          stringsValue
	setHash                                                        string
	placement, universe, rollups                                   string
	dictionary                                                     bool
	maxBytes, maxKeys, maxJump                                     string
}

func newNamespaceSet(s *session, use, short string, create bool) *cobra.Command {
	var nf namespaceFlags
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short, Args: argsBetween(1, 1, "NAME"),
		Long:    namespaceHelp[create],
		Example: namespaceExamples[create],
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := nf.namespace(args[0], create, cmd.Flags())
			if err != nil {
				return err
			}
			return inFlags(s.setNamespace(cmd, ns, create), ns, create)
		},
	}
	f := cmd.Flags()
	f.StringVar(&nf.halfLife, "half-life", "", "how long until an event counts for half: 30s, 10m, 6h, 7d, or none (default 1h)")
	f.StringVar(&nf.slowHalfLife, "slow-half-life", "", "count distributions under this half-life too, at least twice the other one (or at most half of it), for ebb trend; none ends that")
	f.StringVar(&nf.decay, "decay", "",
		"half-life (exponential), linear (leaky bucket, for distributions only) or none")
	f.StringVar(&nf.floor, "floor", "", "what becomes of faded bins: prune, clamp or prior (default prune)")
	f.Float64Var(&nf.threshold, "threshold", 0, "of the floor prune: counts below are gone (default 0.001)")
	f.Float64Var(&nf.prior, "prior", 0, "of the floor prior: pseudo-count of each bin (default 1)")
	f.StringVar(&nf.clock, "clock", "", "wall, or event to live by the times of the events (default wall)")
	f.StringVar(&nf.maxJump, "max-jump", "", "of an event clock: how far ahead of it an event may be dated; "+
		"later ones are refused; none for no limit (default 30d)")
	f.StringVar(&nf.precision, "precision", "", "default (64-bit values) or compact (32-bit, error <= 1e-5)")
	f.BoolVar(&nf.allowNegative, "allow-negative", false, "allow negative increments")
	f.Uint32Var(&nf.binsMax, "bins-max", 0, "bins a distribution may have (default 100000)")
	f.StringVar(&nf.kind, "kind", "", "`kind` of the keys that writes without a kind make: "+proto.KindNames()+" (default distribution)")
	f.Var(&nf.sizes, "size", "how large new keys are made, as `NAME=NUMBER` (repeatable): "+strings.Join(proto.SizeNames(), ", "))
	f.StringVar(&nf.setHash, "set-hash", "",
		"how members of sets are hashed, chosen at creation: xxh3 (by the namespace's seed) or murmur3 (as gocountme)")
	f.StringVar(&nf.placement, "bitmap-placement", "", "where bitmaps lie, chosen at creation: key (whole on the shard of the key) or slice (in all shards; such a namespace holds bitmaps only)")
	f.BoolVar(&nf.dictionary, "dictionary", false, "ids of bitmaps are strings (uuids, names), chosen at creation: each gets a number that stays")
	f.StringVar(&nf.universe, "universe", "", "`key` of the bitmap of all ids, for a not that names none; an empty one ends that")
	f.StringVar(&nf.rollups, "rollups", "", "`lengths` of periods of bitmaps that are made of shorter ones, of day, week, month, quarter and year: with month, "+
		"play/2011-11 has the ids of its days; with day, days have those of their hours; none ends that")
	f.StringVar(&nf.maxBytes, "max-bytes", "", "`size` that it may hold in the whole cluster, replicas counted once: "+
		"512MiB, 1GiB; none ends that. Only operators set it")
	f.StringVar(&nf.maxKeys, "max-keys", "", "`number` of keys that it may hold: 500000, 1M; none ends that. "+
		"At the limit counts of keys that are there are refused too. Nodes count the keys about four times a second, "+
		"and each other's once a second: all that come in between are taken, as by an import of many new keys. "+
		"Only operators set it")
	f.StringVar(&nf.window, "window", "", "distinct keys made from now on count what was there in the last 1h, or less, instead of fading; none ends that")
	return cmd
}

func (nf *namespaceFlags) namespace(name string, create bool, f *pflag.FlagSet) (client.Namespace, error) {
	ns := client.Namespace{Name: name, Threshold: nf.threshold, Prior: nf.prior, BinsMax: nf.binsMax, Dictionary: nf.dictionary}
	if f.Changed("allow-negative") {
		ns.AllowNegative = &nf.allowNegative
	}
	if err := proto.CheckNamespaceName(name); err != nil {
		return ns, err
	}
	for flag, bad := range map[string]bool{"threshold": !(nf.threshold > 0), "prior": !(nf.prior >= 0), "bins-max": nf.binsMax == 0} {
		if f.Changed(flag) && bad {
			return ns, usagef("--%s must be above zero", flag)
		}
	}
	if err := nf.setHalfLife(&ns); err != nil {
		return ns, err
	}
	if err := nf.setTemplate(&ns); err != nil {
		return ns, err
	}
	var err error
	if ns.Window, err = optional("window", nf.window, readSpan); err != nil {
		return ns, err
	}
	if ns.MaxJump, err = optional("max-jump", nf.maxJump, readSpan); err != nil {
		return ns, err
	}
	if ns.SlowHalfLife, err = optional("slow-half-life", nf.slowHalfLife, readSpan); err != nil {
		return ns, err
	}
	if err := nf.setWords(&ns); err != nil {
		return ns, err
	}
	if ns.Rollups, err = rollupUnits(nf.rollups); err != nil {
		return ns, err
	}
	if f.Changed("universe") {
		ns.Universe = &nf.universe
	}
	if ns.MaxBytes, err = optional("max-bytes", nf.maxBytes, readBytes); err != nil {
		return ns, err
	}
	if ns.MaxKeys, err = optional("max-keys", nf.maxKeys, readCount); err != nil {
		return ns, err
	}
	return ns, nf.idle(create, f)
}

// rollupUnits reads a list of period lengths; "" gives nil.
func rollupUnits(text string) (units []client.Period, err error) {
	switch text {
	case "":
		return nil, nil
	case "none":
		return []client.Period{}, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		unit, err := choice("rollups", strings.TrimSpace(name), rollups)
		if err != nil {
			return nil, err
		}
		units = append(units, unit)
	}
	return units, nil
}

// idle refuses a setting that has no effect with the other settings.
func (nf *namespaceFlags) idle(create bool, f *pflag.FlagSet) error {
	floor := nf.floor
	if floor == "" && create {
		floor = "prune"
	}
	switch {
	case nf.decay == "none" && nf.halfLife != "" && nf.halfLife != "none":
		return usagef("--half-life %s has no effect with --decay none", nf.halfLife)
	case nf.halfLife == "none" && nf.decay != "" && nf.decay != "none":
		return usagef("--half-life none has no effect with --decay %s", nf.decay)
	case f.Changed("threshold") && floor != "" && floor != "prune":
		return usagef("--threshold has no effect with --floor %s", floor)
	case f.Changed("prior") && floor != "" && floor != "prior":
		return usagef("--prior has no effect with --floor %s", floor)
	}
	return nil
}

func (nf *namespaceFlags) setHalfLife(ns *client.Namespace) error {
	if nf.halfLife == "" {
		return nil
	}
	if nf.halfLife == "none" {
		ns.Decay = ebbv1.Decay_DECAY_NONE
		return nil
	}
	us, err := query.ParseDuration(nf.halfLife)
	if err != nil {
		return usagef("--half-life %q: write it as 30s, 10m, 6h, 7d, 2y or none", nf.halfLife)
	}
	if e := proto.CheckHalfLife(us); e != nil {
		return e
	}
	ns.HalfLife = time.Duration(us) * time.Microsecond
	return nil
}

// setTemplate reads --kind and --size.
func (nf *namespaceFlags) setTemplate(ns *client.Namespace) error {
	if nf.kind != "" {
		kind, known := proto.KindNamed(nf.kind)
		if !known {
			return noneOf("--kind", nf.kind, strings.Split(proto.KindNames(), ", "))
		}
		ns.Kind = kind
	}
	for _, text := range nf.sizes {
		name, number, ok := strings.Cut(text, "=")
		v, err := proto.ParseNumber(number)
		if !ok || err != nil {
			return usagef("--size %q: write it as NAME=NUMBER, such as countmin.epsilon=0.001", text)
		}
		if ns.Sizes == nil {
			ns.Sizes = new(client.Sizes)
		}
		if err := proto.SetSize(ns.Sizes, name, v); err != nil {
			return err
		}
	}
	return nil
}

// optional reads a flag whose value may be none, which is 0. It returns nil if the flag is not given.
func optional[T any](flag, text string, read func(flag, text string) (T, error)) (*T, error) {
	switch text {
	case "":
		return nil, nil
	case "none":
		return new(T), nil
	}
	v, err := read(flag, text)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// readSpan reads a duration above 0.
func readSpan(flag, text string) (time.Duration, error) {
	us, err := query.ParseDuration(text)
	if err != nil || us <= 0 {
		return 0, usagef("--%s %q: write it as 30s, 10m, 6h, 7d, 2y or none", flag, text)
	}
	return time.Duration(us) * time.Microsecond, nil
}

func (nf *namespaceFlags) setWords(ns *client.Namespace) (err error) {
	if nf.decay != "" {
		if ns.Decay, err = choice("decay", nf.decay, decays); err != nil {
			return err
		}
	}
	if nf.floor != "" {
		if ns.Floor, err = choice("floor", nf.floor, floors); err != nil {
			return err
		}
	}
	if nf.clock != "" {
		if ns.Clock, err = choice("clock", nf.clock, clocks); err != nil {
			return err
		}
	}
	if nf.placement != "" {
		if ns.BitmapPlacement, err = choice("bitmap-placement", nf.placement, placements); err != nil {
			return err
		}
	}
	if nf.setHash != "" {
		if ns.SetHash, err = choice("set-hash", nf.setHash, setHashes); err != nil {
			return err
		}
	}
	if nf.precision != "" {
		ns.Precision, err = choice("precision", nf.precision, precisions)
	}
	return err
}

func (s *session) setNamespace(cmd *cobra.Command, ns client.Namespace, create bool) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	set := c.SetNamespace
	if create {
		set = c.CreateNamespace
	} else if err := mustExist(ctx, c, ns.Name); err != nil {
		return err
	}
	got, err := set(ctx, ns)
	if err != nil {
		return err
	}
	if !create && ns.HalfLife > 0 && ns.Decay == 0 && got.Decay == client.DecayNone {
		fmt.Fprintf(s.term.err, "note: nothing fades in namespace %s, whatever its half-life: "+
			"--decay half-life has its distributions fade\n", got.Name)
	} else if !create && (ns.HalfLife > 0 || ns.Decay != 0) {
		fade := "fade so"
		if got.Decay == client.DecayNone {
			fade = "do not fade"
		}
		fmt.Fprintf(s.term.err, "note: distributions of namespace %s %s from now on; a key of another kind that is "+
			"there keeps its half-life until it has faded or is deleted (ebb describe KEY shows it)\n", got.Name, fade)
	}
	if !create && ns.Clock == client.ClockWall && got.Decay != client.DecayNone {
		fmt.Fprintf(s.term.err, "note: namespace %s lives by the time of its nodes from now on, and its events are as old "+
			"as that says: those of many half-lives ago have faded\n", got.Name)
	}
	if ns.MaxBytes != nil || ns.MaxKeys != nil {
		row := namespaceRow(got)
		fmt.Fprintf(s.term.err, "note: budget of namespace %s: %s\n", got.Name, row.budget())
	}
	return s.printNamespaces([]client.Namespace{got})
}

// mustExist refuses a namespace that does not exist. Otherwise a setting for a mistyped name would create a second
// namespace and not change the intended one.
func mustExist(ctx context.Context, c *client.Client, name string) error {
	_, err := existing(ctx, c, name)
	return err
}

// inFlags adds to an error about settings that do not go together which flags correct them. The cluster does not know
// flags.
func inFlags(err error, ns client.Namespace, create bool) error {
	var e *proto.Error
	if !errors.As(err, &e) {
		return err
	}
	slow := ns.SlowHalfLife != nil && *ns.SlowHalfLife > 0 // a second half-life is given
	switch {
	case e.Hint == proto.HintNoSecondHalfLife && slow:
		return advised(err, "leave out --slow-half-life")
	case e.Hint == proto.HintNoSecondHalfLife:
		return advised(err, "end the second half-life: --slow-half-life none")
	case !strings.HasPrefix(e.Message, proto.HalfLivesTooClose):
		return err
	case slow && (create || ns.HalfLife > 0):
		return advised(err, "the first is --half-life, and the second --slow-half-life: another one of them, "+
			"or leave the second out")
	case slow:
		return advised(err, "the other one is the half-life that the namespace has: another --slow-half-life, "+
			"or --half-life as well")
	}
	return advised(err, "the other one is the second half-life that the namespace has: another --slow-half-life "+
		"as well, or --slow-half-life none to end it")
}

// existing returns the definition of a namespace. It returns nil for a deleted one, because the cluster itself then
// says so, and for a default namespace without a definition.
func existing(ctx context.Context, c *client.Client, name string) (*client.Namespace, error) {
	all, deleted, err := c.AllNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	named := func(n client.Namespace) bool { return n.Name == name }
	if i := slices.IndexFunc(all, named); i >= 0 {
		return &all[i], nil
	}
	if name == proto.DefaultNamespace || slices.ContainsFunc(deleted, named) {
		return nil, nil
	}
	return nil, proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", name).
		WithHint("create it: ebb namespace create " + name)
}

func (s *session) listNamespaces(cmd *cobra.Command) error {
	all, deleted, err := s.namespaces(cmd)
	if err != nil {
		return err
	}
	if s.output == "json" && len(deleted) > 0 {
		return printJSON(s.term.out, map[string]any{"namespaces": namespaceRows(all), "deleted": namespaceRows(deleted)})
	}
	if s.output == "tsv" {
		all = append(all, deleted...) // a script may wait until the name is gone
	}
	if err := s.printNamespaces(all); err != nil || s.output != "table" {
		return err
	}
	for _, r := range namespaceRows(deleted) {
		fmt.Fprintf(s.term.out, "%s: %s\n", r.Name, r.Deletion.text())
	}
	return nil
}

func (s *session) namespaces(cmd *cobra.Command) (live, deleted []client.Namespace, err error) {
	c, err := s.dial(cmd)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	return c.AllNamespaces(ctx)
}

func (s *session) showNamespace(cmd *cobra.Command, name string) error {
	all, deleted, err := s.namespaces(cmd)
	if err != nil {
		return err
	}
	all = append(all, deleted...)
	i := slices.IndexFunc(all, func(n client.Namespace) bool { return n.Name == name })
	if i < 0 {
		return proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", name).WithHint("list those that do: ebb namespace list")
	}
	r := namespaceRow(all[i])
	if s.output == "json" {
		return printJSON(s.term.out, r)
	}
	rows := [][]string{
		{"name", r.Name},
		{"version", strconv.FormatUint(r.Version, 10)},
		{"decay", r.Decay},
		{"half-life", r.halfLife()},
		{"floor", floorText(r)},
		{"clock", r.Clock},
		{"max-jump", r.maxJump()},
		{"precision", r.Precision},
		{"allow-negative", strconv.FormatBool(r.AllowNegative)},
		{"bins-max", strconv.FormatUint(uint64(r.BinsMax), 10)},
		{"kind", r.Kind},
		{"window", r.window()},
		{"bitmap-placement", r.BitmapPlacement},
		{"set-hash", r.SetHash},
		{"universe", cmp.Or(r.Universe, "-")},
		{"dictionary", r.dictionary()},
		{"rollups", cmp.Or(strings.Join(r.Rollups, ", "), "-")},
		{"max-bytes", limitText(r.MaxBytes)},
		{"max-keys", limitText(r.MaxKeys)},
	}
	for _, size := range proto.ListSizes(all[i].Sizes) {
		text := figure(size.Value, 6)
		if s.output == "tsv" {
			text = exact(size.Value)
		}
		if size.Value == 0 {
			text = "default"
		}
		rows = append(rows, []string{"size " + size.Name, text})
	}
	if r.Deletion != nil {
		rows = append(rows, []string{"state", r.Deletion.text()})
	}
	return s.printTable("SETTING\tVALUE", rows)
}

type namespaceJSON struct {
	Name      string  `json:"name"`
	Version   uint64  `json:"version"`
	Decay     string  `json:"decay"`
	HalfLifeS float64 `json:"half_life_s"`
	Floor     string  `json:"floor"`
	Threshold float64 `json:"threshold"`
	Prior     float64 `json:"prior"`
	Clock     string  `json:"clock"`
	// only with an event clock; 0: no limit
	MaxJumpS      float64 `json:"max_jump_s"`
	Precision     string  `json:"precision"`
	AllowNegative bool    `json:"allow_negative"`
	BinsMax       uint32  `json:"bins_max"`
	Kind          string  `json:"kind"`
	// by kind and name; a size of 0 is chosen to suit the others
	Sizes   map[string]float64 `json:"sizes"`
	WindowS float64            `json:"window_s"`
	// 0: there is no second half-life
	SlowHalfLifeS float64 `json:"slow_half_life_s"`
	// key or slice
	BitmapPlacement string `json:"bitmap_placement"`
	// xxh3 or murmur3
	SetHash string `json:"set_hash"`
	// a key; empty: there is no universe
	Universe string `json:"universe"`
	// 0: there is no dictionary
	DictionaryParts uint32 `json:"dictionary_parts"`
	// lengths of the periods that are made of shorter ones
	Rollups []string `json:"rollups"`
	// the budget of the namespace; 0: no limit
	MaxBytes uint64 `json:"max_bytes"`
	MaxKeys  uint64 `json:"max_keys"`
	// left out if the namespace is not deleted
	Deletion *deletionJSON `json:"deletion,omitempty"`
}

type deletionJSON struct {
	Deleted string `json:"deleted"`
	// the time until which the namespace can be undeleted
	Purge   string `json:"purge"`
	Purging bool   `json:"purging"`
}

func deletionRow(d *client.Deletion) *deletionJSON {
	if d == nil {
		return nil
	}
	return &deletionJSON{d.Deleted.UTC().Format(time.RFC3339), d.Purge.UTC().Format(time.RFC3339), d.Purging}
}

// text describes the state of a deleted namespace.
func (d *deletionJSON) text() string {
	if d.Purging {
		return "deleted at " + d.Deleted + ", being purged"
	}
	return "deleted at " + d.Deleted + ", can be undeleted until " + d.Purge
}

// state returns the state as a word for scripts.
func (r *namespaceJSON) state() string {
	switch {
	case r.Deletion == nil:
		return "live"
	case r.Deletion.Purging:
		return "purging"
	}
	return "deleted"
}

func namespaceRow(ns client.Namespace) namespaceJSON {
	r := namespaceJSON{
		ns.Name, ns.Version, nameOf(decays, ns.Decay), ns.HalfLife.Seconds(), nameOf(floors, ns.Floor), ns.Threshold, ns.Prior,
		nameOf(clocks, ns.Clock), ns.MaxJump.Seconds(), nameOf(precisions, ns.Precision), ns.AllowNegative != nil && *ns.AllowNegative,
		ns.BinsMax,
		proto.KindName(ns.Kind),
		map[string]float64{},
		ns.Window.Seconds(),
		ns.SlowHalfLife.Seconds(),
		nameOf(placements, ns.BitmapPlacement),
		nameOf(setHashes, ns.SetHash),
		*ns.Universe,
		ns.DictionaryParts,
		[]string{},
		*ns.MaxBytes,
		*ns.MaxKeys,
		deletionRow(ns.Deletion),
	}
	for _, unit := range ns.Rollups {
		r.Rollups = append(r.Rollups, nameOf(rollups, unit))
	}
	if ns.BitmapPlacement == client.PlaceBySlice {
		r.Kind = proto.KindName(client.KindBitmap) // placement by slice is only for bitmaps
	}
	for _, size := range proto.ListSizes(ns.Sizes) {
		r.Sizes[size.Name] = size.Value
	}
	return r
}

// maxJump returns max_jump as text; "-" without an event clock.
func (r *namespaceJSON) maxJump() string {
	switch {
	case r.Clock != "event":
		return "-"
	case r.MaxJumpS == 0:
		return "none"
	}
	return seconds(r.MaxJumpS).String()
}

func (r *namespaceJSON) halfLife() string {
	if r.Decay == "none" {
		return "-"
	}
	if r.SlowHalfLifeS > 0 {
		return seconds(r.HalfLifeS).String() + "/" + seconds(r.SlowHalfLifeS).String()
	}
	return seconds(r.HalfLifeS).String()
}

func (r *namespaceJSON) dictionary() string {
	if r.DictionaryParts == 0 {
		return "-"
	}
	return fmt.Sprintf("%d parts", r.DictionaryParts)
}

// budget returns the budget as text.
func (r *namespaceJSON) budget() string {
	var parts []string
	if r.MaxKeys > 0 {
		parts = append(parts, fmt.Sprintf("%d keys", r.MaxKeys))
	}
	if r.MaxBytes > 0 {
		parts = append(parts, bytesText(r.MaxBytes))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// limitText returns a limit of a budget as text; "-" without one.
func limitText(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func (r *namespaceJSON) window() string {
	if r.WindowS == 0 {
		return "-"
	}
	return seconds(r.WindowS).String()
}

func namespaceRows(all []client.Namespace) []namespaceJSON {
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	rows := make([]namespaceJSON, 0, len(all))
	for _, ns := range all {
		rows = append(rows, namespaceRow(ns))
	}
	return rows
}

func (s *session) printNamespaces(all []client.Namespace) error {
	rows := namespaceRows(all)
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"namespaces": rows})
	}
	var table [][]string
	for _, r := range rows {
		row := []string{
			r.Name, r.Decay, r.halfLife(), floorText(r), r.Clock, r.Precision, r.Kind, strconv.FormatUint(uint64(r.BinsMax), 10), strconv.FormatUint(r.Version, 10), r.window(), r.bitmaps(),
		}
		if s.output == "tsv" {
			row = append(row, r.state())
		}
		table = append(table, row)
	}
	return s.printTable("NAME\tDECAY\tHALF-LIFE\tFLOOR\tCLOCK\tPRECISION\tKIND\tBINS MAX\tVERSION\tWINDOW\tBITMAPS", table)
}

// bitmaps returns the settings of bitmaps that are not the default, one word for each.
func (r *namespaceJSON) bitmaps() string {
	var said []string
	if r.BitmapPlacement == "slice" {
		said = append(said, "slice")
	}
	if r.DictionaryParts > 0 {
		said = append(said, "dictionary")
	}
	if r.Universe != "" {
		said = append(said, "universe="+r.Universe)
	}
	if len(r.Rollups) > 0 {
		said = append(said, "rollups="+strings.Join(r.Rollups, ","))
	}
	return cmp.Or(strings.Join(said, " "), "-")
}

func floorText(r namespaceJSON) string {
	switch r.Floor {
	case "prune":
		return fmt.Sprintf("prune %g", r.Threshold)
	case "prior":
		return fmt.Sprintf("prior %g", r.Prior)
	}
	return r.Floor
}
