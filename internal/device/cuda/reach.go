package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hocket.example/hocket/internal/device/cuda/strided"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// P2PVariable names the environment variable that keeps GPUs from using each
// other's memory: "off" all of them, "0-1,0-2" those pairs.
const P2PVariable = "HOCKET_P2P"

// reach is which GPUs of the process use each other's memory: kernels and copy
// engines of each that of the other. Those that do not are apart, and what they
// exchange goes through host memory (see detour.go). They are apart where the user
// says so, where the driver gives no access, and where a real transfer fails: that
// devices say they reach each other does not make it so (virtual machines and PCIe
// switches lose or mangle transfers without an error).
type reach struct {
	setting string // what the user said
	denied  map[couple]bool
	nvml    func() (*nvlib.NVML, error)
	mu      sync.Mutex
	why     map[couple]error // of those asked about: nil, or why they are apart
	deceit  bool             // some are apart that the driver says are not
}

// couple is two GPUs, the lower first.
type couple [2]nvlib.Device

func coupleOf(a, b *gpu) couple { return couple{min(a.dev, b.dev), max(a.dev, b.dev)} }

// newReach reads the user's setting.
func newReach(setting string) (*reach, error) {
	r := &reach{setting: setting, denied: map[couple]bool{}, nvml: sync.OnceValues(nvlib.OpenNVML), why: map[couple]error{}}
	if setting == "" || setting == "on" || setting == "off" {
		r.deceit = setting == "off"
		return r, nil
	}
	for _, pair := range strings.Split(setting, ",") {
		from, to, _ := strings.Cut(pair, "-")
		a, aerr := strconv.Atoi(from)
		b, berr := strconv.Atoi(to)
		if aerr != nil || berr != nil || a < 0 || b < 0 || a == b {
			return nil, fmt.Errorf("%s=%s: it is on, off, or pairs of GPUs that are to be kept apart, like 0-1,0-2", P2PVariable, setting)
		}
		r.denied[couple{nvlib.Device(min(a, b)), nvlib.Device(max(a, b))}] = true
	}
	r.deceit = true
	return r, nil
}

// apart returns why two GPUs are apart, nil if they are not; err is a failure that
// leaves one of them unusable. The caller holds the issue lock.
func (s *system) apart(a, b *gpu) (why, err error) {
	r := s.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	c := coupleOf(a, b)
	if why, known := r.why[c]; known {
		return why, nil
	}
	if why, err = s.ask(a, b); err != nil {
		return nil, err
	}
	r.why[c] = why
	return why, nil
}

// told is why GPUs are apart without a trial.
func (s *system) told(a, b *gpu) error {
	if s.reach.setting == "off" || s.reach.denied[coupleOf(a, b)] {
		return fmt.Errorf("%s=%s keeps them apart", P2PVariable, s.reach.setting)
	}
	for _, w := range [][2]*gpu{{a, b}, {b, a}} {
		if ok, err := s.drv.CanAccessPeer(w[0].dev, w[1].dev); err != nil {
			return err
		} else if !ok {
			return s.reach.noPeer(a, b)
		}
	}
	return nil
}

// noPeer is why the driver gives no access, with what NVML knows of it.
func (r *reach) noPeer(a, b *gpu) error {
	const what = "the driver gives no peer access: no NVLink between them, and PCIe peer access is off"
	nvml, err := r.nvml()
	if err != nil {
		return errors.New(what)
	}
	if why := nvml.Refusal(a.pci, b.pci); why != "" {
		return fmt.Errorf("%s (NVML: %s)", what, why)
	}
	return errors.New(what)
}

// ask is apart for GPUs not asked about.
func (s *system) ask(a, b *gpu) (why, err error) {
	switch why := s.told(a, b); {
	case outOfMemory(why):
		return nil, why // now; it says nothing of the way between them
	case why != nil:
		return why, nil
	}
	for _, w := range [][2]*gpu{{a, b}, {b, a}} {
		why, err := s.tryTransfer(w[0], w[1])
		switch {
		case err != nil:
			return nil, fmt.Errorf("a transfer from GPU %d to GPU %d: %w; in a new process %s=%d-%d keeps the two apart", w[0].dev, w[1].dev, err, P2PVariable, a.dev, b.dev)
		case outOfMemory(why):
			return nil, fmt.Errorf("a transfer from GPU %d to GPU %d: %w", w[0].dev, w[1].dev, why)
		case why != nil:
			s.reach.deceit = true
			return fmt.Errorf("a transfer from GPU %d to GPU %d: %w; the driver says that it works: look at the IOMMU, and at ACS of PCIe switches", w[0].dev, w[1].dev, why), nil
		}
	}
	return nil, nil
}

