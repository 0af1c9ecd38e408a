//go:build purego

package workspace

const puregoBuild = true
