package cuda

import "hocket.example/hocket/internal/device"

// Held implements device.Holder: regions of heaps, whatever of them is in use, and
// memory joined to multicast objects.
func (w *world) Held() device.Held {
	if !w.guard.LockLive() {
		return device.Held{} // nobody can tell
	}
	defer w.mu.Unlock()
	var h device.Held
	for _, s := range w.sites {
		if s.heaps[device.Pinned] == nil {
			continue // it never came up
		}
		h.Host += s.heaps[device.Pinned].Held()
		h.Device = max(h.Device, s.heaps[device.Private].Held()+s.heaps[device.Shared].Held()+joinedBytes(w, s))
	}
	return h
}

// joinedBytes is the device's memory in teams' multicast objects.
func joinedBytes(w *world, s *site) int64 {
	n := int64(0)
	for _, t := range w.teams {
		for _, m := range t.members {
			if m.dev.site != s {
				continue
			}
			for _, mc := range t.joints {
				n += mc.Bytes
			}
		}
	}
	return n
}
