package contest

import (
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	_ "hocket.example/hocket/internal/device/cpu" // the default
	"hocket.example/hocket/ir"
)

// ErrUsage is wrapped by errors in the options.
var ErrUsage = errors.New("wrong options of a benchmark")

type usageError string

func (e usageError) Error() string { return string(e) }

func (usageError) Is(target error) bool { return target == ErrUsage }

func Usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

func Open(name string) (device.Machine, error) {
	return device.Named(name, nil)
}

// CheckSize returns an error for a message size that cannot be measured.
func CheckSize(n int64) error {
	if n < 4 || n%4 != 0 || n > 1<<34 {
		return Usagef("the size %d is not possible: sizes are multiples of 4 bytes, from 4 to 16G", n)
	}
	return nil
}

// ErrTooMany returns an error for more ranks than a machine has.
func ErrTooMany(m device.Machine, ranks int) error {
	most := m.Caps().MaxRanks
	if why := m.Caps().MoreRanks; why != "" {
		return fmt.Errorf("%d ranks, and machine %s has %d: %s: %w", ranks, m.Name(), most, why, device.ErrUnsupported)
	}
	return fmt.Errorf("%d ranks, and machine %s has at most %d: %w", ranks, m.Name(), most, device.ErrUnsupported)
}

// OpNamed returns the collective with the given name. The name may be that in programs, or that of the benchmark.
func OpNamed(name string) (ir.Op, bool) {
	for _, op := range TunedOps {
		if s := op.String(); name == s || name == strings.ReplaceAll(s, "_", "") {
			return op, true
		}
	}
	return 0, false
}

// OpNames lists the names that OpNamed accepts.
func OpNames() string {
	var names []string
	for _, op := range TunedOps {
		names = append(names, op.String())
	}
	return strings.Join(names, ", ")
}

// TunedOps are the collectives that tuning measures. Other collectives use the table entries of similar collectives.
var TunedOps = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast}
