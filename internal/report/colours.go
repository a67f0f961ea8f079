package report

import (
	"fmt"
	"html/template"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// tone is a colour in two variants: one for a light background, one for a dark one.
type tone struct{ light, dark string }

// palette holds the colours of operations. No two colours are equal, neighbours in a list differ in hue, and white
// letters are readable on all of them.
var palette = map[trace.Class][]tone{
	trace.Compute: {
		{"#065da0", "#3275b4"}, {"#1c6d26", "#3e8343"}, {"#6c4494", "#825ea9"}, {"#0c6964", "#0f827d"},
		{"#4751a2", "#5e6ab7"}, {"#536304", "#697b1a"}, {"#00657c", "#017e9a"}, {"#823b7d", "#985593"},
		{"#4984bf", "#1c5284"}, {"#539156", "#265e2b"}, {"#906eb5", "#5d407b"}, {"#0a938e", "#075c58"},
		{"#6d7ac2", "#404986"}, {"#788a37", "#495704"}, {"#128eac", "#07596c"}, {"#a5679f", "#6e396a"},
	},
	trace.Comm: {
		{"#b05a02", "#be6517"}, {"#bc4757", "#c55865"}, {"#936e03", "#a1790c"}, {"#b54879", "#bf5884"},
		{"#763b03", "#8b4501"}, {"#852535", "#923945"}, {"#624800", "#735601"}, {"#802651", "#8c395e"},
	},
	trace.Sync: {{"#8a857b", "#6d6a64"}},
	trace.IO:   {{"#6f7f8c", "#52606b"}},
}

// roles are the colours of buffers, by role. Dark letters are readable on the light variants, and light letters on
// the dark ones.
var roles = []struct {
	role, name string
	tone
}{
	{"input", "inputs", tone{"#cbbfe6", "#4a3f6b"}}, {"value", "values", tone{"#9ccbe8", "#1f4f6e"}},
	{"alloc", "allocated by the program", tone{"#f2c078", "#6e4a12"}}, {"output", "results", tone{"#a5d6a0", "#50704f"}},
}

// lines are the colours of curves.
var lines = []tone{{"#c0392b", "#ef6a5b"}, {"#2a78c4", "#6aaef0"}, {"#c98a12", "#e0ac4b"}, {"#7d3c98", "#c08ad8"}}

// rule assigns a colour to a CSS class of drawn elements. property is the CSS property whose value is the colour.
type rule struct {
	class, property string
	tone
}

// rules are the style of all pictures.
var rules = func() []rule {
	var out []rule
	for _, class := range []trace.Class{trace.Compute, trace.Comm, trace.Sync, trace.IO} {
		for i, t := range palette[class] {
			out = append(out, rule{fmt.Sprintf("%s h%d", class, i), "fill", t})
		}
	}
	for _, r := range roles {
		out = append(out, rule{r.role, "fill", r.tone})
	}
	for i, t := range lines {
		out = append(out, rule{fmt.Sprintf("line%d", i), "fill", t},
			rule{fmt.Sprintf("curve line%d", i), "fill:none;stroke-width:2;stroke", t})
	}
	return append(out, rule{"ink", "fill", tone{"#22211f", "#e3e0da"}}, rule{"quiet", "fill", tone{"#6f6b63", "#98938a"}},
		rule{"paper", "fill", tone{"#fffefc", "#1b1d20"}}, rule{"rule", "stroke", tone{"#e2ded6", "#2e3136"}},
		rule{"edge", "stroke", tone{"#fffefc", "#1b1d20"}}, rule{"on", "fill", tone{"#fff", "#fff"}},
		rule{"live", "fill:none;stroke-width:1.5;stroke", tone{"#22211f", "#e3e0da"}},
		rule{"reserved", "stroke-width:1.5;stroke-dasharray:6 3;stroke", tone{"#b3261e", "#ff7b6b"}},
		rule{"bound", "stroke-width:1.5;stroke-dasharray:2 3;stroke", tone{"#12683a", "#63c088"}})
}()

// style returns CSS rules, for light and dark backgrounds, for the classes for which used returns true.
func style(used func(class string) bool) template.CSS {
	var light, dark strings.Builder
	for _, r := range rules {
		if used(r.class) {
			selector := "." + strings.ReplaceAll(r.class, " ", ".")
			fmt.Fprintf(&light, "%s{%s:%s}", selector, r.property, r.light)
			fmt.Fprintf(&dark, "%s{%s:%s}", selector, r.property, r.dark)
		}
	}
	return template.CSS(light.String() + "text{pointer-events:none}@media(prefers-color-scheme:dark){" + dark.String() + "}")
}
