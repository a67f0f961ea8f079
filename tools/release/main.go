// Release builds the files of a release from the commit that is checked out, in a clone without uncommitted changes:
// archives of the command, the Python wheel, a software bill of materials, licences, notes and checksums. The same
// commit, version of Go and C compiler give the same bytes. `make release` runs it; docs/releases.md describes it.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is an archive that is released, with a build of the command.
type target struct {
	name, goos, goarch string
	tags               string
	// whether the build is static, without CUDA: only a dynamically linked program can open CUDA's libraries
	static bool
}

// wheel is the name of the Python wheel among targets. It contains the command of the target native.
const wheel, native = "wheel", "linux-amd64"

var targets = []target{
	{name: native, goos: "linux", goarch: "amd64"},
	{name: "linux-amd64-static", goos: "linux", goarch: "amd64", tags: "nocuda", static: true},
	{name: "linux-arm64", goos: "linux", goarch: "arm64"},
	{name: "linux-arm64-static", goos: "linux", goarch: "arm64", tags: "nocuda", static: true},
	{name: "darwin-arm64", goos: "darwin", goarch: "arm64"},
}

func main() {
	out := flag.String("o", "dist", "write the files to this `FOLDER`")
	only := flag.String("only", "", "build only these `TARGETS`, with commas between them: "+strings.Join(names(), ", "))
	twice := flag.Bool("twice", false, "build twice, in two folders, and compare the checksums")
	fresh := flag.Bool("fresh", false, "with -twice, build the second time with an empty build cache")
	flag.Parse()
	// An interrupt ends the commands that run, so that the folder with temporary files is removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *only, *twice, *fresh, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func names() (list []string) {
	for _, t := range targets {
		list = append(list, t.name)
	}
	return append(list, wheel)
}

func run(ctx context.Context, out, only string, twice, fresh bool, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if fresh && !twice {
		return errors.New("-fresh applies to the second build: give -twice, too")
	}
	chosen := names()
	if only != "" {
		chosen = strings.Split(only, ",")
		for _, name := range chosen {
			if !slices.Contains(names(), name) {
				return fmt.Errorf("no target is called %q; targets are %s", name, strings.Join(names(), ", "))
			}
		}
	}
	if at := runtime.GOOS + "-" + runtime.GOARCH; at != native && slices.Contains(chosen, wheel) {
		return fmt.Errorf("the wheel is built on %s, and this is %s: name other targets in -only", native, at)
	}
	root, commit, err := head(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "hocket-release-")
	if err != nil {
		return err
	}
	defer remove(work)
	first, err := build(ctx, root, commit, filepath.Join(work, "1"), "", chosen)
	if err != nil {
		return err
	}
	if twice {
		cache := ""
		if fresh {
			cache = filepath.Join(work, "cache")
		}
		// The second build is in a folder whose name has another length, to show that the path has no effect.
		second, err := build(ctx, root, commit, filepath.Join(work, "second", "build"), cache, chosen)
		if err != nil {
			return err
		}
		if err := equal(first, second); err != nil {
			return err
		}
		fmt.Printf("built twice: the checksums of %d files are equal\n", len(first))
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, f := range first {
		if err := os.WriteFile(filepath.Join(out, f.name), f.data, 0o644); err != nil {
			return err
		}
		fmt.Println(filepath.Join(out, f.name))
	}
	return nil
}

// remove deletes a folder that may contain a module cache or a build cache, which Go writes read-only.
func remove(dir string) {
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o755)
		}
		return nil
	})
	os.RemoveAll(dir)
}

// file is a file of the release.
type file struct {
	name string
	data []byte
}

// equal returns an error that names the files whose contents differ between two builds.
func equal(first, second []file) error {
	var differ []string
	for i, f := range first {
		if len(first) != len(second) || f.name != second[i].name || !bytes.Equal(f.data, second[i].data) {
			differ = append(differ, f.name)
		}
	}
	if len(differ) > 0 {
		return fmt.Errorf("two builds of one commit differ in %s", strings.Join(differ, ", "))
	}
	return nil
}

// builder builds the release of one commit in a clone of the repository.
type builder struct {
	ctx     context.Context // ends all commands when it ends
	dir     string          // folder that contains the clone src
	src     string
	env     []string
	version string
	commit  string
	when    time.Time // time of the commit
	built   []binary
}

