// Hello is the smallest server on a workspace.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/go-workspace/workspace"
)

func main() {
	pool, err := workspace.NewPool(workspace.Config{}) // 256+256 KB, Shadow, audits on
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/", pool.HandlerFunc(func(w http.ResponseWriter, r *http.Request, ws *workspace.Workspace) {
		buf := ws.Client().Buffer() // grows in place, wiped after the request
		fmt.Fprintf(buf, "hello %s\n", r.RemoteAddr)
		w.Write(buf.Bytes())
	}))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
