package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/terminal"
	"hocket.example/hocket/internal/tune"
)

// tuneFlags holds the flags of tune.
type tuneFlags struct {
	machine string
	ranks   int
	ops     []string
	sizes   string
	full    bool
	again   bool
	show    bool
	across  bool
	out     string
	export  string
	peers   []string
}

func (a *app) tuneCommand() *cobra.Command {
	o := &tuneFlags{}
	c := &cobra.Command{
		Use:   "tune [flags]",
		Short: "Measure which algorithm is fastest for each collective on this machine",
		Long: `Measures every collective with every algorithm of this machine, NCCL's among them, and
stores a table of the fastest. Programs that run with -m on the same number of ranks then use
this table. Without --full, no measurement begins later than about five seconds after the
start; the driver then needs some time to release GPUs. On GPUs like those of the shipped
table, tune then only checks that table. Entries for which there is no time stay unchanged.
The table is stored under HOCKET_CACHE, or else in your cache folder, after each collective:
an interrupted run continues where it stopped, and does not measure existing entries again.

A wrong result keeps an algorithm out of the table, whatever its time.

--export vllm --peers FILE#GPU derives vLLM's limits from tables that its benchmark
printed; -n selects a number of ranks. It measures nothing and needs no GPU.`,
		Example: `  hocket tune -m cuda
  hocket tune -m cuda --full
  hocket tune -n 2 --op all_reduce --sizes 64K -o table.json
  hocket tune --export vllm --peers 'printed.txt#B200'
  hocket launch --nodes 2 -n 2 -- tune --across`,
		Args: nothing,
	}
	f := c.Flags()
	f.StringVarP(&o.machine, "machine", "m", defaultMachine, "where to tune: `"+strings.Join(machineNames, "|")+"`")
	f.IntVarP(&o.ranks, "ranks", "n", 0, "number of `RANKS` (default: all ranks of the machine, at most 8; "+defaultMachine+": 4)")
	f.BoolVar(&o.full, "full", false, "measure more sizes, grids, types and teams: takes minutes")
	f.BoolVar(&o.again, "again", false, "measure existing entries again")
	f.StringSliceVar(&o.ops, "op", nil, "tune only this `COLLECTIVE`, as all_reduce; repeatable (default all)")
	f.StringVar(&o.sizes, "sizes", "", "measure messages of these `BYTES`, for -o: 1K,64K,1M")
	f.BoolVar(&o.show, "show", false, "print the table in use and its origin, without measuring")
	f.BoolVar(&o.across, "across", false,
		"measure the link between nodes, in each process of a launch on several; store it for auto")
	f.StringVarP(&o.out, "output", "o", "", "write the table to `FILE`, where programs do not find it")
	f.StringVar(&o.export, "export", "", "print the sizes below which kernels beat NCCL, for: `vllm`")
	f.StringArrayVar(&o.peers, "peers", nil,
		"measurements for --export, by tools/peers or vLLM's benchmark: `FILE`; repeatable")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.check(c); err != nil {
			return err
		}
		if o.export != "" && a.json {
			return usagef("--export prints Python, so it cannot be combined with --json")
		}
		if o.across {
			return a.tuneAcross(c.Context(), o)
		}
		if err := alone(); err != nil && !o.show {
			return err
		}
		opts, err := o.options(c)
		if err != nil {
			return err
		}
		return a.tune(c.Context(), o, opts)
	}
	return c
}

func (o *tuneFlags) check(c *cobra.Command) error {
	switch {
	case c.Flags().Changed("ranks") && o.ranks < 1:
		return usagef("-n is %d, but must be at least 1", o.ranks)
	case o.export != "" && o.export != "vllm":
		return usagef("--export: unknown format %q; the only format is vllm", o.export)
	case o.peers != nil && o.export == "":
		return usagef("--peers requires --export")
	case o.show && (o.again || o.full || o.out != "" || o.ops != nil || o.sizes != ""):
		return usagef("--show measures nothing, so it cannot be combined with --again, --full, --op, --sizes or -o")
	case o.across && (o.show || o.again || o.full || o.out != "" || o.ops != nil || o.sizes != "" || o.export != "" ||
		o.ranks != 0):
		return usagef("--across can be combined only with -m and --json")
	case o.sizes != "" && o.out == "":
		return usagef("--sizes requires -o: programs do not use a table of selected sizes, so it must be written to a file")
	}
	return (&runFlags{machine: o.machine}).checkMachine()
}

