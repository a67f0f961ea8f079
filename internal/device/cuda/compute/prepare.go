// Package compute prepares the computations of one device. Prepare turns a device.Kernel into the steps of a Launch:
// kernels, copies and GEMMs. It checks the operands, adds copies of those that the kernel must not read in place, and
// chooses the implementation of each step. Package cuda implements Launch and issues the steps.
package compute

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// A Launch collects steps in order, and provides what their preparation needs. The methods of a Launch are called with
// the world's mutex held and the device's context current. These methods may unlock the mutex and lock it again.
type Launch interface {
	// Resolve checks a view. It refuses a view of a peer's memory unless peers is set.
	Resolve(v device.View, peers bool) (strided.View, error)
	// Reaches reports whether kernels of the device can access the memory of v.
	Reaches(v *strided.View) bool
	// Scratch reserves memory that only the launch uses.
	Scratch(bytes int64) (strided.Memory, nvlib.Ptr, error)
	// Report returns the address to which kernels of the launch report faults, and the tag with which they report.
	Report() (nvlib.Ptr, uint64, error)

	// AddProblem adds kernels that compute p.
	AddProblem(p kernels.Problem) error
	// AddCopy adds a copy between views that were checked and share no bytes.
	AddCopy(dst, src strided.View) error
	// AddProduct adds a matrix product that cuBLASLt computes, AddOwn one that hocket's kernel computes.
	AddProduct(*gemm.Launch)
	AddOwn(*nvlib.Launch)
	// AddUser adds a kernel of the user. AddUnchanged adds a kernel that checks that memory was not changed.
	AddUser(u kernels.User) error
	AddUnchanged(u kernels.Unchanged) error

	// Again stores a function that can add all steps of the launch again. The function is called if the processes agree
	// on other choices than those of the steps added so far. The launch drops these steps first.
	Again(prepare func() error)
}

// Site holds the GPU's properties, and the settings, on which the choice of implementations depends.
type Site struct {
	GEMMs         *gemm.Host
	SMs           int  // of the GPU
	FixedProducts bool // as in cuda.Options
}

// builder adds the steps of one kernel.
type builder struct {
	Launch
	site   Site
	scales [][2]strided.View // destination and source of copies that are added if cuBLASLt supports the scales
}

// Prepare adds the steps that compute dk. If Prepare returns an error, l may contain some of the steps.
func Prepare(l Launch, site Site, dk *device.Kernel) error {
	b := &builder{Launch: l, site: site}
	switch op := dk.Op.(type) {
	case *device.UserKernel:
		return b.addUser(dk, op)
	case device.Linears:
		if b.site.GEMMs.Adopted() {
			return b.addJointOrApart(dk, op)
		}
		l.Again(func() error { return b.addJointOrApart(dk, op) })
		return b.addJoint(dk, op)
	case device.Linear, device.Matmul:
		l.Again(func() error { return b.build(&kernel{Kernel: *dk}) })
	}
	return b.build(&kernel{Kernel: *dk})
}

// Ahead returns the problem that Prepare will add for dk, so that its kernel can be compiled in advance; false if there
// is none. It returns false for matrix products, which a library mostly computes, and for kernels of the user.
func Ahead(l Launch, dk *device.Kernel) (kernels.Problem, bool) {
	k := &kernel{Kernel: *dk}
	switch dk.Op.(type) {
	case *device.UserKernel, device.Linears, device.Linear, device.Matmul:
		return nil, false
	}
	if k.resolve(l) != nil {
		return nil, false
	}
	if _, ok := k.Op.(device.Copy); !ok || !k.copies() {
		return k.problem(), true
	}
	dims := strided.Merge(&k.out, &k.ins[0])
	if k.out.N == 0 || strided.ByEngine(&k.out, dims) {
		return nil, false
	}
	return strided.CopyProblem(&k.out, &k.ins[0], dims), true
}

