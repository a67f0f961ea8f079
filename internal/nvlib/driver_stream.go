package nvlib

import (
	"errors"
	"unsafe"
)

const (
	streamNonBlocking  = 1
	eventDisableTiming = 2
	captureRelaxed     = 2
	captureActive      = 1

	captureSetDependencies = 1
)

// NewStream creates a stream of the current context that does not wait for the null stream.
func (d *Driver) NewStream(priority int) (Stream, error) {
	var s Stream
	err := d.check(d.f.streamCreateWithPriority, "cuStreamCreateWithPriority", uintptr(unsafe.Pointer(&s)), streamNonBlocking, uintptr(int32(priority)))
	return s, err
}

// DestroyStream destroys the stream after its work is done.
func (d *Driver) DestroyStream(s Stream) error {
	return d.check(d.f.streamDestroy, "cuStreamDestroy", uintptr(s))
}

// StreamIdle reports whether all work of the stream s is done. An error is that of work that failed.
func (d *Driver) StreamIdle(s Stream) (bool, error) {
	return d.ready("cuStreamQuery", d.call(d.f.streamQuery, []uintptr{uintptr(s)}))
}

func (d *Driver) ready(call string, status uintptr) (bool, error) {
	switch code := int32(status); code {
	case 0:
		return true, nil
	case CUDANotReady:
		return false, nil
	default:
		return false, d.failure(call, code)
	}
}

// Capturing reports whether work on the stream s is being captured.
func (d *Driver) Capturing(s Stream) (bool, error) {
	if !d.f.streamIsCapturing.Present() {
		return false, nil
	}
	var status int32
	err := d.check(d.f.streamIsCapturing, "cuStreamIsCapturing", uintptr(s), uintptr(unsafe.Pointer(&status)))
	return status != 0, err
}

// CaptureOf returns the number of the capture in which work on the stream s is recorded, or 0 for none.
func (d *Driver) CaptureOf(s Stream) (id uint64, err error) {
	if !d.f.streamGetCaptureInfo.Present() {
		capturing, err := d.Capturing(s)
		if capturing {
			id = 1
		}
		return id, err
	}
	var status int32
	err = d.check(d.f.streamGetCaptureInfo, "cuStreamGetCaptureInfo", uintptr(s), uintptr(unsafe.Pointer(&status)),
		uintptr(unsafe.Pointer(&id)), 0, 0, 0)
	if status == 0 {
		id = 0
	}
	return id, err
}

// SyncContext waits for all work of the current context.
func (d *Driver) SyncContext() error { return d.check(d.f.ctxSynchronize, "cuCtxSynchronize") }

// Profiles reports whether the driver has the functions that start and stop profilers.
func (d *Driver) Profiles() bool { return d.f.profilerStart.Present() && d.f.profilerStop.Present() }

// StartProfiler begins the range in which a profiler of the process records. A context must be current.
func (d *Driver) StartProfiler() error { return d.check(d.f.profilerStart, "cuProfilerStart") }

// StopProfiler ends that range. A context must be current.
func (d *Driver) StopProfiler() error { return d.check(d.f.profilerStop, "cuProfilerStop") }

// SyncStream waits until all work of s so far is done.
func (d *Driver) SyncStream(s Stream) error {
	return d.check(d.f.streamSynchronize, "cuStreamSynchronize", uintptr(s))
}

// NewEvent creates an event in the current context. The event records the time if timed is set.
func (d *Driver) NewEvent(timed bool) (Event, error) {
	flags := uintptr(eventDisableTiming)
	if timed {
		flags = 0
	}
	var e Event
	err := d.check(d.f.eventCreate, "cuEventCreate", uintptr(unsafe.Pointer(&e)), flags)
	return e, err
}

// DestroyEvent destroys the event.
func (d *Driver) DestroyEvent(e Event) error {
	return d.check(d.f.eventDestroy, "cuEventDestroy", uintptr(e))
}

// Record makes the event e represent the work that the stream s has received so far. The event and the stream must
// belong to the same context.
func (d *Driver) Record(e Event, s Stream) error {
	return d.check(d.f.eventRecord, "cuEventRecord", uintptr(e), uintptr(s))
}

// RecordNode adds a node to the graph into which s is being captured. The node records the event e each time the graph
// runs, so that code outside the graph can query e.
func (d *Driver) RecordNode(e Event, s Stream) error {
	const external = 1
	return d.check(d.f.eventRecordWithFlags, "cuEventRecordWithFlags", uintptr(e), uintptr(s), external)
}

