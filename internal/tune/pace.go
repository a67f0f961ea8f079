package tune

import (
	"fmt"
	"strings"
	"time"
)

// Phases has the durations of the parts of a tuning, in seconds.
type Phases struct {
	// Opening is the time until the machine was open and operands were allocated.
	Opening float64 `json:"opening"`
	// Preparing is the time of waiting until launches could be issued: until kernels were compiled and loaded, and
	// NCCL's communicators were created.
	Preparing float64 `json:"preparing"`
	// Measuring is the remaining time.
	Measuring float64 `json:"measuring"`
}

func (p *Phases) String() string {
	return fmt.Sprintf("opening %.1f, preparing %.1f, measuring %.1f", p.Opening, p.Preparing, p.Measuring)
}

// pace tracks the time that a tuning has used and may use.
type pace struct {
	now       func() time.Time
	begun     time.Time
	opened    time.Time
	within    time.Duration // time limit; 0 for none
	preparing time.Duration
	calls     int       // number of measured calls
	first     time.Time // time at which the first measurement ended
	last      time.Time
}

// preparedFrom adds the time since t to the time that was spent waiting for preparations.
func (p *pace) preparedFrom(t time.Time) { p.preparing += p.now().Sub(t) }

// measured counts a measured call.
func (p *pace) measured() {
	p.last = p.now()
	if p.calls++; p.calls == 1 {
		p.first = p.last
	}
}

// ends returns the time after which no measurement is started. If opening the machine took long, it extends the limit
// so that a third of the limit is left for measuring.
func (p *pace) ends() time.Time {
	end, least := p.begun.Add(p.within), p.opened.Add(p.within/3)
	if end.Before(least) {
		return least
	}
	return end
}

// hasTime reports whether the given number of calls can probably be measured in time. The estimated time per call is
// 1.5 times the mean time of earlier calls, since each collective has separate kernels. The mean excludes the first
// call, which includes most preparations. hasTime always returns true before the first two calls.
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

// lateText describes which collectives were not measured because there was no time left.
func (u *tuner) lateText(late []kind) string {
	var names []string
	for _, k := range late {
		names = append(names, k.op.String())
	}
	return fmt.Sprintf("not measured within %.1f s, so left unchanged: %s; run hocket tune again to continue with "+
		"these, or with --full for no time limit", u.pace.within.Seconds(), strings.Join(names, ", "))
}
