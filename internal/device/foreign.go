package device

// Foreign devices are devices of a world that other processes drive (see World.Local). This process represents them so
// that memory is laid out in the same way in all processes. Their streams and launches do nothing here.

// ForeignDevice is a device that another process drives. The embedded Device provides the device's memory and
// counters, which are mapped into this process.
type ForeignDevice struct{ Device }

// NewStream returns a ForeignStream.
func (ForeignDevice) NewStream(o StreamOptions) (Stream, error) { return ForeignStream{o.Name}, nil }

// Prepare returns a ForeignLaunch.
func (ForeignDevice) Prepare(Kernel) (Launch, error) { return ForeignLaunch{}, nil }

// PrepareMove returns a ForeignLaunch.
func (ForeignDevice) PrepareMove(_, _ View, _ int) (Launch, error) { return ForeignLaunch{}, nil }

// PrepareAhead does nothing.
func (ForeignDevice) PrepareAhead(Kernel) {}

// PrepareCopy does nothing.
func (ForeignDevice) PrepareCopy(_, _ View) error { return nil }

// ForeignStream is a stream of a foreign device, which consists only of a name.
type ForeignStream struct{ Label string }

// ForeignLaunch is a launch on a foreign device, which does nothing.
type ForeignLaunch struct{}

// Release does nothing.
func (ForeignLaunch) Release() {}

// Name returns the stream's name.
func (s ForeignStream) Name() string { return s.Label }

// Launch and the following methods do nothing.
func (ForeignStream) Launch(Launch) error { return nil }

// Copy does nothing.
func (ForeignStream) Copy(_, _ View) error { return nil }

// Upload does nothing.
func (ForeignStream) Upload(View, []byte) error { return nil }

// Download does nothing.
func (ForeignStream) Download([]byte, View) error { return nil }

// Record does nothing.
func (ForeignStream) Record(Event) error { return nil }

// Wait does nothing.
func (ForeignStream) Wait(Event) error { return nil }

// Signal does nothing.
func (ForeignStream) Signal(Counters, int, int64) error { return nil }

// WaitCounter does nothing.
func (ForeignStream) WaitCounter(Counters, int, int64) error { return nil }

// Begin does nothing.
func (ForeignStream) Begin(int64) error { return nil }

// End does nothing.
func (ForeignStream) End(int64) error { return nil }

// Call does nothing.
func (ForeignStream) Call(func()) error { return nil }

// PrepareLaunches does nothing.
func (ForeignStream) PrepareLaunches([]Launch) error { return nil }

var _ Stream = ForeignStream{}
