// Package cpu is the CPU machine: devices, streams, events, counters and kernels on the host's processor. It has
// two modes with the same interface.
//
// In the mode Concurrent, each stream that can continue runs in a goroutine, and peers access each other's memory
// directly. In the mode Scheduled, work is executed only in World.Sync, one step at a time. For each step, a seeded
// random strategy selects a stream whose next work can run. The same seed gives the same execution, and another seed
// gives another permitted order. If a wait is missing in the program, some seed causes a wrong result. Memory that was
// never written holds a pattern that makes wrong results more likely.
//
// In the mode Scheduled, the host must not issue work while Sync runs, except from functions passed to Stream.Call.
// If all work is blocked, the world reports a deadlock without delay.
//
// Kernels compute f32, f16 and bf16 in float32, f64 in float64, and i32 and i64 in int64. Kernels round once to the
// result's type. Integers wrap, but a cast saturates as in package tensor. In max, min and relu, NaN wins over any
// number, and 0·NaN is NaN. An average of integers is truncated towards zero. The maximum over no elements is -Inf or
// the smallest integer. The same operands give the same bits regardless of concurrent work, of the number of helper
// goroutines, and of the chunks into which rows or columns of a contraction are cut.
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

// Mode determines how streams run.
type Mode uint8

// These are the modes.
const (
	Concurrent Mode = iota // streams run concurrently
	Scheduled              // one step at a time, in an order drawn from the seed
)

const (
	maxRanks      = 256
	defaultMemory = 64 << 30
)

// Options configures the machine. The zero value is a concurrent machine that uses all processors.
type Options struct {
	Mode Mode
	// Seed determines the order of a scheduled world, and its strategy. If seed mod 4 is 0, streams have random
	// priorities with Depth changes. If seed mod 4 is 1, choices are uniformly random. If it is 2, one rank continues
	// only when no other rank can. If it is 3, the main streams of ranks continue first, or last.
	Seed int64
	// Depth is the number of random priority changes in a Sync; 0 means 3.
	Depth int
	// Workers is the largest number of goroutines that help the kernels of all worlds of this machine, in addition
	// to the goroutines of streams. 0 means GOMAXPROCS-1, and a negative number means none. A scheduled machine
	// uses none.
	Workers int
	// Memory is the largest number of bytes that one device may have allocated; 0 means 64 GiB.
	Memory int64
	// Host limits the number of bytes that all devices of all worlds may have allocated together. 0 means the memory
	// that was available on the host when the machine was created, or no limit if this is not known.
	Host int64
	// Peers connects the processes that share the ranks of every world. It is nil if there is only this process.
	// All processes open worlds in the same order, and make the same calls on each world. A scheduled machine
	// supports no peers.
	Peers *procs.World
}

// machineName is the name of the machine in programs.
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
	held    atomic.Int64 // bytes used by all devices
	opened  atomic.Int64 // number of worlds opened so far, if there are peers
}

func (m *machine) Peers() *procs.World { return m.opts.Peers }

// hold adds bytes to the host memory that devices have allocated. It returns an error if this would exceed the limit.
func (m *machine) hold(bytes int64) error {
	limit := m.opts.Host
	if limit > 0 && bytes > limit {
		return fmt.Errorf("%w: %d bytes were requested, but the host had only %d free when the machine was opened",
			device.ErrTooLarge, bytes, limit)
	}
	if err := hostmem.Check(bytes); err != nil { // other programs may have allocated memory since then
		return err
	}
	if held := m.held.Add(bytes); limit > 0 && held > limit {
		m.held.Add(-bytes)
		return fmt.Errorf("%w: %d bytes were requested, but of the %d that the host had free when the machine was opened "+
			"%d are in use",
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
		return nil, fmt.Errorf("cpu: the host is big-endian: %w; use amd64 or arm64", device.ErrUnsupported)
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
