package workspace

// zeroGeneric is zeroAsm in plain Go: the fallback, and what the assembly is
// compared with. No platform without assembly of ours has anything better.
func zeroGeneric(b []byte) { clear(b) }
