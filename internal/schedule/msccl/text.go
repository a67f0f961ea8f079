package msccl

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"slices"
)

// source is the tag of a step in the text from which it was read. It ends after ">".
type source struct{ begin, end int64 }

// locate records the text of an algorithm and the tags of its steps.
func (f *File) locate(text []byte) {
	d := xml.NewDecoder(bytes.NewReader(text))
	var tags []source
	for {
		begin := d.InputOffset()
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			return // a declared encoding, for example: Encode then writes a new text
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "step" {
			tags = append(tags, source{begin, d.InputOffset()})
		}
	}
	n := 0
	for r := range f.GPUs {
		for t := range f.GPUs[r].TBs {
			n += len(f.GPUs[r].TBs[t].Steps)
		}
	}
	if n != len(tags) {
		return
	}
	for r := range f.GPUs {
		for t := range f.GPUs[r].TBs {
			for i := range f.GPUs[r].TBs[t].Steps {
				f.GPUs[r].TBs[t].Steps[i].from, tags = tags[0], tags[1:]
			}
		}
	}
	f.text = text
}

// edited returns the text from which f was read, with only those tags of steps changed or added that differ. It returns
// nil if f was not read from a text, or if the edited text would not be read as f.
func (f *File) edited() []byte {
	if f.text == nil {
		return nil
	}
	var out []byte
	at := int64(0)
	for r := range f.GPUs {
		for t := range f.GPUs[r].TBs {
			var before []byte // new steps, which come before the next step of the text
			for _, s := range f.GPUs[r].TBs[t].Steps {
				if s.from.end == 0 {
					before = append(before, s.tag()...)
					before = append(before, '\n')
					continue
				}
				out = append(out, f.text[at:s.from.begin]...)
				if before != nil {
					indent := out[bytes.LastIndexByte(out, '\n')+1:]
					if len(bytes.TrimLeft(indent, " \t")) > 0 {
						indent = nil
					}
					indent = slices.Clone(indent)
					out = append(out, bytes.ReplaceAll(before, []byte("\n"), append([]byte("\n"), indent...))...)
					before = nil
				}
				out = append(out, s.retag(f.text[s.from.begin:s.from.end])...)
				at = s.from.end
			}
			if before != nil {
				return nil
			}
		}
	}
	out = append(out, f.text[at:]...)
	back, err := Parse(out)
	if err != nil {
		return nil
	}
	want, errWant := f.marshal()
	got, errGot := back.marshal()
	if errWant != nil || errGot != nil || !bytes.Equal(want, got) {
		return nil
	}
	return out
}

// tag returns an empty element for a step.
func (s *Step) tag() []byte {
	text, _ := xml.Marshal(struct {
		XMLName xml.Name `xml:"step"`
		Step
	}{Step: *s}) // a struct of numbers and strings, which is always encoded
	return bytes.ReplaceAll(text, []byte("></step>"), []byte("/>"))
}

// retag returns the tag of a step with the values of s. Attributes that have them already keep their text.
func (s *Step) retag(tag []byte) []byte {
	var was Step
	whole := tag
	if !bytes.HasSuffix(tag, []byte("/>")) {
		whole = append(slices.Clone(tag), "</step>"...)
	}
	if xml.Unmarshal(whole, &was) != nil {
		return tag
	}
	for _, a := range []struct {
		name     string
		was, now int
	}{{"s", was.S, s.S}, {"depid", was.DepID, s.DepID}, {"deps", was.Dep, s.Dep}, {"hasdep", was.HasDep, s.HasDep}} {
		value := fmt.Sprintf(` %s="%d"`, a.name, a.now)
		old := regexp.MustCompile(`\s` + a.name + `\s*=\s*("[^"]*"|'[^']*')`).FindIndex(tag)
		if a.was == a.now && (old != nil || a.name != "deps" || s.DepID < 0) { // a dependence needs deps
			continue
		}
		if old == nil {
			end := len(bytes.TrimRight(tag, "/> \t\r\n"))
			old = []int{end, end}
		}
		tag = slices.Concat(tag[:old[0]], []byte(value), tag[old[1]:])
	}
	return tag
}
