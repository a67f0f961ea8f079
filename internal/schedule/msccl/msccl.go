// Package msccl reads the algorithms of MSCCL, which are XML files.
package msccl

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/schedule"
)

// File is an algorithm as the XML file describes it.
type File struct {
	XMLName    xml.Name `xml:"algo"`
	Name       string   `xml:"name,attr"`
	Proto      string   `xml:"proto,attr"`
	Channels   *int     `xml:"nchannels,attr"`
	Chunks     int      `xml:"nchunksperloop,attr"`
	Ranks      int      `xml:"ngpus,attr"`
	Coll       string   `xml:"coll,attr"`
	InPlace    int      `xml:"inplace,attr"`
	OutOfPlace *int     `xml:"outofplace,attr"`
	MinBytes   *int64   `xml:"minBytes,attr"`
	MaxBytes   *int64   `xml:"maxBytes,attr"`
	// RedOp is the reduction in files for versions of MSCCL in which the caller did not choose it.
	RedOp string `xml:"redop,attr,omitempty"`
	GPUs  []GPU  `xml:"gpu"`
	// Slots is the number of messages that a connection can hold before a send waits. The value 0 selects the number of
	// the protocol: 4 for Simple and 8 for the other protocols.
	Slots int `xml:"-"`
	// Commented reports that the text had comments, which Encode does not write.
	Commented bool `xml:"-"`
}

// GPU describes the part of an algorithm that one rank executes.
type GPU struct {
	ID      int  `xml:"id,attr"`
	Input   int  `xml:"i_chunks,attr"`
	Output  int  `xml:"o_chunks,attr"`
	Scratch int  `xml:"s_chunks,attr"`
	TBs     []TB `xml:"tb"`
}

// TB describes a thread block and the peers with which it communicates.
type TB struct {
	ID    int    `xml:"id,attr"`
	Send  int    `xml:"send,attr"`
	Recv  int    `xml:"recv,attr"`
	Chan  int    `xml:"chan,attr"`
	Steps []Step `xml:"step"`
}

// Step is an operation of a thread block.
type Step struct {
	S      int    `xml:"s,attr"`
	Type   string `xml:"type,attr"`
	SrcBuf string `xml:"srcbuf,attr"`
	SrcOff int    `xml:"srcoff,attr"`
	DstBuf string `xml:"dstbuf,attr"`
	DstOff int    `xml:"dstoff,attr"`
	Count  int    `xml:"cnt,attr"`
	DepID  int    `xml:"depid,attr"`
	Dep    int    `xml:"deps,attr"`
	HasDep int    `xml:"hasdep,attr"`
}

// These constants limit the size of the algorithms that Parse accepts.
const (
	maxRanks  = 1024
	maxChunks = 1 << 20
	// maxChannels is the largest number of channels of NCCL in MSCCL's runtime.
	maxChannels = 32
)

// IsAlgorithm reports whether text looks like an algorithm in XML.
func IsAlgorithm(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "<")
}

// Parse reads an algorithm. Errors name the line or the step in which they occur.
func Parse(text []byte) (*File, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("algorithm of MSCCL, line 1: the text is empty")
	}
	d := &known{Decoder: xml.NewDecoder(bytes.NewReader(text))}
	f := &File{}
	if err := xml.NewTokenDecoder(d).Decode(f); err != nil {
		line := d.line(err)
		var unknown unknownError
		if errors.As(err, &unknown) {
			return nil, fmt.Errorf("line %d: %w", line, unknown)
		}
		var number *strconv.NumError
		if errors.As(err, &number) {
			return nil, fmt.Errorf("line %d: %.40q is no whole number", line, number.Num)
		}
		return nil, fmt.Errorf("line %d: no algorithm of MSCCL: %w", line, err)
	}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		line := d.line(err)
		if err != nil {
			return nil, fmt.Errorf("line %d, after the algorithm's end: %w", line, err)
		}
		if _, ok := token.(xml.StartElement); ok {
			return nil, fmt.Errorf("line %d: a second element after the algorithm's end", line)
		}
	}
	f.Commented = bytes.Contains(text, []byte("<!--"))
	if f.RedOp != "" && f.RedOp != "sum" && f.RedOp != "nop" {
		return nil, fmt.Errorf("redop is %.40q: only sum is supported", f.RedOp)
	}
	if len(f.GPUs) == 0 || len(f.GPUs) > maxRanks {
		return nil, fmt.Errorf("the algorithm has %d gpus: want 1 to %d", len(f.GPUs), maxRanks)
	}
	if f.Ranks != len(f.GPUs) {
		return nil, fmt.Errorf("ngpus is %d, and the algorithm has %d gpus", f.Ranks, len(f.GPUs))
	}
	return f, nil
}

