package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
)

// Report is what there is of CUDA.
type Report struct {
	// Libraries are those that were looked for.
	Libraries []Found `json:"libraries"`
	GPUs      []GPU   `json:"gpus,omitempty"`
	// Missing is why the machine cannot be used; empty where it can.
	Missing string `json:"missing,omitempty"`
}

// Found is a library: where it lies and its version, or why it was not found.
type Found struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Missing string `json:"missing,omitempty"`
}

// GPU is a device.
type GPU struct {
	Name    string `json:"name"`
	PCI     string `json:"pci"`
	Arch    string `json:"arch"`
	Memory  int64  `json:"memory"` // bytes
	NVLinks int    `json:"nvlinks"`
	// Peers says of every GPU, by number, how its memory is reached: "nvlink",
	// "pcie", "none", or "self".
	Peers []string `json:"peers"`
}

// Examine looks for libraries and devices.
func Examine() Report {
	var r Report
	sys, err := theSystem()
	if err != nil {
		r.Missing = err.Error()
		r.Libraries = append(r.Libraries, Found{Name: "libcuda", Missing: err.Error()})
	} else {
		r.add("libcuda", sys.drv, nil)
	}
	rtc, err := nvlib.OpenNVRTC()
	r.add("libnvrtc", rtc, err)
	blas, err := nvlib.OpenCuBLASLt()
	r.add("libcublasLt", blas, err)
	nccl, err := nvlib.OpenNCCL(false)
	r.add("libnccl", nccl, err)
	nvml, err := nvlib.OpenNVML()
	r.add("libnvidia-ml", nvml, err)
	if err == nil {
		defer nvml.Close()
	} else {
		nvml = nil
	}
	if sys != nil {
		for _, g := range sys.gpus {
			r.GPUs = append(r.GPUs, sys.describeGPU(g, nvml))
		}
	}
	for _, l := range r.Libraries {
		if r.Missing == "" && l.Missing != "" && (l.Name == "libnvrtc" || l.Name == "libcublasLt") {
			r.Missing = l.Missing
		}
	}
	return r
}

func (r *Report) add(name string, lib interface{ Loaded() nvlib.Loaded }, err error) {
	if err != nil {
		r.Libraries = append(r.Libraries, Found{Name: name, Missing: err.Error()})
		return
	}
	l := lib.Loaded()
	r.Libraries = append(r.Libraries, Found{Name: name, Path: l.Path, Version: l.Version})
}

// describeGPU tells of a device; nvml may be nil.
func (s *system) describeGPU(g *gpu, nvml *nvlib.NVML) GPU {
	out := GPU{Name: g.name, PCI: g.pci, Arch: g.arch, Memory: g.total}
	var here nvlib.NVMLDevice
	if nvml != nil {
		if d, err := nvml.DeviceAt(g.pci); err == nil {
			here, out.NVLinks = d, nvml.NVLinks(d)
		}
	}
	for _, peer := range s.gpus {
		out.Peers = append(out.Peers, s.wayTo(g, peer, nvml, here))
	}
	return out
}

func (s *system) wayTo(g, peer *gpu, nvml *nvlib.NVML, here nvlib.NVMLDevice) string {
	if g == peer {
		return "self"
	}
	if ok, err := s.drv.CanAccessPeer(g.dev, peer.dev); err != nil || !ok {
		return "none"
	}
	if nvml != nil {
		if there, err := nvml.DeviceAt(peer.pci); err == nil {
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
			if way != "self" {
				what += fmt.Sprintf("; GPU %d by %s", j, way)
			}
		}
		lines = append(lines, [2]string{fmt.Sprint("gpu ", i), what})
	}
	for _, l := range r.Libraries {
		what := "missing: " + l.Missing
		if l.Missing == "" {
			what = l.Version + ", " + l.Path
		}
		lines = append(lines, [2]string{l.Name, what})
	}
	return lines
}
