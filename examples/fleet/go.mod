module github.com/go-workspace/workspace/examples/fleet

go 1.26

require (
	github.com/go-workspace/workspace v0.0.0
	github.com/go-workspace/workspace/contrib/prometheus v0.0.0
)

replace (
	github.com/go-workspace/workspace => ../../
	github.com/go-workspace/workspace/contrib/prometheus => ../../contrib/prometheus
)
