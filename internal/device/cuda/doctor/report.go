// Package doctor reports on CUDA: its libraries, the GPUs, and how GPUs reach each other.
package doctor

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// MulticastVariable is the name of an environment variable whose value "on" enables NVLink multicast: hocket may create
// multicast objects, NCCL's own variables decide whether NCCL uses NVLS, and the algorithm multimem is available for
// sums in any order. On a host that is shared with others, a failure of multicast can make GPUs unusable for all.
const MulticastVariable = "HOCKET_MULTICAST"

// Values of Report.Multicast.
const (
	MulticastOn  = "on"
	MulticastOff = "off"
)

// Report describes the CUDA installation and the GPUs.
type Report struct {
	// Libraries lists all libraries that hocket searched for, including those that it did not find.
	Libraries []Found `json:"libraries"`
	GPUs      []GPU   `json:"gpus,omitempty"`
	// Detours lists the pairs of GPUs without peer access, with the reason. Data between these GPUs goes through host
	// memory.
	Detours []string `json:"detours,omitempty"`
	// Exchange describes how processes that drive different GPUs exchange data; empty if there is only one GPU.
	Exchange string `json:"exchange,omitempty"`
	// Multicast is "on" if the user has enabled NVLink multicast, "off" if not, or an error message if the variable has
	// another value.
	Multicast string `json:"multicast"`
	// Missing is the reason why the machine cannot be used; empty if it can.
	Missing string `json:"missing,omitempty"`
}

// Found describes a library: its path and version, or why it was not found.
type Found struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Missing string `json:"missing,omitempty"`
	// Mistakes lists known bugs of this version, and how hocket works around them.
	Mistakes []string `json:"mistakes,omitempty"`
}

// GPU is a device.
type GPU struct {
	Name    string `json:"name"`
	PCI     string `json:"pci"`
	Arch    string `json:"arch"`
	Memory  int64  `json:"memory"` // bytes
	NVLinks int    `json:"nvlinks"`
	// Multicast reports whether the GPU supports NVLink multicast, even if it is not enabled.
	Multicast bool `json:"multicast"`
	// Peers[i] is the path by which this GPU accesses the memory of GPU i: "nvlink", "pcie", "host" for copies through
	// host memory, or "self".
	Peers []string `json:"peers"`
}

// AddGPUs adds the GPUs of s; nvml may be nil.
func (r *Report) AddGPUs(s *gpu.System, nvml *nvlib.NVML) {
	r.Detours = gpu.Detours(s.GPUs, s.ApartNow)
	if len(s.GPUs) > 1 {
		var why error
		if len(r.Detours) > 0 {
			why = errors.New(r.Detours[0])
		}
		r.Exchange = Exchange(why)
	}
	for _, g := range s.GPUs {
		r.GPUs = append(r.GPUs, describeGPU(s, g, nvml))
	}
}

// Exchange describes how processes exchange data. The argument why is the reason why their GPUs have no peer access;
// nil if they have.
func Exchange(why error) string {
	if why == nil {
		return "peer access"
	}
	return fmt.Sprintf("host memory, and NCCL for collectives if it is installed: %v", why)
}

// Note sets Missing unless it is already set.
func (r *Report) Note(missing string) {
	if r.Missing == "" {
		r.Missing = missing
	}
}

// Add adds a library to the report, or the reason why it was not found.
func (r *Report) Add(name string, lib interface{ Loaded() nvlib.Loaded }, err error) {
	if err != nil {
		r.Libraries = append(r.Libraries, Found{Name: name, Missing: err.Error()})
		return
	}
	l := lib.Loaded()
	r.Libraries = append(r.Libraries, Found{Name: name, Path: l.Path, Version: l.Version})
}

// AddMistakes adds the known bugs of NCCL, the library that was added last.
func (r *Report) AddMistakes(lib *nvlib.NCCL) {
	l := &r.Libraries[len(r.Libraries)-1]
	for _, k := range lib.Mistakes(r.Multicast == MulticastOn) {
		l.Mistakes = append(l.Mistakes, k.String())
	}
}

// describeGPU returns the description of g; nvml may be nil.
func describeGPU(s *gpu.System, g *gpu.GPU, nvml *nvlib.NVML) GPU {
	out := GPU{Name: g.Name, PCI: g.PCI, Arch: g.Arch, Memory: g.Memory, Multicast: g.Multicasts()}
	var here nvlib.NVMLDevice
	if nvml != nil {
		if d, err := nvml.DeviceAt(g.PCI); err == nil {
			here, out.NVLinks = d, nvml.NVLinks(d)
		}
	}
	for _, peer := range s.GPUs {
		out.Peers = append(out.Peers, wayTo(s, g, peer, nvml, here))
	}
	return out
}

func wayTo(s *gpu.System, g, peer *gpu.GPU, nvml *nvlib.NVML, here nvlib.NVMLDevice) string {
	if g == peer {
		return "self"
	}
	if s.ApartNow(g, peer) != nil {
		return "host"
	}
	if nvml != nil {
		if there, err := nvml.DeviceAt(peer.PCI); err == nil {
			if ok, err := nvml.Peers(here, there, nvlib.PeerNVLink); err == nil && ok {
				return "nvlink"
			}
		}
	}
	return "pcie"
}

// Lines returns the report as text. Each line is a name and a description.
func (r Report) Lines() [][2]string {
	var lines [][2]string
	for i, g := range r.GPUs {
		what := fmt.Sprintf("%s, %s, %d GiB, %s", g.Name, g.Arch, g.Memory>>30, g.PCI)
		if g.NVLinks > 0 {
			what += fmt.Sprintf(", %d NVLinks up", g.NVLinks)
		}
		for j, way := range g.Peers {
			switch way {
			case "self":
			case "host":
				what += fmt.Sprintf("; GPU %d through the host", j)
			default:
				what += fmt.Sprintf("; GPU %d by %s", j, way)
			}
		}
		lines = append(lines, [2]string{fmt.Sprint("gpu ", i), what})
	}
	for _, d := range r.Detours {
		lines = append(lines, [2]string{"through the host", d})
	}
	if r.Exchange != "" {
		lines = append(lines, [2]string{"between processes", r.Exchange})
	}
	lines = append(lines, [2]string{"multicast", r.multicastText()})
	for _, l := range r.Libraries {
		what := "missing: " + l.Missing
		if l.Missing == "" {
			what = l.Version + ", " + l.Path
		}
		lines = append(lines, [2]string{l.Name, what})
		for _, m := range l.Mistakes {
			lines = append(lines, [2]string{"", "warning: " + m})
		}
	}
	return lines
}

// multicastText describes whether NVLink multicast is used, and how many GPUs support it.
func (r Report) multicastText() string {
	able := 0
	for _, g := range r.GPUs {
		if g.Multicast {
			able++
		}
	}
	what := r.Multicast
	if what == MulticastOff {
		what += fmt.Sprintf(" (%s=on opts in)", MulticastVariable)
	}
	if len(r.GPUs) == 0 {
		return what
	}
	return fmt.Sprintf("%s; %d of %d GPUs support it", what, able, len(r.GPUs))
}
