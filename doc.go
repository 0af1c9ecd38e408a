// Package workspace gives each request a zeroed scratch memory and wipes only
// what the request touched.
//
// A [Workspace] has two halves of 256 KB: [Workspace.Client] for the side that
// talks to the client and [Workspace.Backend] for the side that talks to
// backends. Each is an [Arena], a bump allocator that tracks the high-water mark:
// the end of what the request can have written. When the request ends, the
// memory is wiped and reused. In the mode [Watermark] only the part below the
// mark is wiped; in [Shadow], the default, both halves are wiped whole while the
// mark is tracked all the same.
//
// One wrong byte in that accounting would show one request's data to another.
// So about one operation in 20,000 is audited: everything past the mark is read
// and must be zero. What an audit finds is wiped and reported, the block is
// abandoned, and the pool falls back to wiping everything.
//
//	pool, err := workspace.NewPool(workspace.Config{})
//	...
//	http.Handle("/", pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
//		buf := ws.Client().Buffer()
//		fmt.Fprintf(buf, "hello %s\n", r.RemoteAddr)
//		w.Write(buf.Bytes())
//	}))
//
// # What is guaranteed, and what is not
//
// Memory that the library hands out is zero, and no block is reused while the
// library knows of anyone who may use it: the handler, a hold ([Workspace.Hold],
// [Workspace.Go]), a body ([Arena.Body]). On any doubt the block is abandoned to
// the garbage collector, and counted.
//
// The limit: a bare slice that is kept by a goroutine which the library knows
// nothing of can still reach the block after it was reused. No pool in one Go
// process can prevent that. Copy what must outlive the handler (string(b),
// bytes.Clone), or hold the workspace. Decoders that keep references to their
// input make such slices: protobuf with aliasing turned on, json.RawMessage kept
// from a decoder that shares its input, most "zero-copy" parsers.
//
// [TestPool] finds them in tests, and Config.FenceEvery on real traffic.
//
// The guarantee needs Go 1.26 or later: older HTTP/2 servers could read what was
// passed to Write after it had failed (golang/go#58446).
//
// # Bad input
//
// Panics are for misuse that a test should find. They carry an error that wraps
// one of the sentinels below and names the value. After a panic nothing has moved.
//
//	NewPool             a size, mode, share or limit out of range   error, ErrConfig
//	                    memory that this platform can't map or lock error, ErrConfig
//	SetMode, SetCanary  a mode or share out of range                error, ErrConfig
//	AcquireContext      ctx done; closed; MaxLive reached           error: its cause; ErrClosed; ErrLimit
//	Acquire             closed; MaxLive reached                     a workspace that uses the heap; counted
//	Alloc, Copy, ...    n < 0                                       panic, ErrMisuse
//	                    no room                                     heap memory; Overflowed; counted
//	                    no room, and more than MaxSpill             panic, ErrFull
//	                    a reservation is open                       panic, ErrReserved
//	AllocAligned        align not a power of two from 1 to 64       panic, ErrMisuse
//	TryAlloc            all of the above, and no room               error; never the heap
//	Reserve             as Alloc; one is open already               panic, ErrReserved
//	Commit              n < 0 or more than reserved; none is open   panic, ErrMisuse; it stays open
//	Snapshot            a reservation is open                       panic, ErrReserved
//	Rewind              a snapshot of another arena                 panic, ErrMisuse
//	                    one that a Rewind or Reset made invalid     panic, ErrStale
//	Buffer              rewound to before its end, or reset         error or panic, ErrStale
//	                    no room, and more than MaxSpill             error, ErrFull; nothing written
//	MakeSlice, Alloc[T] T holds a pointer; n < 0; n*size overflows  panic, ErrMisuse
//	Reset               a hold is open                              panic, ErrMisuse
//	DebugHandler        a pool is nil                               panic, ErrMisuse
//	ViolationBound, ... a negative count; confidence not in (0,1);
//	                    a probability out of range                  panic, ErrMisuse
//	                    no audits; more violations than audits      1
//	any method          after Release                               panic or error, ErrReleased
//	                    on a zero value, a copy, nil                panic or error, ErrMisuse
//	Release             a second time                               nothing; counted
//	end of a request    a reservation is open                       reported; block abandoned
package workspace
