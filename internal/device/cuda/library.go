package cuda

import (
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Library compiles kernels.
type Library = gpu.Library

// compileAside compiles the kernels for p while the caller holds the world exclusively. It unlocks the world's mutex
// while the compiler runs.
func (s *site) compileAside(p kernels.Problem, scratch func(int64, bool) (nvlib.Ptr, error)) ([]*nvlib.Launch, error) {
	var steps []kernels.Step
	err := s.w.guard.Compiling(func() (err error) {
		steps, err = s.steps(p, func(bytes int64, zeros bool) (nvlib.Ptr, error) {
			defer s.w.guard.Exclusive()()
			if err := s.w.err(); err != nil {
				return 0, err // the world's heaps may have been closed meanwhile
			}
			return scratch(bytes, zeros)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.gpu.LoadAll(s.w.drv, steps)
}

// compile compiles the kernels for p and returns their launches. The context is current.
func (s *site) compile(p kernels.Problem, scratch func(int64, bool) (nvlib.Ptr, error)) ([]*nvlib.Launch, error) {
	steps, err := s.steps(p, scratch)
	if err != nil {
		return nil, err
	}
	return s.gpu.LoadAll(s.w.drv, steps)
}

func (s *site) steps(p kernels.Problem, scratch func(int64, bool) (nvlib.Ptr, error)) ([]kernels.Step, error) {
	t := s.target()
	t.Scratch = scratch
	return s.w.m.opts.Kernels.Steps(t, p)
}