// options returns the options of the tuning, without the algorithms and sizes that have already been measured.
func (o *tuneFlags) options(c *cobra.Command) (tune.Options, error) {
	opts := tune.Options{Machine: o.machine, Full: o.full, Again: o.again || o.out != "",
		Made: "hocket tune " + version(), File: o.out}
	if o.full {
		opts.Made = "hocket tune --full " + version()
	}
	for _, name := range o.ops {
		op, ok := contest.OpNamed(name)
		if !ok {
			return opts, usagef("--op: %q is not a collective that can be tuned; these are %s", name, contest.OpNames())
		}
		opts.Ops = append(opts.Ops, op)
	}
	var err error
	if c.Flags().Changed("sizes") {
		opts.Sizes, err = sizesOf(o.sizes)
	}
	return opts, err
}

func (a *measurements) tune(ctx context.Context, o *tuneFlags, opts tune.Options) error {
	peers, err := readPeers(o.peers)
	if err != nil {
		return err
	}
	if peers, err = ofRanks(peers, o.ranks); err != nil {
		return err
	}
	figures, err := figuresOf(peers)
	if err != nil {
		return err
	}
	if figures == nil { // if figures is set, only these measurements are exported
		u, err := a.tuned(ctx, o, opts)
		if err != nil {
			return tuneFailure(o, err)
		}
		a.out.Machine, a.out.Ranks, a.out.Tune = o.machine, u.Table.Ranks, u
		if o.export == "" {
			return u.WriteText(a.text)
		}
		figures = []tune.Figures{{Tuned: u, Peers: peers}}
	}
	if err := tune.WriteVLLM(a.text, figures); err != nil {
		return usagef("%w", err)
	}
	return nil
}

func tuneFailure(o *tuneFlags, err error) error {
	var unkept *tune.KeepError
	switch {
	case errors.As(err, &unkept) && o.out != "":
		return &failure{code: exitUsage, kind: "output", err: err}
	case errors.Is(err, contest.ErrUsage):
		return usagef("%w", err).helping("see hocket tune --help")
	}
	return ofMachine(err)
}

// tuneStreams is the largest number of streams that a rank uses in a tuning. Collectives, launches of graphs,
// concurrent copies and NCCL use separate streams.
const tuneStreams = 8

// tuneWithin is the time limit of a quick tuning, including the time to open the GPUs. Only optional parts of the
// tuning are subject to this limit. Tests remove it, since a tuning on a busy machine would exceed it.
var tuneWithin = 4800 * time.Millisecond

// tuned returns the existing table, or measures the missing entries and stores them.
func (a *measurements) tuned(ctx context.Context, o *tuneFlags, opts tune.Options) (*tune.Tuned, error) {
	begun := time.Now()
	cuda.ExpectStreams(tuneStreams)
	if o.show {
		found, err := tune.TableOf(ctx, o.machine, o.ranks)
		if err != nil {
			return nil, err
		}
		if found.Table == nil {
			return nil, (&failure{code: exitMachine, kind: "table",
				err: fmt.Errorf("no table exists: %s", found.Ignored)}).helping("run hocket tune to create one")
		}
		return tune.TunedFrom(found), nil
	}
	opts.Ranks, opts.Begun, opts.Within = o.ranks, begun, tuneWithin
	if err := opts.Find(ctx); err != nil {
		return nil, err
	}
	if o.out == "" {
		var err error
		if opts.File, err = tune.TableFile(opts.Base, opts.Ranks); err != nil {
			return nil, err
		}
	}
	if f, ok := a.stderr.(*os.File); ok && terminal.Is(f) {
		opts.Progress = func(s string) { fmt.Fprintf(f, "\r\x1b[K%s", s) }
		defer fmt.Fprint(f, "\r\x1b[K")
	}
	return tune.Tune(ctx, opts)
}

// peersMost is the largest size of a file with measurements of other libraries, in bytes.
const peersMost = 16 << 20

