package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/files"
)

// turns has a program beside this one time the same layers, each round once, while
// this one rests: power and temperature are alike for both, then. They talk by files
// In a folder: T.ask says "ag-gemm 8192x8192x28672", T.answer holds lines of JSON, as
// ReadPeers reads them. T grows. Each file is renamed into place.
type turns struct {
	dir    string
	times  map[string][]float64 // of the layer under way, by name
	names  []string             // In the order of the first answer
	issued map[string]string    // by name; "eager" where the answer does not say
}

// peerPatience is how long an answer may take: the first waits for the program to start.
const peerPatience = 2 * time.Minute

// ask has the layer timed once more; the answer counts unless this is to warm up.
func (t *turns) ask(ctx context.Context, op string, s Shape, counts bool) error {
	if t.dir == "" {
		return nil
	}
	answer, err := t.send(op + " " + s.String())
	if err != nil {
		return err
	}
	peers, err := awaitPeers(ctx, answer)
	// Whoever uses the folder next is asked nothing that was answered.
	_ = os.Remove(strings.TrimSuffix(answer, ".answer") + ".ask")
	_ = os.Remove(answer)
	if err != nil || !counts {
		return err
	}
	for _, p := range peers {
		if !slices.Contains(t.names, p.Name) {
			t.names = append(t.names, p.Name)
		}
		if t.times == nil {
			t.times, t.issued = map[string][]float64{}, map[string]string{}
		}
		t.issued[p.Name] = cmp.Or(p.Issued, "eager")
		t.times[p.Name] = append(t.times[p.Name], p.Micros)
	}
	return nil
}

// send writes a question, and returns where the answer will be.
func (t *turns) send(text string) (answer string, err error) {
	at := filepath.Join(t.dir, fmt.Sprintf("%020d", time.Now().UnixNano()))
	write := func(w io.Writer) error { _, err := io.WriteString(w, text+"\n"); return err }
	if err := files.Write(at+".ask", write); err != nil {
		return "", contest.Usagef("--turns: %v", err)
	}
	return at + ".answer", nil
}

// Take returns what was timed of a layer since the last call.
func (t *turns) take(op string, s Shape, ranks int) []contest.Peer {
	var out []contest.Peer
	for _, name := range t.names {
		f := contest.FigureOf(t.times[name])
		out = append(out, contest.Peer{Op: op, Name: name, Ranks: ranks, Shape: s.String(), DType: "bf16",
			Issued: t.issued[name], Micros: f.Median, Spread: f.Spread})
	}
	t.times, t.names, t.issued = nil, nil, nil
	return out
}

// mostPeers is how large an answer may be, in bytes.
const mostPeers = 16 << 20

// awaitPeers reads an answer once it is there.
func awaitPeers(ctx context.Context, path string) ([]contest.Peer, error) {
	late := time.After(peerPatience)
	for {
		b, err := files.Read(path, mostPeers)
		if err == nil {
			return contest.ReadPeers(bytes.NewReader(b))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return nil, contest.Usagef("--turns: no %s within %v; does the peers' program run, with the same folder?",
				path, peerPatience)
		case <-time.After(time.Millisecond):
		}
	}
}
