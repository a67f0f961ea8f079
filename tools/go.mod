module hocket.example/hocket/tools

go 1.26.0

replace hocket.example/hocket => ../

require (
	github.com/yuin/goldmark v1.8.7
	hocket.example/hocket v0.0.0-00010101000000-000000000000
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/sys v0.50.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)
