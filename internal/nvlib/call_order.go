package nvlib

// CallOrder lets calls run in the order in which they are made, on any streams. A captured call runs after the calls of
// its own graph. Replays of graphs are not ordered.
type CallOrder struct {
	Driver *Driver

	used   bool      // a stream has had a call
	last   Stream    // the stream of the last call
	recent [2]Stream // the stream of the last call that is not captured, and of the last one that is, until last changes
	event  Event
}

// Next lets a stream, which is about to get a call, wait for the previous call.
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

// captureOf returns the number of the capture of a stream, or 0 for none. The default stream is never captured.
func (o *CallOrder) captureOf(stream Stream) (uint64, error) {
	if stream == 0 {
		return 0, nil
	}
	return o.Driver.CaptureOf(stream)
}

// Close frees what Next has allocated.
func (o *CallOrder) Close() error {
	if o.event == 0 {
		return nil
	}
	e := o.event
	o.event = 0
	return o.Driver.DestroyEvent(e)
}
