package workspace

import "errors"

// Errors of this package. Panics carry errors that wrap them, too.
var (
	// ErrFull says that an allocation fits neither the half nor, where it may
	// go to the heap, the spill limit.
	ErrFull = errors.New("workspace: full")
	// ErrReleased says that the workspace was used after its release.
	ErrReleased = errors.New("workspace: used after release")
	// ErrReserved says that the operation must wait until the open reservation
	// of the half is committed or aborted.
	ErrReserved = errors.New("workspace: a reservation is open")
	// ErrStale says that a Snapshot or Buffer refers to memory which was
	// given up by a Rewind or Reset since.
	ErrStale = errors.New("workspace: stale")
	// ErrMisuse says that an argument or a handle is wrong in another way.
	ErrMisuse = errors.New("workspace: misuse")
	// ErrConfig says that a field of a Config, or a setting made later, is out
	// of range.
	ErrConfig = errors.New("workspace: bad configuration")
	// ErrClosed says that the pool is closed.
	ErrClosed = errors.New("workspace: pool closed")
	// ErrLimit says that Config.MaxLive blocks are alive.
	ErrLimit = errors.New("workspace: too many live blocks")
	// ErrSelfTest says that a fault which Pool.SelfTest planted was not dealt with.
	ErrSelfTest = errors.New("workspace: self-test failed")
)
