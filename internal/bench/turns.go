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

// turns makes a program of the peers time the same layers as this program. The two programs take turns, round by round,
// so that power and temperature affect both equally. The two programs communicate through files in a folder. A file
// T.ask, where T is an increasing number, contains a request such as "ag-gemm 8192x8192x28672 bf16". The file T.answer
// contains the answer: lines of JSON in the format of ReadPeers. Each file is written under another name and then
// renamed.
type turns struct {
	dir    string
	dtype  string               // type of the operands: "bf16", or "fp8-" and the kind of scales, such as "fp8-block"
	times  map[string][]float64 // times of the current layer, by name
	names  []string             // names of the measurements, in the order of the first answer
	issued map[string]string    // "graph" or "eager", by name; "eager" if the answer has neither
}

// peerPatience is the longest time to wait for an answer. The wait for the first answer includes the start of the other
// program.
const peerPatience = 2 * time.Minute

// ask makes the peers' program time the layer once more. If counts is set, it records the answer; otherwise the
// round is a warm-up.
func (t *turns) ask(ctx context.Context, op string, s Shape, counts bool) error {
	if t.dir == "" {
		return nil
	}
	answer, err := t.send(op + " " + s.String() + " " + t.dtype)
	if err != nil {
		return err
	}
	peers, err := awaitPeers(ctx, answer)
	// Remove the files, so that the next program that uses the folder finds no answered requests.
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

// send writes a request, and returns the name of the file for the answer.
func (t *turns) send(text string) (answer string, err error) {
	at := filepath.Join(t.dir, fmt.Sprintf("%020d", time.Now().UnixNano()))
	write := func(w io.Writer) error { _, err := io.WriteString(w, text+"\n"); return err }
	if err := files.Write(at+".ask", write); err != nil {
		return "", contest.Usagef("--turns: %v", err)
	}
	return at + ".answer", nil
}

// take returns the measurements of a layer that were recorded since the last call of take.
func (t *turns) take(op string, s Shape, ranks int) []contest.Peer {
	var out []contest.Peer
	for _, name := range t.names {
		f := contest.FigureOf(t.times[name])
		out = append(out, contest.Peer{Op: op, Name: name, Ranks: ranks, Shape: s.String(), DType: t.dtype,
			Issued: t.issued[name], Micros: f.Median, Spread: f.Spread})
	}
	t.times, t.names, t.issued = nil, nil, nil
	return out
}

// mostPeers is the largest size of an answer in bytes.
const mostPeers = 16 << 20

// awaitPeers waits for an answer and reads it.
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
