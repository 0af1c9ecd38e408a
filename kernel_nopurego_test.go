//go:build !purego

package workspace

const puregoBuild = false
