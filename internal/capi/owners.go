package capi

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"hocket.example/hocket"
)

// owners records the end of loans. An owner is a number that the caller passes together with tensors; it identifies
// their memory. Even if the call fails, the library may use the owner's memory until Ended returns the owner.
type owners struct {
	mu    sync.Mutex
	ended []uintptr
}

// Loan counts the users of an owner's memory. The loan ends when its last user ends. A nil Loan has no owner.
type Loan struct {
	of    *owners
	owner uintptr
	users int // guarded by of.mu
}

// Lend returns a loan with one user. The caller must call End for it. It returns nil if owner is 0.
func (l *Library) Lend(owner uintptr) *Loan {
	if owner == 0 {
		return nil
	}
	return &Loan{&l.owners, owner, 1}
}

// share adds a user.
func (n *Loan) share() {
	if n == nil {
		return
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	n.users++
}

// End removes a user.
func (n *Loan) End() {
	if n == nil {
		return
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.users--; n.users == 0 {
		n.of.ended = append(n.of.ended, n.owner)
	}
}

// Ended returns the owner of a loan that has ended, and removes it from the list; 0 if there is
// none.
func (l *Library) Ended() uintptr {
	o := &l.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ended) == 0 {
		o.ended = nil
		return 0
	}
	owner := o.ended[0]
	o.ended = o.ended[1:]
	return owner
}

func newBound() *bound { return &bound{tensors: map[string]*boundTensor{}, calls: map[*use]bool{}} }

// bound holds the tensors that are bound to a model. A call may read any tensor that is bound during the call.
// Therefore, when a tensor is replaced, every call in progress becomes a user of the replaced tensor.
type bound struct {
	mu      sync.Mutex
	tensors map[string]*boundTensor // bound tensors by parameter; nil once the model is closed
	calls   map[*use]bool           // calls in progress
}

// boundTensor is a tensor that is or was bound to a parameter.
type boundTensor struct {
	loan   *Loan
	device io.Closer // the tensor on a device; nil for one in the host's memory
	users  int       // guarded by the mu of bound
}

// release removes a user. If it was the last user, release returns the tensor, which the caller must then pass to the
// function end, without holding mu.
func (t *boundTensor) release() []*boundTensor {
	if t.users--; t.users > 0 {
		return nil
	}
	return []*boundTensor{t}
}

// end closes tensors and ends their loans. Closing waits until the device has finished using the
// tensor.
func end(all []*boundTensor) error {
	var errs []error
	for _, t := range all {
		if t.device != nil {
			errs = append(errs, t.device.Close())
		}
		t.loan.End()
	}
	return errors.Join(errs...)
}

// use is a call in progress, and the tensors that were replaced while it ran.
type use struct{ replaced []*boundTensor }

// begin starts a call that reads bound tensors. The caller must call end when it has read them.
func (b *bound) begin() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := &use{}
	b.calls[u] = true
	return func() {
		b.mu.Lock()
		delete(b.calls, u)
		var unused []*boundTensor
		for _, t := range u.replaced {
			unused = append(unused, t.release()...)
		}
		b.mu.Unlock()
		_ = end(unused) // the call has succeeded, so an error of closing a replaced tensor is ignored
	}
}

// bind calls the function do, which binds a parameter. It stores the new tensor's loan and, if the tensor is on a
// device, the tensor. n is nil if there is no loan. The replaced tensor is closed as soon as no call uses it. If bind
// fails, the caller must close the new tensor.
func (b *bound) bind(name string, n *Loan, device io.Closer, do func() error) error {
	b.mu.Lock()
	if b.tensors == nil {
		b.mu.Unlock()
		return fmt.Errorf("the model is %w", hocket.ErrClosed)
	}
	if err := do(); err != nil {
		b.mu.Unlock()
		return err
	}
	unused := b.replace(name, n, device)
	b.mu.Unlock()
	return end(unused)
}

// bindOthers calls the function do, which binds tensors that the caller has not lent and returns the names of their
// parameters. Like bind, bindOthers closes replaced tensors.
func (b *bound) bindOthers(do func() ([]string, error)) error {
	b.mu.Lock()
	if b.tensors == nil {
		b.mu.Unlock()
		return fmt.Errorf("the model is %w", hocket.ErrClosed)
	}
	names, err := do()
	var unused []*boundTensor
	for _, name := range names {
		unused = append(unused, b.replace(name, nil, nil)...)
	}
	b.mu.Unlock()
	return errors.Join(err, end(unused))
}

// close ends the use of all bound tensors, and makes later calls of bind fail.
func (b *bound) close() error {
	b.mu.Lock()
	var unused []*boundTensor
	for name := range b.tensors {
		unused = append(unused, b.replace(name, nil, nil)...)
	}
	b.tensors = nil
	b.mu.Unlock()
	return end(unused)
}

// replace replaces a parameter's tensor. It returns the replaced tensor if no call uses it. The caller holds mu.
func (b *bound) replace(name string, n *Loan, device io.Closer) []*boundTensor {
	old := b.tensors[name]
	delete(b.tensors, name)
	if n != nil || device != nil {
		n.share()
		b.tensors[name] = &boundTensor{loan: n, device: device, users: 1}
	}
	if old == nil {
		return nil
	}
	for u := range b.calls {
		old.users++
		u.replaced = append(u.replaced, old)
	}
	return old.release()
}
