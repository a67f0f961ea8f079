package contest

import (
	"context"
	"sync"

	"hocket.example/hocket/internal/device"
)

// Marks records the times at which marks on streams begin and end. It observes a world.
type Marks struct {
	mu   sync.Mutex
	next int64
	at   map[int64][2]int64
}

func Observe(w device.World) *Marks {
	m := &Marks{at: map[int64][2]int64{}}
	w.Observe(m)
	return m
}

// Began implements device.Observer.
func (m *Marks) Began(_ int, _ string, id int64, ns int64) { m.set(id, 0, ns) }

// Ended implements device.Observer.
func (m *Marks) Ended(_ int, _ string, id int64, ns int64) { m.set(id, 1, ns) }

func (m *Marks) set(id int64, end int, ns int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	span := m.at[id]
	span[end] = ns
	m.at[id] = span
}

// Begin enqueues a start mark on s and returns its number.
func (m *Marks) Begin(s device.Stream) (int64, error) {
	m.next++
	return m.next, s.Begin(m.next)
}

// Around puts marks around the work that issue enqueues on s, and returns their number.
func (m *Marks) Around(s device.Stream, issue func() error) (int64, error) {
	id, err := m.Begin(s)
	if err != nil {
		return 0, err
	}
	if err := issue(); err != nil {
		return 0, err
	}
	return id, s.End(id)
}

// Take waits for the world and returns the microseconds between each pair of marks.
func (m *Marks) Take(ctx context.Context, w device.World, ids ...int64) ([]float64, error) {
	if err := w.Sync(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []float64
	for _, id := range ids {
		span := m.at[id]
		out = append(out, float64(span[1]-span[0])/1e3)
	}
	clear(m.at)
	return out, nil
}
