module hocket.example/hocket/tools

go 1.26.0

replace hocket.example/hocket => ../

require hocket.example/hocket v0.0.0-00010101000000-000000000000

require github.com/google/go-cmp v0.7.0 // indirect