// known is a reader of XML that returns an unknownError for an element, attribute, value or text that an algorithm does
// not have.
type known struct {
	*xml.Decoder
	channels int // the value of nchannels; 0 if the algorithm lacks it
}

type unknownError struct {
	text string
	back int // number of lines between the error and the end of the XML token that contains it
}

func (e unknownError) Error() string { return e.text }

func unknownf(format string, args ...any) error {
	return unknownError{text: fmt.Sprintf(format, args...)}
}

// line returns the line of an error that Token or the decoder has returned.
func (k *known) line(err error) int {
	line, _ := k.InputPos()
	var unknown unknownError
	if errors.As(err, &unknown) {
		line -= unknown.back
	}
	return line
}

// attributes lists the attributes of each element.
var attributes = map[string][]string{"algo": attributesOf[File](), "gpu": attributesOf[GPU](), "tb": attributesOf[TB](),
	"step": attributesOf[Step]()}

func attributesOf[T any]() (names []string) {
	for f := range reflect.TypeFor[T]().Fields() {
		if name, ok := strings.CutSuffix(strings.TrimSuffix(f.Tag.Get("xml"), ",omitempty"), ",attr"); ok {
			names = append(names, name)
		}
	}
	return names
}

// Token returns the next token, which makes known a reader of tokens.
func (k *known) Token() (xml.Token, error) {
	t, err := k.Decoder.Token()
	if text, ok := t.(xml.CharData); ok && err == nil {
		if text := bytes.TrimLeft(text, " \t\r\n"); len(text) > 0 {
			return nil, unknownError{fmt.Sprintf("the text %.40q is in no attribute: an algorithm consists of elements only",
				bytes.TrimSpace(text)), bytes.Count(text, []byte("\n"))}
		}
	}
	e, ok := t.(xml.StartElement)
	if err != nil || !ok {
		return t, err
	}
	names, ok := attributes[e.Name.Local]
	if !ok {
		return nil, unknownf("unknown element <%.40s>: the elements are algo, gpu, tb and step", e.Name.Local)
	}
	for _, a := range e.Attr {
		if !slices.Contains(names, a.Name.Local) {
			return nil, unknownf("unknown attribute %.40s of <%s>: the attributes are %s", a.Name.Local,
				e.Name.Local, strings.Join(names, ", "))
		}
	}
	if name := absent(e); name != "" {
		return nil, unknownf("<%s> lacks the attribute %s", e.Name.Local, name)
	}
	if text := k.impossible(e); text != "" {
		return nil, unknownf("<%s> %s", e.Name.Local, text)
	}
	return t, nil
}

// impossible returns the reason why the value of an attribute is impossible, or "". The decoder reports values that are
// not numbers.
func (k *known) impossible(e xml.StartElement) string {
	has := map[string]int{}
	for i, a := range e.Attr {
		if slices.ContainsFunc(e.Attr[:i], func(b xml.Attr) bool { return b.Name.Local == a.Name.Local }) {
			return fmt.Sprintf("has the attribute %s twice", a.Name.Local)
		}
		n, err := strconv.Atoi(strings.TrimSpace(a.Value))
		if err != nil {
			continue
		}
		has[a.Name.Local] = n
		switch a.Name.Local {
		case "inplace", "outofplace", "hasdep":
			if n != 0 && n != 1 {
				return fmt.Sprintf("has %s=%q, want 0 or 1", a.Name.Local, a.Value)
			}
		case "nchannels":
			if k.channels = n; n < 1 || n > maxChannels {
				return fmt.Sprintf("has nchannels=%q, want 1 to %d", a.Value, maxChannels)
			}
		}
	}
	if most, ok := has["maxBytes"]; ok && has["minBytes"] > most {
		return fmt.Sprintf("has minBytes=\"%d\", which is more than maxBytes, %d", has["minBytes"], most)
	}
	n, ok := has["chan"]
	if most := cmp.Or(k.channels, maxChannels) - 1; ok && (has["send"] != -1 || has["recv"] != -1) &&
		(n < 0 || n > most) {
		return fmt.Sprintf("has chan=\"%d\", but the channels are 0 to %d (see nchannels)", n, most)
	}
	return ""
}

