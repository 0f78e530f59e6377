// Command pod is all that runs in the pods of the tests' cluster: it waits, serves, or
// asks again and again. It is also the container that holds a pod's namespaces.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err := http.ListenAndServe(os.Args[2], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case len(os.Args) == 3 && os.Args[1] == "get":
		// Each request is a connection of its own.
		client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		for range time.Tick(50 * time.Millisecond) {
			answer, err := client.Get(os.Args[2])
			if err != nil {
				fmt.Println(err)
				continue
			}
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	<-asked
}