// build checks k and adds its steps. The context is current.
func (b *builder) build(k *kernel) error {
	if err := k.resolve(b); err != nil {
		return err
	}
	switch op := k.Op.(type) {
	case device.Chain:
		return b.addChain(k)
	case device.Copy:
		return b.addCopy(k)
	case device.Quantize:
		if op.Max != 0 { // the kernel also writes an operand, so no operand can be replaced by a copy
			for i := range k.ins {
				if k.ins[i].Overlaps(&k.out) || !b.Reaches(&k.ins[i]) || i > 0 && k.ins[0].Overlaps(&k.ins[i]) {
					return fmt.Errorf("%w: one launch cannot compute scales and values, because operand %d overlaps another operand or is not accessible", device.ErrUnsupported, i)
				}
			}
		}
	case device.Ropes:
		if err := k.checkOverlap(true); err != nil {
			return err
		}
	case device.Attention:
		if op.LSE {
			if err := k.checkOverlap(true); err != nil {
				return err
			}
		}
	case device.Linear:
		return b.addGEMM(&product{kernel: k, Product: op.Product, linear: true, constant: op.Constant,
			fast: op.FastAccum})
	case device.Matmul:
		return b.addGEMM(&product{kernel: k, Product: op.Product, ta: op.TA, tb: op.TB})
	}
	return b.addLibrary(k)
}

// stage adds steps that copy operands to scratch memory if the kernel cannot read them in place. There are two such
// kinds of operands: those that overlap the result, of which the kernel would read elements it has already overwritten,
// and those in memory of GPUs without peer access. An operand that is the same view as the result is not copied if k is
// aliasable.
func (b *builder) stage(k *kernel) error {
	aliasable := k.aliasable()
	for i := range k.ins {
		in := &k.ins[i]
		far := !b.Reaches(in)
		if in.N == 0 || !far && (!in.Overlaps(&k.out) || aliasable && in.Same(&k.out)) {
			continue
		}
		if err := b.copied(in); err != nil {
			return err
		}
	}
	return nil
}

// copied replaces v by a dense copy in scratch memory.
func (b *builder) copied(v *strided.View) error {
	m, at, err := b.Scratch(v.Bytes())
	if err != nil {
		return err
	}
	dense := v.In(m, at)
	if err := b.AddCopy(dense, *v); err != nil {
		return err
	}
	*v = dense
	return nil
}

// addCopy adds a plain copy, by a copy engine if one can do it. Copies between overlapping views are computed like
// other kernels.
func (b *builder) addCopy(k *kernel) error {
	if !k.copies() {
		return b.addLibrary(k)
	}
	return b.AddCopy(k.out, k.ins[0])
}

func (b *builder) addChain(k *kernel) error {
	if err := k.checkOverlap(false); err != nil {
		return err
	}
	return b.addLibrary(k)
}

func (b *builder) addLibrary(k *kernel) error {
	if err := b.stage(k); err != nil {
		return err
	}
	p := k.problem()
	if k.reports() {
		var err error
		if p.Fault, p.Tag, err = b.Report(); err != nil {
			return err
		}
	}
	return b.AddProblem(p)
}

// MoveBlocks is the default number of blocks of a kernel that copies. With 32 thread blocks, stores or loads use the
// full bandwidth of a link.
const MoveBlocks = 32

// Move adds a copy by a kernel with the given number of thread blocks, which stores to a peer's memory or loads from
// it. If blocks is 0, the number is MoveBlocks.
func Move(l Launch, dst, src device.View, blocks int) error {
	to, err := l.Resolve(dst, true)
	if err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	from, err := l.Resolve(src, true)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := strided.CheckCopy(&to, &from); err != nil {
		return err
	}
	switch {
	case to.N == 0 || to.Same(&from):
		return nil
	case !l.Reaches(&to) || !l.Reaches(&from):
		return fmt.Errorf("%w: a kernel cannot access memory of a GPU without peer access", device.ErrUnsupported)
	case to.Overlaps(&from) || !to.Dense() || !from.Dense():
		return fmt.Errorf("%w: a kernel can only copy between contiguous views that do not overlap", device.ErrUnsupported)
	case blocks <= 0:
		blocks = MoveBlocks
	}
	return l.AddProblem(kernels.Transfer{In: from.Operand(), Out: to.Operand(), Blocks: blocks})
}
