package nvlib

import "errors"

// CallOrder has calls run in the order in which they are made, on whatever streams. A captured call comes after those of
// its own graph. Replays of graphs are not ordered.
type CallOrder struct {
	Driver *Driver

	last  map[uint64]Stream // of each capture, the stream of its last call; of 0, that of the last call not captured
	event Event
}

// errCaptured is of a call whose order no event can give: none is recorded after each call, since that would keep the
// next one on its stream from beginning early.
var errCaptured = errors.New("the call before was given to another stream, on which a capture has begun since: it " +
	"may still run, and no stream can wait for it until the capture has ended; call this before the capture, or after it")

// Next has a stream, which is about to be given a call, wait for the call before. After an error nothing has changed.
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

// follow has a stream wait for the call before, of the same capture.
func (o *CallOrder) follow(before, stream Stream, capture uint64) error {
	now, err := o.captureOf(before)
	switch {
	case err != nil:
		return err
	case now != capture && capture == 0:
		return errCaptured
	case now != capture: // a capture that has ended, where the driver does not number them
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

// captureOf is the number of the capture that a stream is in, 0 for none: the default stream is never in one.
func (o *CallOrder) captureOf(stream Stream) (uint64, error) {
	if stream == 0 {
		return 0, nil
	}
	return o.Driver.CaptureOf(stream)
}

// Close gives back what Next has taken.
func (o *CallOrder) Close() error {
	if o.event == 0 {
		return nil
	}
	e := o.event
	o.event = 0
	return o.Driver.DestroyEvent(e)
}
