package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// Build resolves plan p on machine m. ctx bounds the image's life: when ctx ends, runs are aborted. On error,
// everything is released.
func Build(ctx context.Context, m device.Machine, p *plan.Plan, opts Options) (*Image, error) {
	if most := m.Caps().MaxRanks; p.Ranks > most {
		return nil, fmt.Errorf("%s needs %d ranks, but this machine has at most %d: %w",
			p.Func, p.Ranks, most, device.ErrUnsupported)
	}
	if err := plan.Validate(p); err != nil {
		return nil, fmt.Errorf("malformed plan of %s: %w", p.Func, err)
	}
	if err := agreePlan(ctx, m, p, opts); err != nil {
		return nil, err
	}
	world, err := m.Open(ctx, p.Ranks)
	if err != nil {
		return nil, err
	}
	if err := checkNodes(p, world); err != nil {
		return nil, errors.Join(err, world.Close())
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	b := &builder{machine: m.Name(), im: &Image{Plan: p, World: world, Caps: m.Caps(), opts: opts,
		Inputs: plan.Held(p.Inputs), Outputs: plan.Held(p.Outputs), late: lateStreams(p)}}
	// When ctx ends, the world is aborted. After that, driver calls may take as long as during Close.
	if lost := world.Do(context.WithoutCancel(ctx), func() { err = b.build(ctx) }); lost != nil {
		return nil, lost
	}
	if g := m.Peers(); g != nil {
		if b.im.held, err = agreeLoaded(ctx, g, world.Held(), err); err == nil {
			err = b.im.settle(ctx, g)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.im.Close())
	}
	return b.im, nil
}

// build runs the stages.
func (b *builder) build(ctx context.Context) error {
	im := b.im
	var err error
	if im.Streams, err = makeStreams(im.World, im.Plan); err != nil {
		return err
	}
	if b.events, err = makeEvents(im.World, im.Plan); err != nil {
		return err
	}
	if b.counters, err = makeCounters(im.World, im.Plan); err != nil {
		return err
	}
	params := studyParams(im.Plan, im.Inputs, im.Outputs)
	im.Uploads, im.FirstBlock = params.uploads, firstBlocks(im.Inputs)
	if err := b.layOut(ctx, params); err != nil {
		return err
	}
	if err := b.openChannels(); err != nil {
		return err
	}
	if err := b.resolveCommands(); err != nil {
		return err
	}
	if err := b.readyStreams(); err != nil {
		return err
	}
	im.MovableIn, im.MovableOut = b.findMovable()
	im.Guesses = im.World.Guesses()
	if len(im.Guesses) > 0 {
		im.opts.Logger.Warn("GEMMs use the library's default algorithm, because no memory was free to time others",
			"func", im.Plan.Func, "products", im.Guesses)
	}
	im.opts.Logger.Debug("plan loaded", "func", im.Plan.Func, "ranks", im.Plan.Ranks, "commands", len(im.Cmds),
		"arena", im.Plan.ArenaBytes, "weights of the store", namesOf(im, im.Shared),
		"residents", namesOf(im, im.Residents), "movable inputs", movableNames(im.Inputs, im.MovableIn),
		"movable results", movableNames(im.Outputs, im.MovableOut))
	return nil
}

// namesOf returns the names of the inputs whose entry in the given list is not nil.
func namesOf[T any](im *Image, list []*T) (names []string) {
	for i, x := range list {
		if x != nil {
			names = append(names, im.Inputs[i].Name)
		}
	}
	return names
}

func firstBlocks(inputs []plan.IO) map[string]int {
	first, n := map[string]int{}, 0
	for i := range inputs {
		first[inputs[i].Name] = n
		n += len(inputs[i].Parts)
	}
	return first
}

func makeStreams(w device.World, p *plan.Plan) ([]device.Stream, error) {
	var streams []device.Stream
	seen := map[string]int{}
	for _, s := range p.Streams {
		name := s.Name
		key := fmt.Sprintf("%d %s", s.Rank, name)
		if seen[key]++; seen[key] > 1 {
			name = fmt.Sprintf("%s#%d", name, seen[key])
		}
		opts := device.StreamOptions{Name: name}
		switch {
		case s.High:
			opts.Priority = 1
		case s.Low:
			opts.Priority = -1
		}
		st, err := w.Device(int(s.Rank)).NewStream(opts)
		if err != nil {
			return nil, fmt.Errorf("stream %s of rank %d: %w", name, s.Rank, err)
		}
		streams = append(streams, st)
	}
	return streams, nil
}

// makeEvents creates each event on the rank that records it.
func makeEvents(w device.World, p *plan.Plan) ([]device.Event, error) {
	events := make([]device.Event, p.Events)
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind != plan.Record {
			continue
		}
		e, err := w.Device(int(c.Rank)).NewEvent()
		if err != nil {
			return nil, fmt.Errorf("event: %w", err)
		}
		events[c.Event] = e
	}
	return events, nil
}

func makeCounters(w device.World, p *plan.Plan) ([][]device.Counters, error) {
	var all [][]device.Counters
	for _, c := range p.Counters {
		row := make([]device.Counters, p.Ranks)
		for r := range row {
			ctr, err := w.Device(r).NewCounters(int(c.Len))
			if err != nil {
				return nil, fmt.Errorf("counter %s of rank %d: %w", c.Name, r, err)
			}
			row[r] = ctr
		}
		all = append(all, row)
	}
	return all, nil
}
