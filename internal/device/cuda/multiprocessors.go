package cuda

// Multiprocessors is how many there are on the GPU with the fewest: what a
// product can count on.
func (w *world) Multiprocessors() int {
	least := 0
	for i, s := range w.sites {
		if i == 0 || s.gpu.SMs < least {
			least = s.gpu.SMs
		}
	}
	return least
}
