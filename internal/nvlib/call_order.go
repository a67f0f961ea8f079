package nvlib

// CallOrder has calls run in the order in which they are made, on whatever streams. A captured call comes after those of
// its own graph. Replays of graphs are not ordered.
type CallOrder struct {
	Driver *Driver

	used   bool      // a stream was given a call
	last   Stream    // the stream of the last call
	recent [2]Stream // that of the last call that is not captured, and of the last one that is, until last changes
	event  Event
}

// Next has a stream, which is about to be given a call, wait for the call before.
func (o *CallOrder) Next(stream Stream) error {
	before := o.last
	if o.used && stream == before {
		return nil
	}
	o.last = stream
	if !o.used {
		o.used, o.recent = true, [2]Stream{stream, stream}
		return nil
	}
	is, err := o.captureOf(stream)
	if err != nil {
		return err
	}
	was, err := o.captureOf(before)
	if err != nil {
		return err
	}
	o.recent[min(was, 1)] = before
	after := o.recent[min(is, 1)]
	if after != before {
		if was, err = o.captureOf(after); err != nil {
			return err
		}
	}
	if was != is || after == stream {
		return nil
	}
	if o.event == 0 {
		if o.event, err = o.Driver.NewEvent(false); err != nil {
			return err
		}
	}
	if err := o.Driver.Record(o.event, after); err != nil {
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