// readPeers reads the measurements of other libraries from files. FILE#H100 selects the measurements on one machine,
// and FILE#H100,B200 those on two machines.
func readPeers(names []string) ([]contest.Peer, error) {
	var all []contest.Peer
	from := map[contest.Peer]string{} // the file that contains a measurement, by the measurement without its times
	for _, name := range names {
		file, machines := name, []string(nil)
		if at := strings.LastIndexByte(name, '#'); at > 0 {
			if _, err := os.Stat(name); err != nil {
				file, machines = name[:at], strings.Split(strings.ToUpper(name[at+1:]), ",")
			}
		}
		data, err := files.Read(file, peersMost)
		if err != nil {
			return nil, usagef("--peers: %w", err)
		}
		peers, err := contest.ReadPeers(bytes.NewReader(data))
		if err != nil {
			return nil, usagef("--peers %s: %w", file, err)
		}
		there := contest.PeerMachines(peers)
		for _, m := range machines {
			if !slices.Contains(there, m) {
				return nil, usagef("--peers %s: the file has no measurements of %s, but of %s", file, m,
					cmp.Or(strings.Join(there, ", "), "no machine that it names"))
			}
		}
		for _, p := range peers {
			if machines != nil && !slices.Contains(machines, p.Machine) {
				continue
			}
			of := p
			of.Micros, of.HostMicros, of.Spread = 0, 0, 0
			if first, twice := from[of]; twice && first != file {
				return nil, usagef("--peers: %s and %s both have %s of %s by %s on %d ranks", first, file,
					contest.BytesText(p.Bytes), p.Op, p.Name, p.Ranks)
			}
			from[of] = file
			all = append(all, p)
		}
	}
	return all, nil
}

// ofRanks returns the measurements with the given number of ranks, or all measurements if ranks is 0.
func ofRanks(peers []contest.Peer, ranks int) ([]contest.Peer, error) {
	if ranks == 0 || len(peers) == 0 {
		return peers, nil
	}
	of := slices.DeleteFunc(slices.Clone(peers), func(p contest.Peer) bool { return p.Ranks != ranks })
	if len(of) == 0 {
		return nil, usagef("--peers: the files have no measurements of %d ranks", ranks)
	}
	return of, nil
}

// oneMachine returns an error if the measurements are from several machines.
func oneMachine(names []string, peers []contest.Peer) error {
	if all := contest.PeerMachines(peers); len(all) > 1 {
		file, _, _ := strings.Cut(names[0], "#")
		return usagef("--peers %s: the file has measurements of several machines: %s", file,
			strings.Join(all, ", ")).helping("select one of them: --peers '%s#%s'", file, all[0])
	}
	return nil
}

// architectures maps the machine names in such files to compute capabilities.
var architectures = map[string]string{"V100": "sm_70", "A100": "sm_80", "A800": "sm_80", "A30": "sm_80", "A10": "sm_86",
	"A10G": "sm_86", "A40": "sm_86", "L4": "sm_89", "L40": "sm_89", "L40S": "sm_89", "H20": "sm_90", "H100": "sm_90",
	"H200": "sm_90", "H800": "sm_90", "GH200": "sm_90", "B200": "sm_100", "GB200": "sm_100", "B300": "sm_103",
	"GB300": "sm_103"}

// figuresOf groups the measurements of other libraries by the machine that they name. figuresOf returns nil if the
// measurements name no machine.
func figuresOf(peers []contest.Peer) ([]tune.Figures, error) {
	var list []tune.Figures
	for _, name := range contest.PeerMachines(peers) {
		if architectures[name] == "" {
			return nil, usagef("--peers: the compute capability of %s is not known, and vLLM's limits need it", name).
				helping("name a machine that is known in the heading, or with FILE#MACHINE: %s",
					strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
		}
		of := slices.DeleteFunc(slices.Clone(peers), func(p contest.Peer) bool { return p.Machine != name })
		list = append(list, tune.Figures{Peers: of, Tuned: &tune.Tuned{Table: &comm.Table{
			Identity: fmt.Sprintf("%s %s, as --peers says", name, architectures[name])}}})
	}
	if list != nil && slices.ContainsFunc(peers, func(p contest.Peer) bool { return p.Machine == "" }) {
		return nil, usagef("--peers: some figures name a machine, and others do not: export them one after the other")
	}
	return list, nil
}
