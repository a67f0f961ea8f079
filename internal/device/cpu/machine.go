// Package cpu is the embedded machine: devices, streams, events, counters and kernels on the host's processor. It has
// two modes with the same interface.
//
// Concurrent runs each stream that can continue in a goroutine; peers access each other's memory directly. Scheduled
// runs nothing until World.Sync, which then picks, one step at a time, a stream whose next work can run, by a seeded
// random strategy. The same seed gives the same run, another seed another legal order. A wait that the program forgot
// then shows as a wrong result under some seed, more reliably because memory is poisoned.
//
// The host must not issue work while Sync runs, except from functions given to Stream.Call. If all work is blocked,
// that is a deadlock, which is reported at once.
//
// Kernels compute f32, f16 and bf16 in float32, f64 in float64, i32 and i64 in int64, and round once to the result's
// type; integers wrap, but a cast saturates as in package tensor. NaN wins over any number in max, min and relu, and
// 0·NaN is NaN. An average of integers is truncated towards zero; the maximum over no elements is -Inf or the least
// integer. The same operands give the same bits regardless of concurrent work, of the number of worker goroutines, and
// of how rows or columns of a contraction are cut into chunks.
package cpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/hostmem"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// Mode says how streams run.
type Mode uint8

// Modes.
const (
	Concurrent Mode = iota // streams run at the same time
	Scheduled              // one step at a time, in an order drawn from the seed
)

const (
	maxRanks      = 256
	defaultMemory = 64 << 30
)

// Options choose how the machine runs; the zero value is a concurrent machine
// that uses all processors.
type Options struct {
	Mode Mode
	// Seed draws the order of a scheduled world, and with it the strategy:
	// seed mod 4 is 0 for random priorities with Depth changes, 1 for uniformly
	// random, 2 for one rank delayed as long as others can go, 3 for main
	// streams first or last.
	Seed int64
	// Depth is the number of random priority changes in a Sync; 0 means 3.
	Depth int
	// Workers bounds the goroutines that help kernels of all worlds of this
	// machine, the streams' own not counted; 0 means GOMAXPROCS-1, a negative
	// number none. A scheduled machine has none.
	Workers int
	// Memory bounds the bytes that one device may have allocated; 0 means 64 GiB.
	Memory int64
	// Host bounds the bytes that all devices of all worlds may have together; 0 means
	// what the host has available when the machine is made, where that is known.
	Host int64
	// Peers are the processes that share the ranks of every world; nil for this one alone.
	// They open worlds in one order, and do alike in each. Not for a scheduled machine.
	Peers *procs.World
}

// machineName is what programs call it.
const machineName = "cpu"

func init() {
	device.Register(device.Kind{Name: machineName, Default: true, OnHost: true,
		Open: func(peers *procs.World) (device.Machine, error) { return New(Options{Peers: peers}), nil },
		OpenScheduled: func(seed int64) (device.Machine, error) {
			return New(Options{Mode: Scheduled, Seed: seed}), nil
		},
		Algorithms: []device.Algorithm{transport}})
}

// New returns a CPU machine.
func New(opts Options) device.Machine {
	if opts.Depth <= 0 {
		opts.Depth = 3
	}
	if opts.Workers == 0 {
		opts.Workers = runtime.GOMAXPROCS(0) - 1
	}
	if opts.Mode == Scheduled || opts.Workers < 0 {
		opts.Workers = 0
	}
	if opts.Memory <= 0 {
		opts.Memory = defaultMemory
	}
	if opts.Host <= 0 {
		opts.Host = hostmem.Available()
		if opts.Peers != nil {
			opts.Host /= int64(opts.Peers.OnHost())
		}
	}
	return &machine{opts: opts, workers: newWorkers(opts.Workers)}
}

type machine struct {
	device.DefaultMachine
	opts    Options
	workers *workers
	held    atomic.Int64 // bytes, by all devices
	opened  atomic.Int64 // worlds, where there are peers
}

func (m *machine) Peers() *procs.World { return m.opts.Peers }

// hold counts memory that a device takes, of the host's.
func (m *machine) hold(bytes int64) error {
	limit := m.opts.Host
	if limit > 0 && bytes > limit {
		return fmt.Errorf("%w: %d bytes asked for; the host had %d free when the machine was opened", device.ErrTooLarge, bytes, limit)
	}
	if held := m.held.Add(bytes); limit > 0 && held > limit {
		m.held.Add(-bytes)
		return fmt.Errorf("%w: %d bytes asked for; of %d that the host had free when the machine was opened, %d are in use",
			device.ErrOutOfMemory, bytes, limit, held-bytes)
	}
	return nil
}

func (m *machine) Name() string { return machineName }

func (m *machine) Caps() device.Caps {
	scheduled := m.opts.Mode == Scheduled
	return device.Caps{
		MaxRanks:   maxRanks,
		OnHost:     true,
		DTypes:     ir.DTypes(),
		Virtual:    scheduled,
		Concurrent: !scheduled,
		Deadlocks:  m.opts.Peers == nil,
		Traces:     true,
		HostCalls:  true,
		Poison:     true,
		Borrows:    true,
	}
}

func (m *machine) Open(ctx context.Context, ranks int) (device.World, error) {
	if ranks < 1 || ranks > maxRanks {
		return nil, fmt.Errorf("cpu: cannot open a world of %d ranks: 1 to %d are possible", ranks, maxRanks)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cpu: open: %w", err)
	}
	if !littleEndian {
		return nil, fmt.Errorf("cpu: a big-endian host: %w; use amd64 or arm64", device.ErrUnsupported)
	}
	if m.opts.Peers == nil {
		return newWorld(ctx, m, ranks, nil), nil
	}
	p, err := m.share(ctx, ranks)
	if err != nil {
		return nil, err
	}
	return newWorld(ctx, m, ranks, p), nil
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

var errClosed = errors.New("the world is closed")
