package nvlib

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// TestMulticastArguments checks the arguments of multicast calls, and the structure in them, against the driver's
// header: 4 bytes of devices, 4 of padding, then 8 each.
func TestMulticastArguments(t *testing.T) {
	var props [][4]uint64
	prop := func(a []uintptr) uintptr {
		props = append(props, cabi.Load[[4]uint64](a[1]))
		cabi.Store(a[0], uint64(2<<20))
		return 0
	}
	d, r := fakeDriver(t, map[string]func([]uintptr) uintptr{"cuMulticastCreate": prop, "cuMulticastGetGranularity": prop})
	if err := d.HasMulticast(); err != nil {
		t.Error(err)
	}
	grain, err := d.MulticastGranularity(4, 5<<20)
	object, err2 := d.CreateMulticast(4, 6<<20)
	if err != nil || err2 != nil || grain != 2<<20 || object != 2<<20 {
		t.Errorf("%d, %v, %d, %v", grain, err, object, err2)
	}
	if want := [][4]uint64{{4, 5 << 20, 0, 0}, {4, 6 << 20, 0, 0}}; !slices.Equal(props, want) {
		t.Errorf("the objects are %x, want %x", props, want)
	}
	for _, err := range []error{d.AddToMulticast(7, 3), d.BindMulticast(7, 9, 6<<20), d.UnbindMulticast(7, 3, 6<<20)} {
		if err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string][]uintptr{
		"cuMulticastAddDevice": {7, 3},
		"cuMulticastBindMem":   {7, 0, 9, 0, 6 << 20, 0},
		"cuMulticastUnbind":    {7, 3, 0, 6 << 20},
	} {
		if got := r.last(t, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := r.last(t, "cuMulticastGetGranularity")[2]; got != 0 {
		t.Errorf("granularity %d was requested, want the smallest", got)
	}
}

// TestOldDriver checks that a driver without multicast functions can be loaded, and that the error of their use names
// the missing function.
func TestOldDriver(t *testing.T) {
	for lacks := range (&driverFuncs{}).optional() {
		if !strings.HasPrefix(lacks, "cuMulticast") {
			continue
		}
		all := (&driverFuncs{}).table()
		for k, v := range (&driverFuncs{}).optional() {
			if k != lacks {
				all[k] = v
			}
		}
		d, err := DriverOn((&recorded{}).library(all))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.HasMulticast(); err == nil || !strings.Contains(err.Error(), lacks) || !strings.Contains(err.Error(), "CUDA 12.1") {
			t.Errorf("without %s: %v", lacks, err)
		}
	}
}