// absent returns the first attribute that an element needs and lacks, or "". Otherwise an absent number would count as
// 0: as rank 0, or as a dependence on block 0.
func absent(e xml.StartElement) string {
	has := map[string]string{}
	for _, a := range e.Attr {
		has[a.Name.Local] = a.Value
	}
	var need []string
	switch e.Name.Local {
	case "algo":
		need = []string{"coll", "ngpus"}
		if coll := has["coll"]; coll != "test" && coll != "custom" {
			need = append(need, "inplace")
		}
	case "gpu":
		need = []string{"id", "i_chunks", "o_chunks", "s_chunks"}
	case "tb":
		need = []string{"id", "send", "recv"}
		if has["send"] != "-1" || has["recv"] != "-1" {
			need = append(need, "chan")
		}
	case "step":
		need = []string{"type", "depid", "hasdep"}
		if has["depid"] != "-1" {
			need = append(need, "deps")
		}
		if has["srcbuf"] != "" {
			need = append(need, "srcoff")
		}
		if has["dstbuf"] != "" {
			need = append(need, "dstoff")
		}
		if has["type"] != "nop" {
			need = append(need, "cnt")
		}
	}
	for _, name := range need {
		if _, ok := has[name]; !ok {
			return name
		}
	}
	return ""
}

// Encode writes an algorithm as XML.
func (f *File) Encode() ([]byte, error) {
	text, err := xml.MarshalIndent(f, "", "  ")
	return append(bytes.ReplaceAll(text, []byte("></step>"), []byte("/>")), '\n'), err
}

// Clone returns a copy of f whose steps can be changed without changing the steps of f.
func (f *File) Clone() *File {
	out := *f
	out.GPUs = slices.Clone(f.GPUs)
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.TBs = slices.Clone(g.TBs)
		for j := range g.TBs {
			g.TBs[j].Steps = slices.Clone(g.TBs[j].Steps)
		}
	}
	return &out
}

// Step returns the step at a place, or nil if there is none.
func (f *File) Step(at schedule.Place) *Step {
	if at.Rank < 0 || at.Rank >= len(f.GPUs) || at.Block < 0 || at.Block >= len(f.GPUs[at.Rank].TBs) {
		return nil
	}
	tb := &f.GPUs[at.Rank].TBs[at.Block]
	if at.Index < 0 || at.Index >= len(tb.Steps) {
		return nil
	}
	return &tb.Steps[at.Index]
}

// collective returns the collective that the algorithm must compute, or an error for an unknown name. For alltonext it
// also returns the shift: rank r receives the input of rank r+shift.
func (f *File) collective() (schedule.Collective, int, error) {
	switch f.Coll {
	case "allreduce":
		return schedule.AllReduce, 0, nil
	case "allgather":
		return schedule.AllGather, 0, nil
	case "reducescatter", "reduce_scatter":
		return schedule.ReduceScatter, 0, nil
	case "alltoall":
		return schedule.AllToAll, 0, nil
	case "broadcast":
		return schedule.Broadcast, 0, nil
	}
	if strings.HasPrefix(f.Name, "alltonext") {
		if strings.Contains(f.Name, "backward") {
			return schedule.ToNext, 1, nil
		}
		return schedule.ToNext, -1, nil
	}
	if f.Coll != "custom" && f.Coll != "test" {
		return schedule.Undefined, 0, fmt.Errorf("unknown coll %.40q: the known ones are allgather, allreduce, alltoall, "+
			"broadcast, custom, reducescatter and test; custom and test have no defined result", f.Coll)
	}
	return schedule.Undefined, 0, nil
}
