// Package compute prepares the computations of one device. Prepare turns a device.Kernel into the steps of a Launch:
// kernels, copies and GEMMs. It checks operands, copies those that must not be read in place, and chooses the
// implementation of each step. Package cuda makes launches of the steps and issues them.
package compute

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Launch is what steps are added to, in order, and what it is prepared on. Its methods are called with the world held
// exclusively and the device's context current; the world may be left to others meanwhile.
type Launch interface {
	// Resolve checks a view; peers' memory is allowed only where peers is set.
	Resolve(v device.View, peers bool) (strided.View, error)
	// Reaches reports whether kernels of the device may use what v lies in.
	Reaches(v *strided.View) bool
	// Scratch reserves memory that only the launch uses.
	Scratch(bytes int64) (strided.Memory, nvlib.Ptr, error)
	// Report returns where kernels of the launch report faults, and the tag to report.
	Report() (nvlib.Ptr, uint64, error)

	// AddProblem adds kernels that compute p.
	AddProblem(p kernels.Problem) error
	// AddCopy adds a copy between views that were checked and share no bytes.
	AddCopy(dst, src strided.View) error
	// AddProduct adds a matrix product by cuBLASLt, AddOwn one by a kernel of hocket's.
	AddProduct(*gemm.Launch)
	AddOwn(*nvlib.Launch)
	// AddUser adds a kernel of the user's, AddUnchanged one that looks for what it changed.
	AddUser(u kernels.User) error
	AddUnchanged(u kernels.Unchanged) error

	// Again keeps what adds the steps anew, in place of those that were added, where processes agree on other choices
	// than were made.
	Again(prepare func() error)
}

// Site is what choices depend on.
type Site struct {
	GEMMs         *gemm.Host
	SMs           int  // of the GPU
	FixedProducts bool // as in cuda.Options
}

// builder adds the steps of one kernel.
type builder struct {
	Launch
	site   Site
	scales [][2]strided.View // copies of scales, to and from, that are added once it is known that a library takes them
}

// Prepare adds the steps that compute dk. After an error some may have been added.
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

// Ahead returns a problem that Prepare will add, to have it compiled before; false for none. Products are not
// foreseen: they are mostly a library's. Nor are kernels of the user's.
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

// build checks k and makes the steps. The context is current.
func (b *builder) build(k *kernel) error {
	if err := k.resolve(b); err != nil {
		return err
	}
	switch op := k.Op.(type) {
	case device.Chain:
		return b.addChain(k)
	case device.Copy:
		return b.addCopy(k)
	case device.Linear:
		return b.addGEMM(&product{kernel: k, Product: op.Product, linear: true, constant: op.Constant})
	case device.Matmul:
		return b.addGEMM(&product{kernel: k, Product: op.Product, ta: op.TA, tb: op.TB})
	}
	return b.addLibrary(k)
}

// stage has operands that overlap the result otherwise than by being it copied
// to scratch memory first: so every kernel computes from what was there before. So
// are those in memory of GPUs that are apart.
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

// copied has a view be of a dense copy in memory of the launch.
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

// addCopy lets a copy engine do it where that can, unless the two overlap.
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

// MoveBlocks is how many blocks a copy by a kernel takes that may have any number:
// what fills a link, by stores and by loads.
const MoveBlocks = 32

// Move adds a copy by a kernel of so many blocks, by stores to a peer's memory or loads from it; 0 for as many as
// fill a link.
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
		return fmt.Errorf("%w: a kernel does not reach memory of a GPU that is apart", device.ErrUnsupported)
	case to.Overlaps(&from) || !to.Dense() || !from.Dense():
		return fmt.Errorf("%w: a kernel copies between views without gaps that share no bytes", device.ErrUnsupported)
	case blocks <= 0:
		blocks = MoveBlocks
	}
	return l.AddProblem(kernels.Transfer{In: from.Operand(), Out: to.Operand(), Blocks: blocks})
}
