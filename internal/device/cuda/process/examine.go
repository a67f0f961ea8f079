package process

import (
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/nvlib"
)

// Examine returns a report on CUDA's libraries and devices. If try is set, it makes a test transfer between every two
// GPUs, which creates a context on each. Otherwise the report has the results of earlier test transfers.
func Examine(try bool) doctor.Report {
	r := doctor.Report{Multicast: doctor.MulticastOff}
	if asked, err := multicastAsked(); err != nil {
		r.Multicast = err.Error()
	} else if asked {
		r.Multicast = doctor.MulticastOn
	}
	sys, err := Open()
	if err != nil {
		r.Missing = err.Error()
		r.Libraries = append(r.Libraries, doctor.Found{Name: "libcuda", Missing: err.Error()})
	} else {
		r.Add("libcuda", sys.Driver, nil)
	}
	rtc, err := nvlib.OpenNVRTC()
	r.Add("libnvrtc", rtc, err)
	blas, err := nvlib.OpenCuBLASLt()
	r.Add("libcublasLt", blas, err)
	nccl, err := nvlib.OpenNCCL(r.Multicast == doctor.MulticastOn)
	r.Add("libnccl", nccl, err)
	if err == nil {
		r.AddMistakes(nccl)
	}
	nvml, err := openNVML(sys)
	r.Add("libnvidia-ml", nvml, err)
	if err != nil {
		nvml = nil
	}
	if sys != nil {
		sys.AddGPUs(&r, nvml, try)
	}
	for _, l := range r.Libraries {
		if l.Name == "libnvrtc" || l.Name == "libcublasLt" {
			r.Note(l.Missing)
		}
	}
	return r
}

// openNVML returns NVML: the library that was loaded together with the driver, or else it loads NVML.
func openNVML(sys *Shared) (*nvlib.NVML, error) {
	if sys != nil {
		return sys.Reach.NVML()
	}
	return nvlib.OpenNVML()
}

// AddGPUs adds the process's GPUs to a report. If try is set, it first makes a test transfer between every two of them.
// nvml may be nil.
func (s *Shared) AddGPUs(r *doctor.Report, nvml *nvlib.NVML, try bool) {
	if try {
		r.Note(s.tryAll())
	}
	r.AddGPUs(s.System, nvml)
}

// tryAll tests peer access between every two GPUs. It returns the first error, or "" if there was none.
func (s *Shared) tryAll() string {
	defer s.Locks.LockIssue()()
	for i, a := range s.GPUs {
		for _, b := range s.GPUs[i+1:] {
			if _, err := s.Apart(a, b); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}
