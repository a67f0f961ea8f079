package certify_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/internal/testcorpus"
)

func readSchedule(t testing.TB, path string) schedule.File {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f schedule.File
	if msccl.IsAlgorithm(string(text)) {
		f, err = msccl.Parse(text)
	} else {
		f, err = mscclpp.Parse(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// schedulesOf lists the schedules of the corpus, and two additional ones.
func schedulesOf(t *testing.T) []string {
	t.Helper()
	files := []string{"../../examples/schedules/exchange.json", "../schedule/testdata/pair.xml"}
	dir := testcorpus.Folder(t, "schedules")
	if dir == "" {
		return files
	}
	for _, folder := range []string{"plans", "xml"} {
		list, err := filepath.Glob(filepath.Join(dir, folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	return files
}

func certificateOf(p *schedule.Plan) (*certify.ScheduleStatement, *certify.Certificate, error) {
	s, err := certify.Schedule(p)
	if err != nil {
		return nil, nil, err
	}
	c, err := issue.Certificate(&s.Statement)
	if err != nil {
		return s, nil, err
	}
	return s, c, certify.CheckSchedule(s, c)
}

// TestSchedules checks that schedules that Check refutes receive no certificate, including those that are refuted after
// one synchronization was removed. Nearly all schedules that Check proves must receive one.
func TestSchedules(t *testing.T) {
	files := schedulesOf(t)
	why, certified, proved, refuted := map[string]int{}, 0, 0, 0
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 7))
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.Size() > int64(longtest.Of(16<<10, 1<<30)) {
			continue
		}
		f := readSchedule(t, path)
		variants, first := []schedule.File{f}, (*certify.Certificate)(nil)
		if syncs := f.Syncs(); len(syncs) > 0 {
			for range longtest.Of(2, 20) {
				if v := f.Without(syncs[rng.IntN(len(syncs))]); v != nil {
					variants = append(variants, v)
				}
			}
		}
		for i, v := range variants {
			p, err := v.Plan()
			if err != nil {
				continue
			}
			if i > 0 && first != nil && err == nil {
				// the certificate of the complete schedule, for a schedule that lacks one synchronization
				other, err := certify.Schedule(p)
				if err == nil {
					bad := *first
					if bad.Plan = other.Plan; certify.CheckSchedule(other, &bad) == nil && schedule.Check(p, schedule.Options{}).Verdict != schedule.OK {
						t.Errorf("%s, variant %d: accepted by the evidence of another", filepath.Base(path), i)
					}
				}
			}
			if i > 0 && p.Cells > longtest.Of(1<<10, 1<<20) {
				continue
			}
			verdict := schedule.Check(p, schedule.Options{}).Verdict
			s, c, err := certificateOf(p)
			switch {
			case verdict != schedule.OK:
				refuted++
				if err == nil {
					t.Errorf("%s, variant %d: a certificate of what is %s", filepath.Base(path), i, verdict)
				}
				continue
			case err != nil:
				proved++
				text := err.Error()
				if k := strings.LastIndex(text, ": "); k >= 0 {
					text = text[k+2:]
				}
				why[text]++
				if i == 0 {
					t.Logf("%s: %v", filepath.Base(path), err)
				}
				continue
			}
			proved++
			certified++
			if i == 0 {
				first = c
				corruptions(t, rng, s, c, filepath.Base(path))
			}
		}
	}
	t.Logf("%d of %d proved schedules have certificates, %d refuted ones have none", certified, proved, refuted)
	for text, n := range why {
		t.Logf("%d: %s", n, text)
	}
	if refuted == 0 || certified*10 < proved*8 {
		t.Errorf("%d of %d proved, %d refuted", certified, proved, refuted)
	}
}

// corruptions returns changed copies of a certificate. After each change, the certificate makes a false claim about the
// statement.
func corruptions(t *testing.T, rng *rand.Rand, s *certify.ScheduleStatement, c *certify.Certificate, name string) {
	t.Helper()
	for range 20 {
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		bad, what := &certify.Certificate{}, ""
		if err := json.Unmarshal(text, bad); err != nil {
			t.Fatal(err)
		}
		switch k := rng.IntN(5); {
		case k == 0 && len(bad.Matches) > 0:
			i := rng.IntN(len(bad.Matches))
			bad.Matches[i] += 1 + rng.Int32N(5)
			what = fmt.Sprintf("match %d", i)
		case k == 1 && len(bad.Clocks) > 0: // the clock claims to follow an event that comes after the clock's own event
			i := rng.IntN(len(bad.Clocks))
			e := bad.Clocks[i].Event
			thread, n := s.Events[e].Thread, int32(0)
			for j := range s.Events {
				if s.Events[j].Thread == thread {
					n++
				}
			}
			bad.Clocks[i].Of[thread] = n + 1
			what = fmt.Sprintf("clock %d", i)
		case k == 2 && len(bad.Clocks) > 0: // more events than any chain has
			i := rng.IntN(len(bad.Clocks))
			for thread := range bad.Clocks[i].Of {
				bad.Clocks[i].Of[thread] += int32(len(s.Events))
				break
			}
			what = fmt.Sprintf("clock %d", i)
		case k == 3: // an event is left out
			i := rng.IntN(len(bad.Order))
			bad.Order[i][1]--
			what = fmt.Sprintf("order %d", i)
		default:
			bad.Plan = strings.Repeat("0", len(bad.Plan))
			what = "the plan"
		}
		if certify.CheckSchedule(s, bad) == nil {
			t.Errorf("%s: accepted with another %s", name, what)
		}
	}
}

// TestPacketsReadAsData checks that a schedule that is proved receives no certificate after a put is changed to write
// packets that are read as plain data.
func TestPacketsReadAsData(t *testing.T) {
	f := readSchedule(t, "../../examples/schedules/exchange.json").(*mscclpp.File).Clone()
	for r := range f.GPUs {
		f.GPUs[r].ScratchChunks = new(2)
		f.GPUs[r].Threadblocks[0].Ops[0].Name = "ppkt"
	}
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := certificateOf(p); err == nil || !strings.Contains(err.Error(), "read as data") {
		t.Errorf("a certificate: %v", err)
	}
}
