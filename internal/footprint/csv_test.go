package footprint

import (
	"strings"
	"testing"
)

// TestCSVNames checks that reports quote control characters in buffer names.
func TestCSVNames(t *testing.T) {
	in, err := ReadCSV(strings.NewReader("id,lower,upper,size\n\"a\x1b[31m\nb\",0,2,8\nplain,1,3,8\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, _ := in.Pack()
	if len(r.AtPeak) != 2 || r.AtPeak[0].Name != `a\x1b[31m\nb` || r.AtPeak[1].Name != "plain" {
		t.Errorf("%+v", r.AtPeak)
	}
}
