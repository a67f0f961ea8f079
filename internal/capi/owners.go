package capi

import (
	"fmt"
	"sync"

	"hocket.example/hocket"
)

// owners are the callers' words for memory that they have lent: a number, other than 0, for the memory of one call. The
// memory stays the library's to use until Ended has returned its owner, whatever has become of the call.
type owners struct {
	mu    sync.Mutex
	ended []uintptr
}

// Loan is the use of an owner's memory. It ends with the last of its users. A nil Loan is of no owner.
type Loan struct {
	of    *owners
	owner uintptr
	users int // guarded by of.mu
}

// Lend returns a loan of which the caller is the user until it calls End; nil if owner is 0.
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

// Ended returns an owner whose memory the library no longer uses; 0 if there is none. It returns each once.
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

// bound are the loans of what is bound to a model. What is bound no longer is still used by the calls that began
// before, so that each of them becomes a user of its loan.
type bound struct {
	mu    sync.Mutex
	loans map[string]*Loan // by parameter; nil once the model is closed
	calls map[*use]bool    // under way
}

// use is what a call uses besides what is bound now.
type use struct{ replaced []*Loan }

// begin begins a call that uses what is bound; end ends it.
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

// bind has do bind a parameter to what n lends; nil for nothing that is lent.
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

// close has nothing bound any more.
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
