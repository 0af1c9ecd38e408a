module github.com/go-workspace/workspace/bench

go 1.26

require github.com/go-workspace/workspace v0.0.0

replace github.com/go-workspace/workspace => ../
