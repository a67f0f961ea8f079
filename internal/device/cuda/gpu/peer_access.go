package gpu

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"hocket.example/hocket/internal/nvlib"
)

// P2PVariable names the environment variable that keeps GPUs from using each
// other's memory: "off" all of them, "0-1,0-2" those pairs.
const P2PVariable = "HOCKET_P2P"

// reach is which GPUs of the process use each other's memory: kernels and copy
// engines of each that of the other. Those that do not are apart, and what they
// exchange goes through host memory (see host_staged.go of package cuda). They are apart where the user
// says so, where the driver gives no access, and where a real transfer fails: that
// devices say they reach each other does not make it so (virtual machines and PCIe
// switches lose or mangle transfers without an error).
type reach struct {
	setting string // what the user said
	denied  map[Couple]bool
	NVML    func() (*nvlib.NVML, error)
	mu      sync.Mutex
	Why     map[Couple]error // of those asked about: nil, or why they are apart
	Deceit  bool             // some are apart that the driver says are not
}

// Couple is two GPUs, the lower first.
type Couple [2]nvlib.Device

func coupleOf(a, b *GPU) Couple { return Couple{min(a.Device, b.Device), max(a.Device, b.Device)} }

// NewReach reads the user's setting.
func NewReach(setting string) (*reach, error) {
	r := &reach{setting: setting, denied: map[Couple]bool{}, NVML: sync.OnceValues(nvlib.OpenNVML),
		Why: map[Couple]error{}}
	if setting == "" || setting == "on" || setting == "off" {
		r.Deceit = setting == "off"
		return r, nil
	}
	for _, pair := range strings.Split(setting, ",") {
		from, to, _ := strings.Cut(pair, "-")
		a, aerr := strconv.Atoi(from)
		b, berr := strconv.Atoi(to)
		if aerr != nil || berr != nil || min(a, b) < 0 || max(a, b) > math.MaxInt16 || a == b {
			return nil, fmt.Errorf("%s=%s is invalid: set it to on, off, or pairs of GPUs that do not use peer access, such as 0-1,0-2",
				P2PVariable, setting)
		}
		r.denied[Couple{nvlib.Device(min(a, b)), nvlib.Device(max(a, b))}] = true
	}
	r.Deceit = true
	return r, nil
}

// Apart returns why two GPUs are apart, nil if they are not; err is a failure that
// leaves one of them unusable. The caller holds the issue lock.
func (s *System) Apart(a, b *GPU) (why, err error) {
	r := s.Reach
	w := s.Lent.Watch()
	if !w.Hold(&r.mu) {
		return nil, errGivenUp
	}
	defer w.Release(&r.mu)
	c := coupleOf(a, b)
	if why, known := r.Why[c]; known {
		return why, nil
	}
	if why, err = s.ask(a, b); err != nil {
		return nil, err
	}
	r.Why[c] = why
	return why, nil
}

// told is why GPUs are apart without a trial.
func (s *System) told(drv *nvlib.Driver, a, b *GPU) error {
	if s.Reach.setting == "off" || s.Reach.denied[coupleOf(a, b)] {
		return fmt.Errorf("%s=%s disables peer access between them", P2PVariable, s.Reach.setting)
	}
	for _, w := range [][2]*GPU{{a, b}, {b, a}} {
		if ok, err := drv.CanAccessPeer(w[0].Device, w[1].Device); err != nil {
			return err
		} else if !ok {
			return s.Reach.noPeer(a, b)
		}
	}
	return nil
}

// noPeer is why the driver gives no access, with what NVML knows of it.
func (r *reach) noPeer(a, b *GPU) error {
	const what = "the driver offers no peer access: the GPUs have no NVLink, and PCIe peer access is off"
	nvml, err := r.NVML()
	if err != nil {
		return errors.New(what)
	}
	if why := nvml.Refusal(a.PCI, b.PCI); why != "" {
		return fmt.Errorf("%s (NVML: %s)", what, why)
	}
	return errors.New(what)
}

// ask is apart for GPUs not asked about.
func (s *System) ask(a, b *GPU) (why, err error) {
	switch why := s.told(s.Lent, a, b); {
	case OutOfMemory(why):
		return nil, why // now; it says nothing of the way between them
	case why != nil:
		return why, nil
	}
	for _, w := range [][2]*GPU{{a, b}, {b, a}} {
		why, err := s.tryTransfer(w[0], w[1])
		switch {
		case err != nil:
			return nil, fmt.Errorf("a transfer from GPU %d to GPU %d: %w; to disable peer access between them, start a new process with %s=%d-%d", w[0].Device, w[1].Device, err, P2PVariable, a.Device, b.Device)
		case OutOfMemory(why):
			return nil, fmt.Errorf("a transfer from GPU %d to GPU %d: %w", w[0].Device, w[1].Device, why)
		case why != nil:
			s.Reach.Deceit = true
			return fmt.Errorf("a transfer from GPU %d to GPU %d: %w, although the driver reports peer access: check the IOMMU and the ACS setting of PCIe switches", w[0].Device, w[1].Device, why), nil
		}
	}
	return nil, nil
}

// ApartNow is why two GPUs are apart, as far as that is known.
func (s *System) ApartNow(a, b *GPU) error {
	if why := s.Reach.Known(a, b); why != nil {
		return why
	}
	return s.told(s.Driver, a, b)
}

// Known is apart for GPUs that were asked about; nil for others.
func (r *reach) Known(a, b *GPU) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Why[coupleOf(a, b)]
}

// Deceives reports whether GPUs are apart that the driver says are not.
func (r *reach) Deceives() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Deceit
}

// Detours has a line for each reason.
func Detours(gpus []*GPU, why func(a, b *GPU) error) []string {
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
			pairs[err.Error()] = append(pairs[err.Error()], fmt.Sprintf("%d-%d", a.Device, b.Device))
		}
	}
	for i, why := range reasons {
		reasons[i] = fmt.Sprintf("GPUs %s: %s", strings.Join(pairs[why], " "), why)
	}
	return reasons
}
