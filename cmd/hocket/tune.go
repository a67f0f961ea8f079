package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/files"
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
	peers   string
}

func (a *app) tuneCommand() *cobra.Command {
	o := &tuneFlags{}
	c := &cobra.Command{
		Use:   "tune [flags]",
		Short: "Measure which algorithm is fastest for which collective here",
		Long: `Measures every collective by every algorithm of this machine, NCCL's among them,
and keeps the table of the fastest. Programs run with -m on as many ranks are
then run by it. Without --full it begins to measure nothing more some five seconds
after its start, to which comes what the driver takes to give GPUs back: on GPUs
like those of the shipped table it only checks that one, and what there is no time
for stays as it was. The table is kept under HOCKET_CACHE, or else in your cache
folder, from collective to collective: one that is interrupted goes on where it
was, and what the table has is not measured again.

A wrong result keeps an algorithm out of the table, whatever its time.`,
		Example: `  hocket tune -m cuda
  hocket tune -m cuda --full
  hocket tune -n 2 --op all_reduce --sizes 64K -o table.json
  hocket launch --nodes 2 -n 2 -- tune --across`,
		Args: nothing,
	}
	f := c.Flags()
	f.StringVarP(&o.machine, "machine", "m", defaultMachine, "where to tune: `"+strings.Join(machineNames, "|")+"`")
	f.IntVarP(&o.ranks, "ranks", "n", 0, "number of `RANKS`; all there are, at most 8 ("+defaultMachine+": 4)")
	f.BoolVar(&o.full, "full", false, "more sizes, grids of each kernel, f32 and maxima, smaller teams: minutes, not seconds")
	f.BoolVar(&o.again, "again", false, "measure what was measured before, too")
	f.StringSliceVar(&o.ops, "op", nil, "tune only this `COLLECTIVE`, as all_reduce; repeatable (default all)")
	f.StringVar(&o.sizes, "sizes", "", "measure messages of these `BYTES`, for -o: 1K,64K,1M")
	f.BoolVar(&o.show, "show", false, "measure nothing: print the table in use and its origin")
	f.BoolVar(&o.across, "across", false,
		"measure between nodes, in each process of a launch on several; print the tier, and store it for auto")
	f.StringVarP(&o.out, "output", "o", "", "write the table to `FILE`, instead of where programs look for it")
	f.StringVar(&o.export, "export", "", "print the sizes below which kernels beat NCCL, for: `vllm`")
	f.StringVar(&o.peers, "peers", "", "figures of peers for --export, by tools/peers or vLLM's benchmark: `FILE`")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.check(c); err != nil {
			return err
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
		return usagef("-n is %d; at least 1 rank", o.ranks)
	case o.export != "" && o.export != "vllm":
		return usagef("--export: there is no form %q; there is vllm", o.export)
	case o.peers != "" && o.export == "":
		return usagef("--peers is for --export")
	case o.show && (o.again || o.full || o.out != "" || o.ops != nil || o.sizes != ""):
		return usagef("--show measures nothing and excludes --again, --full, --op, --sizes and -o")
	case o.across && (o.show || o.again || o.full || o.out != "" || o.ops != nil || o.sizes != "" || o.export != "" ||
		o.ranks != 0):
		return usagef("--across goes with -m and --json alone")
	case o.sizes != "" && o.out == "":
		return usagef("--sizes: a table of selected sizes is not stored for programs; write it to a file with -o")
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
			return opts, usagef("--op: there is no collective %q that is tuned; there are %s", name, contest.OpNames())
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
	u, err := tableOfPeers(peers), error(nil)
	if o.export == "" || u == nil { // else the figures say all that is exported
		u, err = a.tuned(ctx, o, opts)
	}
	var unkept *tune.KeepError
	switch {
	case errors.As(err, &unkept) && o.out != "":
		return &failure{code: exitUsage, kind: "output", err: err}
	case errors.Is(err, contest.ErrUsage):
		return usagef("%w", err).helping("see hocket tune --help")
	case err != nil:
		return ofMachine(err)
	}
	a.out.Machine, a.out.Ranks, a.out.Tune = o.machine, u.Table.Ranks, u
	if o.export == "" {
		return u.WriteText(a.text)
	}
	if err := u.WriteVLLM(a.text, peers); err != nil {
		return usagef("%w", err)
	}
	return nil
}

// tuneStreams is the largest number of streams that a rank uses in a tuning. Collectives, launches of graphs,
// concurrent copies and NCCL use separate streams.
const tuneStreams = 8

// tuneWithin is the time limit of a quick tuning, including the time to open the GPUs. Only the parts that tuning can
// omit are subject to it. Tests remove the limit, since no tuning meets it on a busy machine.
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
				err: fmt.Errorf("there is no table: %s", found.Ignored)}).helping("hocket tune measures one")
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
	if f, ok := a.stderr.(*os.File); ok && isTerminal(f) {
		opts.Progress = func(s string) { fmt.Fprintf(f, "\r\x1b[K%s", s) }
		defer fmt.Fprint(f, "\r\x1b[K")
	}
	return tune.Tune(ctx, opts)
}

// peersMost is the largest size of a file with measurements of other libraries, in bytes.
const peersMost = 16 << 20

// readPeers reads the measurements of other libraries from a file. It returns none if name is empty. FILE#H100 selects
// the measurements on one machine.
func readPeers(name string) ([]contest.Peer, error) {
	if name == "" {
		return nil, nil
	}
	file, machine := name, ""
	if at := strings.LastIndexByte(name, '#'); at > 0 {
		if _, err := os.Stat(name); err != nil {
			file, machine = name[:at], name[at+1:]
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
	switch all := contest.PeerMachines(peers); {
	case machine != "" && !slices.Contains(all, machine):
		return nil, usagef("--peers %s: there are no figures of %s; there are of %s", file, machine,
			cmp.Or(strings.Join(all, ", "), "no machine that it names"))
	case machine == "" && len(all) > 1:
		return nil, usagef("--peers %s: there are figures of %s", file,
			strings.Join(all, ", ")).helping("take those of one: --peers '%s#%s'", file, all[0])
	case machine != "":
		peers = slices.DeleteFunc(peers, func(p contest.Peer) bool { return p.Machine != machine })
	}
	return peers, nil
}

// architectures maps the machine names in such files to compute capabilities.
var architectures = map[string]string{"A100": "sm_80", "H100": "sm_90", "H200": "sm_90", "GH200": "sm_90",
	"B200": "sm_100", "GB200": "sm_100"}

// tableOfPeers returns a table that describes the machine on which the other libraries were measured. It returns nil if
// the measurements do not name the machine.
func tableOfPeers(peers []contest.Peer) *tune.Tuned {
	names := contest.PeerMachines(peers)
	if len(names) != 1 || architectures[names[0]] == "" {
		return nil
	}
	return &tune.Tuned{Table: &comm.Table{Identity: fmt.Sprintf("%s %s, as --peers says", names[0],
		architectures[names[0]])}}
}
