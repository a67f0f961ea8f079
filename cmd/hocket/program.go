package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/internal/stablehlo"
	"hocket.example/hocket/internal/tensor"
)

// maxProgram is the largest size of a program's text in bytes. The limit is much larger than real programs, but small
// enough that several copies of the text fit into memory.
const maxProgram = 64 << 20

// maxSchedule is the largest size of a collective schedule's text in bytes. Schedules for 64 ranks have 90 MB.
const maxSchedule = 256 << 20

const stdinName = "<stdin>"

// programs reads programs, and converts the output of other tools to programs.
type programs struct {
	session
	stdin  io.Reader
	limits hocket.Limits   // of programs
	source string          // source is the text of the program that was read last
	plan   planFlags       // layouts of the parameters of exported models
	export *exported.Model // the model that was read last, if it is an archive of torch.export
}

// boundProgram reads and parses the program that arg names, like parseProgram, and records its binding.
func (a *programs) boundProgram(ctx context.Context, arg string, b *hocket.Binding) (*hocket.Program, error) {
	p, err := a.parseProgram(ctx, arg, b)
	if err != nil {
		return nil, err
	}
	sig, err := bind(p, *b)
	if err != nil {
		return nil, err
	}
	a.out.note(sig)
	return p, nil
}

// parseProgram reads and parses the program that arg names. parseProgram removes the definitions of a dump's indices
// from b, because they become part of the program.
func (a *programs) parseProgram(ctx context.Context, arg string, b *hocket.Binding) (*hocket.Program, error) {
	if isExport(arg) {
		return a.parseExport(arg, b)
	}
	name, src, err := a.readProgram(ctx, arg)
	if err = cmp.Or(err, a.plan.unset(arg, src)); err != nil {
		return nil, err
	}
	if stablehlo.Is(src) {
		return a.parseStableHLO(name, src, b)
	}
	a.source = src
	var p *hocket.Program
	if nvfuser.IsDump(src) {
		p, b.Defines, err = hocket.Import(name, src, b.Defines)
	} else {
		p, err = hocket.Parse(name, src)
	}
	if err != nil {
		return nil, otherFile(arg, src, err)
	}
	a.warnings = p.Warnings()
	return p.Within(a.limits), nil
}

// funcLine matches the first line of a function in a program.
var funcLine = regexp.MustCompile(`(?m)^\s*func\b`)

// otherFile adds, to the error about a file that is not a program, the kinds of files that are accepted as programs.
func otherFile(arg, src string, err error) error {
	var ds hocket.Diagnostics
	if strings.HasSuffix(arg, ".hkt") || !errors.As(err, &ds) || len(ds) == 0 || funcLine.MatchString(src) ||
		nvfuser.IsDump(src) {
		return err
	}
	switch what := files.What([]byte(src)); {
	case strings.TrimSpace(src) == "":
		return inputf("%s is empty", arg)
	case pickled(src) && arg == "-":
		return inputf("standard input is not a program: it is a pickle, or compressed with gzip").helping(
			"pass a pickle as a file, as in hocket memory SNAPSHOT.pickle; decompress logs first")
	case pickled(src):
		return inputf("%s is not a program: it is a pickle, or compressed with gzip", arg).helping(
			"decompress logs first; use hocket memory for snapshots of torch's allocator, and hocket trace for flight records of torch")
	case strings.HasSuffix(arg, ".json") || strings.HasSuffix(arg, ".xml"):
		return inputf("%s is not a program: collective schedules are for check, run and import", arg).helping(
			"hocket import %s -o FILE.hkt writes a program", arg)
	case what != "" && !pickled(src):
		return inputf("%s is not a program: it is %s", arg, what)
	case strings.HasSuffix(arg, ".py"):
		return inputf("%s is Python code, not a program", arg).helping("hocket reads a module that it exports " +
			"(torch.export.save), and hocket memory a snapshot that it writes (torch.cuda.memory._dump_snapshot)")
	}
	return inputf(`%s is no program, and no line has "%%HostIrContainer {", which begins a dump of nvFuser`, arg).helping(
		"as a program, line %d: %s", ds[0].Pos.Line, ds[0].Message)
}

// pickled reports whether a file begins like a Python pickle, compressed or uncompressed.
func pickled(begins string) bool {
	return len(begins) > 1 && (begins[0] == 0x80 && begins[1] < 6 || begins[:2] == "\x1f\x8b")
}

// readProgram returns the text of a file, or of standard input if arg is "-", and the name that diagnostics use for the
// text.
func (a *programs) readProgram(ctx context.Context, arg string) (name, src string, err error) {
	if arg == "-" {
		src, err = readText(ctx, stdinName, a.stdin)
		return stdinName, src, err
	}
	info, err := os.Stat(arg)
	if err != nil {
		return arg, "", a.unreadable(arg, err)
	}
	// Opening a named pipe would block until another process opens it for writing.
	if !info.Mode().IsRegular() {
		f := inputf("%s is not a file", arg)
		if info.IsDir() {
			return arg, "", f.helping("name a program in it")
		}
		return arg, "", f.helping("give it as standard input: - < %s", arg)
	}
	f, _, err := files.Open(arg)
	if err != nil {
		return arg, "", a.unreadable(arg, err)
	}
	defer f.Close()
	src, err = readText(ctx, arg, f)
	return arg, src, err
}

// unreadable returns the error about a program file that cannot be read, and suggests a file that the user may have
// meant.
func (a *programs) unreadable(arg string, err error) error {
	var call *fs.PathError
	if errors.As(err, &call) {
		err = call.Err // without the name of the system call
	}
	if errors.Is(err, fs.ErrNotExist) {
		f := inputf("file %s does not exist", arg)
		if like := nearFile(arg); like != "" {
			return f.helping("did you mean %s?", like)
		}
		return f.helping("a PROGRAM is a .hkt file, a collective schedule (.json or .xml; check, run and import), a log with a dump of nvFuser, an export of torch's (.pt2), or - for standard input")
	}
	return inputf("%s: %w", arg, err)
}

// nearFile returns a program file that the user may have meant by arg. nearFile searches the directory of arg and the
// examples directory below it, first for a file of the same name and then for a file with a similar name. nearFile
// returns "" if it finds no file.
func nearFile(arg string) string {
	dir, base := filepath.Split(arg)
	byName := map[string]string{}
	var names []string
	for _, dir := range []string{filepath.Join(dir, "examples"), filepath.Clean(dir)} {
		list, _ := os.ReadDir(dir) // a missing directory has no files
		for _, e := range list {
			if filepath.Ext(e.Name()) == ".hkt" {
				byName[e.Name()] = filepath.Join(dir, e.Name())
				names = append(names, e.Name())
			}
		}
	}
	for _, name := range []string{base, base + ".hkt"} {
		if path := byName[name]; path != "" {
			return path
		}
	}
	return byName[nearest(base, names)]
}

// readText reads all of r, up to maxProgram bytes, or up to maxSchedule bytes if the text is a schedule. An interrupt
// can end the command while r blocks.
func readText(ctx context.Context, name string, r io.Reader) (string, error) {
	type read struct {
		text []byte
		err  error
	}
	most := maxProgram
	if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".xml") {
		most = maxSchedule
	}
	done := make(chan read, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
		done <- read{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case got := <-done:
		switch {
		case got.err != nil:
			return "", inputf("%s: %w", name, got.err)
		case len(got.text) > most:
			return "", &failure{code: exitProgram, kind: "limit",
				err: fmt.Errorf("%s: the program is larger than %s", name, tensor.Size(int64(most)))}
		}
		return string(got.text), nil
	}
}
