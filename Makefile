# Each target names a command; nothing here does work of its own.
.PHONY: run test quick long soak fuzz check bench fmt cover update gpu-pack wheel release hooks site

run: ; go run ./cmd/hocket run --compare --strategy chunked --dim T=1024 examples/mlp.hkt
test: ; go test ./...
quick: ; go run -C tools ./quick $(if $(BASE),-base $(BASE))
long: ; seed=$${SEED:-$$(date +%s)} && echo "SEED=$$seed" && go test -timeout 60m -ldflags "-X hocket.example/hocket/internal/longtest.seed=$$seed" $(or $(PKG),./...)
soak:
	go test -race -timeout 0 -run '^TestSoak$$' -v ./internal/acceptance -soak $(or $(TIME),10m)
	go test -race -timeout 0 -run '^TestHangsBeside$$' -v ./internal/device/cuda -soak $(or $(TIME),10m)
	bash .ci/python-race
fuzz: ; git grep '^func Fuzz' '*_test.go' | sed 's/:func \(Fuzz[A-Za-z0-9_]*\).*/ \1/' | while read file name; do \
	go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(or $(TIME),10m) -fuzzminimizetime 20x "./$$(dirname "$$file")" || \
	echo "$$name failed"; done
check: ; HOCKET_CI_ALL=yes bash .ci/run
bench: ; go test -run '^$$' -bench 'Parse|Print|Check|Plan' -benchtime 5x ./ir ./internal/planner ./internal/verify && go test -run '^$$' -bench Lower -benchtime 1x ./internal/lower
fmt: ; gofmt -s -w . && go run ./cmd/hocket fmt -w examples/*.hkt
cover: ; go test -coverprofile cover.out ./... && go tool cover -func cover.out | tail -1
update: ; go test $$(git grep -l hocket/internal/golden '*_test.go' | xargs -n1 dirname | sort -u | sed 's,^,./,') -update
gpu-pack: ; bash .ci/gpu-pack
wheel:
	mkdir -p dist
	CGO_ENABLED=1 go build -trimpath -ldflags='-s -w' -buildmode=c-shared -o dist/libhocket.so ./libhocket
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o dist/hocket ./cmd/hocket
	python3 python/build_wheel.py dist/libhocket.so dist/hocket dist
release: ; go run -C tools ./release -o ../dist -twice -fresh
hooks: ; git config core.hooksPath .githooks
site: ; go run -C tools ./site -out "$(abspath $(or $(OUT),dist/site))"
