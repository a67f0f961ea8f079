package fakedriver

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/cabi"
)

// Multicast implements multicast objects. Calls in a wrong order fail the test.
type Multicast struct {
	Objects map[uintptr]*object // by handle
	Unable  int32               // number of the device that does not support multicast; 0 for none
	Watched bool                // calls are added to Log
	Log     []string            // calls that create objects, add devices, bind and map memory, and undo these
}

type object struct {
	devices, bytes uintptr
	members        []uintptr
	bound          map[uintptr]uintptr // memory, by device
}

const Grain = 4 << 20

func (j *Multicast) Calls(f *GPU, table map[string]func([]uintptr) uintptr) {
	j.Objects = map[uintptr]*object{}
	check := func(ok bool, what string, a []uintptr) {
		if !ok {
			f.Errorf("%s%v", what, a)
		}
	}
	table["cuMulticastGetGranularity"] = func(a []uintptr) uintptr { return Set(a[0], uint64(Grain)) }
	table["cuMulticastCreate"] = func(a []uintptr) uintptr {
		p := cabi.Load[[4]uint64](a[1])
		check(p[0] > 1 && p[1]%Grain == 0 && p[2] == 0 && p[3] == 0, fmt.Sprintf("an object %v: ", p), a)
		h := f.handle("memory")
		j.Objects[h] = &object{uintptr(p[0]), uintptr(p[1]), nil, map[uintptr]uintptr{}}
		return Set(a[0], h)
	}
	table["cuMulticastAddDevice"] = func(a []uintptr) uintptr {
		o := j.Objects[a[0]]
		check(!slices.Contains(o.members, a[1]) && len(o.bound) == 0, "a device is added to a multicast object twice, or after memory was bound: ", a)
		o.members = append(o.members, a[1])
		return 0
	}
	table["cuMulticastBindMem"] = func(a []uintptr) uintptr {
		o, dev := j.Objects[a[0]], uintptr(f.Reach.created[a[2]])
		check(len(o.members) == int(o.devices) && slices.Contains(o.members, dev) && o.bound[dev] == 0,
			"memory is bound before all devices are added, twice, or of a device that is not added: ", a)
		check(a[1] == 0 && a[3] == 0 && a[4] == o.bytes && a[5] == 0, "other bytes are bound: ", a)
		o.bound[dev] = a[2]
		return 0
	}
	table["cuMulticastUnbind"] = func(a []uintptr) uintptr {
		o := j.Objects[a[0]]
		check(o.bound[a[1]] != 0 && a[2] == 0 && a[3] == o.bytes, "memory is unbound that is not bound: ", a)
		delete(o.bound, a[1])
		return 0
	}
	release := table["cuMemRelease"]
	table["cuMemRelease"] = func(a []uintptr) uintptr {
		if o := j.Objects[a[0]]; o != nil {
			check(len(o.bound) == 0, "a multicast object is freed while memory is bound to it: ", a)
			delete(j.Objects, a[0])
		}
		for _, o := range j.Objects {
			for _, mem := range o.bound {
				check(mem != a[0], "bound memory goes: ", a)
			}
		}
		return release(a)
	}
	reserve, aligned := table["cuMemAddressReserve"], map[uintptr]uintptr{}
	table["cuMemAddressReserve"] = func(a []uintptr) uintptr {
		status := reserve(a)
		aligned[cabi.Load[uintptr](a[0])] = a[2]
		return status
	}
	mapped := table["cuMemMap"]
	table["cuMemMap"] = func(a []uintptr) uintptr {
		if o := j.Objects[a[3]]; o != nil {
			check(len(o.bound) == int(o.devices) && a[1] == o.bytes && aligned[a[0]] == Grain,
				"a multicast object is mapped before all memory is bound, in part, or at an address without its alignment: ", a)
		}
		return mapped(a)
	}
	attribute := table["cuDeviceGetAttribute"]
	table["cuDeviceGetAttribute"] = func(a []uintptr) uintptr {
		if a[1] == 132 && j.Unable != 0 && int32(a[2]) == j.Unable {
			return Set(a[0], int32(0))
		}
		return attribute(a)
	}
	for name, do := range table {
		if !strings.HasPrefix(name, "cuMulticast") &&
			!slices.Contains([]string{"cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree",
				"cuMemMap", "cuMemUnmap", "cuMemSetAccess"}, name) {
			continue
		}
		table[name] = func(a []uintptr) uintptr {
			if j.Watched {
				j.Log = append(j.Log, name)
			}
			return do(a)
		}
	}
}
