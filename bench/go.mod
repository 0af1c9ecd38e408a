module github.com/go-workspace/workspace/bench

go 1.26

require (
	github.com/dgraph-io/ristretto/v2 v2.4.2
	github.com/go-workspace/workspace v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/valyala/bytebufferpool v1.0.0
	golang.org/x/exp v0.0.0-20260611194520-c48552f49976
	golang.org/x/perf v0.0.0-20260709024250-82a0b07e230d
)

require (
	github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/go-workspace/workspace => ../
