// Quick tests a change within a minute. It vets the packages that changed since a branch left main, and runs their
// short tests and those of the packages that import them. The changed packages are tested first, then the importers
// with the fewest dependencies. When the time is used up, it stops and lists the packages that were not tested.
// `make quick` runs it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	base := flag.String("base", "main", "the `BRANCH` that the change began from")
	limit := flag.Duration("limit", 55*time.Second, "stop after this `TIME`")
	list := flag.Bool("list", false, "list the packages and run nothing")
	flag.Parse()
	ctx, end := context.WithTimeout(context.Background(), *limit)
	defer end()
	if err := quick(ctx, *base, *list); err != nil {
		fmt.Fprintln(os.Stderr, "quick:", err)
		os.Exit(1)
	}
}

func quick(ctx context.Context, base string, list bool) error {
	root, err := output(ctx, "git", "rev-parse", "--show-toplevel")
	if err == nil {
		err = os.Chdir(strings.TrimSpace(root))
	}
	if err != nil {
		return err
	}
	files, err := changedFiles(ctx, base)
	if err != nil {
		return err
	}
	all, err := packages(ctx)
	if err != nil {
		return err
	}
	changed, importers := affected(all, files)
	if len(changed) == 0 {
		fmt.Println("no package changed")
		return nil
	}
	fmt.Printf("changed: %s\nimported by: %s\n", strings.Join(changed, " "), strings.Join(importers, " "))
	if list {
		return nil
	}
	todo := slices.Concat(changed, importers)
	fresh, err := run(ctx, append([]string{"vet"}, changed...), changed)
	if err == nil {
		fresh, err = run(ctx, append([]string{"test", "-short"}, todo...), todo)
	}
	if errors.Is(err, context.DeadlineExceeded) && len(fresh) > 0 {
		fmt.Printf("the time is up; not tested: %s\n", strings.Join(fresh, " "))
		if slices.ContainsFunc(changed, func(p string) bool { return slices.Contains(fresh, p) }) {
			return errors.New("packages that changed were not tested")
		}
		return nil
	}
	return err
}

// changedFiles lists, relative to the root, the files that differ between the working tree and the point where the
// branch left base, and the files that git does not track yet.
func changedFiles(ctx context.Context, base string) ([]string, error) {
	fork, err := output(ctx, "git", "merge-base", "HEAD", base)
	if err != nil {
		return nil, err
	}
	known, err := output(ctx, "git", "diff", "--name-only", strings.TrimSpace(fork))
	if err != nil {
		return nil, err
	}
	fresh, err := output(ctx, "git", "ls-files", "--others", "--exclude-standard")
	return append(strings.Fields(known), strings.Fields(fresh)...), err
}

// pkg is the description of a package that go list prints.
type pkg struct {
	ImportPath, Dir                          string
	Imports, Deps, TestImports, XTestImports []string
}

func packages(ctx context.Context) (list []pkg, err error) {
	text, err := output(ctx, "go", "list", "-json=ImportPath,Dir,Imports,Deps,TestImports,XTestImports", "./...")
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		if p.Dir, err = filepath.Rel(root, p.Dir); err != nil {
			return nil, err
		}
		list = append(list, p)
	}
}

// affected lists the packages to which files belong, and the packages that import one of these, those with the
// fewest dependencies first. A file belongs to the package in the nearest folder above it; it may be data that the
// package embeds or that its tests read.
func affected(all []pkg, files []string) (changed, importers []string) {
	byDir := map[string]*pkg{}
	for i := range all {
		byDir[all[i].Dir] = &all[i]
	}
	for _, file := range files {
		if ext := filepath.Ext(file); ext == ".md" && filepath.Dir(file) != "." {
			continue // the root's tests check documents, which takes long
		}
		for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
			if p := byDir[dir]; p != nil && (dir != "." || strings.HasSuffix(file, ".go")) {
				if !slices.Contains(changed, p.ImportPath) {
					changed = append(changed, p.ImportPath)
				}
				break
			}
			if dir == "." {
				break
			}
		}
	}
	weights := map[string]int{}
	for _, p := range all {
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		if !slices.Contains(changed, p.ImportPath) && slices.ContainsFunc(imports, func(i string) bool { return slices.Contains(changed, i) }) {
			importers = append(importers, p.ImportPath)
			weights[p.ImportPath] = weight(all, p)
		}
	}
	slices.SortStableFunc(importers, func(a, b string) int { return cmp.Compare(weights[a], weights[b]) })
	return changed, importers
}

// weight returns the number of packages that the tests of p link.
func weight(all []pkg, p pkg) int {
	linked := map[string]bool{}
	add := func(paths []string) {
		for _, path := range paths {
			linked[path] = true
		}
	}
	add(p.Deps)
	for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
		linked[i] = true
		if k := slices.IndexFunc(all, func(o pkg) bool { return o.ImportPath == i }); k >= 0 {
			add(all[k].Deps)
		}
	}
	return len(linked)
}

// run runs a go command on packages and shows its output. If ctx ends, it returns the packages for which the
// command has printed no result.
func run(ctx context.Context, args, todo []string) (left []string, err error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // go test ends its tests
	c.WaitDelay = 2 * time.Second
	done := &results{to: os.Stdout, seen: map[string]bool{}}
	c.Stdout, c.Stderr = done, os.Stderr
	err = c.Run()
	if ctx.Err() != nil && !done.failed {
		err = ctx.Err()
	}
	return slices.DeleteFunc(slices.Clone(todo), func(p string) bool { return done.seen[p] }), err
}

// results passes on the output of go test, and records for which packages it contains results.
type results struct {
	to     io.Writer
	part   string
	seen   map[string]bool
	failed bool
}

func (r *results) Write(b []byte) (int, error) {
	r.part += string(b)
	for {
		line, rest, whole := strings.Cut(r.part, "\n")
		if !whole {
			return len(b), nil
		}
		r.part = rest
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "ok" || f[0] == "?" || f[0] == "FAIL") {
			r.seen[f[1]] = true
			r.failed = r.failed || f[0] == "FAIL"
		}
		if strings.Contains(line, "[no test files]") {
			continue
		}
		if _, err := fmt.Fprintln(r.to, line); err != nil {
			return 0, err
		}
	}
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