// tryAll asks about every two GPUs; it says what left one unusable.
func (s *system) tryAll() string {
	s.issueLock.mu.Lock()
	defer s.issueLock.mu.Unlock()
	for i, a := range s.gpus {
		for _, b := range s.gpus[i+1:] {
			if _, err := s.apart(a, b); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// apartNow is why two GPUs are apart, as far as that is known.
func (s *system) apartNow(a, b *gpu) error {
	if why := s.reach.known(a, b); why != nil {
		return why
	}
	return s.told(a, b)
}

// findReach learns which sites are apart.
func (w *world) findReach() error {
	for i, a := range w.sites {
		for _, b := range w.sites[:i] {
			why, err := w.m.sys.apart(b.gpu, a.gpu)
			if err != nil {
				return err
			}
			if why != nil {
				a.keepFrom(b, why)
				b.keepFrom(a, why)
			}
		}
	}
	return nil
}

func (s *site) keepFrom(o *site, why error) {
	if s.beyond == nil {
		s.beyond = map[*site]error{}
	}
	s.beyond[o] = why
}

// reachable lists the devices that use memory of s.
func (s *site) reachable() []nvlib.Device {
	var list []nvlib.Device
	for _, o := range s.w.sites {
		if s.beyond[o] == nil {
			list = append(list, o.gpu.dev)
		}
	}
	return list
}

// reaches reports whether work of the site may use r.
func (s *site) reaches(r *strided.View) bool {
	return len(s.beyond) == 0 || r.Mem == nil || r.Mem.Kind() == device.Pinned || s.beyond[memoryOf(r).dev.site] == nil
}

// whole reports whether all sites reach each other.
func (w *world) whole() bool {
	return !slices.ContainsFunc(w.sites, func(s *site) bool { return len(s.beyond) > 0 })
}

// Apart returns why two ranks' kernels do not use each other's memory.
func (w *world) Apart(rank, peer int) error {
	a, b := w.devices[rank].site, w.devices[peer].site
	if why := a.beyond[b]; why != nil {
		return fmt.Errorf("%w: GPU %d and GPU %d do not reach each other's memory (%w)", device.ErrUnsupported, a.gpu.dev, b.gpu.dev, why)
	}
	return nil
}

// Detours names the GPUs that are apart, and says why.
func (w *world) Detours() []string {
	var gpus []*gpu
	for _, s := range w.sites {
		gpus = append(gpus, s.gpu)
	}
	return detours(gpus, func(a, b *gpu) error { return w.m.sys.reach.known(a, b) })
}

// known is apart for GPUs that were asked about; nil for others.
func (r *reach) known(a, b *gpu) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why[coupleOf(a, b)]
}

// deceives reports whether GPUs are apart that the driver says are not.
func (r *reach) deceives() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deceit
}

// detours has a line for each reason.
func detours(gpus []*gpu, why func(a, b *gpu) error) []string {
	var reasons []string
	pairs := map[string][]string{}
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			err := why(a, b)
			if err == nil {
				continue
			}
			if pairs[err.Error()] == nil {
				reasons = append(reasons, err.Error())
			}
			pairs[err.Error()] = append(pairs[err.Error()], fmt.Sprintf("%d-%d", a.dev, b.dev))
		}
	}
	for i, why := range reasons {
		reasons[i] = fmt.Sprintf("GPUs %s: %s", strings.Join(pairs[why], " "), why)
	}
	return reasons
}

// apart returns why members of the team do not reach each other's memory.
func (t *team) apart() error {
	for i, m := range t.members {
		for _, o := range t.members[:i] {
			if err := t.w.Apart(o.dev.rank, m.dev.rank); err != nil {
				return err
			}
		}
	}
	return nil
}
