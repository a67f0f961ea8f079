package gpu

import "hocket.example/hocket/internal/kernels"

// Library compiles kernels. *kernels.Library implements it. Steps returns an error if the shapes of a problem's
// operands do not match.
type Library interface {
	Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error)
	Meeting(t kernels.Target, m kernels.Meeting) (kernels.Step, error)
	Join(t kernels.Target, j kernels.Join) (kernels.Step, error)
	Raise(t kernels.Target) (kernels.Step, error)
	Await(t kernels.Target) (kernels.Step, error)
	User(t kernels.Target, u kernels.User) (kernels.Step, error)
	Unchanged(t kernels.Target, u kernels.Unchanged) (kernels.Step, error)
}

// Precompiler is an optional interface of a Library that can compile kernels before they are prepared, such as
// *kernels.Library.
type Precompiler interface {
	Ahead(t kernels.Target, p kernels.Problem)
	MeetingAhead(t kernels.Target, m kernels.Meeting)
}

var _ Precompiler = (*kernels.Library)(nil)
