package capi

import (
	"fmt"
	"sync"

	"hocket.example/hocket"
)

// owners records the end of loans. An owner is a number that the caller passes with tensors and that stands for their
// memory. The library may use the memory until Ended returns the owner, whether the call succeeded or not.
type owners struct {
	mu    sync.Mutex
	ended []uintptr
}

// Loan counts the users of an owner's memory. It ends when the last user does. A nil Loan has no owner.
type Loan struct {
	of    *owners
	owner uintptr
	users int // guarded by of.mu
}

// Lend returns a loan with one user, which calls End; nil if owner is 0.
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

// Ended returns the owner of a loan that has ended, and forgets it; 0 if there is none.
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

func newBound() *bound { return &bound{loans: map[string]*Loan{}, calls: map[*use]bool{}} }

// bound holds the loans of the tensors that are bound to a model. A call may read any tensor that is bound during the
// call. So when a tensor is replaced, every call under way becomes a user of its loan.
type bound struct {
	mu    sync.Mutex
	loans map[string]*Loan // by parameter; nil once the model is closed
	calls map[*use]bool    // under way
}

// use is a call under way, and the loans of tensors that were replaced during the call.
type use struct{ replaced []*Loan }

// begin starts a call that reads bound tensors. The caller must call end when it has read them.
func (b *bound) begin() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := &use{}
	b.calls[u] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.calls, u)
		for _, n := range u.replaced {
			n.End()
		}
	}
}

// bind calls do, which binds a parameter, and keeps the loan of the new tensor; n is nil if there is none.
func (b *bound) bind(name string, n *Loan, do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loans == nil {
		return fmt.Errorf("the model is %w", hocket.ErrClosed)
	}
	if err := do(); err != nil {
		return err
	}
	b.replace(name, n)
	return nil
}

// close ends the loans of all tensors, and refuses later ones.
func (b *bound) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.loans {
		b.replace(name, nil)
	}
	b.loans = nil
}

// replace replaces a parameter's loan. The caller holds mu.
func (b *bound) replace(name string, n *Loan) {
	old := b.loans[name]
	if delete(b.loans, name); n != nil {
		n.share()
		b.loans[name] = n
	}
	if old == nil {
		return
	}
	for u := range b.calls {
		old.share()
		u.replaced = append(u.replaced, old)
	}
	old.End()
}
