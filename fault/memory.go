package fault

// ErrOutOfMemory is wrapped by errors about a device, or the host, that has less free memory than requested. Freeing
// memory may help, unless the error also wraps ErrTooLarge.
var ErrOutOfMemory error = outOfMemory{}

type outOfMemory struct{}

func (outOfMemory) Error() string { return "out of memory" }

// OutOfMemory marks this error, so that the method Is of error types in packages that do not import this one can
// recognise it.
func (outOfMemory) OutOfMemory() {}

// ErrTooLarge is an ErrOutOfMemory about a request that is larger than the whole memory, so that freeing memory does
// not help.
var ErrTooLarge error = tooLarge{}

type tooLarge struct{}

func (tooLarge) Error() string { return "the request is larger than the whole memory" }

func (tooLarge) Is(target error) bool { return target == ErrOutOfMemory }