// WaitEvent makes later work of the stream s wait for the work that the event e represents now.
func (d *Driver) WaitEvent(s Stream, e Event) error {
	return d.check(d.f.streamWaitEvent, "cuStreamWaitEvent", uintptr(s), uintptr(e), 0)
}

// EventDone reports whether the work that the event e represents is done.
func (d *Driver) EventDone(e Event) (bool, error) {
	return d.ready("cuEventQuery", d.call(d.f.eventQuery, []uintptr{uintptr(e)}))
}

// Elapsed returns the time in milliseconds between two timed events that are done.
func (d *Driver) Elapsed(from, to Event) (float32, error) {
	var ms float32
	err := d.check(d.f.eventElapsedTime, "cuEventElapsedTime", uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(to))
	return ms, err
}

// BeginCapture makes s, and all streams that wait for it, record their work into a graph instead of executing it. Other
// threads may call any function during the capture.
func (d *Driver) BeginCapture(s Stream) error {
	return d.check(d.f.streamBeginCapture, "cuStreamBeginCapture", uintptr(s), captureRelaxed)
}

// RelaxCaptures permits this thread to make all calls even while other threads are capturing, until the returned
// function restore is called. The goroutine must stay locked to the thread.
func (d *Driver) RelaxCaptures() (restore func(), err error) {
	if !d.f.threadExchangeCaptureMode.Present() {
		return func() {}, nil
	}
	mode := int32(captureRelaxed)
	exchange := func() error {
		return d.check(d.f.threadExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", uintptr(unsafe.Pointer(&mode)))
	}
	if err := exchange(); err != nil {
		return nil, err
	}
	return func() { _ = exchange() }, nil // restoring the previous mode does not fail
}

// AddToCapture adds a copy of g to the graph into which s is being captured, at the current position of s.
func (d *Driver) AddToCapture(s Stream, g Graph) error {
	if !d.f.streamGetCaptureInfo.Present() || !d.f.streamUpdateCaptureDeps.Present() ||
		!d.f.graphAddChildGraphNode.Present() {
		return errors.New("the driver does not support adding graphs to captures: use a driver for CUDA 11.3 or later")
	}
	var (
		status    int32
		id, count uint64
		into      Graph
		behind    uintptr
		node      uintptr
	)
	err := d.check(d.f.streamGetCaptureInfo, "cuStreamGetCaptureInfo", uintptr(s), uintptr(unsafe.Pointer(&status)),
		uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&into)), uintptr(unsafe.Pointer(&behind)),
		uintptr(unsafe.Pointer(&count)))
	if err != nil {
		return err
	}
	if status != captureActive {
		return errors.New("the stream's capture has ended, or failed")
	}
	err = d.check(d.f.graphAddChildGraphNode, "cuGraphAddChildGraphNode", uintptr(unsafe.Pointer(&node)), uintptr(into),
		behind, uintptr(count), uintptr(g))
	if err != nil {
		return err
	}
	return d.check(d.f.streamUpdateCaptureDeps, "cuStreamUpdateCaptureDependencies", uintptr(s),
		uintptr(unsafe.Pointer(&node)), 1, captureSetDependencies)
}

// EndCapture ends the capture and returns the graph.
func (d *Driver) EndCapture(s Stream) (Graph, error) {
	var g Graph
	err := d.check(d.f.streamEndCapture, "cuStreamEndCapture", uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, err
}

// Instantiate returns an executable graph: one that can be launched.
func (d *Driver) Instantiate(g Graph) (GraphExec, error) {
	var e GraphExec
	err := d.check(d.f.graphInstantiate, "cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// UploadGraph moves the graph to the device before its first launch.
func (d *Driver) UploadGraph(e GraphExec, s Stream) error {
	return d.check(d.f.graphUpload, "cuGraphUpload", uintptr(e), uintptr(s))
}

// LaunchGraph launches the graph on stream s.
func (d *Driver) LaunchGraph(e GraphExec, s Stream) error {
	return d.check(d.f.graphLaunch, "cuGraphLaunch", uintptr(e), uintptr(s))
}

// GraphNodes returns the number of nodes of the graph.
func (d *Driver) GraphNodes(g Graph) (int, error) {
	var n uint64
	err := d.check(d.f.graphGetNodes, "cuGraphGetNodes", uintptr(g), 0, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// DestroyGraph frees a graph. Executable graphs that were made from the graph remain.
func (d *Driver) DestroyGraph(g Graph) error {
	return d.check(d.f.graphDestroy, "cuGraphDestroy", uintptr(g))
}

// DestroyGraphExec frees an executable graph.
func (d *Driver) DestroyGraphExec(e GraphExec) error {
	return d.check(d.f.graphExecDestroy, "cuGraphExecDestroy", uintptr(e))
}
