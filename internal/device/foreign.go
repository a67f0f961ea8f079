package device

// A world's devices that other processes drive (see World.Local) are given work by those processes. In this one they
// are there so that memory is laid out alike: their streams and launches do nothing.

// ForeignStream is a stream of such a device: a name.
type ForeignStream struct{ Label string }

// ForeignLaunch is what is prepared for such a device.
type ForeignLaunch struct{}

// Release does nothing.
func (ForeignLaunch) Release() {}

// Name is the stream's.
func (s ForeignStream) Name() string { return s.Label }

// Launch does nothing, as do the methods that follow.
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