// binary is a program or library that was built.
type binary struct {
	name, path string
	info       *buildinfo.BuildInfo
}

// build returns the files of the release of a commit, sorted by name.
func build(ctx context.Context, root, commit, dir, cache string, chosen []string) ([]file, error) {
	b := &builder{ctx: ctx, dir: dir, src: filepath.Join(dir, "src"), env: environment(cache), commit: commit}
	if err := b.clone(root); err != nil {
		return nil, err
	}
	for _, t := range targets {
		if slices.Contains(chosen, t.name) || t.name == native && slices.Contains(chosen, wheel) {
			if err := b.command(t); err != nil {
				return nil, err
			}
		}
	}
	if slices.Contains(chosen, wheel) {
		if err := b.goBuild("libhocket.so", "./libhocket", []string{"CGO_ENABLED=1"}, "-buildmode=c-shared"); err != nil {
			return nil, err
		}
	}
	modules, err := b.modules()
	if err != nil {
		return nil, err
	}
	licences := file{"LICENCES.txt", texts(modules)}
	license, err := os.ReadFile(filepath.Join(b.src, "LICENSE"))
	if err != nil {
		return nil, err
	}
	notes, err := b.notes()
	if err != nil {
		return nil, err
	}
	bill, err := b.bill(modules)
	if err != nil {
		return nil, err
	}
	files := []file{licences, {"NOTES.md", notes}, {fmt.Sprintf("hocket-%s.cdx.json", b.version), bill}}
	for _, t := range targets {
		if !slices.Contains(chosen, t.name) {
			continue
		}
		program, err := os.ReadFile(b.path(t.name))
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("hocket-%s-%s", b.version, t.name)
		packed, err := archive(name, b.when, []file{{"hocket", program}, {"LICENSE", license}, licences})
		if err != nil {
			return nil, err
		}
		files = append(files, file{name + ".tar.gz", packed})
	}
	if slices.Contains(chosen, wheel) {
		f, err := b.wheel(licences)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return withSums(files), nil
}

// environment returns the environment of the builds: that of this process, without settings that change what Go
// builds.
func environment(cache string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return strings.HasPrefix(name, "CGO_") || strings.HasPrefix(name, "GIT_") || slices.Contains([]string{"GOFLAGS", "GOOS",
			"GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140", "GODEBUG", "GOWORK", "GOENV", "SOURCE_DATE_EPOCH"}, name)
	})
	// GOENV=off makes Go ignore the user's file of settings. Modules nevertheless come from the place that these
	// settings name.
	env = append(env, "GOENV=off", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "LC_ALL=C", "TZ=UTC")
	for _, name := range []string{"GOPROXY", "GOSUMDB", "GOMODCACHE", "GOCACHE", "GONOSUMDB", "GOPRIVATE", "GOTOOLCHAIN"} {
		if value, err := exec.Command("go", "env", name).Output(); err == nil {
			env = append(env, name+"="+strings.TrimSpace(string(value)))
		}
	}
	if cache != "" {
		env = append(env, "GOCACHE="+cache)
	}
	return env
}

