package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// If the processes of a node see different GPUs, no process can query the driver for peer access between all of these
// GPUs. Each process therefore exports a little memory of each of its GPUs, and the others try to map it.

// unmapped describes a failure: a GPU of one process cannot access memory of a GPU of another process.
type unmapped struct {
	Process, GPU int // the GPU whose memory it is, given by the indices of View.seen
	By           int // the GPU that cannot access it, given by its index in the list of the reporting process
	Why          string
}

const trialName = "a trial mapping:"

// mostWhy is the largest length in bytes of the text of a reason that processes exchange.
const mostWhy = 100

// try finds, of the pairs of GPUs that no process sees both of, those without peer access. It does nothing unless
// processes of a node see different GPUs.
func (v *View) try(ctx context.Context, p *procs.World, drv *nvlib.Driver, gpus []*gpu.GPU) error {
	if !v.strangers(p) {
		return nil
	}
	failed, err := v.tryOwn(ctx, p, drv, gpus)
	if err != nil {
		return err
	}
	text, err := json.Marshal(failed)
	if err != nil {
		return err
	}
	texts, err := p.Agree(ctx, "the GPUs whose memory cannot be mapped", text)
	p.Forget(trialName) // no process needs the exported memory any more
	if err != nil {
		return err
	}
	for by, text := range texts {
		var list []unmapped
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("process %d sent a malformed list of GPUs: %q (%w)", by, text, err)
		}
		for _, f := range list {
			if f.Process < 0 || f.Process >= len(v.seen) || f.GPU < 0 || f.GPU >= len(v.seen[f.Process]) ||
				f.By < 0 || f.By >= len(v.seen[by]) {
				return fmt.Errorf("process %d sent a malformed list of GPUs: %q", by, text)
			}
			a, b := v.seen[by][f.By], v.seen[f.Process][f.GPU]
			v.failed = append(v.failed, failure{[2]string{a.Host, a.PCI}, [2]string{b.Host, b.PCI}, f.Why})
		}
	}
	return nil
}

// failure is a pair of GPUs without peer access: memory of one could not be mapped for the other. The GPUs are given by
// host and PCI address.
type failure struct {
	a, b [2]string
	why  string
}

// strangers reports whether some processes of a node see different GPUs.
func (v *View) strangers(p *procs.World) bool {
	for a := range v.seen {
		for b := range a {
			if p.Node(a) == p.Node(b) && !same(v.seen[a], v.seen[b]) {
				return true
			}
		}
	}
	return false
}

// tryOwn exports memory of this process's GPUs, and maps the memory of GPUs that only other processes of the node see.
func (v *View) tryOwn(ctx context.Context, p *procs.World, drv *nvlib.Driver, gpus []*gpu.GPU) (failed []unmapped, err error) {
	me := p.Process()
	key := func(process, i int) string { return fmt.Sprintf("%s process %d, GPU %d", trialName, process, i) }
	for i, g := range gpus {
		note, nerr := procs.NewSegment(1)
		if nerr != nil {
			return nil, nerr
		}
		m := gpu.DeviceMemory{GPU: g, Devices: []nvlib.Device{g.Device}, Exported: true, Driver: drv}
		r, file, rerr := exported(m)
		if rerr != nil { // others get no file
			note.Bytes()[0] = 1
		} else {
			defer func() { err = errors.Join(err, m.Release(r)) }()
			defer file.Close()
		}
		if err = errors.Join(p.Share(key(me, i), note), note.Close()); err == nil && rerr == nil {
			err = p.Export(key(me, i)+", memory", file)
		}
		if err != nil {
			return nil, err
		}
	}
	for q, list := range v.seen {
		if p.Node(q) != p.Node(me) || same(list, v.seen[me]) {
			continue
		}
		for i := range list {
			reasons, err := v.tryMap(ctx, p, q, key(q, i), drv, gpus)
			if err != nil {
				return nil, err
			}
			for by, why := range reasons {
				if why != "" {
					failed = append(failed, unmapped{q, i, by, why[:min(len(why), mostWhy)]})
				}
			}
		}
	}
	return failed, nil
}

// exported reserves a region of device memory, and returns it and the file by which other processes can map it.
func exported(m gpu.DeviceMemory) (*gpu.Region, *os.File, error) {
	r, err := m.Reserve(gpu.DeviceLeast, gpu.DeviceLeast)
	if err != nil {
		return nil, nil, err
	}
	file, err := m.Export(r)
	if err != nil {
		return nil, nil, errors.Join(err, m.Release(r))
	}
	return r, file, nil
}

// tryMap maps memory that a process exports, for each of the given GPUs, and returns the reasons why it cannot be
// mapped; the reason is empty if it can.
func (v *View) tryMap(ctx context.Context, p *procs.World, process int, key string, drv *nvlib.Driver, gpus []*gpu.GPU) ([]string, error) {
	reasons := make([]string, len(gpus))
	note, err := p.Map(ctx, process, key)
	if err != nil {
		return nil, err
	}
	none := note.Bytes()[0] != 0
	if err := note.Close(); err != nil {
		return nil, err
	}
	if none {
		for i := range reasons {
			reasons[i] = "memory cannot be exported to other processes"
		}
		return reasons, nil
	}
	file, err := p.Import(ctx, process, key+", memory")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for i, g := range gpus {
		m := gpu.DeviceMemory{GPU: g, Devices: []nvlib.Device{g.Device}, Driver: drv}
		r, err := m.Import(file, gpu.DeviceLeast)
		if err != nil {
			reasons[i] = fmt.Sprintf("memory of the other GPU cannot be mapped: %v", err)
			continue
		}
		if err := m.Release(r); err != nil {
			return nil, err
		}
	}
	return reasons, nil
}
