package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress shows on a terminal what a command is at, once it has taken a while, and how long
// that will still take, where that can be told. Its zero value shows nothing.
type progress struct {
	w       io.Writer // nil for none
	columns int
	now     func() time.Time

	mu          sync.Mutex
	begun       time.Time // the command
	stage       string
	since       time.Time // the stage began
	done, total int       // parts of the stage; total is 0 where it has none
	most        time.Duration
	shown       bool
	stop        chan struct{}
}

const (
	// progressAfter is how long a command goes on before it says what it is at.
	progressAfter = 2 * time.Second
	progressEvery = 500 * time.Millisecond
)

// newProgress shows progress on stderr if that is a terminal that can erase a line.
func newProgress(stderr *os.File) *progress {
	p := &progress{now: time.Now}
	if isTerminal(stderr) && os.Getenv("TERM") != "dumb" {
		p.w, p.columns = stderr, columns(stderr)
	}
	p.begun = p.now()
	return p
}

// at begins a stage of so many parts, 0 for one that is not counted. most is how long it may
// take, 0 where nothing says so.
func (p *progress) at(stage string, total int, most time.Duration) {
	if p == nil || p.now == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage, p.since, p.done, p.total, p.most = stage, p.now(), 0, total, most
	if p.w != nil && p.stop == nil {
		p.stop = make(chan struct{})
		go p.show(p.stop)
	}
}

// step is that one part is done.
func (p *progress) step() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
}

// of says how many parts of the stage are done, and how many there are.
func (p *progress) of(done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
}

// end erases what is shown; what the command prints comes next.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		close(p.stop)
		p.stop = nil
	}
	if p.shown {
		io.WriteString(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) show(stop chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.stop == stop {
			p.draw()
		}
		p.mu.Unlock()
	}
}

// draw writes the line in the place of the one before it.
func (p *progress) draw() {
	now := p.now()
	if now.Sub(p.begun) < progressAfter {
		return
	}
	line := []rune(p.line(now))
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(line[:min(len(line), p.columns-1)]))
	p.shown = true
}

// line says what is under way.
func (p *progress) line(now time.Time) string {
	took := now.Sub(p.since)
	text := fmt.Sprintf("%s, %s so far", p.stage, seconds(took))
	switch {
	case p.total > 0 && p.done > 0:
		left := time.Duration(float64(took) / float64(p.done) * float64(max(p.total-p.done, 0)))
		text = fmt.Sprintf("%s: %d of %d, about %s left", p.stage, p.done, p.total, seconds(left))
	case p.total > 0:
		text = fmt.Sprintf("%s: 0 of %d, %s so far", p.stage, p.total, seconds(took))
	case p.most > 0:
		text += ", at most " + seconds(p.most)
	}
	return text
}

// current is the stage under way, for what says where the time ran out.
func (p *progress) current() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage
}

func seconds(d time.Duration) string {
	if d >= 90*time.Second {
		return fmt.Sprintf("%d min", int(d.Minutes()+0.5))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()+0.5))
}
