package nvlib

import "errors"

// CallOrder orders calls: each runs after the previous one, on whatever streams they are made. A captured call runs
// after earlier calls of the same capture. Replays of captured graphs are not ordered.
type CallOrder struct {
	Driver *Driver

	last  map[uint64]Stream // by capture: the stream of its last call; 0 is the key of calls that are not captured
	event Event
}

// errCaptured is returned for a call that cannot be ordered after the previous call. An event after each call would
// make this possible, but would prevent the next call on the stream from starting early.
var errCaptured = errors.New("the previous call is on another stream, on which a capture has begun since: it " +
	"may still run, and no stream can wait for it until the capture has ended; make this call before the capture or after it")

// Next makes a stream, on which the caller is about to make a call, wait for the previous call. If Next returns an
// error, nothing has changed.
func (o *CallOrder) Next(stream Stream) error {
	capture, err := o.captureOf(stream)
	if err != nil {
		return err
	}
	before, called := o.last[capture]
	if called && before == stream {
		return nil
	}
	if called {
		if err := o.follow(before, stream, capture); err != nil {
			return err
		}
	}
	if o.last == nil {
		o.last = map[uint64]Stream{}
	}
	o.last[capture] = stream
	return nil
}

// follow makes a stream wait for the previous call of the same capture.
func (o *CallOrder) follow(before, stream Stream, capture uint64) error {
	now, err := o.captureOf(before)
	switch {
	case err != nil:
		return err
	case now != capture && capture == 0:
		return errCaptured
	case now != capture: // an ended capture: without numbers of the driver, all captures have number 1
		return nil
	}
	if o.event == 0 {
		if o.event, err = o.Driver.NewEvent(false); err != nil {
			return err
		}
	}
	if err := o.Driver.Record(o.event, before); err != nil {
		return err
	}
	return o.Driver.WaitEvent(stream, o.event)
}

// captureOf returns the number of the capture that a stream is in; 0 if it is in none. The default
// stream is never captured.
func (o *CallOrder) captureOf(stream Stream) (uint64, error) {
	if stream == 0 {
		return 0, nil
	}
	return o.Driver.CaptureOf(stream)
}

// Close destroys the event that Next has created.
func (o *CallOrder) Close() error {
	if o.event == 0 {
		return nil
	}
	e := o.event
	o.event = 0
	return o.Driver.DestroyEvent(e)
}
