package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// Report is what there is of CUDA.
type Report struct {
	// Libraries are those that were looked for.
	Libraries []Found `json:"libraries"`
	GPUs      []GPU   `json:"gpus,omitempty"`
	// Detours says which GPUs do not reach each other's memory, and why: what they
	// exchange goes through host memory.
	Detours []string `json:"detours,omitempty"`
	// Multicast says whether the user opted in to NVLink multicast.
	Multicast string `json:"multicast"`
	// Missing is why the machine cannot be used; empty where it can.
	Missing string `json:"missing,omitempty"`
}

// Found is a library: where it lies and its version, or why it was not found.
type Found struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Missing string `json:"missing,omitempty"`
	// Mistakes is what is known to be wrong with this version, and what is done about it.
	Mistakes []string `json:"mistakes,omitempty"`
}

// GPU is a device.
type GPU struct {
	Name    string `json:"name"`
	PCI     string `json:"pci"`
	Arch    string `json:"arch"`
	Memory  int64  `json:"memory"` // bytes
	NVLinks int    `json:"nvlinks"`
	// Multicast says that the GPU supports NVLink multicast, used or not.
	Multicast bool `json:"multicast"`
	// Peers says of every GPU, by number, how its memory is reached: "nvlink",
	// "pcie", "host" for copies through that, or "self".
	Peers []string `json:"peers"`
}

// Examine looks for libraries and devices. Where try is set it has every two GPUs
// make a real transfer, which takes a context on each; else it tells of the
// transfers that were made before.
func Examine(try bool) Report {
	r := Report{Multicast: multicastOff}
	if asked, err := multicastAsked(); err != nil {
		r.Multicast = err.Error()
	} else if asked {
		r.Multicast = multicastOn
	}
	sys, err := theSystem()
	if err != nil {
		r.Missing = err.Error()
		r.Libraries = append(r.Libraries, Found{Name: "libcuda", Missing: err.Error()})
	} else {
		r.add("libcuda", sys.Driver, nil)
	}
	rtc, err := nvlib.OpenNVRTC()
	r.add("libnvrtc", rtc, err)
	blas, err := nvlib.OpenCuBLASLt()
	r.add("libcublasLt", blas, err)
	nccl, err := nvlib.OpenNCCL(r.Multicast == multicastOn)
	r.add("libnccl", nccl, err)
	if err == nil {
		r.mistakes(nccl)
	}
	nvml, err := openNVML(sys)
	r.add("libnvidia-ml", nvml, err)
	if err != nil {
		nvml = nil
	}
	if sys != nil {
		r.gpus(sys, nvml, try)
	}
	for _, l := range r.Libraries {
		if l.Name == "libnvrtc" || l.Name == "libcublasLt" {
			r.note(l.Missing)
		}
	}
	return r
}

// openNVML returns the process's, where there are GPUs.
func openNVML(sys *system) (*nvlib.NVML, error) {
	if sys != nil {
		return sys.Reach.NVML()
	}
	return nvlib.OpenNVML()
}

// gpus adds a system's; nvml may be nil.
func (r *Report) gpus(s *system, nvml *nvlib.NVML, try bool) {
	if try {
		r.note(s.tryAll())
	}
	r.Detours = gpu.Detours(s.GPUs, s.ApartNow)
	for _, g := range s.GPUs {
		r.GPUs = append(r.GPUs, s.describeGPU(g, nvml))
	}
}

// note keeps the first reason why the machine cannot be used.
func (r *Report) note(missing string) {
	if r.Missing == "" {
		r.Missing = missing
	}
}

func (r *Report) add(name string, lib interface{ Loaded() nvlib.Loaded }, err error) {
	if err != nil {
		r.Libraries = append(r.Libraries, Found{Name: name, Missing: err.Error()})
		return
	}
	l := lib.Loaded()
	r.Libraries = append(r.Libraries, Found{Name: name, Path: l.Path, Version: l.Version})
}

// mistakes tells what is wrong with the library that was added last.
func (r *Report) mistakes(lib *nvlib.NCCL) {
	l := &r.Libraries[len(r.Libraries)-1]
	for _, k := range lib.Mistakes(r.Multicast == multicastOn) {
		l.Mistakes = append(l.Mistakes, k.String())
	}
}

// describeGPU tells of a device; nvml may be nil.
func (s *system) describeGPU(g *gpu.GPU, nvml *nvlib.NVML) GPU {
	out := GPU{Name: g.Name, PCI: g.PCI, Arch: g.Arch, Memory: g.Memory, Multicast: g.Multicasts()}
	var here nvlib.NVMLDevice
	if nvml != nil {
		if d, err := nvml.DeviceAt(g.PCI); err == nil {
			here, out.NVLinks = d, nvml.NVLinks(d)
		}
	}
	for _, peer := range s.GPUs {
		out.Peers = append(out.Peers, s.wayTo(g, peer, nvml, here))
	}
	return out
}

func (s *system) wayTo(g, peer *gpu.GPU, nvml *nvlib.NVML, here nvlib.NVMLDevice) string {
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

// Lines says it in words, a line each: name, then what was found.
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

// multicastText says whether NVLink multicast is used, and where it could be.
func (r Report) multicastText() string {
	able := 0
	for _, g := range r.GPUs {
		if g.Multicast {
			able++
		}
	}
	what := r.Multicast
	if what == multicastOff {
		what += fmt.Sprintf(" (%s=on opts in)", MulticastVariable)
	}
	if len(r.GPUs) == 0 {
		return what
	}
	return fmt.Sprintf("%s; %d of %d GPUs support it", what, able, len(r.GPUs))
}

// tryAll asks about every two GPUs; it says what left one unusable.
func (s *system) tryAll() string {
	s.issueLock.mu.Lock()
	defer s.issueLock.mu.Unlock()
	for i, a := range s.GPUs {
		for _, b := range s.GPUs[i+1:] {
			if _, err := s.Apart(a, b); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}
