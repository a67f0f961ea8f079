package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Variant is one lowered form of a whole program for a binding.
type Variant struct {
	// Name is Auto if each pair uses the strategy with the best prediction. Otherwise Name is the name of the strategy
	// of every pair to which that strategy applies.
	Name string
	Plan *plan.Plan
	// Predicted is the predicted time of a run in microseconds.
	Predicted float64

	form *lower.Result
}

// Variants returns the variants that auto may measure to choose the fastest. The first variant is sequential. At most
// n-1 other variants follow, sorted by predicted time. All variants have different plans.
func (u *Unit) Variants(b ir.Binding, n int) ([]Variant, error) {
	bound, err := u.Bind(b)
	if err != nil {
		return nil, err
	}
	var all []Variant
	texts := map[string]bool{}
	for _, name := range append([]string{"sequential", Auto, "delayed"}, names(candidates[1:])...) {
		v := Variant{Name: name}
		if v.form, err = u.form(bound, name, b); err != nil {
			return nil, err
		}
		if text := v.form.Program.String(); texts[text] {
			continue
		} else {
			texts[text] = true
		}
		if v.Plan, err = u.planOf(v.form, b); err != nil {
			if name == "sequential" || !isDiagnostics(err) {
				return nil, err
			}
			continue // the variant does not fit these dims
		}
		if v.Predicted, err = u.Time(v.Plan); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all[1:], func(a, b Variant) int { return cmp.Compare(a.Predicted, b.Predicted) })
	return all[:min(len(all), max(n, 1))], nil
}

func isDiagnostics(err error) bool { return errors.As(err, new(ir.Diagnostics)) }

func names(list []lower.Strategy) (names []string) {
	for _, s := range list {
		names = append(names, s.String())
	}
	return names
}

// form lowers the program as the variant with the given name.
func (u *Unit) form(bound *ir.Bound, name string, b ir.Binding) (*lower.Result, error) {
	m, _, err := u.machine(bound.Ranks)
	if err != nil {
		return nil, err
	}
	p := &predictor{bound: bound, machine: m}
	if name == Auto {
		return u.auto(p.choose, bound, b)
	}
	st, err := lower.ParseStrategy(name)
	if err != nil {
		return nil, err
	}
	if st.Delayed {
		return u.lower(always(st), buckets(bound))
	}
	return u.lower(func(pair *lower.Pair) lower.Strategy {
		numbers, err := p.numbers(pair)
		if err != nil || pair.Refused[st.Kind] != "" || p.unfit(numbers, st) != "" {
			return lower.Strategy{}
		}
		return fitting(bound, pair, st)
	}, nil)
}

// planOf plans the given lowered form in the same way as Plan plans the chosen one.
func (u *Unit) planOf(form *lower.Result, b ir.Binding) (*plan.Plan, error) {
	of := &Unit{Source: u.Source, Lowered: form, opts: u.opts}
	of.opts.Strategy = ""
	return of.Plan(b)
}

// Choose makes later plans for a binding use the variant with the given name.
func (u *Unit) Choose(b ir.Binding, name string) error {
	bound, err := u.Bind(b)
	if err != nil {
		return err
	}
	form, err := u.form(bound, name, b)
	if err != nil {
		return err
	}
	u.chosen.mu.Lock()
	defer u.chosen.mu.Unlock()
	u.chosen.keep(key(bound), form)
	return nil
}

// keep stores a lowered form. If the cache is full, keep removes all other lowered forms.
func (c *autoCache) keep(key string, form *lower.Result) {
	if c.forms == nil || len(c.forms) >= maxTuned {
		c.forms = map[string]*lower.Result{}
	}
	c.forms[key] = form
}

// Measured records the variant of a program that was the fastest in a measurement.
type Measured struct {
	Identity string `json:"machine"` // the machine and the other conditions on which the choice depends
	Func     string `json:"func"`
	Strategy string `json:"strategy"`
	// Times maps variants to the measured microseconds of a run.
	Times map[string]float64 `json:"us"`
}

// MeasuredPath returns the path of the file that stores the choice for a binding, in the directory of the tuned tables
// of collectives. how describes the other conditions on which the choice depends, for example whether runs are
// replayed. identity is a text that contains all of these conditions.
func (u *Unit) MeasuredPath(b ir.Binding, how string) (path, identity string, err error) {
	bound, err := u.Bind(b)
	if err != nil {
		return "", "", err
	}
	dir, err := comm.Folder()
	if err != nil {
		return "", "", err
	}
	on, ranks := u.opts.Device, bound.Ranks
	of := fmt.Sprintf("%s, %s/%s, %d CPUs", on.Name(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if w, err := on.DryRun(ranks); err == nil {
		of = comm.Identity(on.Name(), w)
	} else if !errors.Is(err, device.ErrUnsupported) {
		return "", "", err
	}
	_, found, err := u.machine(bound.Ranks)
	if err != nil {
		return "", "", err
	}
	table := "no table"
	if found.Table != nil {
		table = found.Table.Hash()
	}
	text := sha256.Sum256([]byte(u.Source.Prog.String()))
	identity = fmt.Sprintf("auto 1; %s; collectives %s; program %x; %s; %s", of, table, text[:8], key(bound), how)
	sum := sha256.Sum256([]byte(identity))
	return filepath.Join(filepath.Dir(dir), "auto", hex.EncodeToString(sum[:12])+".json"), identity, nil
}

// measuredMost is the maximum size in bytes of a file that stores a choice.
const measuredMost = 64 << 10

// ReadMeasured reads a choice from a file. ReadMeasured returns nil if the file does not exist, or if it does not
// contain a usable choice with the given identity.
func ReadMeasured(path, identity string) (*Measured, error) {
	data, err := files.ReadKept(path, measuredMost)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	var m Measured
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.Identity != identity || m.Strategy == "" || CheckStrategy(m.Strategy) != nil {
		return nil, nil
	}
	return &m, nil
}

// Write stores the choice in a file.
func (m *Measured) Write(path string) error {
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return files.WriteKept(path, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}
