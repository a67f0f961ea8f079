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

// P2PVariable is the name of the environment variable that disables peer access between GPUs. The value "off" disables
// peer access between all GPUs, and a list such as "0-1,0-2" disables it for these pairs.
const P2PVariable = "HOCKET_P2P"

// reach records which GPUs of the process can access each other's memory. In a pair with peer access, kernels and copy
// engines of each GPU can access the memory of the other. Pairs without peer access are called apart; their data goes
// through host memory (see host_staged.go of package cuda). A pair is apart if P2PVariable names it, if the driver
// denies peer access, or if a test transfer fails. The test is necessary because virtual machines and PCIe switches can
// lose or corrupt transfers, without an error, between devices that report peer access.
type reach struct {
	setting string // value of P2PVariable
	denied  map[Couple]bool
	NVML    func() (*nvlib.NVML, error)
	mu      sync.Mutex
	Why     map[Couple]error // by tested pair: nil, or the reason why the pair is apart
	Deceit  bool             // some pair is apart although the driver reports peer access
}

// Couple is a pair of GPUs, given by their device numbers in ascending order.
type Couple [2]nvlib.Device

func coupleOf(a, b *GPU) Couple { return Couple{min(a.Device, b.Device), max(a.Device, b.Device)} }

// NewReach returns a reach with the setting that is the value of P2PVariable.
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

// Apart returns nil if two GPUs have peer access, and otherwise the reason why not. It tests the pair if no earlier
// call has tested it. The error err reports that the test was not possible, or that it made a GPU unusable. The caller
// holds the issue lock.
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

// told returns the reason why the pair is apart according to P2PVariable and the driver, without a test transfer.
func (s *System) told(drv *nvlib.Driver, a, b *GPU) error {
	if s.Reach.setting == "off" || s.Reach.denied[coupleOf(a, b)] {
		return s.Reach.disabled()
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

func (r *reach) disabled() error {
	return fmt.Errorf("%s=%s disables peer access between them", P2PVariable, r.setting)
}

// Off returns an error if P2PVariable disables peer access between all GPUs.
func (r *reach) Off() error {
	if r.setting == "off" {
		return r.disabled()
	}
	return nil
}

// noPeer returns the error for a pair of GPUs to which the driver denies peer access. It adds NVML's reason if NVML
// reports one.
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

// ask does the work of Apart for a pair of GPUs that was not tested before.
func (s *System) ask(a, b *GPU) (why, err error) {
	switch why := s.told(s.Lent, a, b); {
	case OutOfMemory(why):
		return nil, why // too little memory for the test does not mean that the pair is apart
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

// ApartNow returns the reason why two GPUs are apart (without peer access), as far as it is known without a test
// transfer.
func (s *System) ApartNow(a, b *GPU) error {
	if why := s.Reach.Known(a, b); why != nil {
		return why
	}
	return s.told(s.Driver, a, b)
}

// Known returns the result of the test transfer for a pair that was tested; nil for other pairs.
func (r *reach) Known(a, b *GPU) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Why[coupleOf(a, b)]
}

// Deceives reports whether some pair of GPUs is apart (without peer access) although the driver reports peer access.
func (r *reach) Deceives() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Deceit
}

// Text names a GPU by its number, or by its PCI address if this process does not see it.
func (g *GPU) Text() string {
	if g.Device < 0 {
		return g.PCI
	}
	return fmt.Sprint(g.Device)
}

// Detours returns a line for each reason why pairs are apart: the reason, and the pairs.
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
			pairs[err.Error()] = append(pairs[err.Error()], a.Text()+"-"+b.Text())
		}
	}
	for i, why := range reasons {
		reasons[i] = fmt.Sprintf("GPUs %s: %s", strings.Join(pairs[why], " "), why)
	}
	return reasons
}