// output runs a command in the clone, or in this process's folder if there is no clone yet, and returns its output.
func (b *builder) output(env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(b.ctx, name, args...)
	// an interrupt, after which go build removes its temporary files
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	if _, err := os.Stat(b.src); err == nil {
		c.Dir = b.src
	}
	c.Env = append(slices.Clone(b.env), env...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

var versionLine = regexp.MustCompile(`(?m)^const Version = "(.*)"$`)

// head returns the root of the checkout that contains the working directory, and the commit that is checked out.
func head(ctx context.Context) (root, commit string, err error) {
	b := &builder{ctx: ctx, env: environment("")}
	if root, err = b.output(nil, "git", "rev-parse", "--show-toplevel"); err != nil {
		return "", "", fmt.Errorf("a release is built from a checkout: %w", err)
	}
	if commit, err = b.output(nil, "git", "rev-parse", "HEAD"); err != nil {
		return "", "", err
	}
	changes, err := b.output(nil, "git", "-C", root, "status", "--porcelain")
	if changes != "" {
		fmt.Fprintf(os.Stderr, "release: uncommitted changes of the checkout are left out of the release of %.12s\n", commit)
	}
	return root, commit, err
}

// clone clones the repository at root and checks out the commit. It omits tags: from tags, Go would derive another
// version of the module than in a clone without tags.
func (b *builder) clone(root string) error {
	if _, err := b.output(nil, "git", "clone", "--quiet", "--no-tags", "--no-checkout", root, b.src); err != nil {
		return err
	}
	if _, err := b.output(nil, "git", "checkout", "--quiet", "--detach", b.commit); err != nil {
		return err
	}
	seconds, err := b.output(nil, "git", "show", "--no-patch", "--format=%ct", b.commit)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	b.when = time.Unix(n, 0).UTC()
	text, err := os.ReadFile(filepath.Join(b.src, "internal/release/release.go"))
	if err != nil {
		return err
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return errors.New("internal/release/release.go does not state the version")
	}
	b.version = string(m[1])
	return nil
}

func (b *builder) path(name string) string { return filepath.Join(b.dir, "built", name) }

func (b *builder) command(t target) error {
	env := []string{"CGO_ENABLED=0", "GOOS=" + t.goos, "GOARCH=" + t.goarch}
	if err := b.goBuild(t.name, "./cmd/hocket", env, "-tags="+t.tags); err != nil {
		return err
	}
	if !t.static {
		return nil
	}
	f, err := elf.Open(b.path(t.name))
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
		return fmt.Errorf("%s is not static", t.name)
	}
	return nil
}

func (b *builder) goBuild(name, pkg string, env []string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", b.path(name)}, flags...)
	if _, err := b.output(env, "go", append(args, pkg)...); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(b.path(name))
	if err != nil {
		return err
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if set["vcs.revision"] != b.commit || set["vcs.modified"] != "false" {
		return fmt.Errorf("%s is of commit %q, modified %s, and not of %s", name, set["vcs.revision"], set["vcs.modified"], b.commit)
	}
	b.built = append(b.built, binary{name, b.path(name), info})
	return nil
}

// wheel packs the library and the native command by python/build_wheel.py.
func (b *builder) wheel(licences file) (file, error) {
	texts, folder := filepath.Join(b.dir, licences.name), filepath.Join(b.dir, wheel)
	if err := os.WriteFile(texts, licences.data, 0o644); err != nil {
		return file{}, err
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return file{}, err
	}
	path, err := b.output(nil, "python3", "-B", "python/build_wheel.py", b.path("libhocket.so"), b.path(native), folder, texts)
	if err != nil {
		return file{}, err
	}
	data, err := os.ReadFile(path)
	return file{filepath.Base(path), data}, err
}

// archive packs files into one folder of a tar file. The owner is root, and times are those of the commit.
func archive(folder string, when time.Time, files []file) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for i, f := range files {
		mode := int64(0o644)
		if i == 0 {
			mode = 0o755 // the program
		}
		h := &tar.Header{Name: folder + "/" + f.name, Mode: mode, Size: int64(len(f.data)), ModTime: when, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// section is a heading of CHANGELOG.md: "## [0.1.0] - 2026-12-01", "## [Unreleased]".
var section = regexp.MustCompile(`(?m)^## \[([^]]*)\].*$`)

// notes returns the section of CHANGELOG.md about the version, or else the one about unreleased changes.
func (b *builder) notes() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(b.src, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	body, own, err := changes(string(text), b.version)
	if err != nil {
		return nil, err
	}
	title := "# hocket " + b.version + "\n"
	if !own {
		title = fmt.Sprintf("# hocket %s, not released: %.12s\n", b.version, b.commit)
	}
	return []byte(title + "\n" + body + "\n"), nil
}

// changes returns the body of a version's section, and true; or the body of the section "Unreleased", and false.
func changes(text, version string) (string, bool, error) {
	at := section.FindAllStringSubmatchIndex(text, -1)
	for _, name := range []string{version, "Unreleased"} {
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			body := strings.TrimSpace(text[m[1]:end])
			if text[m[2]:m[3]] == name && body != "" {
				return body, name == version, nil
			}
		}
	}
	return "", false, fmt.Errorf("CHANGELOG.md has no section [%s] or [Unreleased] with changes", version)
}

// withSums sorts files by name and appends their checksums, as sha256sum -c reads them.
func withSums(files []file) []file {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var sums bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.data), f.name)
	}
	return append(files, file{"SHA256SUMS", sums.Bytes()})
}
