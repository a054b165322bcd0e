// Serve Euler's number over HTTP: a small program worth tracing.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
)

var calls int64

// computeE adds up the series 1/0! + 1/1! + 1/2! + ...
//
//go:noinline
func computeE(iterations int64) float64 {
	sum, term := 1.0, 1.0
	for n := int64(1); n < iterations; n++ {
		term /= float64(n)
		sum += term
	}
	return sum
}

func handleE(w http.ResponseWriter, r *http.Request) {
	iterations, err := strconv.ParseInt(r.FormValue("iterations"), 10, 64)
	if err != nil || iterations < 1 {
		http.Error(w, "iterations must be a positive number", http.StatusBadRequest)
		return
	}
	atomic.AddInt64(&calls, 1)
	fmt.Fprintf(w, "e = %.15f\n", computeE(iterations))
}

func main() {
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())

	http.HandleFunc("/e", handleE)
	go func() { log.Fatal(http.Serve(listener, nil)) }()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	fmt.Println("computeE was called", atomic.LoadInt64(&calls), "times")
}
