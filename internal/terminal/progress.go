package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Progress shows the current stage of a slow command on a terminal and, if it can be computed, an estimate of the
// remaining time. Its zero value shows nothing.
type Progress struct {
	w       io.Writer // nil to show nothing
	columns int
	now     func() time.Time

	mu          sync.Mutex
	begun       time.Time // the command
	stage       string
	since       time.Time // start time of the stage
	done, total int       // numbers of finished and of all parts of the stage; total is 0 if parts are not counted
	most        time.Duration
	shown       bool
	stop        chan struct{}
}

const (
	// progressAfter is the time after which a running command begins to show its progress.
	progressAfter = 2 * time.Second
	progressEvery = 500 * time.Millisecond
)

// NewProgress returns a Progress that writes to stderr if stderr is a terminal that can erase a line.
func NewProgress(stderr *os.File) *Progress {
	p := &Progress{now: time.Now}
	if Is(stderr) && os.Getenv("TERM") != "dumb" {
		p.w, p.columns = stderr, Columns(stderr)
	}
	p.begun = p.now()
	return p
}

// At begins a stage that has total parts; total is 0 if parts are not counted. most is the time limit of the stage; 0
// means no limit.
func (p *Progress) At(stage string, total int, most time.Duration) {
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

// Step records that one more part of the stage is done.
func (p *Progress) Step() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
}

// Of sets the number of finished parts of the stage, done, and the number of all parts, total.
func (p *Progress) Of(done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
}

// End erases the progress line before the command prints its output.
func (p *Progress) End() {
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

func (p *Progress) show(stop chan struct{}) {
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

// draw overwrites the progress line.
func (p *Progress) draw() {
	now := p.now()
	if now.Sub(p.begun) < progressAfter {
		return
	}
	line := []rune(p.line(now))
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(line[:min(len(line), p.columns-1)]))
	p.shown = true
}

// line describes the current stage.
func (p *Progress) line(now time.Time) string {
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

// Current returns the current stage, for errors about time limits.
func (p *Progress) Current() string {
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
