package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Export lets other processes of this node import file by this process's rank and key. Each process may import the file
// once. The list to has these processes; if it is empty, all may. Export does not wait for imports. The caller keeps
// its own file, and may close it immediately.
func (w *World) Export(key string, file *os.File, to ...int) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("export of %.80q: the key must have 1 to %d bytes", key, maxKey)
	}
	if len(to) == 0 {
		for r := range w.mesh.o.Size {
			if r != w.mesh.o.Rank && w.mesh.near(r) {
				to = append(to, r)
			}
		}
	}
	message := export{key}.encode()
	for _, r := range to {
		if err := w.checkPeer(r); err != nil {
			return err
		}
		var sent error
		if err := withFD(file, func(fd int) { sent = w.mesh.sendTo(r, message, fd) }); err != nil {
			return err
		}
		if sent != nil {
			return fmt.Errorf("export of %q: %w", key, sent)
		}
	}
	return nil
}

// Import returns the file that a process exports by key. Import waits until the process has exported the file. Import
// fails if the process makes no progress (see Step, At) for StallTimeout. Import fails immediately, with an error that
// wraps ErrWentOn, if the process has called Agree again without exporting the file.
func (w *World) Import(ctx context.Context, process int, key string) (*os.File, error) {
	if err := w.checkPeer(process); err != nil {
		return nil, err
	}
	var file *os.File
	var gone *peer
	err := w.detector.awaitPeers(ctx, process, func() []int { return []int{process} }, func() (ok bool, err error) {
		p := w.mesh.peers[process]
		if file, ok = p.files[key]; ok {
			delete(p.files, key)
			return true, nil
		}
		if p.left {
			gone = p
			return false, ErrLeft
		}
		if len(p.inbox) > 0 { // the process has called Agree, so all its earlier exports have arrived
			return false, fmt.Errorf("%w: it did not export %q, %w", ErrWentOn, key, p.failed("is at %q", p.inbox[0].step))
		}
		return false, nil
	})
	if gone != nil {
		return nil, w.mesh.leftBy(gone)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = w.detector.blame(process, "did not export %q within %v", key, w.mesh.o.StallTimeout)
	}
	return file, err
}

// Forget drops exports by other processes that have not been imported and whose keys begin with
// prefix.
func (w *World) Forget(prefix string) {
	w.mesh.mu.Lock()
	defer w.mesh.mu.Unlock()
	for _, p := range w.mesh.peers {
		if p == nil {
			continue
		}
		for key, file := range p.files {
			if strings.HasPrefix(key, prefix) {
				file.Close()
				delete(p.files, key)
			}
		}
	}
}

// Share lets other processes of this node map s by this process's rank and key. Each process may map the segment once.
// The list to has these processes; if it is empty, all may.
func (w *World) Share(key string, s *Segment, to ...int) error {
	if w.mesh.o.Size == 1 {
		return nil
	}
	if s.file == nil {
		return fmt.Errorf("export of %q: only the process that created a segment can share it", key)
	}
	return w.Export(key, s.file, to...)
}

// Map maps the segment that a process shares by key. Map waits in the same way as Import.
func (w *World) Map(ctx context.Context, process int, key string) (*Segment, error) {
	file, err := w.Import(ctx, process, key)
	if err != nil {
		return nil, err
	}
	s, err := mapSegment(file)
	if err != nil {
		file.Close()
		return nil, w.mesh.member(process).failed("its export %q is not a memory segment: %v", key, err)
	}
	file.Close() // the mapping does not need the file
	s.file = nil
	return s, nil
}

// checkPeer returns an error unless rank is that of another process.
func (w *World) checkPeer(rank int) error {
	if rank < 0 || rank >= w.mesh.o.Size || rank == w.mesh.o.Rank {
		return fmt.Errorf("rank %d is not another process of this run: this process is rank %d of %d%s", rank, w.mesh.o.Rank,
			w.mesh.o.Size, w.mesh.o.ofGroup())
	}
	if !w.mesh.near(rank) {
		return fmt.Errorf("rank %d is on another node than rank %d, and nodes share no memory",
			w.mesh.o.outer(rank), w.mesh.o.outer(w.mesh.o.Rank))
	}
	return nil
}
