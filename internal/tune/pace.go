package tune

import (
	"fmt"
	"strings"
	"time"
)

// Phases says where the time of a tuning went, in seconds.
type Phases struct {
	// Opening is until the machine was there, with operands.
	Opening float64 `json:"opening"`
	// Preparing is what was waited for until launches could be given: kernels
	// compiled and loaded, NCCL's communicators made.
	Preparing float64 `json:"preparing"`
	// Measuring is all the rest.
	Measuring float64 `json:"measuring"`
}

func (p *Phases) String() string {
	return fmt.Sprintf("opening %.1f, preparing %.1f, measuring %.1f", p.Opening, p.Preparing, p.Measuring)
}

// pace is the time that a tuning takes, and has.
type pace struct {
	now       func() time.Time
	begun     time.Time
	opened    time.Time
	within    time.Duration // 0 for any
	preparing time.Duration
	calls     int       // measured
	first     time.Time // the end of the first of them
	last      time.Time
}

// preparedFrom adds what was waited for since then.
func (p *pace) preparedFrom(t time.Time) { p.preparing += p.now().Sub(t) }

// measured counts a call.
func (p *pace) measured() {
	p.last = p.now()
	if p.calls++; p.calls == 1 {
		p.first = p.last
	}
}

// ends is when no more should be begun: in time, but where the machine took long to
// Open not before a third of the time was for measuring.
func (p *pace) ends() time.Time {
	end, least := p.begun.Add(p.within), p.opened.Add(p.within/3)
	if end.Before(least) {
		return least
	}
	return end
}

// hasTime reports whether so many calls are likely to be measured in time. They take
// as long as those before, without the first, for which most is prepared, and half as
// Long again: each collective has kernels of its own. The first ones are always in
// time.
func (p *pace) hasTime(calls int) bool {
	if p.within == 0 || p.calls < 2 {
		return true
	}
	each := p.last.Sub(p.first) / time.Duration(p.calls-1)
	return !p.now().Add(each * time.Duration(calls) * 3 / 2).After(p.ends())
}

func (p *pace) took() float64 { return p.now().Sub(p.begun).Seconds() }

func (p *pace) phases() *Phases {
	opening, preparing := p.opened.Sub(p.begun).Seconds(), p.preparing.Seconds()
	return &Phases{opening, preparing, p.took() - opening - preparing}
}

// lateText says what there was no time for.
func (u *tuner) lateText(late []kind) string {
	var names []string
	for _, k := range late {
		names = append(names, k.op.String())
	}
	return fmt.Sprintf("no time within %.1f s for %s: as before; hocket tune once more goes on there, --full takes its time", u.pace.within.Seconds(), strings.Join(names, ", "))
}
