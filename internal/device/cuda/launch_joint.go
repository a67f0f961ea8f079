package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// addJoint computes linears of one x at once.
func (l *launch) addJoint(k *device.Kernel) error {
	return fmt.Errorf("%w: linears at once", device.ErrUnsupported)
}
